"""A measured search from its settings to its result; whatever its folder holds already is not done again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import optuna

from simulations.run_folder.folder_lock import LOCK, LockedFolder, require_new
from simulations.run_folder.run_directory import write_atomically
from simulations.search.measured.names import ABOUT, is_measured
from simulations.search.measured.pools import HELD_OUT, SEARCH, digest_of, write_pools
from simulations.search.measured.proposals import Proposal, candidates, controls, references
from simulations.search.measured.results import READABLE, HybridResult, attack_works, outcomes
from simulations.search.measured.settings import Measured
from simulations.search.measured.trials import (
    CHOICE,
    CONFIRMATION,
    SCALE,
    Judged,
    enqueue,
    judged,
    open_study,
    plan,
    planned,
    queued,
    retry,
)
from simulations.search.measured.verdict import Comparison, compare, nominees, undecided
from simulations.search.measured.working_processes import run_all
from simulations.settings.errors import ConfigError, undamaged
from strategies.audit.whole_files import PARTIAL

LEFTOVERS = {LOCK, ABOUT + PARTIAL}
TOGETHER = 5
"""Random hybrids that are judged before it is looked whether a recommendation is still possible."""
Show = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and of how much."""


class WeakAttackError(ConfigError):
    """An attack that does not work without a defence; to resume the search would repeat this result."""


@dataclass(frozen=True)
class Found:
    """What a measured search found.

    Attributes:
        search: Its settings.
        chosen_among: All hybrids on the images of the search.
        confirmed: Texts of the hybrids that were to be judged on held-out images.
        held_out: These, no defence, the papers' hybrids and random ones, on held-out images.
        failed: Trainings or attacks that failed there.
        comparisons: The confirmed hybrids beside the random ones.
        skipped: Random hybrids that were not judged, as no recommendation was possible any more (the setting ``curtail``).
        seconds: Of all judgements, one after the other.
    """

    search: Measured
    chosen_among: tuple[Judged, ...]
    confirmed: tuple[str, ...]
    held_out: tuple[HybridResult, ...]
    failed: tuple[Judged, ...]
    comparisons: tuple[Comparison, ...]
    skipped: int = 0
    seconds: float = 0.0

    @property
    def validated(self) -> bool:
        """Whether the attack works on held-out images without a defence."""
        return attack_works(self.held_out)

    @property
    def recommended(self) -> list[Comparison]:
        """Confirmed hybrids that are better than random ones beyond chance, fewest recovered images first."""
        found = [one for one in self.comparisons if one.recommended and self.validated]
        return sorted(found, key=lambda one: one.outcome.share.mean)


@dataclass
class MeasuredFolder(LockedFolder):
    """The folder of one measured search.

    measured.json   settings, versions and a digest of the images
    pools.py        its two disjoint parts of the data, which runs load
    trials.log      Optuna's journal of all trials
    runs            of hybrids that are judged at this moment
    policies.json   the recommended hybrid, if there is one
    search.html     the page

    Attributes:
        path: The folder.
        search: The settings.
        resumed: Whether the search was begun before; what failed is then tried again.
        notice: What differs from the begin of the search and does not prevent its continuation; "" where nothing does.
    """

    search: Measured
    resumed: bool = False
    notice: str = ""

    @classmethod
    def create(cls, path: Path, search: Measured) -> MeasuredFolder:
        """Begin a search; ``ConfigError`` when the folder cannot be one, or holds anything."""
        require_new(path, f"--out {path}", f"go on with --resume {path}", LEFTOVERS)
        folder = cls(path, search)
        folder.take_lock("another search")
        folder.write_about()
        return folder

    @classmethod
    def resume(cls, path: Path, changed: Mapping[str, Any]) -> MeasuredFolder:
        """Continue a search, with other values of ``CHANGEABLE`` settings.

        Raises:
            ConfigError: When there is none, its file is damaged, another process still writes to it, or its data are gone or
                others.
        """
        if not is_measured(path):
            raise ConfigError(f"--resume {path} holds no measured search (no {ABOUT})")
        with undamaged(path / ABOUT, "--resume", "start a new search in another folder"):
            about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
            search, begun = Measured.from_mapping(about["search"] | changed), dict(about["versions"])
        folder = cls(path, search, resumed=True, notice=_differences(begun, _versions()))
        folder.take_lock("another search")
        try:
            search.check()
            if about.get("data", found := digest_of(search.pools())) != found:
                raise ConfigError(
                    f"the images of dataset {search.dataset!r} are not those that this search began with; put these back, or start "
                    "a new search with another --out: its results must not be mixed"
                )
        except ConfigError as error:
            folder.close()
            raise ConfigError(f"--resume {path}: {error}") from error
        return folder

    def write_about(self) -> None:
        """Write settings, versions, and the digest of the images."""
        about = {"search": self.search.to_mapping(), "versions": _versions(), "data": digest_of(self.search.pools())}
        write_atomically(self.path / ABOUT, json.dumps(about, indent=1))


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("fedveil", "torch", "optuna")}


