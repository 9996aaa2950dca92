import math
from pathlib import Path
from typing import Any

from attacks.metrics.training import SPLIT
from attacks.smashed.base import BEYOND_RUN
from simulations.report import Row, validate
from simulations.report.analysis.caveats import UNTESTED
from simulations.report.analysis.finding import findings_of
from simulations.report.text import amount, power_of_ten, size
from tests.simulations.report import report_run
from tests.simulations.report.report_run import CONFIG, NULLS, Page, looked_for, row, study_of

DECODER, JIGSAW, TOLD = "TokenDecoder()", "TokenJigsaw()", "FeatureInversion(permutation='oracle')"
SHUFFLE = "PatchShuffle()"
ACCURACY = {"": 0.9, SHUFFLE: 0.75}
PSNR = {("", DECODER): 30.0, ("", TOLD): 60.0, (SHUFFLE, DECODER): 9.0, (SHUFFLE, JIGSAW): 25.0, (SHUFFLE, TOLD): 60.0}
SETTINGS = CONFIG | {"pipelines": ["", SHUFFLE], "defenses": {SHUFFLE: {"adaptive_attacks": ["TokenJigsaw"]}}}


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
        for reference in ("transformed",) if defense else ("original", "transformed"):
            found += [row(metric=m, value=v, reference=reference, n=400, round=at, **known) for m, v in rated.items()]
        counted = {"bytes-per-sample": 4096.0, "samples-per-second": 400.0 * at, "batches-lost": at - 1}
        counted |= {"update-bytes": 2e6, "train-seconds": 1.0}
        found += [row(metric=name, value=value, n=124, round=at, **known) for name, value in counted.items()]
    return found


def attack(defense: str, name: str, psnr: float, **given: Any) -> list[dict[str, Any]]:
    """What one attack on smashed data writes."""
    known = {"defense": defense, "attack": name, "round": 2, "card": card(name), "n": 32, "scenario": "split"} | given
    ends = {"ci_low": psnr - 1, "ci_high": psnr + 1, "worst": psnr + 5, "reference": "original"}
    found = [row(**{"metric": "psnr", "value": psnr} | ends | known)]
    found += looked_for(float(psnr > 12.25), **{"n": 32} | known)
    found.append(row(**{"metric": "ssim", "reference": "original", "value": 0.5} | known))
    scores = {"psnr-paper": psnr - 6, "ssim-paper": 0.4, "mse-paper": 0.02, "feature-similarity": 0.8}
    scores |= {"identification": 1.0, "recognition": 0.5, "holdout_psnr": 29.0, "relative_loss": 0.125}
    # Student's interval of a share that is 1 for all images has no width.
    return found + [row(**{"metric": m, "value": v, "ci_low": v, "ci_high": v} | known) for m, v in scores.items()]


