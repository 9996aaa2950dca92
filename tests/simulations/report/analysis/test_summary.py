import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simulations.experiment.experiment import Experiment
from simulations.report import Row, validate
from simulations.report.analysis.caveats import INITIAL_AVERAGES, UNTESTED
from simulations.report.analysis.finding import Finding, findings_of
from simulations.report.analysis.message import Verdict
from simulations.report.analysis.sentences import sentence
from simulations.report.studies.intervals import interval, wilson
from simulations.report.studies.score import merge
from simulations.report.studies.study import Study, split
from strategies.audit.threat_card import KEPT_STATISTICS, KnownLabels, ThreatCard, strength
from tests.simulations.report.analysis.test_verdict import attacked, lines
from tests.simulations.report.report_run import PROBE, hits, null
from tests.simulations.report.report_run import scored as psnr


def accuracy(value: float | None, at: int = 1, **given: Any) -> Row:
    return replace(Row(metric="test-accuracy", reference="original", round=at, value=value, n=100), **given)


def study(*rows: Row) -> Study:
    """With an attack that works without a defence; whose interval lies above 12 dB identifies all of its images."""
    places = dict.fromkeys((row.round, row.seed) for row in rows)
    if not any(row.defense == "" and row.attack == "A()" for row in rows):
        rows += tuple(psnr(31.2, 29.0, worst=40.1, round=at, seed=s) for at, s in places)
    attacks = [row for row in rows if row.is_attack and row.metric == "psnr" and row.value is not None]
    rows += tuple(hits(row, row.n * ((row.ci_low or row.value or 0) > 12)) for row in attacks)
    return split(validate(rows), ["", "D()"])[0]


def line(*rows: Row, defense: str = "D()", known: dict[str, Any] | None = None) -> Finding:
    found = findings_of(study(*rows), {} if known is None else {defense: known})
    return next(one for one in found if one.defense == defense)


def under(value: float | None, low: float | None = None, **given: Any) -> Row:
    return psnr(value, low, **{"defense": "D()"} | given)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6))
def test_the_interval_over_seeds_is_students(values: list[float]) -> None:
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    assert interval(values) == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=1e-6)


@given(st.integers(1, 500), st.data())
def test_the_interval_of_an_accuracy_is_wilsons(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    expected = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    assert wilson(k / n, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_one_seed_keeps_its_own_interval_and_several_get_one_over_seeds() -> None:
    rows = [psnr(float(10 + seed), 9.0, ci_high=12.0, worst=20.0 - seed, seed=seed, failures=1) for seed in range(3)]
    one, three = merge(rows[:1]), merge(rows)
    assert (one.low, one.high, one.n) == (9.0, 12.0, 16)
    assert (three.mean, three.worst, three.n, three.failures) == (11.0, 20.0, 48, 3)
    assert (three.low, three.high) == interval([10.0, 11.0, 12.0])
    assert dict(three.by_seed) == {0: 10.0, 1: 11.0, 2: 12.0}
    mse = [psnr(1.0, worst=value, metric="mse", seed=seed) for seed, value in enumerate((0.5, 0.1))]
    assert merge(mse).worst == 0.1
    # A guarantee is the weakest of clients and seeds, never a mean.
    spent = [Row(metric="epsilon", value=v, worst=w, seed=s, defense="D()") for v, w, s in ((1, 3, 0), (2, None, 1))]
    assert (merge(spent).mean, merge(spent).low) == (3, None)
    assert line(*spent, *(replace(row, round=2, value=0.5, worst=None) for row in spent)).epsilon == 3
    # With probes it is never below that of training alone, though fewer rounds say it.
    probed = [Row(metric="epsilon-with-probes", value=1.5, round=1, defense="D()")]
    assert line(*spent, *probed).budget.with_probes == 3


def test_shares_that_agree_over_seeds_have_the_interval_of_their_distinct_images() -> None:
    for metric, shares, trials in (
        ("test-accuracy", [16 / 137] * 5, 137),  # the test images of all seeds are the same
        ("recognition", [1.0, 1.0], 2 * 137),
        ("identification", [0.0, 0.0, 0.0], 3 * 137),
        ("label-accuracy", [1.0, 1.0], 2 * 137),
    ):
        found = merge([accuracy(share, seed=at, metric=metric, n=137) for at, share in enumerate(shares)])
        expected = stats.binomtest(round(shares[0] * trials), trials).proportion_ci(0.95, method="exact")
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high)), metric


