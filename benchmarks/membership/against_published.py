"""Compare the rules of LiRA and RMIA with published implementations on the same confidences of trained models.

A pool of 2,000 digits has 16 shadow models, in pairs that share it out between them, so that each record is outside of exactly 8.
One target model trains on a random half. 2,000 other digits are the population, outside of all 16. The attacks use the 8 models
without a record of the pool. All 16 judge the population, of which Privacy Meter takes the 8 highest probabilities. The published
code runs from checkouts that the caller names:

- LeakPro (github.com/aidotse/LeakPro), ``AttackLiRA.run_attack`` and ``AttackRMIA._run_attack``;
- Privacy Meter (github.com/privacytrustlab/ml_privacy_meter), ``run_rmia``.

    python benchmarks/membership/against_published.py --leakpro LeakPro --privacy-meter ml_privacy_meter --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for a script of the folder above

from studies import table
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.membership.loss_threshold import confidence_of, predict
from attacks.membership.rules import GAMMA, SURE, GaussianRule, PairwiseRule, estimate_prior, log_ratio, pooled_variance
from attacks.scoring.intervals import Estimate
from attacks.scoring.roc import auc, auc_interval, tpr_at_fpr
from clients.data.datasets import load_dataset
from clients.data.images import to_float

DIGITS = "mnist-5k"
STEPS, RATE, HIDDEN = 100, 0.1, 64
RANDOM_LABELS = 0.2
"""Share of labels that are drawn at random, so that a model can only remember them."""
RATES = (0.01, 0.001)
"""False positive rates of the tables."""
POOL, PAIRS = 2000, 8
CORRECTION, FACTOR = 0.3, 1.0
"""Privacy Meter has no other factor than 1."""
NEAR, ROUNDING = 0.01, 1e-9
"""Largest difference of an AUC or a rate that counts as agreement, and that of two multiples of 0.001 by rounding."""
LEAKPRO = "leakpro.attacks.mia_attacks"
TIED, HIGHEST = "RMIA, ties kept", "RMIA, ties kept, population by the 8 highest of 16"
"""This package's rule without its order of ties, and also with the choice of probabilities that Privacy Meter makes."""
VARIANCES = (("each", "individual_carlini"), ("fixed", "fixed"))
"""Estimates of the variance: name here, name in LeakPro."""


def seeded(seed: int) -> torch.Generator:
    """A new stream."""
    return torch.Generator().manual_seed(seed)


def shuffled(seed: int) -> tuple[Tensor, Tensor]:
    """The 4,000 training digits (N, 1, 28, 28) in [0, 1] in random order, and their classes with ``RANDOM_LABELS``."""
    data, generator = load_dataset(DIGITS).train, seeded(seed)
    order = torch.randperm(len(data), generator=generator)
    labels = data.labels[order].long()
    wrong = torch.rand(len(labels), generator=generator) < RANDOM_LABELS
    drawn = torch.randint(10, labels.shape, generator=generator)
    return to_float(data.images[order]), torch.where(wrong, drawn, labels)


def normalised(images: Tensor) -> Tensor:
    """As the models see them."""
    data = load_dataset(DIGITS)
    return (images - data.mean[0]) / data.std[0]


