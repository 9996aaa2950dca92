"""Searches of gradient inversion beside those of inverting gradients and of ATS: schedule, whole searches, configurations.

All in double precision: the sign of an entry that is nearly zero would otherwise depend on the order of a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from released_checkouts import Importer
from released_costs import CARD, CLASSES, COST_NAMES, SHAPE, Case, cases, mean_std
from released_rows import Row, close, equal
from torch import Tensor

from attacks.gradient import presets
from attacks.gradient.costs import COSTS
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.inversion_loop import first_order, step_decay_stages
from attacks.gradient.lbfgs import walk
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem
from attacks.normalisation import normalise

ITERATIONS = 17
"""Of the attacks: the steps of the released schedule and of ours fall together for this number."""
DIVISORS = (2.667, 1.6, 1.142)
"""Of the number of iterations in the released schedule."""
PAPER = {"iterations": 300, "restarts": 16}
"""Of the paper's L-BFGS attacks, which ATS's configuration ``zhu`` has otherwise."""


def schedule(modules: Importer) -> Iterator[Row]:
    """Where the step size falls: the released code divides by rounded numbers."""
    for iterations in (600, 4800, 24000):
        ours = [stage.iterations for stage in step_decay_stages([_nowhere] * 4, 0.1, iterations)]
        at = torch.tensor(ours).cumsum(0)[:3]
        theirs = torch.tensor(_milestones(modules, iterations))
        exact = [iterations * eighths // 8 for eighths in (3, 5, 7)]
        rounded = [int(iterations // divisor) for divisor in DIVISORS]
        yield Row(
            f"iterations after which the step size falls, of {iterations}", "3 falls",
            f"ours {at.tolist()}, released {theirs.tolist()}", bool((at == theirs).all()),
            "The released code divides by 2.667, 1.6 and 1.142 and rounds down; both comments and papers say 3/8, 5/8 and 7/8.",
            explained=at.tolist() == exact and theirs.tolist() == rounded,
        )  # fmt: skip


def _nowhere(unknowns: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return unknowns.sum(1), unknowns


def _milestones(modules: Importer, iterations: int) -> list[int]:
    """Those that the released attack gives its scheduler; the attack is stopped after one iteration."""
    algorithms, seen = modules("inversefed.reconstruction_algorithms"), []
    case = cases(1)[0]
    settings = dict(algorithms.DEFAULT_CONFIG) | {"max_iterations": iterations}
    machine = algorithms.GradientReconstructor(case.model, mean_std(), settings, 1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR
    try:
        torch.optim.lr_scheduler.MultiStepLR = lambda *args, **kw: (
            seen.extend(kw["milestones"]),
            scheduler(*args, **kw),
        )[1]
        machine.reconstruct(case.gradient, case.label, SHAPE, dryrun=True)
    finally:
        torch.optim.lr_scheduler.MultiStepLR = scheduler
    return [int(one) for one in seen]


def _sgd_rate(modules: Importer) -> float:
    """The learning rate that the released attack gives SGD, whatever rate a configuration names."""
    algorithms, seen, made = modules("inversefed.reconstruction_algorithms"), list[float](), torch.optim.SGD
    case = cases(1)[0]
    settings = dict(algorithms.DEFAULT_CONFIG) | {"optim": "sgd", "max_iterations": 1}
    machine = algorithms.GradientReconstructor(case.model, mean_std(), settings, 1)

    def recorded(*args: Any, **given: Any) -> torch.optim.SGD:
        seen.append(given["lr"])
        return made(*args, **given)

    with mock.patch.object(torch.optim, "SGD", recorded):
        machine.reconstruct(case.gradient, case.label, SHAPE, dryrun=True)
    return seen[0]


def attacks(modules: Importer) -> Iterator[Row]:
    """Whole searches from the same start: the iterate that each ends at."""
    algorithms = modules("inversefed.reconstruction_algorithms")
    yield from (
        _search(
            algorithms, f"{optimizer} + {cost}, signed, boxed, total variation, step decay", optimizer, cost, True, True
        )
        for optimizer, cost in (("adam", "cosine"), ("adam", "l2"), ("adam", "l1"), ("sgd", "cosine"))
    )
    yield _search(algorithms, "adam + cosine, neither signed nor boxed", "adam", "cosine", False, False)


def lbfgs(modules: Importer) -> Iterator[Row]:
    """The two attacks by L-BFGS, whose step size only ATS's copy sets."""
    algorithms = modules("inversefed.reconstruction_algorithms")
    yield _search(algorithms, "L-BFGS + cosine, signed, boxed", "lbfgs", "cosine", True, True, 3)
    yield _search(algorithms, "L-BFGS + l2, neither signed nor boxed", "lbfgs", "l2", False, False, 3)