@given(st.lists(st.integers(0, 137), min_size=2, max_size=5), st.sampled_from(["test-accuracy", "recognition"]))
def test_intervals_of_shares_over_seeds_hold_their_mean_and_stay_within_0_and_1(counts: list[int], metric: str) -> None:
    found = merge([accuracy(k / 137, seed=at, metric=metric, n=137) for at, k in enumerate(counts)])
    assert 0 <= found.low <= found.mean + 1e-9
    assert found.mean - 1e-9 <= found.high <= 1
    assert found.high - found.low > 0.005


def test_an_area_over_seeds_stays_within_0_and_1_and_is_no_surer_than_its_seeds() -> None:
    def area(value: float, seed: int) -> Row:
        return psnr(value, value - 0.05, ci_high=value + 0.05, metric="membership-auc", reference="", seed=seed)

    # 0.09 apart: Student's t over two seeds is -0.017 to 1.127.
    wide = merge([area(0.51, 0), area(0.6, 1)])
    assert (wide.low, wide.high) == (0.0, 1.0)
    # The same records in five seeds: that all agree says nothing of other records.
    same = merge([area(0.53, seed) for seed in range(5)])
    assert (same.low, same.high) == pytest.approx((0.48, 0.58))


def test_a_seed_without_a_score_is_not_silently_left_out() -> None:
    score = merge([psnr(10.0), psnr(None, seed=1, status="failed", message="no memory")])
    assert (score.mean, score.status) == (10.0, "partly failed")
    assert merge([psnr(None, status="failed")]).status == "failed"
    broken = Row(metric="attack", attack="A()", card=PROBE, round=1, seed=1, status="failed", defense="D()")
    found = line(under(30.0, 28.0), broken)
    assert found.strongest.status == "partly failed"
    assert any("the mean leaves them out" in caveat for caveat in found.all_caveats)


def test_a_sentence_claims_no_more_than_the_numbers() -> None:
    bound = PROBE.but(upper_bound="knows the order")
    summed = under(30.0, 28.0, card=PROBE.but(clients=4))
    for rows, expected in (
        ([under(15.0, 12.5)], "One-step probe: identifiable, 16 of 16 images (79.4 to 100.0 %), by A()."),
        ([under(11.0, 10.5)], "One-step probe: nothing found, 0 of 16 identified (0.0 to 20.6 %)."),
        (
            [under(9.0, 8.0, seed=s) for s in (0, 1)],
            "One-step probe: nothing found, 0 of 32 identified (0.0 to 10.9 %)",
        ),
        ([under(9.0, 8.0, failures=16)], "One-step probe: unknown, 0 of 16 identified (0.0 to 20.6 %)."),
        ([under(9.0, 8.0, attack="B()")], "One-step probe: unknown, 0 of 16 † identified (0.0 to 20.6 %)."),
        ([accuracy(0.9, defense="D()")], "Not attacked yet."),
        ([under(None, status="failed")], "One-step probe: unknown."),
        (
            [under(None, status="failed", metric="attack", reference="")],
            "No attack on the images has a score, so nothing",
        ),
        (
            [under(60.0, 59.0, card=bound)],
            "Only attacked with what no server has (knows the order), which says nothing",
        ),
        ([accuracy(0.9, defense="D()"), summed], "Attacked only as sums over clients, which sections of their own"),
    ):
        text = sentence(line(*rows))
        assert text.startswith(expected)
        assert not {"private", "safe"} & set(text.split())


def test_the_strongest_attack_has_the_worst_verdict_then_finds_most() -> None:
    def leads(*of: list[Row]) -> str:
        both = (lines(attacked(48, 48), *order)[1].strongest for order in (of, of[::-1]))
        (name,) = {cell.attack for cell in both if cell is not None}
        return name

    def attack(name: str, found: int, seen: int = 0, **given: Any) -> list[Row]:
        return attacked(found, seen, attack=name, defense="D()", **given)

    for weak, strong in (
        (attack("A()", 40), attack("B()", 3, 3)),  # three recognisable images say more than forty that are identified
        (attack("A()", 9, 8), attack("B()", 9, 9, round=2)),
        (attack("A()", 9), attack("B()", 10)),
        (attack("A()", 0, value=60.0), attack("B()", 9)),  # a high PSNR finds no image
        (attack("Untried()", 0, value=60.0), attack("A()", 0)),  # an attack that passed its control says more
        (attack("A()", 0), attack("A() | R()", 0, value=21.0)),
    ):  # fmt: skip
        assert leads(weak, strong) == strong[0].attack
    # Class representatives never lead.
    drawn = under(99.0, 98.0, metric="class-mean-psnr", reference="", attack="G()")
    assert (line(drawn, under(9.0, 8.0)).strongest.attack, line(drawn).strongest) == ("A()", None)


