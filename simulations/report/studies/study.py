"""Rows grouped for the report: studies, which hold cells."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from attacks.metrics.costs import ATTACK
from attacks.metrics.guesses import MEMBERSHIP_AUC
from attacks.metrics.metric import IMAGES
from attacks.metrics.names import Role
from attacks.metrics.training import EPSILON_ALL_CUTS, TEST_ACCURACY
from simulations.report.studies.baselines import Nulls, leaks, names_members
from simulations.report.studies.cell import FOUND, RESULTS, SEEN, Cell
from simulations.report.studies.control import Control, class_attacks, controls, decides, significance, validate
from simulations.report.studies.messages import each_image
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import Score, merge
from simulations.run_folder.rows import NAMES, Row
from strategies.audit.threat_card import OWN_SECRET, ThreatCard

JUDGED = ("not-validated", "under-powered")
"""Statuses that ``validate`` gives, and gives again."""
DECIDING = frozenset((*RESULTS, FOUND, SEEN, ATTACK.of()))
"""Scores that a verdict and its status follow from."""
Place = tuple[str, Role, str, int, ThreatCard]
"""Defence, role, attack, round, and what the threat cards of a cell's rows share."""


@dataclass(frozen=True)
class Study:
    """All rows that share experiment, scenario, data set, model and cut; they differ by seed, defence, attack and round.

    Attributes:
        name: (experiment, scenario, dataset, model, cut).
        rows: Validated rows; where a model is served at several cuts, those of its training, and of what was
            spent at all of them, are in the study of each.
        pipelines: Pipeline texts in the order of the configuration, "" first.
        active: Rows of an active server, another adversary than that of ``rows``.
        aggregates: Rows about sums over clients; ``rows``, and so headlines and conclusions, are of single updates alone.
    """

    name: tuple[str, str, str, str, str]
    rows: tuple[Row, ...]
    pipelines: tuple[str, ...]
    active: tuple[Row, ...] = ()
    aggregates: tuple[Row, ...] = ()

    @property
    def cut(self) -> str:
        """The model's cut; "" for models without one."""
        return self.name[-1]

    @property
    def words(self) -> tuple[str, ...]:
        """The study's names in words, the experiment's first."""
        return tuple(filter(None, (*self.name[:-1], self.cut and f"cut at {self.cut}")))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """All seeds, sorted."""
        return tuple(sorted({row.seed for row in self.rows}))

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells: pipelines in order, then rounds, then attacks in order of appearance."""
        return self._attacked(self.rows)

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """Rows of every adversary."""
        return (*self.rows, *self.active, *self.aggregates)

    @property
    def apart(self) -> tuple[str, ...]:
        """Further adversaries of the run in words; each has its own section."""
        further = {"by an active server": self.active_cells, "as sums over clients": self.aggregate_cells}
        return tuple(words for words, cells in further.items() if cells)

    @cached_property
    def active_cells(self) -> tuple[Cell, ...]:
        """Cells of an active server's attacks, in the same order."""
        return self._attacked(self.active)

    @cached_property
    def aggregate_cells(self) -> tuple[Cell, ...]:
        """Cells of attacks on sums over clients, in the same order."""
        return self._attacked(self.aggregates)

    def _attacked(self, rows: Sequence[Row]) -> tuple[Cell, ...]:
        """Cells of the attacks among rows of one adversary, each against the baselines and controls among these rows."""
        return self.compared([row for row in rows if row.is_attack], rows)

    def compared(self, rows: Sequence[Row], beside: Sequence[Row]) -> tuple[Cell, ...]:
        """Cells of rows; those ``beside`` hold what they are compared with."""
        against = Nulls(beside), Nulls(beside, scales=True)
        cells = [cell_of(place, of, *against) for place, of in grouped(rows, place_of).items()]
        attacks = {text: at for at, text in enumerate(dict.fromkeys(row.attack for row in rows))}
        pipelines = {text: at for at, text in enumerate(self.pipelines)}
        return tuple(sorted(cells, key=lambda c: (pipelines[c.defense], c.round, attacks[c.attack])))

    @cached_property
    def attacks(self) -> tuple[str, ...]:
        """Attack texts in order of appearance, without null baselines."""
        return tuple(dict.fromkeys(row.attack for row in self.rows if row.is_attack))

    @cached_property
    def upper_bounds(self) -> dict[str, str]:
        """Upper bounds among the attacks: text -> the information that no server has."""
        return {cell.attack: cell.card.upper_bound for cell in self.cells if cell.is_upper_bound}

    @cached_property
    def controls(self) -> tuple[Control, ...]:
        """Verdicts of the positive control."""
        return tuple(controls(self.rows))

    @cached_property
    def class_attacks(self) -> frozenset[str]:
        """Attacks that draw class representatives."""
        return class_attacks(self.rows)

    @cached_property
    def feasible(self) -> tuple[Cell, ...]:
        """Cells of attacks that a server can make: all but upper bounds."""
        return tuple(cell for cell in self.cells if not cell.is_upper_bound)

    def cells_of(self, defense: str) -> tuple[Cell, ...]:
        """``feasible`` ones under one defence."""
        return tuple(cell for cell in self.feasible if cell.defense == defense)

    def series(self, defense: str, metric: str, reference: str = "") -> dict[int, Score]:
        """Round -> score of a number about training."""
        rounds = grouped(self.utility.get((defense, metric, reference), ()), lambda row: row.round)
        return {at: merge(rounds[at]) for at in sorted(rounds)}

    def over_rounds(self, defense: str, metric: str) -> float | None:
        """A number about training, mean over rounds; None where no round has it."""
        values = [score.mean for score in self.series(defense, metric).values() if score.mean is not None]
        return sum(values) / len(values) if values else None

    @cached_property
    def final_rounds(self) -> frozenset[int]:
        """The round number in rows about the final model."""
        return frozenset(row.round for row in self.rows if row.final and row.cut == self.cut)

    def complete_round(self, defense: str) -> int | None:
        """The last round with a test accuracy of this defence in every seed."""
        tested = [
            row
            for reference in ("original", "transformed")
            for row in self.utility.get((defense, TEST_ACCURACY.name, reference), ())
            if row.value is not None
        ]
        return min(
            (max(row.round for row in of) for of in grouped(tested, lambda row: row.seed).values()), default=None
        )

    @cached_property
    def utility(self) -> dict[tuple[str, str, str], list[Row]]:
        """(defence, metric, reference) -> rows that are about no attack."""
        of_training = (row for row in self.rows if row.role is Role.TRAINING)
        return grouped(of_training, lambda row: (row.defense, row.metric, row.reference))