def split_rows(seeds: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    """A finished split run."""
    found = []
    for seed in seeds:
        found += [one for defense in ACCURACY for one in training(defense, seed)]
        # The jigsaw alone on the undefended run, so that it is validated.
        for (defense, name), psnr in (PSNR | {("", JIGSAW): 29.0}).items():
            found += attack(defense, name, psnr, seed=seed)
        known = {"card": card(""), "round": 2, "reference": "original", "scenario": "split", "role": "null baseline"}
        found += [row(attack=name, metric="psnr", value=value, seed=seed, **known) for name, value in NULLS.items()]
    return found


def build(directory: Path, rows: list[dict[str, Any]] | None = None, **parts: Any) -> Page:
    return report_run.build(directory, split_rows() if rows is None else rows, **{"config": SETTINGS} | parts)


DASH, TIMES = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"
SMASHED_METRICS = ["psnr-paper", "ssim-paper", "mse-paper", "feature-similarity", "identification"]


def line(rows: list[dict[str, Any]]) -> Any:
    return findings_of(study_of(rows, ["", SHUFFLE]), SETTINGS["defenses"])[1]


def test_shuffles_in_a_row_have_one_count_each_and_seeds_do_not_double_it(tmp_path: Path) -> None:
    rows = [one for seed in (0, 1) for one in training(SHUFFLE, seed)]
    for seed in (0, 1):
        known = {"defense": SHUFFLE, "scenario": "split", "round": 0, "seed": seed}
        rows += [row(metric="log10-orders", value=2.0, **known), row(metric="log10-target-share", value=-1.0, **known)]
    (shown,) = build(tmp_path, rows).table("split")
    assert shown["orders left open"] == [f"1.3 {TIMES} 10²¹³, 1.0 {TIMES} 10²"]
    assert shown["share with the target"] == [f"4.8 {TIMES} 10⁻¹⁴, 1.0 {TIMES} 10⁻¹"]
    assert shown["batches lost"] == ["2", "of 496"]
    (shown,) = build(tmp_path / "begun", [one for one in training(SHUFFLE) if one["round"] == 0]).table("split")
    assert (shown["parameters"], shown["accuracy, %"], shown["batches lost"]) == (["53.2 k"], [DASH], [DASH])


def test_an_upper_bound_never_leads_and_is_no_adaptive_attack() -> None:
    rows = split_rows()
    found = line(rows)
    assert (found.strongest.attack, found.strongest.mean("psnr", "original"), found.caveats) == (JIGSAW, 25.0, ())
    told = [cell for cell in study_of(rows, ["", SHUFFLE]).cells if cell.attack == TOLD]
    assert [cell.is_upper_bound for cell in told] == [True, True]
    assert TOLD not in {cell.attack for cell in found.cells}
    only = line([one for one in rows if one["defense"] == "" or one["attack"] in {"", TOLD}])
    assert (only.messages, only.bounds) == ((), ("knows the order",))
    # Both kinds of bound are told by one field of the threat card, whatever it says.
    for bound in (card(TOLD)["upper_bound"], BEYOND_RUN):
        for one in rows:
            if one["attack"] == JIGSAW:
                one["card"] = card(JIGSAW) | {"upper_bound": bound}
        assert line(rows).strongest.attack == DECODER
        assert line(rows).caveats == (f"{UNTESTED}: TokenJigsaw did not run",)


def test_no_number_is_lost_and_only_diagnostics_are_left_among_the_others(tmp_path: Path) -> None:
    metrics, more = [*(one.name for one in SPLIT), *SMASHED_METRICS], []
    for metric in metrics:
        known = {"attack": DECODER, "card": card(DECODER)} if metric in SMASHED_METRICS else {}
        more.append(row(metric=metric, reference="halo", value=0.625, round=2, scenario="split", **known))
    table = build(tmp_path, [*split_rows(), *more]).table("attacks", 1)
    odd = {one["Metric"][0]: one["Value"][0] for one in table if "(halo)" in one["Metric"][0]}
    assert odd == {f"{metric} (halo)": "0.625" for metric in metrics}
    others = [one["Metric"][0] for one in table if "(halo)" not in one["Metric"][0]]
    assert sorted(others) == [name for name in ("holdout_psnr", "relative_loss") for _ in range(len(PSNR) + 1)]


def test_further_scores_of_an_attack_follow_its_positive_control() -> None:
    rows = [one for one in split_rows() if (one["defense"], one["attack"]) != ("", DECODER)]
    weak = attack("", DECODER, 12.0)  # identifies nothing
    marked = validate([Row.from_json(one) for one in rows + weak])
    for name, expected in ((DECODER, "not-validated"), (JIGSAW, "ok")):
        mine = {one.metric: one.status for one in marked if (one.defense, one.attack) == (SHUFFLE, name)}
        assert {mine[metric] for metric in SMASHED_METRICS} == {expected}
        assert mine["holdout_psnr"] == "ok"
    assert {control.row.metric for control in study_of(split_rows()).controls} == {"identified"}


def test_large_numbers_are_shown_as_powers_of_ten_or_with_prefixes() -> None:
    exponents = (math.log10(math.factorial(16)), 0.0, math.log10(9.99), -1.0)
    factors = (("2.1", "¹³"), ("1.0", "⁰"), ("1.0", "¹"), ("1.0", "⁻¹"))
    told = [f"{factor} {TIMES} 10{power}" for factor, power in factors]
    assert [power_of_ten(one) for one in (*exponents, None, math.inf, math.nan)] == [*told, DASH, DASH, DASH]
    assert [amount(value) for value in (12.0, 922752.0, 3e6, 4e9, None)] == ["12", "923 k", "3 M", "4 G", DASH]
    assert [size(value) for value in (12.0, 922752.0, 3e6, 4e9, None)] == ["12 B", "923 kB", "3 MB", "4 GB", DASH]
