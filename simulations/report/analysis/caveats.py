"""What a reader must know of a defence's results, each a short clause; and which attacks know the defence."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from attacks.metrics.metric import CELLS, FAMILIES, IMAGES, LEAST_IMAGES, MEMBERSHIP
from simulations.report.analysis.message import Message, Verdict, judge
from simulations.report.studies.cell import FOUND, Cell
from simulations.report.studies.intervals import LEVEL, by_chance
from simulations.report.studies.messages import MessageSize
from simulations.report.studies.plain import plain_words
from simulations.report.studies.score import PARTLY_FAILED
from simulations.report.studies.stages import names_of
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import KEPT_STATISTICS, Strength

UNTESTED = "untested against an adaptive attacker"


@dataclass(frozen=True)
class DefenseFacts:
    """What the configuration says of a defence: names of attacks, caveats, and clauses on settings in pixels."""

    adaptive_attacks: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    at_size: tuple[str, ...] = ()


def is_adaptive(cell: Cell, known: DefenseFacts) -> bool:
    """Whether the attack was made against its cell's defence, whose configuration is ``known``."""
    return any(_runs(name, cell) for name in known.adaptive_attacks)


def adapted(cells: Sequence[Cell], known: DefenseFacts) -> bool:
    """Whether an attack that was made against the defence has a score of images or rows among them."""
    return any(is_adaptive(cell, known) and cell.has_result for cell in cells)


def _runs(name: str, cell: Cell) -> bool:
    """Whether the attack, or a stage of its chain, is the named one, with settings under which it knows the defence."""
    return cell.card.knows_defenses and name in names_of(cell.attack)


def adaptive_caveats(cells: Sequence[Cell], known: DefenseFacts, *, running: bool = False) -> list[str]:
    """Caveats on the adaptive attacks on one defence: those that did not run, or still wait, and what none attacked."""
    able = [cell for cell in cells if cell.has_result]
    by_name = {name: [cell for cell in able if _runs(name, cell)] for name in known.adaptive_attacks}
    if not by_name:
        return [UNTESTED]
    # Where an attack ran with settings that keep it from knowing the defence, the one that knows it is missing.
    missing = [
        f"{name} that knows the defence" if any(name in names_of(cell.attack) for cell in able) else name
        for name, own in by_name.items()
        if not own
    ]
    if len(missing) == len(by_name):
        did = "did not run" if not running else "waits" if len(missing) == 1 else "wait"
        return [f"{UNTESTED}: {', '.join(missing)} {did}"]
    did = "wait" if running else "did not run"
    caveats = [f"adaptive attacks that {did}: {', '.join(missing)}"] if missing else []
    ran = [family for family in FAMILIES if any(family.scored(cell.scores) for own in by_name.values() for cell in own)]
    if IMAGES not in ran and CELLS not in ran:
        on = " and ".join(family.attacked for family in ran)
        caveats.append(f"no adaptive attack on images {'has run yet' if running else 'ran'}, only on {on}")
    return caveats


def untested(cells: Sequence[Cell], others: Sequence[Cell], known: DefenseFacts) -> list[str]:
    """Caveat that adaptive attacks on images ran on a defence's ``others`` alone, not on the messages that ``cells`` are of."""
    alone = adapted(others, known) and not adapted(cells, known)
    return ["no adaptive attack on images ran on these messages"] if alone else []


def once_per_update(cell: Cell) -> list[str]:
    """Caveat that the attacked probe was protected more strongly than one step of the training whose accuracy is shown."""
    if cell.card.defense_strength not in (Strength.ONE_STEP, Strength.FEW_STEPS):
        return []
    steps = "one step" if cell.rung.steps == 1 else f"{cell.rung.steps} steps"
    return [
        f"not the strength of the accuracy beside it: the defence acts once per update, on a probe of {steps} as strongly as "
        "on all steps of a round; compare training updates, or choose per='step' where the defence offers it"
    ]