def place_of(row: Row) -> Place:
    """The place of a row's cell."""
    return row.defense, row.role, row.attack, row.round, row.card.lasting


def cell_of(place: Place, rows: Sequence[Row], nulls: Nulls, scales: Nulls | None) -> Cell:
    """The cell of rows of one place; with None for scales without these, intervals and images, which no verdict follows from."""
    groups = grouped(rows, lambda row: (row.metric, row.reference))
    looked = {of: groups.get(of, []) for of in (FOUND, SEEN)}
    tested = {row.seed: row.card.members for row in groups.get(MEMBERSHIP_AUC.of(), ()) if row.card.members is not None}
    return Cell(
        *place,
        {key: merge(of, ends=scales is not None) for key, of in groups.items()},
        null_scores={key: mean_each(nulls.of(row) for row in of) for key, of in groups.items()},
        leaking=frozenset(
            (r.metric, r.reference)
            for r in rows
            if not r.card.no_verdict and (names_members(r) or (decides(r) and leaks(r, nulls.best(r))))
        ),
        chances={of: significance(own) for of, own in looked.items()},
        each={of: each_image(own) for of, own in looked.items()} if scales else {},
        # A node keeps to itself which images a round used: equal places may be other images.
        comparable=all(row.card.randomness != OWN_SECRET for row in rows),
        chance=max((row.card.chance for row in looked[FOUND] if row.card.chance is not None), default=None),
        members=sum(tested.values()) if tested else None,
        final=any(row.final for row in rows),
        scales=mean_each(scales.of(row) for row in groups.get(IMAGES.decides, [])) if scales else {},
        clients=min((count for row in rows if (count := row.of_clients.clients) is not None), default=None),
    )


