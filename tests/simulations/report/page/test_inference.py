"""The section on edge-cloud inference: its numbers follow from the rows, cut by cut, and its verdicts from intervals."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attacks.metrics.names import Role
from attacks.scoring.roc import binomial_interval
from simulations.report import Row, validate
from simulations.report.analysis.summary import summarise
from simulations.report.sections.inference import Conclusion, EdgeCloudInference, edge_cloud_inference
from simulations.report.sections.inference.equation import (
    LEAST_DROP,
    MARGIN,
    MOST_OF_DROP,
    NOT_SATISFIED,
    OPEN,
    SATISFIED,
    Difference,
    difference,
    equation,
    folded,
    least_before,
    paired,
)
from simulations.report.sections.inference.fit_curves import fit_curves
from simulations.report.studies.score import Score, merge, wilson
from simulations.report.studies.study import Study, split
from tests.simulations.report.report_run import CONFIG, build, row

ADP, PCA, NOISE = "DeltaAutoencoder(variant='decreasing')", "FeaturePCA(components=5)", "FeatureNoise(std=0.1)"
PIPELINES = ["", ADP, PCA, NOISE]
STATIC, RETRAINED = "AttributeInference(training='static')", "AttributeInference()"
INVERSION = "QueryInversion()"
CUTS = ("conv2", "conv4")
N, MAJORITY = 400, 0.5

# Accuracy of answers, of the static and of the retrained adversary; without a defence 0.9 each.
AT_FIRST = {"": (0.9, 0.9, 0.9), ADP: (0.88, 0.52, 0.86), PCA: (0.89, 0.55, 0.6), NOISE: (0.85, 0.8, 0.8)}
PSNR = {"": 25.0, ADP: 14.0, PCA: 15.0, NOISE: 20.0}
MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"


def known(defense: str, at: str, **given: Any) -> dict[str, Any]:
    place = {"round": 3 + CUTS.index(at), "final": True, "cut": at}
    return {"defense": defense, "scenario": "inference"} | place | given


def service(defense: str, cut: str, accuracy: float) -> list[dict[str, Any]]:
    """What a phase writes about answers; at the second cut everything is half as long."""
    scale = 1 + CUTS.index(cut)
    latent = 2000 if defense in ("", NOISE) else 500
    numbers = {
        "queries": N, "query-bytes": latent / scale, "feature-bytes": 2000 / scale, "answer-bytes": 8.0,
        "client-half-bytes": 3000.0 * scale, "query-seconds": 1.5, "answer-seconds": 0.5, "agreement": 0.95,
        "answers-lost": 0.9 - accuracy, "answers-gained": 0.0,
    }  # fmt: skip
    mine = known(defense, cut, n=N)
    found = [row(metric=name, value=value, **mine) for name, value in numbers.items()]
    found.append(row(metric="test-accuracy", reference="original", value=0.9, **mine))
    return [*found, row(metric="test-accuracy", reference="transformed", value=accuracy, **mine)]


def inference(defense: str, cut: str, attack: str, share: float) -> dict[str, Any]:
    low, high = wilson(share, N)
    card = {"observation": "attributes of queries", "images": N, "cut": cut}
    card |= {"knows_defenses": False} if attack == STATIC else {}
    ends = {"ci_low": low, "ci_high": high, "n": N}
    return row(metric="attribute-accuracy", value=share, attack=attack, card=card, **ends, **known(defense, cut))


def inversion(defense: str, cut: str, psnr: float) -> list[dict[str, Any]]:
    card = {"observation": "queries", "images": 4, "cut": cut, "chance": 0.01}
    mine = known(defense, cut, card=card, n=50)
    scores = {
        ("psnr", "original"): psnr, ("ms-ssim", "original"): psnr / 50, ("ms-ssim-success", ""): float(psnr > 17.5),
        ("retrieval", "original"): 1.0,
    }  # fmt: skip
    found = [
        row(metric=metric, reference=of, value=v, attack=INVERSION, ci_low=v - 1, ci_high=v + 1, **mine)
        for (metric, of), v in scores.items()
    ]
    null = mine | {"attack": "mean", "role": Role.NULL_BASELINE, "reference": "original"}
    found += [row(metric="psnr", value=12.0, **null), row(metric="ms-ssim", value=0.3, **null)]
    return [*found, row(metric="psnr", value=13.5, **null | {"attack": "class-mean", "role": Role.SCALE})]


def phase(defense: str, cut: str) -> list[dict[str, Any]]:
    accuracy, static, retrained = AT_FIRST[defense] if cut == CUTS[0] else (0.9, 0.9, 0.9)
    found = service(defense, cut, accuracy) + inversion(defense, cut, PSNR[defense])
    for attack, share in ((STATIC, static), (RETRAINED, retrained)):
        found.append(inference(defense, cut, attack, share))
    found.append(inference(defense, cut, "majority", MAJORITY) | {"role": "null baseline"})
    if defense == ADP:
        found.append(row(metric="offline-adversary-accuracy", value=0.83, **known(defense, cut, n=100)))
    return found


def every_row() -> list[dict[str, Any]]:
    return [one for cut in CUTS for defense in PIPELINES for one in phase(defense, cut)]


def studied(rows: list[dict[str, Any]]) -> list[Study]:
    return split(validate([Row.from_json(one) for one in rows]), PIPELINES)


def sections(rows: list[dict[str, Any]]) -> list[EdgeCloudInference]:
    """One for each cut."""
    found = [edge_cloud_inference(study, summarise(study, {})) for study in studied(rows)]
    return [one for one in found if one is not None]


def lines(rows: list[dict[str, Any]], defense: str) -> Any:
    """The line of a defence at the first cut."""
    return next(line for line in sections(rows)[0].cut.lines if line.defense == defense)


# ---- Equation 1


def test_the_verdict_is_that_of_every_point_within_both_intervals() -> None:
    """Slowly: on a grid with the corners, the rule holds everywhere, nowhere, or somewhere."""
    draws = np.random.default_rng(0)
    seen = set()
    for _ in range(120):
        server = Difference(0.0, *sorted(draws.uniform(-0.2, 0.3, 2)))
        adversary = Difference(0.0, *sorted(draws.uniform(-0.1, 0.6, 2)))
        points = itertools.product(*(np.linspace(one.low, one.high, 21) for one in (server, adversary)))
        held = {bool(a >= LEAST_DROP and abs(s) <= min(MARGIN, MOST_OF_DROP * a)) for s, a in points}
        grid = SATISFIED if held == {True} else NOT_SATISFIED if held == {False} else OPEN
        found = equation(server, adversary)
        # A grid can miss the one point, near 0 or a corner, at which the rule holds.
        assert found == grid or (found, grid) == (OPEN, NOT_SATISFIED)
        seen.add(found)
    assert seen == {SATISFIED, NOT_SATISFIED, OPEN}
    # 89 to 72 % of 2,000 is less than half of 94 to 50 %, and no accuracy that stays. Without intervals nothing is told.
    lost, read = (difference(share(a * 2000, 2000), share(b * 2000, 2000)) for a, b in ((0.89, 0.72), (0.94, 0.5)))
    assert equation(lost, read) == NOT_SATISFIED
    assert difference(Score(0.9), Score(0.5, 0.4, 0.6)) is None
    assert difference(None, Score(0.5, 0.4, 0.6)) is None
    assert equation(None, Difference(0.4, 0.3, 0.5)) == OPEN


def test_the_interval_of_a_difference_is_newcombes_example() -> None:
    """56 of 70 against 48 of 80: 0.0524 to 0.3339 (Newcombe 1998, Table II, method 10)."""
    before, after = (Score(k / n, *wilson(k / n, n)) for k, n in ((56, 70), (48, 80)))
    found = difference(before, after)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


def share(hits: float, n: int, seeds: int = 1) -> Score:
    return Score(hits / n, *wilson(hits / n, n), n=n * seeds, by_seed=dict.fromkeys(range(seeds), hits / n))


def test_pairs_that_do_not_change_have_almost_no_interval_and_pairs_without_correlation_that_of_two_groups() -> None:
    """380 of 400 right, and the same ones: unpaired intervals would say up to 3 points."""
    same = share(380, 400)
    found, apart = paired(same, same, share(0, 400), share(0, 400)), difference(same, same)
    assert found is not None
    assert apart is not None
    assert (found.value, round(apart.most, 3)) == (0, 0.031)
    assert found.most < 0.01
    # Three seeds ask about the same 400 images.
    assert paired(share(380, 400, 3), same, share(0, 400, 3), share(0, 400, 3)) == found
    assert paired(same, same, None, None) == apart
    # 200 of 400 before and after, and half of either in common.
    half = share(200, 400)
    found, apart = paired(half, half, share(100, 400), share(100, 400)), difference(half, half)
    assert found is not None
    assert apart is not None
    assert (found.low, found.high) == pytest.approx((apart.low, apart.high))


@pytest.mark.numeric
def test_the_paired_interval_holds_the_truth_as_often_as_it_says() -> None:
    """88 % right before and 85 % after, of which 6 % lost and 3 % gained; the bounds are 4 deviations of 2,000 draws of 95 %."""
    draws, inside = np.random.default_rng(0), 0
    for both, lost, gained, _ in draws.multinomial(400, (0.82, 0.06, 0.03, 0.09), 2000):
        found = paired(share(both + lost, 400), share(both + gained, 400), share(lost, 400), share(gained, 400))
        assert found is not None
        inside += found.low <= 0.03 <= found.high
    assert 0.93 <= inside / 2000 <= 0.975


def test_the_least_accuracy_before_is_where_the_verdict_turns() -> None:
    for images, null in ((400, 0.5), (2000, 0.7), (60, 0.55)):
        after = Score(*binomial_interval(round(null * images), images))
        unchanged, least = Difference(0.0, 0.0, 0.0), least_before(images, null)
        assert least is not None
        hits = round(least * images)
        told = [equation(unchanged, difference(Score(*binomial_interval(k, images)), after)) for k in (hits - 1, hits)]
        assert told[0] != SATISFIED == told[1], (images, null)
    assert least_before(12, 0.9) is None


def test_seeds_that_ask_about_the_same_images_are_no_more_images() -> None:
    """Five seeds alike tell as much as one; seeds that differ tell less."""

    def of(shares: list[float]) -> Score:
        rows = [inference(PCA, "conv2", STATIC, value) | {"seed": seed} for seed, value in enumerate(shares)]
        return merge([Row.from_json(one) for one in rows])

    one, alike, apart = of([0.8]), of([0.8] * 5), of([0.7, 0.75, 0.8, 0.85, 0.9])
    assert (alike.mean, alike.low, alike.high) == pytest.approx((one.mean, one.low, one.high))
    assert None not in (apart.low, apart.high, one.low, one.high)
    assert (apart.low or 1) < (one.low or 0) < (one.high or 1) < (apart.high or 0)


# ---- Rows in, section out


def test_each_cut_has_its_own_numbers_and_verdicts_and_says_what_survives_retraining() -> None:
    """At the first cut the autoencoder falls, components survive, noise is undecided; at the second nothing hides anything."""
    first, second = sections(every_row())
    assert first.conclusion == Conclusion(
        cases=3, satisfied=2, survive=(PCA,), fall=(ADP,), open=(), retrained=3, reads=3
    )
    assert second.conclusion == Conclusion(cases=3, satisfied=0, survive=(), fall=(), open=(), retrained=3, reads=3)
    assert (first.cut.name, second.cut.name) == CUTS
    judged = {line.defense: (line.static, line.retrained) for line in first.cut.lines}
    told = {d: tuple(one.equation for one in pair if one) for d, pair in judged.items()}
    assert told == {"": ("", ""), ADP: (SATISFIED, NOT_SATISFIED), PCA: (SATISFIED, SATISFIED), NOISE: (OPEN, OPEN)}
    verdicts = {one.equation for line in second.cut.lines[1:] for one in (line.static, line.retrained) if one}
    assert verdicts == {NOT_SATISFIED}
    assert [line.numbers["query-bytes"] for line in first.cut.lines] == [2000, 500, 500, 2000]
    assert [line.numbers["query-bytes"] for line in second.cut.lines] == [1000, 250, 250, 1000]
    assert [line.smaller for line in second.cut.lines] == [1, 4, 4, 1]


def test_accuracy_at_one_cut_never_stands_beside_an_attack_at_another() -> None:
    """Rows of the training are in the study of each cut."""
    studies = studied([row(metric="train-loss", value=0.5, scenario="inference", round=2), *every_row()])
    assert [(one.cut, one.words[-1]) for one in studies] == [(cut, f"cut at {cut}") for cut in CUTS]
    for study in studies:
        assert {row.cut for row in study.rows} == {"", study.cut}
        assert sum(row.metric == "train-loss" for row in study.rows) == 1
    adp = [next(line for line in summarise(study, {}) if line.defense == ADP) for study in studies]
    assert [line.deployed.mean if line.deployed else None for line in adp] == [0.88, 0.9]
    assert [line.round for line in adp] == [3, 4]
    assert not any("cut" in caveat for line in adp for caveat in line.caveats)


def test_an_adversary_that_reads_nothing_without_a_defence_proves_nothing_about_one() -> None:
    weak = {"value": 0.52, "ci_low": 0.47, "ci_high": 0.57}
    rows = [one | weak if (one["defense"], one["attack"]) == ("", STATIC) else one for one in every_row()]
    static = lines(rows, PCA).static
    assert (static.change.after.status, static.equation) == ("not-validated", OPEN)


def test_before_and_after_are_those_of_the_strongest_adversary_unprotected_or_protected() -> None:
    """One that falls from 95 % to 60 % is no less evidence because another stays at 70 %."""
    full = "AttributeInference(architecture='full')"
    found = lines(
        [*every_row(), inference("", "conv2", full, 0.7), inference(PCA, "conv2", full, 0.605)], PCA
    ).retrained
    change = found.change
    assert (found.attack, change.before.mean, found.equation) == (full, 0.9, SATISFIED)
    assert change.after.mean == pytest.approx(0.605, abs=2e-3)
    found = lines(
        [*every_row(), inference("", "conv2", full, 0.95), inference(ADP, "conv2", full, 0.88)], ADP
    ).retrained
    assert (found.attack, found.change.before.mean, found.change.after.mean) == (full, 0.95, 0.88)
    # What the card of an adversary says counts, whoever wrote it.
    theirs = [inference(of, "conv2", "TheirInference()", value) for of, value in (("", 0.95), (ADP, 0.6))]
    for one in theirs:
        one["card"] = one["card"] | {"knows_defenses": False}
    found = lines([*every_row(), *theirs], ADP).static
    assert (found.attack, found.change.after.mean) == ("TheirInference()", 0.6)


def test_of_two_values_wrong_guesses_tell_as_much_as_right_ones() -> None:
    opposite = folded(Score(0.2, 0.15, 0.26, n=400))
    assert (opposite.mean, opposite.low, opposite.high) == pytest.approx((0.8, 0.74, 0.85))
    assert folded(Score(0.5, 0.4, 0.6)) == Score(0.5, 0.4, 0.6)
    for values, read, told in ((2, 0.9, NOT_SATISFIED), (3, 0.1, SATISFIED)):
        wrong = inference(PCA, "conv2", RETRAINED, 0.1)
        wrong["card"] |= {"attribute_values": values}
        keys = ("defense", "attack", "metric", "round")
        rows = [one for one in every_row() if [one[key] for key in keys] != [wrong[key] for key in keys]]
        found = lines([*rows, wrong], PCA).retrained
        assert (found.change.after.mean, found.equation) == (pytest.approx(read), told)


def test_a_retrained_adversary_that_learned_too_little_is_marked() -> None:
    """Behind noise it reads as much as the static one; behind components it is no better than the most frequent value."""
    told = [("holdout_accuracy", 0.5), ("holdout_majority", 0.5)]
    rows = [*every_row(), *(inference(PCA, "conv2", RETRAINED, value) | {"metric": name} for name, value in told)]
    found = {line.defense: line.doubt for line in sections(rows)[0].cut.lines}
    assert found == {"": "", ADP: "", PCA: "learned nothing", NOISE: "no better than static"}


def test_the_strongest_reconstruction_is_the_strongest_by_ms_ssim() -> None:
    """A brighter guess may have less PSNR and more of the structure, which is what the column shows."""
    other = "InverseNetwork()"
    told = {"psnr": PSNR[ADP] - 2, "ms-ssim": 0.9}
    more = [
        one | {"attack": other, "value": told[one["metric"]]}
        for one in inversion(ADP, "conv2", PSNR[ADP])
        if one["attack"] == INVERSION and one["metric"] in told
    ]
    rows = every_row() + more
    assert lines(rows, ADP).after.attack == other
    assert lines([one for one in rows if one["metric"] != "ms-ssim"], ADP).after.attack == INVERSION


def test_rows_without_attributes_have_no_verdict_and_no_study_without_queries_a_section() -> None:
    for found in sections([one for one in every_row() if one["metric"] != "attribute-accuracy"]):
        assert found.conclusion is None
        assert not found.cut.infers
    (study,) = studied([row(metric="test-accuracy", value=0.5)])
    assert edge_cloud_inference(study, ()) is None


# ---- Curves and masks


def path_rows(
    defense: str, axis: str, values: dict[int | None, tuple[float, float]], seed: int = 0
) -> list[dict[str, Any]]:
    found = []
    for position, pair in values.items():
        place = {} if position is None else {"axis": axis, "position": position}
        for metric, value in zip(("path-server-accuracy", "path-adversary-accuracy"), pair, strict=True):
            low, high = wilson(value, 200)
            ends = {"ci_low": low, "ci_high": high, "n": 200, "seed": seed}
            found.append(row(metric=metric, value=value, **ends, **place, **known(defense, "conv2")))
    return found


COMPONENTS: dict[int | None, tuple[float, float]] = {None: (0.9, 0.8), 1: (0.5, 0.5), 2: (0.7, 0.5), 8: (0.85, 0.75)}
EPOCHS: dict[int | None, tuple[float, float]] = {None: (0.9, 0.8), 0: (0.4, 0.5), 1: (0.8, 0.6), 2: (0.9, 0.65)}


def test_curves_show_every_point_and_what_plain_features_and_masks_give() -> None:
    rows = every_row() + path_rows(PCA, "components", COMPONENTS) + path_rows(ADP, "epochs", EPOCHS)
    for what, value in (("share", 0.31), ("server-accuracy", 0.84), ("adversary-accuracy", 0.7)):
        rows.append(row(metric=f"masked-{what}", value=value, n=200, **known(ADP, "conv2")))
    first, second = studied(rows)
    adp, pca = fit_curves(first)
    assert [one.defense for one in (adp, pca)] == [ADP, PCA]
    assert fit_curves(second) == ()
    assert pca.unprotected == {"server": "90.0 %", "adversary": "80.0 %"}
    for tip in ("server, 1 components: 50.0 %", "adversary, 8 components: 75.0 %"):
        assert tip in pca.drawing
    assert "adversary, 2 epochs: 65.0 %" in adp.drawing
    assert (adp.masked, pca.masked) == ({"share": "31.0 %", "server": "84.0 %", "adversary": "70.0 %"}, {})
    # By doublings: 1, 2 and 8 components stand at 0, 1 and 3 thirds of the axis.
    marks = re.findall(r'<text [^>]*text-anchor: middle[^>]* x="([0-9.]+)"[^>]*>([0-9]+)</text>', pca.drawing)
    one, two, last = (float(x) for x, shown in marks if shown in {"1", "2", "8"})
    assert (two - one) / (last - one) == pytest.approx(1 / 3, abs=0.01)
    # Of several seeds, curves are the mean.
    later: dict[int | None, tuple[float, float]] = {at: (pair[0] + 0.04, pair[1]) for at, pair in EPOCHS.items()}
    rows = every_row() + path_rows(ADP, "epochs", EPOCHS) + path_rows(ADP, "epochs", later, seed=1)
    (curve,) = fit_curves(studied(rows)[0])
    assert curve.unprotected["server"] == "92.0 %"
    assert "server, 1 epochs: 82.0 %" in curve.drawing


def test_masks_are_shown_in_the_section_in_order_and_not_among_attacked_images(tmp_path: Path) -> None:
    kinds = ("image", "server-cam", "adversary-cam", "mask", "masked")
    place = {"attack": "", "client": "server", "target": 0}
    pictures = [
        known(ADP, cut) | place | {"kind": kind, "image": at, "observation": "delta masks"}
        | {"caption": f"cut at {cut}, image {at + 1}", "file": f"{cut}-{at}-{kind}.png"}
        for cut in CUTS for at in (0, 1) for kind in sorted(kinds)
    ]  # fmt: skip
    of = {"kind": "original", "client": 0, "image": 0, "observation": "queries", "file": "o.png"}
    rows = [one for one in every_row() if one["defense"] in ("", ADP)]
    config = CONFIG | {"pipelines": ["", ADP], "defenses": {}}
    found = build(tmp_path, rows, config=config, pictures=[*pictures, known("", "conv2") | place | of])
    named = [known["alt"] for name, known in found.tags if name == "img"]
    masks = [alt for alt in named if alt and "image" in alt and "cut at" in alt]
    words = ("image", "server cam", "adversary cam", "mask", "masked")
    assert masks == [f"{word}, cut at {cut}, image {at}" for cut in CUTS for at in (1, 2) for word in words]
    assert "cut at" not in found.sections["pictures1"]
    assert "pictures2" not in found.sections