def perceptron(seed: int) -> nn.Module:
    """``HIDDEN`` hidden units."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


def overfit(model: nn.Module, images: Tensor, classes: Tensor) -> nn.Module:
    """Full-batch SGD with momentum 0.9, in place."""
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(normalised(images)), classes).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def cells(members: Tensor, others: Tensor) -> tuple[str, ...]:
    """AUC and the true positive rates at ``RATES``, each with its 95 % interval; "-" where so few others have no such rate."""
    found = [Estimate(auc(members, others), *auc_interval(members, others))]
    shown = [f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})" for one in found]
    for rate in RATES:
        one = tpr_at_fpr(members, others, rate)
        enough = len(others) * rate >= 1
        shown.append(f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})" if enough else "-")
    return tuple(shown)


@dataclass(frozen=True)
class Judgements:
    """Confidences in the true class: of the pool (N), and of the population (Z).

    Attributes:
        own: (N,) under the target model.
        references: (S, N) under the shadow models.
        outside: (S, N), bool: the shadow model was not trained on the record.
        members: (N,), bool: the target model was trained on the record.
        own_population: (Z,) under the target model.
        population: (S, Z) under the shadow models.
    """

    own: Tensor
    references: Tensor
    outside: Tensor
    members: Tensor
    own_population: Tensor
    population: Tensor


def judgements(seed: int) -> Judgements:
    """Train one target model and the shadow models, and let them judge pool and population."""
    images, classes = shuffled(seed)
    generator = seeded(1000 + seed)
    outside = []
    for _ in range(PAIRS):
        half = torch.randperm(POOL, generator=generator) < POOL // 2
        outside += [half, ~half]
    members = torch.randperm(POOL, generator=generator) < POOL // 2

    def trained(inside: Tensor, number: int) -> nn.Module:
        return overfit(perceptron(number), images[:POOL][inside], classes[:POOL][inside])

    def judged(model: nn.Module, part: slice) -> Tensor:
        return confidence_of(predict(model, normalised(images[part])), classes[part])

    target = trained(members, 10_000 * seed)
    shadows = [trained(~one, 10_000 * seed + at) for at, one in enumerate(outside, 1)]
    pool, rest = slice(POOL), slice(POOL, None)
    return Judgements(
        judged(target, pool),
        torch.stack([judged(one, pool) for one in shadows]),
        torch.stack(outside),
        members,
        judged(target, rest),
        torch.stack([judged(one, rest) for one in shadows]),
    )


def ours(found: Judgements) -> dict[str, Tensor]:
    """Scores (N,) by the rules of this package."""
    given = found.own, found.references, found.outside
    spread = pooled_variance(found.references, found.outside)
    ratios = log_ratio(found.own_population, found.population, CORRECTION)
    highest = log_ratio(found.own_population, found.population.sort(0, descending=True).values[:PAIRS], CORRECTION)
    return {
        "LiRA, variance='each'": GaussianRule(0, 0, 1, 0)(*given),
        "LiRA, variance='fixed'": GaussianRule(0, 0, spread, SURE)(*given),
        "LiRA, variance='shrunk'": GaussianRule(*estimate_prior(found.references, found.outside))(*given),
        "RMIA": pairwise(ratios)(*given),
        TIED: dominated(ratios, given),
        HIGHEST: dominated(highest, given),
    }


def pairwise(ratios: Tensor) -> PairwiseRule:
    """The rule with ``FACTOR`` in place of ``GAMMA``."""
    return PairwiseRule(ratios + math.log(FACTOR / GAMMA), CORRECTION)


def dominated(ratios: Tensor, given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Numbers (N,) of population records that each record dominates, as published code scores records."""
    scores: Tensor = pairwise(ratios)(*given)
    return torch.floor(scores * len(ratios) + 1e-9)


def load_leakpro(folder: Path) -> tuple[Any, Any]:
    """``AttackLiRA`` and ``AttackRMIA``; stand-ins replace the framework around them, which takes no part in the scores."""
    sys.path.insert(0, str(folder))
    for name in ("leakpro", "leakpro.attacks", LEAKPRO, "leakpro.attacks.utils"):
        package = ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = package
    for name in ("attacks.utils.shadow_model_handler", "input_handler.mia_handler", "signals.signal",
                 "signals.signal_extractor", "utils.logger"):  # fmt: skip
        sys.modules[f"leakpro.{name}"] = MagicMock()
    sys.modules[f"{LEAKPRO}.abstract_mia"] = SimpleNamespace(AbstractMIA=object)  # type: ignore[assignment]
    sys.modules["leakpro.reporting.mia_result"] = SimpleNamespace(MIAResult=MagicMock())  # type: ignore[assignment]
    sys.modules["leakpro.utils.import_helper"] = SimpleNamespace(Self=Any)  # type: ignore[assignment]
    found = [importlib.import_module(f"{LEAKPRO}.{name}") for name in ("lira", "rmia")]
    return found[0].AttackLiRA, found[1].AttackRMIA


def by_leakpro(found: Judgements, folder: Path) -> dict[str, Tensor]:
    """Scores by LeakPro's classes, which get the confidences that they would compute themselves."""
    lira, rmia = load_leakpro(folder)
    where = {"in_members": np.flatnonzero(found.members), "out_members": np.flatnonzero(~found.members)}
    scores = {}
    for name, kind in VARIANCES:
        attack = object.__new__(lira)
        everything = {
            "shadow_models_logits": found.references.numpy(), "target_logits": found.own.numpy(), "online": False,
            "out_indices": found.outside.numpy(), "num_shadow_models": 2 * PAIRS, "audit_dataset": where,
            "configs": MagicMock(), "fix_var_threshold": 2, "var_calculation": kind,
        }  # fmt: skip
        vars(attack).update(everything)
        if kind == "fixed":  # of all records: the threshold that the class never reaches
            attack.fix_var_threshold, attack.var_calculation = 10**6, "carlini"
        attack.run_attack()
        scores[f"LiRA, variance='{name}'"] = _joined(attack, found.members)
    return scores | dict.fromkeys(("RMIA", TIED, HIGHEST), _leakpro_rmia(rmia, found, where))


