"""A small split run for the report's tests: two pipelines, three attacks on smashed data, one of them an upper bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulations.report import write_report
from tests.simulations.report.report_run import CONFIG, NULLS, Page, row, write_run

DECODER, JIGSAW, TOLD = "TokenDecoder()", "TokenJigsaw()", "FeatureInversion(permutation='oracle')"
SHUFFLE = "PatchShuffle()"
ACCURACY = {"": 0.9, SHUFFLE: 0.75}
PSNR = {("", DECODER): 30.0, ("", TOLD): 60.0, (SHUFFLE, DECODER): 9.0, (SHUFFLE, JIGSAW): 25.0, (SHUFFLE, TOLD): 60.0}


def card(attack: str) -> dict[str, Any]:
    known = {"observation": "smashed data", "num_classes": 10, "images": 8, "labels": "known", "auxiliary_data": "none"}
    known |= {"transmissions_used": 30 if attack == JIGSAW else 1}
    return known | ({"upper_bound": "knows the order"} if attack == TOLD else {})


def training(defense: str, seed: int = 0) -> list[dict[str, Any]]:
    """What a split run writes about training under one defence: the client half's costs, then two rounds."""
    known = {"defense": defense, "seed": seed, "scenario": "split"}
    costs = {"edge-parameters": 53248.0, "edge-macs": 922752.0, "edge-peak-bytes": 264960.0}
    costs |= {"edge-training-macs": 3 * 922752.0 if defense else 922752.0}
    costs |= {"log10-orders": 213.13, "log10-target-share": -13.32} if defense == SHUFFLE else {}
    found = [row(metric=name, value=value, round=0, n=1, **known) for name, value in costs.items()]
    for at in (1, 2):
        share = ACCURACY[defense] - 0.1 * (2 - at) + 0.01 * seed
        rated = {"test-accuracy": share, "mcc-micro": share - 0.05, "mcc-macro": share - 0.07}
        references = ("transformed",) if defense else ("original", "transformed")
        for reference in references:
            found += [row(metric=m, value=v, reference=reference, n=400, round=at, **known) for m, v in rated.items()]
        counted = {"bytes-per-sample": 4096.0, "samples-per-second": 400.0 * at, "batches-lost": at - 1}
        counted |= {"update-bytes": 2e6, "train-seconds": 1.0}
        found += [row(metric=name, value=value, n=124, round=at, **known) for name, value in counted.items()]
    return found


def attack(defense: str, name: str, psnr: float, **given: Any) -> list[dict[str, Any]]:
    """What one attack on smashed data writes."""
    known = {
        "defense": defense,
        "attack": name,
        "round": 2,
        "card": card(name),
        "n": 32,
        "scenario": "split",
    } | given
    ends = {"ci_low": psnr - 1, "ci_high": psnr + 1, "worst": psnr + 5}
    found = [row(**{"metric": "psnr", "reference": "original", "value": psnr} | ends | known)]
    hits = {"metric": "retrieval", "reference": "original", "value": float(psnr > 12.25)}
    found.append(row(**known | hits | {"card": card(name) | {"chance": 0.01}}))
    found.append(row(**{"metric": "ssim", "reference": "original", "value": 0.5} | known))
    scores = {"psnr-paper": psnr - 6, "ssim-paper": 0.4, "mse-paper": 0.02, "feature-similarity": 0.8}
    scores |= {"identification": 1.0, "recognition": 0.5, "holdout_psnr": 29.0, "relative_loss": 0.125}
    # Student's interval of a share that is 1 for all images has no width.
    found += [row(**{"metric": m, "value": v, "ci_low": v, "ci_high": v} | known) for m, v in scores.items()]
    return found


def split_rows(seeds: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    """A finished split run."""
    found = []
    for seed in seeds:
        found += [one for defense in ACCURACY for one in training(defense, seed)]
        for (defense, name), psnr in PSNR.items():
            found += attack(defense, name, psnr, seed=seed)
        # The jigsaw alone on the undefended run, so that it is validated.
        found += attack("", JIGSAW, 29.0, seed=seed)
        known = {"card": card(""), "round": 2, "metric": "psnr", "reference": "original", "scenario": "split"}
        found += [
            row(attack=name, role="null baseline", value=value, seed=seed, **known) for name, value in NULLS.items()
        ]
    return found


SETTINGS = CONFIG | {"pipelines": ["", SHUFFLE], "defenses": {SHUFFLE: {"adaptive_attacks": ["TokenJigsaw"]}}}


def build(directory: Path, rows: list[dict[str, Any]] | None = None, **parts: Any) -> Page:
    given = {"rows": split_rows() if rows is None else rows, "config": SETTINGS} | parts
    return Page(write_report(write_run(directory, **given)).read_text(encoding="utf-8"))