def mean_each(mappings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each name's values."""
    values = grouped((item for mapping in mappings for item in mapping.items()), lambda item: item[0])
    return {name: math.fsum(value for _, value in of) / len(of) for name, of in values.items()}


def split(rows: Iterable[Row], order: Sequence[str]) -> list[Study]:
    """Studies in order of appearance; ``order`` gives the configuration's pipelines."""
    every = list(rows)
    names = dict.fromkeys(row.study for row in every)
    served = {name[:-1] for name in names if name[-1]}
    return [_study(name, every, order) for name in names if name[-1] or name[:-1] not in served]


def _study(name: tuple[str, str, str, str, str], every: Sequence[Row], order: Sequence[str]) -> Study:
    def belongs(row: Row) -> bool:
        # The whole model is trained once for all of its cuts, and what was spent at all of them is no cut's own.
        common = not row.cut or row.metric == EPSILON_ALL_CUTS.name
        return row.study == name or (common and bool(name[-1]) and row.study[:-1] == name[:-1])

    of = [row for row in every if belongs(row)]
    present = dict.fromkeys(row.defense for row in of)
    pipelines = sorted(dict.fromkeys(text for text in (*order, *present) if text in present), key=bool)
    own = tuple(row for row in of if not row.card.server and row.card.clients is None)
    active = tuple(row for row in of if row.card.server)
    return Study(name, own, tuple(pipelines), active, tuple(row for row in of if row.card.clients is not None))


def left_out(study: Study) -> dict[str, Callable[[Cell], Cell | None]]:
    """Name of a client -> a cell of the study -> the same without the client, with ``DECIDING`` scores alone."""
    rows = [replace(row, status="ok") if row.status in JUDGED else row for row in study.rows]
    clients = dict.fromkeys((row.seed, client) for row in rows for client in row.of_clients.without_client)
    if not clients:
        return {}
    several = len({seed for seed, _ in clients}) > 1
    # Controls are of one seed, but for those of class representatives, and of defences of what the server sees itself.
    whole = bool(study.class_attacks) or any(row.card.undefended for row in rows)
    by_seed, every = grouped(rows, lambda row: row.seed), validate(rows)
    places, nulls = _places(every), Nulls(every)
    found = dict[str, Callable[[Cell], Cell | None]]()
    for seed, client in clients:
        among = [_without(row, seed, client) for row in (rows if whole else by_seed[seed])]
        name = f"client {client}{f' of seed {seed}' if several else ''}"
        found[name] = partial(_same_cell, {**places, **_places(validate(among))}, Nulls(among).over(nulls))
    return found


def _places(rows: Iterable[Row]) -> dict[int, dict[Place, list[Row]]]:
    """Seed -> place of a cell -> its rows of ``DECIDING`` scores."""
    able = (row for row in rows if row.is_attack and (row.metric, row.reference) in DECIDING)
    return {seed: grouped(of, place_of) for seed, of in grouped(able, lambda row: row.seed).items()}


def _same_cell(places: Mapping[int, Mapping[Place, Sequence[Row]]], nulls: Nulls, cell: Cell) -> Cell | None:
    """The cell of the same attack on the same messages."""
    place = cell.defense, cell.role, cell.attack, cell.round, cell.card
    rows = [row for of in places.values() for row in of.get(place, ())]
    return cell_of(place, rows, nulls, None) if rows else None


def _without(row: Row, seed: int, client: str) -> Row:
    changed = row.of_clients.without_client.get(client, {}) if row.seed == seed else {}
    if not changed:
        return row
    known = {name: getattr(row, name) for name in NAMES if name != "extra"}
    return Row.from_json({**known, **row.extra, **changed, "card": row.card.to_json() | changed.get("card", {})})