def _leakpro_rmia(rmia: Any, found: Judgements, where: dict[str, Any]) -> Tensor:
    attack, mean = object.__new__(rmia), found.population.sigmoid().mean(0)
    ratios = found.own_population.sigmoid() / ((1 + CORRECTION) / 2 * mean + (1 - CORRECTION) / 2)
    everything = {
        # Two classes with the confidence as the difference of their logits have the same probability of the true one.
        "logits_theta": _two_classes(found.own), "logits_shadow_models": [_two_classes(one) for one in found.references],
        "ground_truth_indices": np.zeros(POOL, dtype=int), "out_indices": found.outside.numpy(), "temperature": 1.0,
        "online": False, "offline_a": CORRECTION, "epsilon": 1e-6, "gamma": FACTOR, "ratio_z": ratios.numpy(),
        "audit_dataset": where,
    }  # fmt: skip
    vars(attack).update(everything)
    attack._run_attack()
    return _joined(attack, found.members)


def _two_classes(confidences: Tensor) -> np.ndarray:
    return np.stack([confidences.numpy(), np.zeros(len(confidences))], 1)


def _joined(attack: Any, members: Tensor) -> Tensor:
    scores = torch.empty(len(members), dtype=torch.float64)
    scores[members] = torch.from_numpy(attack.in_member_signals[:, 0])
    scores[~members] = torch.from_numpy(attack.out_member_signals[:, 0])
    return scores


def by_privacy_meter(found: Judgements, folder: Path) -> dict[str, Tensor]:
    """Scores by Privacy Meter's function."""
    sys.path.insert(0, str(folder))
    run_rmia = importlib.import_module("modules.mia.attacks.rmia").run_rmia
    scores = run_rmia(
        found.own.sigmoid().numpy()[:, None], found.references.sigmoid().T.numpy(), ~found.outside.T.numpy(),
        found.own_population.sigmoid().numpy()[:, None], found.population.sigmoid().T.numpy(), CORRECTION, PAIRS,
    )  # fmt: skip
    return dict.fromkeys(("RMIA", TIED, HIGHEST), torch.from_numpy(scores))


def rows(seed: int, folders: dict[str, Path]) -> Iterator[tuple[str, ...]]:
    """One row for each implementation of each attack, and one for members that are drawn at random."""
    found = judgements(seed)
    inside, drawn = found.members, torch.randperm(POOL, generator=seeded(seed)) < POOL // 2
    readers = {"LeakPro": by_leakpro, "Privacy Meter": by_privacy_meter}
    published = {name: readers[name](found, folder) for name, folder in folders.items()}
    for attack, scores in ours(found).items():
        yield attack, "fedveil", *cells(scores[inside], scores[~inside]), "", str(seed)
        yield attack, "fedveil, members drawn at random", *cells(scores[drawn], scores[~drawn]), "", str(seed)
        for name, theirs in published.items():
            if (other := theirs.get(attack)) is not None:
                yield attack, name, *cells(other[inside], other[~inside]), agreement(scores, other, inside), str(seed)


def agreement(scores: Tensor, other: Tensor, inside: Tensor) -> str:
    """Whether AUC and rates differ by at most ``NEAR`` each. Both codes judged the same confidences: no interval excuses more."""
    pairs = [(scores[inside], scores[~inside]), (other[inside], other[~inside])]
    gaps = [abs(auc(*pairs[0]) - auc(*pairs[1]))]
    for rate in RATES:
        mine, theirs = (tpr_at_fpr(*pair, rate).value for pair in pairs)
        gaps.append(abs(mine - theirs))
    return "agrees" if max(gaps) <= NEAR + ROUNDING else "differs"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leakpro", type=Path)
    parser.add_argument("--privacy-meter", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    given = {"LeakPro": options.leakpro, "Privacy Meter": options.privacy_meter}
    folders = {name: folder.resolve() for name, folder in given.items() if folder}
    header = ("attack", "implementation", "AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR", "verdict", "seed")
    print(table(header, [row for seed in options.seeds for row in rows(seed, folders)]))


if __name__ == "__main__":
    main()