def _search(
    algorithms: Any, what: str, optimizer: str, cost: str, signed: bool, boxed: bool, iterations: int = ITERATIONS
) -> Row:
    ours, theirs, moved = [], [], []
    rate = {"adam": 0.1, "sgd": 0.01, "lbfgs": 1e-4}[optimizer]
    for case in cases(4):
        low, high = (normalise(torch.full_like(case.image, level), CARD) for level in (0.0, 1.0))
        # The released code evaluates its first iterate before it is clamped: both start inside the box.
        start = torch.randn(case.image.shape, generator=torch.Generator().manual_seed(0)).double().clamp(low, high)
        machine = algorithms.GradientReconstructor(case.model, mean_std(), {
            "signed": signed, "boxed": boxed, "cost_fn": COST_NAMES[cost], "indices": "def", "weights": "equal", "lr": rate,
            "optim": {"lbfgs": "LBFGS"}.get(optimizer, optimizer), "restarts": 1, "max_iterations": iterations,
            "total_variation": 1e-3, "init": "randn", "filter": "none", "lr_decay": optimizer != "lbfgs", "scoring_choice": "loss",
        }, 1)  # fmt: skip
        machine._init_images = lambda _, start=start: start[None].clone()
        theirs.append(machine.reconstruct(case.gradient, case.label, SHAPE)[0])
        matching = _matching(case, cost)
        bounds = (
            (low.flatten(), high.flatten())
            if boxed
            else (torch.full_like(low.flatten(), -torch.inf), torch.full_like(low.flatten(), torch.inf))
        )
        ours.append(_last(matching, start, bounds, optimizer, signed, rate, iterations).view_as(case.image))
        moved.append(float((theirs[-1] - start).abs().mean()))
    mine, their = torch.cat(ours), torch.cat(theirs)
    note = f"The released search moved pixels by {sum(moved) / len(moved):.2g} on average."
    count = f"{iterations} steps of up to 20 evaluations" if optimizer == "lbfgs" else f"{iterations} iterations"
    return close(
        f"attack: {what}",
        f"cnn; 4 models and images, {count}",
        mine,
        their,
        min(moved) / 1000,
        note=note,
        unit=" per pixel, normalised",
    )


def _matching(case: Case, cost: str) -> GradientMatching:
    names = [name for name, _ in case.model.named_parameters()]
    targets = {name: value[None] for name, value in zip(names, case.gradient, strict=True)}
    return GradientMatching(
        MatchingProblem(case.model, (1, *SHAPE), CLASSES, targets, case.label[None], COSTS[cost], 1e-3)
    )


def _last(
    matching: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], start: Tensor, bounds: tuple[Tensor, Tensor], optimizer: str,
    signed: bool, rate: float, iterations: int,
) -> Tensor:  # fmt: skip
    """The iterate after all iterations: the point that is evaluated next, where one more follows."""
    points = list[Tensor]()

    def recorded(unknowns: Tensor, trials: Tensor) -> tuple[Tensor, Tensor]:
        points.append(unknowns[0].clone())
        return matching(unknowns, trials)

    row = start.flatten()[None]
    if optimizer == "lbfgs":
        after = int(walk(recorded, row, bounds, iterations, rate, signed).evaluations[0])
        points.clear()
        walk(recorded, row, bounds, iterations + 1, rate, signed)
        return points[after]
    stages = step_decay_stages([recorded] * 4, rate, iterations)
    stages[-1] = type(stages[-1])(recorded, stages[-1].learning_rate, stages[-1].iterations + 1)
    first_order(stages, row, bounds, optimizer, signed)
    return points[iterations]


PRESETS: dict[str, type[GradientInversion]] = {
    "inversed": presets.AdamCosine,
    "inversed-adam-L1": presets.AdamL1,
    "inversed-adam-L2": presets.AdamL2,
    "inversed-sgd-sim": presets.SGDCosine,
    "inversed-LBFGS-sim": presets.LBFGSCosine,
    "zhu": presets.LBFGSL2,
}
"""ATS's name of a configuration -> ours."""


def configurations(modules: Importer) -> Iterator[Row]:
    """The settings of the six attacks of ATS."""
    create, sgd_rate = modules("benchmark.comm").create_config, _sgd_rate(modules)
    for name, preset in PRESETS.items():
        theirs, ours = create(SimpleNamespace(optim=name)), preset()
        pairs = {
            "cost": (COST_NAMES[ours.cost], theirs["cost_fn"]),
            "optimizer": (ours.optimizer, theirs["optim"].lower()),
            "signed": (ours.signed, theirs["signed"]),
            "boxed": (ours.boxed, theirs["boxed"]),
            "learning rate": (ours.learning_rate, sgd_rate if theirs["optim"] == "sgd" else theirs["lr"]),
            "iterations": (ours.iterations, theirs["max_iterations"]),
            "restarts": (ours.restarts, theirs["restarts"]),
            "total variation": (ours.total_variation, theirs["total_variation"]),
            "init": (ours.init, theirs["init"]),
            "step decay": (ours.step_decay, theirs["lr_decay"]),
        }
        apart = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
        told = "; ".join(f"{key} {one} and {other}" for key, (one, other) in apart.items())
        papers = preset is presets.LBFGSL2 and {key: one for key, (one, _) in apart.items()} == PAPER
        reason = f"The paper has 300 steps and 16 restarts (ours and released: {told})." if papers else ""
        what = f"settings of {preset.__name__} and {name}"
        yield equal(what, ", ".join(pairs), pairs.values(), reason, "" if papers else told, explained=papers)