def test_an_attack_without_a_control_leads_by_what_it_finds_alone() -> None:
    found = line(under(7.0, 6.0), under(25.0, 24.0, attack="Adaptive()"))
    assert (found.strongest.attack, found.strongest.status) == ("Adaptive()", "not-validated")
    assert found.worst.verdict is Verdict.IDENTIFIABLE
    assert not [one for one in found.all_caveats if "not validated" in one]
    weak = under(11.0, 10.0, attack="Untried()")
    assert line(under(7.0, 6.0), weak).worst.verdict is Verdict.NOTHING
    # Where nothing else ran it is shown for what it is.
    alone = line(weak)
    assert (alone.strongest.status, alone.worst.verdict) == ("not-validated", Verdict.UNKNOWN)
    assert any("its failure shows nothing" in caveat for caveat in alone.all_caveats)
    rows = [psnr(9.0, 8.5), under(7.0, 6.0)]
    assert any("positive control failed" in caveat for caveat in line(*rows, defense="").all_caveats)
    assert any("its failure shows nothing" in caveat for caveat in line(*rows).all_caveats)


def test_the_membership_score_of_the_summary_is_the_strongest_that_says_something() -> None:
    known = {"metric": "membership-auc", "reference": ""}
    base = [psnr(0.7, 0.6, attack=name, **known) for name in ("L()", "S()")]
    few, sure = ({"attack": "S()", "ci_high": 0.8} | known, {"attack": "L()", "ci_high": 0.55} | known)
    scores = [under(0.62, 0.4, **few), under(0.52, 0.49, **sure)]
    for rows, expected in ((scores, ("L()", "ok")), (scores[:1], ("S()", "under-powered"))):
        found = line(*base, *rows).membership
        assert (found.attack, found.status) == expected
    # Under initial running averages, a low AUC is no sign of privacy.
    for kept, low, doubted in ((KEPT_STATISTICS, 0.45, True), (KEPT_STATISTICS, 0.9, False), ("sent", 0.45, False)):
        plain = psnr(low + 0.05, low, ci_high=low + 0.1, attack="LossThreshold()", **known)
        card = PROBE.but(batch_norm_statistics=kept)
        assert (INITIAL_AVERAGES in line(plain, replace(plain, defense="D()", card=card)).caveats) is doubted


def test_adaptive_attacks_are_named_when_they_did_not_run() -> None:
    images, chain = under(15.0, 14.0), under(15.0, 14.0, attack="A() | R(iterations=2)")
    member = under(0.7, 0.6, metric="membership-auc", reference="", attack="LossThreshold()")
    failed, missing = under(None, attack="R()", status="failed"), f"{UNTESTED}: R did not run"
    blind = under(15.0, 14.0, attack="R()", card=PROBE.but(knows_defenses=False))
    for rows, adaptive, expected in (
        ([images], None, [UNTESTED]),
        ([images], [], [UNTESTED]),
        ([images], "nonsense", [UNTESTED]),
        ([images], ["R"], [missing]),
        ([images], ["A"], []),
        ([images], ["A", "R"], ["adaptive attacks that did not run: R"]),
        ([images], ["AB"], [f"{UNTESTED}: AB did not run"]),  # part of a name is not the name
        ([images, failed], ["R"], [missing]),
        ([chain], ["R"], []),
        ([chain, member], ["R", "LossThreshold"], []),
        ([images, member], ["LossThreshold"], ["no adaptive attack on images ran, only on membership"]),
        # Its time alone is no result, a name inside of an argument is no attack, and who may not know a defence is not adaptive.
        ([images, replace(member, metric="attack-seconds")], ["LossThreshold"], [f"{UNTESTED}: LossThreshold did not run"]),
        ([replace(chain, attack="A(prior='x | R()')")], ["R"], [missing]),
        ([blind], ["R"], [f"{UNTESTED}: R that knows the defence did not run"]),
        ([replace(blind, card=PROBE)], ["R"], []),
    ):  # fmt: skip
        known = adaptive if isinstance(adaptive, str) else None if adaptive is None else {"adaptive_attacks": adaptive}
        caveats = line(*rows, known=known).all_caveats
        assert [one for one in caveats if "not validated" not in one] == expected, (rows, adaptive)
    known = {"D()": {"adaptive_attacks": ["R", "S"]}}
    for ran, expected in ((images, f"{UNTESTED}: R, S wait"), (chain, "adaptive attacks that wait: S")):
        assert expected in findings_of(study(ran), known, running=True)[1].caveats