def out_of_reach(cell: Cell, strongest: Cell | None, rows: Sequence[Row]) -> list[str]:
    """Caveat that the ``strongest`` attack on such messages without a defence does not apply to those of a cell under one."""
    unable = {
        row.attack
        for row in rows
        if row.status == "not-applicable"
        and (row.card.observation, MessageSize.of(row.card)) == (cell.observation, cell.rung)
    }
    if strongest is None or strongest.attack == cell.attack or strongest.attack not in unable:
        return []
    return [f"{strongest.attack}, the strongest attack without a defence, does not apply to these messages"]


INITIAL_AVERAGES = (
    "tests of membership read models with the initial running averages of BatchNorm, because clients keep theirs: a membership AUC "
    "near 0.5 shows nothing"
)
"""Caveat on membership where a defence keeps running averages at the client and no test found members."""


def message_caveats(
    message: Message,
    judged: Sequence[Message],
    known: DefenseFacts,
    without: Mapping[str, Callable[[Cell], Cell | None]],
    plain: Cell | None,
    rows: Sequence[Row],
) -> Iterator[str]:
    """Caveats on one kind and size of message, among all that were ``judged`` of a defence.

    ``without`` gives cells without one client, and ``plain`` is the strongest attack on such messages without a defence.
    """
    yield from _doubts(message)
    yield from once_per_update(message.cell)
    if message.cell.defense:
        yield from untested(
            message.cells, [cell for other in judged if other is not message for cell in other.cells], known
        )
        yield from out_of_reach(message.cell, plain, rows)
    yield from _hangs_on(message, without)


def defense_caveats(defense: str, cells: Sequence[Cell], known: DefenseFacts, *, running: bool) -> Iterator[str]:
    """Caveats whatever was attacked: the adaptive attacks that a defence lacks, and what its configuration says."""
    if defense:
        yield from adaptive_caveats(cells, known, running=running)
    yield from known.caveats


def membership_caveats(cell: Cell | None) -> Iterator[str]:
    """Why a test of membership that found no members may say little."""
    kept = cell is not None and cell.card.batch_norm_statistics == KEPT_STATISTICS
    if cell and kept and MEMBERSHIP.decides not in cell.leaking:
        yield INITIAL_AVERAGES


def _doubts(message: Message) -> Iterator[str]:
    """Why the score of the strongest attack may say little."""
    cell, unknown = message.cell, message.verdict is Verdict.UNKNOWN
    plain = plain_words(cell.card)
    if cell.status == "not-validated" and unknown:
        if cell.defense == "":
            yield f"positive control failed: this attack does not break the {plain.run}"
        elif plain.alone:
            yield f"not validated: there is no run without {plain.acting} beside this one"
        else:
            yield f"not validated: this attack did not break the {plain.run} either, so its failure shows nothing"
    looked = cell.scores.get(FOUND)
    if looked and looked.n and by_chance(looked.n, looked.n, 1.0 if cell.chance is None else cell.chance) > LEVEL:
        yield "could not be judged: there are too few other images to look for the true ones among"
    elif looked and looked.attacked < LEAST_IMAGES and unknown:
        yield f"too few images for a verdict: {looked.attacked} were attacked, and {LEAST_IMAGES} are needed"
    if cell.status == PARTLY_FAILED:
        yield "partly failed: some seeds have no score, and the mean leaves them out"
    yield from cell.card.caveats


def _hangs_on(message: Message, without: Mapping[str, Callable[[Cell], Cell | None]]) -> Iterator[str]:
    """The clients without one of which the verdict would be another."""
    changed = [
        f"without {name} it is {other.verdict}"
        for name, of in without.items()
        for other in judge(list(filter(None, map(of, message.cells))))
        if other.verdict is not message.verdict
    ]
    if changed:
        yield f"this verdict ({message.verdict}) hangs on one client: {'; '.join(changed)}"
