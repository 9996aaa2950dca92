"""Combinations of defences that are refused: false guarantees, defences that undo each other, or missing inputs."""

import itertools
from collections.abc import Callable, Sequence

from defenses.base import Defense, EdgeTrainingDefense, SmashedDefense, TrainingDefense, UpdateDefense
from defenses.fitting import FittedDefense


def why_not_together(defenses: Sequence[Defense]) -> str:
    """Reason why these defences cannot form a chain in this order; "" if they can."""
    rules: tuple[Callable[[Sequence[Defense]], str], ...] = (
        _bounds,
        _claims,
        _features,
        _trainings,
        _updates,
        _statistics,
    )
    return next(filter(None, (rule(defenses) for rule in rules)), "")


def _bounds(defenses: Sequence[Defense]) -> str:
    mixing = [d for d in defenses if d.mixes_examples]
    bounded = [d for d in defenses if d.bounds_examples]
    if bounded and mixing:
        return f"{mixing[0]} mixes several examples, so the per-example bound of {bounded[0]} no longer holds; drop one of the two"
    return ""


def _claims(defenses: Sequence[Defense]) -> str:
    claiming = [d for d in defenses if d.neighbours]
    if len(claiming) > 1 and any(d.bounds_client for d in claiming):
        return (
            f"{claiming[0]} and {claiming[1]} each claim an epsilon, and one number cannot state both; keep one, or audit them in "
            "pipelines of their own"
        )
    return ""


def _features(defenses: Sequence[Defense]) -> str:
    edge = [d for d in defenses if isinstance(d, EdgeTrainingDefense)]
    if len(edge) > 1:
        return f"{edge[0]} and {edge[1]} both train the client half; keep one"
    tokens = [d for d in defenses if isinstance(d, SmashedDefense) and d.before_blocks]
    if len(tokens) > 1 and any(d.widening > 1 for d in tokens):
        return f"{tokens[0]} and {tokens[1]} cannot follow each other; keep one"
    maps = [d for d in defenses if isinstance(d, FittedDefense)]
    if tokens and maps:
        return f"{tokens[0]} works on a transformer's tokens (B, N, D), {maps[0]} on maps (B, C, H, W); drop one of the two"
    return ""


def _private(defenses: Sequence[Defense]) -> list[int]:
    """Positions of the defences that need each example's own gradient."""
    return [i for i, d in enumerate(defenses) if isinstance(d, TrainingDefense) and d.needs_group_norm]


def _trainings(defenses: Sequence[Defense]) -> str:
    optimizers = [d for d in defenses if isinstance(d, TrainingDefense) and d.replaces_optimizer]
    if len(optimizers) > 1:
        return f"{optimizers[0]} and {optimizers[1]} both replace the optimizer; keep one"
    for at in _private(defenses)[:1]:
        if later := [d for d in defenses[at + 1 :] if isinstance(d, TrainingDefense)]:
            return (
                f"{later[0]} comes after {defenses[at]} and could undo its sampling or noise; put the private one last"
            )
    return ""


def _updates(defenses: Sequence[Defense]) -> str:
    updates = [d for d in defenses if isinstance(d, UpdateDefense)]
    steps, private = [d for d in updates if d.per == "step"], _private(defenses)
    if steps and private:
        return (
            f"{steps[0]} would act on the gradient of a batch, which {defenses[private[0]]} replaces by its own clipped and "
            "noised one; set per='update'"
        )
    for before, after in itertools.pairwise(updates):
        if before.per == "update" and after.per == "step":
            return (
                f"{after} acts in every local step, and so before {before}, which acts on the finished update; write it first, or "
                "give both the same per"
            )
    return ""


def _statistics(defenses: Sequence[Defense]) -> str:
    updates = [d for d in defenses if isinstance(d, UpdateDefense)]
    keeping = [d for d in updates if d.keeps_statistics]
    if len(keeping) > 1:
        return f"{keeping[0]} stands twice; write it once"
    bounding = [d for d in defenses if d.bounds_examples or d.bounds_client]
    if keeping and bounding:
        return (
            f"under {keeping[0]} a client reports a loss and an accuracy that follow from its training images, and the bound of "
            f"{bounding[0]} does not cover these numbers; drop one of the two"
        )
    for before, after in itertools.pairwise(updates):
        if before.keeps_statistics:
            return (
                f"{after} comes after {before} and could send the running averages that {before} keeps; write {before} as the "
                "last update defence"
            )
    return ""