def test_a_row_says_when_privacy_and_accuracy_are_of_different_strength() -> None:
    for pipeline, observation, local_steps, differs in (
        ("GaussianNoise(per='update')", "probe", 0, True), ("Pruning() | Clip(per='update')", "probe", 5, True),
        ("GaussianNoise(per='update')", "probe", 1, False), ("GaussianNoise(per='update')", "update", 0, False),
        ("GaussianNoise(per='step')", "probe", 0, False), ("Blur()", "probe", 0, False),
    ):  # fmt: skip
        task = Experiment.of(output_dir="/tmp/x", local_steps=local_steps).plan(pipeline).at(1)
        card = PROBE.but(**strength(task, 1 if observation == "probe" else None))
        caveats = line(under(15.0, 14.0, card=card)).all_caveats
        assert any("not the strength of the accuracy beside it" in one for one in caveats) is differs, pipeline


def test_the_drop_is_paired_by_round_and_seed_and_as_deployed() -> None:
    rows = [accuracy(0.5, 1), accuracy(0.9, 2), accuracy(0.95, 2, seed=1)]
    rows += [accuracy(0.4, 1, defense="D()"), accuracy(0.2, 2, defense="D()")]  # the second seed has not come so far
    found = line(*rows, accuracy(0.8, 2, defense="D()", reference="transformed"))
    assert (found.accuracy.round, found.accuracy.clean.mean, found.accuracy.protected.mean) == (2, 0.2, 0.8)
    assert found.accuracy.change.mean == pytest.approx(-0.1)  # protected images, seed 0 only
    # An unfinished defence is compared in the last round that all its seeds have.
    rows = [accuracy(value, at, seed=seed) for seed in (0, 1) for at, value in ((1, 0.5), (2, 0.9))]
    rows += [accuracy(v, at, defense="D()", seed=s) for v, at, s in ((0.4, 1, 0), (0.8, 2, 0), (0.3, 1, 1))]
    found = line(*rows)
    assert (found.accuracy.round, found.accuracy.change.mean) == (1, pytest.approx(-0.15))


def test_labels_are_ranked_by_what_lies_over_chance_and_known_ones_do_not_leak() -> None:
    share = {"metric": "label-accuracy", "reference": ""}
    told = PROBE.but(labels=KnownLabels.KNOWN)
    found = line(under(1.0, card=told, **share), under(0.4, attack="B()", **share)).labels
    assert (found.attack, found.mean("label-accuracy")) == ("B()", 0.4)
    assert line(under(1.0, card=told, **share)).labels is None
    update = ThreatCard(observation="training update")
    rows = [psnr(1.0, 0.99, card=card, **share) for card in (PROBE, update)]
    rows += [null(chance, "uniform", card=card, **share) for card, chance in ((PROBE, 0.1), (update, 0.94))]
    rows += [under(0.5, 0.4, **share), under(0.9, 0.85, card=update, **share)]
    found = line(*rows).labels
    assert (found.observation, found.mean("label-accuracy")) == ("one-step probe", 0.5)
    # Below chance everywhere, the smallest distance counts: 0.09 - 0.1 against 0.9 - 0.94.
    below = [replace(row, value=0.09, ci_low=0.0) if row.value == 0.5 else row for row in rows]
    assert line(*below).labels.observation == "one-step probe"
    # The score that an attack is about gives its status.
    timed = Row(metric="attack-seconds", value=1.0, attack="A()", card=PROBE, round=1)
    weak = validate([timed, psnr(0.1, 0.05, **share), null(0.2, "uniform", **share)])
    assert [cell.status for cell in split(weak, [])[0].cells] == ["not-validated"]


def test_costs_are_means_over_rounds_relative_to_no_defence_and_failed_clients_are_counted() -> None:
    def cost(value: float, at: int, defense: str) -> Row:
        return Row(metric="train-seconds", value=value, round=at, defense=defense)

    found = line(cost(1.0, 1, ""), cost(3.0, 2, ""), cost(3.0, 1, "D()"), cost(3.0, 2, "D()"))
    assert found.seconds == (3.0, 1.5)
    assert line(cost(3.0, 1, "D()")).seconds[1] is None
    # By rows or counts, whichever is more.
    failed = [Row(metric="client", client=c, status="failed", defense="D()") for c in (1, 2)]
    counted = [line(*failed, Row(metric="clients-failed", value=v, defense="D()")) for v in (0.0, 3.0, math.inf)]
    assert [one.failed_clients for one in counted] == [2, 3, 2]