def _differences(begun: Mapping[str, str], now: Mapping[str, str]) -> str:
    """A notice of packages whose version is not that with which a search began."""
    others = [f"{name} {begun[name]} (now {now[name]})" for name in now if begun.get(name, now[name]) != now[name]]
    return f"this search began with {', '.join(others)}: its results come from both versions" if others else ""


def run_search(folder: MeasuredFolder, show: Show) -> Found:
    """Do what is left of a search.

    Raises:
        WeakAttackError: When the attack recovers fewer than half of the images without a defence.
        ConfigError: When no defence cannot be trained or attacked, or processes were lost.
    """
    search, path = folder.search, folder.path
    data = write_pools(path, search.pools())
    confirmation = open_study(path, CONFIRMATION, search)
    if folder.resumed:
        # Once hybrids are chosen, others that were retried could change the front, but no longer the choice.
        for name in (CONFIRMATION,) if planned(confirmation) else (SCALE, CHOICE):
            retry(open_study(path, name, search))
    without, *others = references(search)
    scale = open_study(path, SCALE, search)
    plan(scale, [[without]], [search.seed])
    enqueue(scale, [without])
    run_all(path, SCALE, search, data[SEARCH], lambda done, of: show("no defence judged", done, of))
    _require_scale(judged(scale, search))
    choice = open_study(path, CHOICE, search)
    if not planned(choice):
        plan(choice, [[*others, *candidates(search, data[SEARCH], show)]], [search.seed])
    enqueue(choice, planned(choice)[0])
    run_all(path, CHOICE, search, data[SEARCH], lambda done, of: show("hybrids judged", done, of))
    every = _chosen_among(path, search)
    if not planned(confirmation):
        _plan_confirmation(confirmation, search, data[SEARCH], nominees(search, every))
    for at, stage in enumerate(planned(confirmation)):
        known = judged(confirmation, search)
        ends = at and search.curtail and not undecided(search, known, _confirmed(confirmation))
        if ends and not queued(confirmation, stage):  # a killed search may have begun these
            break
        enqueue(confirmation, stage)
        run_all(
            path, CONFIRMATION, search, data[HELD_OUT], lambda done, of: show("judged on held-out images", done, of)
        )
    return read_found(folder)


def _plan_confirmation(study: optuna.Study, search: Measured, dataset: str, chosen: Sequence[Judged]) -> None:
    """The chosen hybrids beside no defence and those of the papers first, then random ones, ``TOGETHER`` at a time."""
    confirmed = [Proposal(one.hybrid, one.origin) for one in chosen]
    first = [*references(search), *(one for one in confirmed if one not in references(search))]
    random = controls(search, dataset, {one.hybrid for one in first})
    study.set_user_attr("confirmed", [one.hybrid for one in confirmed])
    batches = [random[at : at + TOGETHER] for at in range(0, len(random), TOGETHER)]
    plan(study, [first, *batches], [search.seed + 1 + at for at in range(search.seeds)])


def _chosen_among(path: Path, search: Measured) -> list[Judged]:
    """No defence and all hybrids on the images of the search."""
    hybrids = judged(open_study(path, CHOICE, search), search)
    return [*judged(open_study(path, SCALE, search), search), *(one for one in hybrids if one.hybrid)]


def _confirmed(study: optuna.Study) -> tuple[str, ...]:
    return tuple(study.user_attrs.get("confirmed", ()))


def read_found(folder: MeasuredFolder) -> Found:
    """Read what a search has found so far."""
    search = folder.search
    every = _chosen_among(folder.path, search)
    study = open_study(folder.path, CONFIRMATION, search)
    held_out, confirmed = judged(study, search), _confirmed(study)
    failed = tuple(one for one in held_out if one.failure)
    comparisons = tuple(compare(search, held_out, confirmed))
    known = {one.hybrid for one in held_out}
    skipped = sum(one.hybrid not in known for stage in planned(study) for one in stage)
    seconds = sum(rung.seconds for one in (*every, *held_out) for rung in one.rungs)
    return Found(search, tuple(every), confirmed, tuple(outcomes(held_out)), failed, comparisons, skipped, seconds)


def _require_scale(every: list[Judged]) -> None:
    """Raise ``ConfigError`` unless no defence was judged and the attack works on it, before any hybrid is judged."""
    none = next((one for one in every if not one.hybrid), None)
    if none is None or not none.complete:
        why = none.failure if none else "it was not judged"
        raise ConfigError(f"without a defence there is no accuracy and no attack to compare hybrids with: {why}")
    if (one := none.last).share < READABLE:
        raise WeakAttackError(
            f"without a defence the attack recovers {one.recovered} of {one.attacked} images, fewer than half, so that its "
            "failures say nothing of hybrids; set attack, attack-rounds or model"
        )
