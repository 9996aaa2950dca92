from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attacks.metrics.names import Role
from simulations.experiment.experiment import Experiment
from simulations.report import Row, validate
from simulations.report.analysis.adaptive import UNTESTED
from simulations.report.analysis.line import Line
from simulations.report.analysis.sentences import among, sentence
from simulations.report.analysis.summary import INITIAL_AVERAGES, summarise
from simulations.report.studies.score import interval, merge, wilson
from simulations.report.studies.study import Study, split
from strategies.audit.threat_card import KEPT_STATISTICS, KnownLabels, ThreatCard, strength

PROBE = ThreatCard(observation="probe")
NULLS = {"grey": 8.0, "mean": 12.0}


def psnr(value: float | None, low: float | None = None, **given: Any) -> Row:
    base = Row(metric="psnr", reference="original", attack="A()", card=PROBE, round=1, value=value, ci_low=low, n=16)
    return replace(base, **given)


def accuracy(value: float | None, at: int = 1, **given: Any) -> Row:
    return replace(Row(metric="test-accuracy", reference="original", round=at, value=value, n=100), **given)


def study(*rows: Row, nulls: dict[str, float] = NULLS) -> Study:
    """One study with a control that passes in every round, unless the rows hold one."""
    places = dict.fromkeys((row.round, row.seed) for row in rows)
    rows += tuple(
        psnr(v, attack=name, role=Role.NULL_BASELINE, round=at, seed=s) for at, s in places for name, v in nulls.items()
    )
    if not any(row.defense == "" and row.attack == "A()" for row in rows):
        rows += tuple(psnr(31.2, 29.0, worst=40.1, round=at, seed=s) for at, s in places)
    rows += tuple(hits(row) for row in rows if row.is_attack and row.metric == "psnr" and row.value is not None)
    return split(validate(rows), ["", "D()"])[0]


def hits(row: Row) -> Row:
    """All true images are picked out where the whole interval of the PSNR is above 12 dB, else none."""
    card = row.card.but(chance=0.01)
    return replace(row, metric="retrieval", value=float((row.ci_low or row.value or 0) > 12), ci_low=None, card=card)


def line(*rows: Row, defense: str = "D()", known: dict[str, Any] | None = None, **given: Any) -> Line:
    found = summarise(study(*rows, **given), {} if known is None else {defense: known})
    return next(one for one in found if one.defense == defense)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6))
def test_the_interval_over_seeds_is_students(values: list[float]) -> None:
    low, high = interval(values)
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    assert low == pytest.approx(np.mean(values) - half, abs=1e-6)
    assert high == pytest.approx(np.mean(values) + half, abs=1e-6)


@given(st.integers(1, 500), st.data())
def test_the_interval_of_an_accuracy_is_wilsons(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    expected = stats.binomtest(hits, n).proportion_ci(0.95, method="wilson")
    assert wilson(hits / n, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_one_seed_keeps_its_own_interval_and_several_get_one_over_seeds() -> None:
    rows = [psnr(float(10 + seed), 9.0, ci_high=12.0, worst=20.0 - seed, seed=seed, failures=1) for seed in range(3)]
    one, three = merge(rows[:1]), merge(rows)
    assert (one.low, one.high, one.n) == (9.0, 12.0, 16)
    assert (three.mean, three.worst, three.n, three.failures) == (11.0, 20.0, 48, 3)
    assert (three.low, three.high) == interval([10.0, 11.0, 12.0])
    assert dict(three.by_seed) == {0: 10.0, 1: 11.0, 2: 12.0}


@pytest.mark.parametrize(
    ("metric", "seeds", "trials"),
    [
        ("test-accuracy", [16 / 137] * 5, 137),  # the test images of all seeds are the same
        ("recognition", [1.0, 1.0], 2 * 137),
        ("identification", [0.0, 0.0, 0.0], 3 * 137),
        ("label-accuracy", [1.0, 1.0], 2 * 137),
    ],
)
def test_shares_that_agree_over_seeds_have_the_interval_of_their_distinct_images(
    metric: str, seeds: list[float], trials: int
) -> None:
    found = merge([accuracy(share, seed=at, metric=metric, n=137) for at, share in enumerate(seeds)])
    expected = stats.binomtest(round(seeds[0] * trials), trials).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


@given(st.lists(st.integers(0, 137), min_size=2, max_size=5), st.sampled_from(["test-accuracy", "recognition"]))
def test_intervals_of_shares_over_seeds_hold_their_mean_and_stay_within_0_and_1(hits: list[int], metric: str) -> None:
    found = merge([accuracy(k / 137, seed=at, metric=metric, n=137) for at, k in enumerate(hits)])
    assert found.mean is not None
    assert found.low is not None
    assert found.high is not None
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
    found = line(psnr(30.0, 28.0, defense="D()"), broken)
    assert found.strongest is not None
    assert found.strongest.status == "partly failed"
    assert any("the mean leaves them out" in caveat for caveat in found.caveats)


def test_a_guarantee_is_the_weakest_of_clients_and_seeds_never_a_mean() -> None:
    spent = [Row(metric="epsilon", value=v, worst=w, seed=s, defense="D()") for v, w, s in ((1, 3, 0), (2, None, 1))]
    assert merge(spent).mean == 3
    assert merge(spent).low is None
    later = [replace(row, round=2, value=0.5, worst=None) for row in spent]
    assert line(*spent, *later).epsilon == 3


def test_the_worst_image_is_the_best_reconstruction() -> None:
    assert merge([psnr(1.0, worst=5.0), psnr(1.0, worst=9.0, seed=1)]).worst == 9.0
    mse = [psnr(1.0, worst=value, metric="mse", seed=seed) for seed, value in enumerate((0.5, 0.1))]
    assert merge(mse).worst == 0.1


def test_the_headline_of_the_brief() -> None:
    undefended = psnr(31.2, 29.0, worst=40.1)
    assert sentence(line(undefended, defense="")) == (
        "the strongest attack recovered 16 of 16 images (95 % interval 79.4 to 100.0 %; chance of as many by one null guess: at "
        "most 1e\N{MINUS SIGN}32). Its mean PSNR is 31.2 dB, above the mean image (12.0 dB)."
    )


@pytest.mark.parametrize(
    ("mean", "low", "worst", "expected"),
    [
        (15.0, 12.5, 16.0, "the strongest attack recovered 16 of 16 images ("),
        (
            7.5,
            7.0,
            9.0,
            "and identified 0 of 16 among 100 candidates. Its mean PSNR is 7.5 dB, no better than a grey image (8.0 dB).",
        ),
        (
            8.0,
            7.0,
            9.0,
            "and identified 0 of 16 among 100 candidates. Its mean PSNR is 8.0 dB, no better than a grey image (8.0 dB).",
        ),
        (11.0, 10.5, 11.9, "no better than the mean image (12.0 dB)."),
        (
            11.0,
            10.5,
            13.0,
            "no better than the mean image (12.0 dB); the highest PSNR of one image is 13.0 dB.",
        ),
        (12.5, 11.5, 12.6, "not clearly better than the mean image (12.0 dB); the highest PSNR of one"),
        (
            45.0,
            None,
            45.0,
            "recovered 16 of 16 images (",
        ),  # one image has no interval; it was recovered all the same
    ],
)
def test_sentences_claim_no_more_than_the_numbers(mean: float, low: float | None, worst: float, expected: str) -> None:
    text = sentence(line(psnr(mean, low, worst=worst, defense="D()")))
    assert expected in text
    assert "private" not in text
    assert "safe" not in text


def test_sentences_about_missing_scores() -> None:
    assert sentence(line(accuracy(0.9, defense="D()"))) == "not attacked yet."
    assert "nothing is known" in sentence(line(psnr(None, defense="D()", status="failed")))
    text = sentence(line(psnr(9.0, 8.0, defense="D()"), nulls={}))
    assert text.endswith("with no null baseline to compare with.")
    text = sentence(line(psnr(9.0, 8.0, defense="D()", failures=2)))
    assert "2 failures scored as a grey image" in text


def test_seeds_are_counted_in_the_sentence() -> None:
    found = line(*(psnr(9.0, 8.0, defense="D()", seed=seed) for seed in (0, 1)))
    assert "recovered 0 of 32 images (95 % interval 0.0 to 10.9 %; over 2 seeds)" in sentence(found)


def test_the_strongest_attack_is_the_highest_score_that_clears_its_own_baselines() -> None:
    weak = psnr(13.0, 12.5, defense="D()", attack="A()")
    strong = psnr(14.0, 13.0, defense="D()", attack="B()", round=2)
    assert line(weak, strong).strongest.attack == "B()"  # type: ignore[union-attr]
    # A higher score that its interval does not tell from a baseline recovered nothing.
    assert line(weak, replace(strong, ci_low=11.0)).strongest.attack == "A()"  # type: ignore[union-attr]
    # With nothing recovered, an attack that passed its control says more than one that did not (B has no control).
    low, other = psnr(7.0, 6.0, defense="D()", attack="A()"), psnr(7.5, 6.5, defense="D()", attack="B()")
    assert line(low, other).strongest.attack == "A()"  # type: ignore[union-attr]


def test_of_too_few_images_the_largest_share_leads_too() -> None:
    """There is no verdict, and no other rule: the weaker attack recovers both images, the one with the higher mean neither."""
    narrow = psnr(15.5, 15.1, defense="D()", attack="A()", n=2)
    wide = psnr(14.0, 10.0, defense="D()", attack="B()", n=2, worst=20.0)
    plain = [psnr(31.2, 29.0, attack=name, n=2) for name in ("A()", "B()")]
    found = line(narrow, wide, *plain)
    assert found.strongest is not None
    assert found.strongest.attack == "A()"
    assert "recovered 2 of 2 images (" in sentence(found)
    assert "These are too few images for a verdict" in sentence(found)


def test_where_a_guess_chooses_among_the_true_images_luck_is_told_and_no_number_of_candidates() -> None:
    """24 images and 24 others make 48 candidates, of which a null guess may be of any of 24."""
    assert among(24 / 48) == " (chance: 50 %)"
    assert among(1 / 100) == among(24 / 2400) == " among 100 candidates"


def test_a_leak_by_an_attack_that_is_not_validated_is_not_hidden() -> None:
    found = line(psnr(7.0, 6.0, defense="D()"), psnr(25.0, 24.0, defense="D()", attack="Adaptive()"))
    assert found.strongest is not None
    assert (found.strongest.attack, found.strongest.status) == ("Adaptive()", "not-validated")
    assert "recovered 16 of 16 images (" in sentence(found)
    assert any(caveat.startswith("not validated") for caveat in found.caveats)


@pytest.mark.parametrize("reached", [11.0, 12.0, 12.5])
def test_an_attack_that_is_neither_validated_nor_recovers_anything_never_leads(reached: float) -> None:
    """However high its mean: its interval reaches the baselines, and it never broke the undefended run."""
    weak = psnr(reached, 11.5, defense="D()", attack="Untried()")
    found = line(psnr(7.0, 6.0, defense="D()"), weak)
    assert found.strongest is not None
    assert (found.strongest.attack, found.strongest.status) == ("A()", "ok")
    # Where nothing else ran it is shown for what it is.
    alone = line(weak)
    assert alone.strongest is not None
    assert alone.strongest.status == "not-validated"
    assert any("its failure shows nothing" in caveat for caveat in alone.caveats)


@pytest.mark.parametrize("order", [1, -1])
def test_the_headline_is_the_highest_of_all_that_recovered_something(order: int) -> None:
    rows = [
        psnr(v, v - 0.5, defense="D()", attack=f"A(x={v})", round=at) for at, v in ((1, 14.0), (2, 19.0), (3, 16.0))
    ]
    rows += [
        psnr(17.0, 16.5, defense="D()", attack="A() | R()"),
        psnr(90.0, None, defense="D()", attack="best", role=Role.NULL_BASELINE),
    ]
    found = line(*rows[::order])
    assert found.strongest is not None
    assert (found.strongest.attack, found.strongest.mean("psnr", "original")) == ("A(x=19.0)", 19.0)


def test_the_membership_score_of_the_summary_is_the_strongest_that_says_something() -> None:
    known = {"metric": "membership-auc", "reference": "", "defense": "D()", "round": 1}
    base = [psnr(0.7, 0.6, metric="membership-auc", reference="", attack=name) for name in ("L()", "S()")]
    few = psnr(0.62, 0.4, attack="S()", ci_high=0.8, **known)
    sure = psnr(0.52, 0.49, attack="L()", ci_high=0.55, **known)
    found = line(*base, few, sure).membership
    assert found is not None
    assert (found.attack, found.status) == ("L()", "ok")
    only = line(*base, few).membership
    assert only is not None
    assert only.status == "under-powered"


def test_a_failed_control_voids_the_headline() -> None:
    rows = [psnr(9.0, 8.5), psnr(7.0, 6.0, defense="D()")]
    assert any(caveat.startswith("positive control failed") for caveat in line(*rows, defense="").caveats)
    assert any("its failure shows nothing" in caveat for caveat in line(*rows).caveats)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (None, [UNTESTED]),
        ({"adaptive_attacks": []}, [UNTESTED]),
        ({"adaptive_attacks": ["Restorer"]}, [f"{UNTESTED}: Restorer did not run"]),
        ({"adaptive_attacks": ["A"]}, []),
        ({"adaptive_attacks": ["A", "Restorer"]}, ["adaptive attacks that did not run: Restorer"]),
        ({"adaptive_attacks": ["AB"]}, [f"{UNTESTED}: AB did not run"]),  # part of a name is not the name
        ("nonsense", [UNTESTED]),
    ],
)
def test_adaptive_attacks_are_named_when_they_did_not_run(known: Any, expected: list[str]) -> None:
    assert list(line(psnr(15.0, 14.0, defense="D()"), known=known).caveats) == expected


def test_an_adaptive_attack_that_failed_did_not_run() -> None:
    rows = [psnr(15.0, 14.0, defense="D()"), psnr(None, defense="D()", attack="R()", status="failed")]
    assert line(*rows, known={"adaptive_attacks": ["R"]}).caveats == (f"{UNTESTED}: R did not run",)


@pytest.mark.parametrize(
    ("statistics", "low", "doubted"),
    [(KEPT_STATISTICS, 0.45, True), (KEPT_STATISTICS, 0.9, False), ("sent as they are", 0.45, False)],
)
def test_membership_under_initial_running_averages_is_no_sign_of_privacy(
    statistics: str, low: float, doubted: bool
) -> None:
    card = PROBE.but(batch_norm_statistics=statistics)
    base = psnr(low + 0.05, low, ci_high=low + 0.1, metric="membership-auc", reference="", attack="LossThreshold()")
    found = line(base, replace(base, defense="D()", card=card), nulls={})
    assert found.membership is not None
    assert (INITIAL_AVERAGES in found.caveats) is doubted


def test_adaptive_attacks_in_chains_and_on_membership_ran() -> None:
    member = psnr(0.7, 0.6, metric="membership-auc", reference="", defense="D()", attack="LossThreshold()")
    chain = psnr(15.0, 14.0, defense="D()", attack="A() | R(iterations=2)")
    assert line(chain, known={"adaptive_attacks": ["R"]}).caveats == ()
    assert line(chain, member, known={"adaptive_attacks": ["R", "LossThreshold"]}).caveats == ()
    only = line(psnr(15.0, 14.0, defense="D()"), member, known={"adaptive_attacks": ["LossThreshold"]}).caveats
    assert only == ("no adaptive attack on images ran, only on membership",)
    # Its time alone is no result, and a name inside of an argument is no attack.
    timed = replace(member, metric="attack-seconds")
    assert "did not run" in line(timed, known={"adaptive_attacks": ["LossThreshold"]}).caveats[0]
    named = replace(chain, attack="A(prior='x | R()')")
    assert any("R did not run" in one for one in line(named, known={"adaptive_attacks": ["R"]}).caveats)


def test_an_attack_that_was_kept_from_knowing_the_defence_is_not_adaptive() -> None:
    blind = psnr(15.0, 14.0, defense="D()", attack="R()", card=PROBE.but(knows_defenses=False))
    missing = (f"{UNTESTED}: R that knows the defence did not run",)
    assert line(blind, known={"adaptive_attacks": ["R"]}).caveats[-1:] == missing
    assert UNTESTED not in " ".join(line(replace(blind, card=PROBE), known={"adaptive_attacks": ["R"]}).caveats)


def guessed(share: float, low: float, high: float, **given: Any) -> Row:
    base = Row(metric="attribute-accuracy", attack="AttributeInference()", card=PROBE, round=1, n=200)
    return replace(base, value=share, ci_low=low, ci_high=high, **given)


def test_where_the_attribute_alone_is_attacked_the_headline_is_about_it() -> None:
    null = [guessed(0.5, 0.43, 0.57, attack="majority", role=Role.NULL_BASELINE, defense=of) for of in ("", "D()")]
    plain = guessed(0.9, 0.85, 0.94)
    known = {"adaptive_attacks": ["AttributeInference"]}
    rows = validate([plain, *null, guessed(0.8, 0.74, 0.85, defense="D()")])
    none, under = summarise(split(rows, ["", "D()"])[0], {"D()": known})
    of = "of the values of the sensitive attribute (n = 200 images), above its most frequent value: 50.0 %."
    assert sentence(none) == f"the strongest attack read 90.0 % {of}"
    assert sentence(under) == f"the strongest attack read 80.0 % {of}"
    assert under.caveats == ("no adaptive attack on images ran, only on the sensitive attribute",)
    hidden = validate([plain, *null, guessed(0.52, 0.45, 0.59, defense="D()")])
    (_, lost) = summarise(split(hidden, ["", "D()"])[0], {"D()": known})
    assert "has right 52.0 %" in sentence(lost)
    assert "not clearly above its most frequent value: 50.0 %" in sentence(lost)
    # Beside images, both are told.
    both = line(plain, *null, guessed(0.8, 0.74, 0.85, defense="D()"), psnr(15.0, 14.0, defense="D()"), known=known)
    assert sentence(both).startswith("the strongest attack recovered 16 of 16 images (")
    above = "(n = 200 images), above its most frequent value: 50.0 %."
    assert sentence(both).endswith(f" Of the sensitive attribute the strongest attack read 80.0 % {above}")


def test_class_representatives_never_make_the_headline() -> None:
    drawn = psnr(99.0, 98.0, metric="class-mean-psnr", reference="", attack="G()", defense="D()")
    assert line(drawn, psnr(9.0, 8.0, defense="D()")).strongest.attack == "A()"  # type: ignore[union-attr]
    assert line(drawn).strongest is None


def test_the_drop_is_paired_by_round_and_seed_and_as_deployed() -> None:
    rows = [accuracy(0.5, 1), accuracy(0.9, 2), accuracy(0.95, 2, seed=1)]
    rows += [accuracy(0.4, 1, defense="D()"), accuracy(0.2, 2, defense="D()")]  # the second seed has not come so far
    rows += [accuracy(0.8, 2, defense="D()", reference="transformed")]
    found = line(*rows)
    assert found.round == 2
    assert found.clean is not None
    assert found.protected is not None
    assert (found.clean.mean, found.protected.mean) == (0.2, 0.8)
    assert found.change is not None
    assert found.change.mean == pytest.approx(-0.1)  # protected images, seed 0 only


def test_an_unfinished_defence_is_compared_in_the_last_round_that_all_its_seeds_have() -> None:
    rows = [accuracy(0.5, 1), accuracy(0.9, 2), accuracy(0.5, 1, seed=1), accuracy(0.9, 2, seed=1)]
    rows += [accuracy(0.4, 1, defense="D()"), accuracy(0.8, 2, defense="D()"), accuracy(0.3, 1, defense="D()", seed=1)]
    found = line(*rows)
    assert found.round == 1
    assert found.change is not None
    assert found.change.mean == pytest.approx(-0.15)


def test_attacks_that_were_told_the_labels_do_not_leak_them() -> None:
    told = PROBE.but(labels=KnownLabels.KNOWN)
    share = {"metric": "label-accuracy", "reference": "", "defense": "D()"}
    found = line(psnr(1.0, card=told, **share), psnr(0.4, attack="B()", **share))
    assert found.labels is not None
    assert (found.labels.attack, found.labels.mean("label-accuracy")) == ("B()", 0.4)
    assert line(psnr(1.0, card=told, **share)).labels is None


def test_labels_are_ranked_by_what_lies_over_chance() -> None:
    """With many images of few classes even a null guess names most labels."""
    share = {"metric": "label-accuracy", "reference": ""}
    probe, update = PROBE, ThreatCard(observation="training update")
    rows = [psnr(1.0, 0.99, card=card, **share) for card in (probe, update)]
    rows += [
        psnr(chance, card=card, attack="uniform", role=Role.NULL_BASELINE, **share)
        for card, chance in ((probe, 0.1), (update, 0.94))
    ]
    rows += [
        psnr(0.5, 0.4, card=probe, defense="D()", **share),
        psnr(0.9, 0.85, card=update, defense="D()", **share),
    ]
    found = line(*rows)
    assert found.labels is not None
    assert (found.labels.observation, found.labels.mean("label-accuracy")) == ("probe", 0.5)
    # Below chance everywhere, the smallest distance counts: 0.09 - 0.1 against 0.9 - 0.94.
    below = [replace(row, value=0.09, ci_low=0.0) if row.value == 0.5 else row for row in rows]
    assert line(*below).labels.observation == "probe"  # type: ignore[union-attr]


def test_the_score_that_an_attack_is_about_gives_its_status() -> None:
    timed = Row(metric="attack-seconds", value=1.0, attack="A()", card=PROBE, round=1)
    rows = [timed, psnr(0.1, 0.05, metric="label-accuracy", reference="")]
    rows += [psnr(0.2, attack="uniform", role=Role.NULL_BASELINE, metric="label-accuracy", reference="")]
    assert [cell.status for cell in split(validate(rows), [])[0].cells] == ["not-validated"]


def test_an_attack_that_failed_on_everything_is_neither_a_score_nor_the_strongest() -> None:
    failed = psnr(8.0, 7.0, defense="D()", failures=16)
    assert sentence(line(failed)) == "the attack failed on all 16 images, so nothing is known about them."
    found = line(failed, psnr(7.0, 6.0, defense="D()", attack="B()"))
    assert found.strongest.attack == "B()"  # type: ignore[union-attr]


def test_costs_are_means_over_rounds_relative_to_no_defence() -> None:
    def cost(value: float, at: int, defense: str) -> Row:
        return Row(metric="train-seconds", value=value, round=at, defense=defense)

    found = line(cost(1.0, 1, ""), cost(3.0, 2, ""), cost(3.0, 1, "D()"), cost(3.0, 2, "D()"))
    assert (found.seconds, found.seconds_ratio) == (3.0, 1.5)
    assert line(cost(3.0, 1, "D()")).seconds_ratio is None


def test_failed_clients_are_counted_from_rows_or_counts_whichever_is_more() -> None:
    failed = [Row(metric="client", client=c, status="failed", defense="D()") for c in (1, 2)]
    assert line(*failed).failed_clients == 2
    assert line(*failed, Row(metric="clients-failed", value=3.0, defense="D()")).failed_clients == 3
    assert line(*failed, Row(metric="clients-failed", value=math.inf, defense="D()")).failed_clients == 2


def test_studies_are_never_mixed() -> None:
    rows = [psnr(10.0, dataset="a"), psnr(20.0, dataset="b"), psnr(30.0, dataset="a", seed=1)]
    found = split(rows, [])
    assert [one.name[2] for one in found] == ["a", "b"]
    assert [one.cells[0].mean("psnr", "original") for one in found] == [20.0, 20.0]
    assert [one.seeds for one in found] == [(0, 1), (0,)]


@pytest.mark.parametrize(
    ("pipeline", "observation", "local_steps", "differs"),
    [
        ("GaussianNoise(per='update')", "probe", 0, True),
        ("Pruning() | Clip(per='update')", "probe", 5, True),
        ("GaussianNoise(per='update')", "probe", 1, False),
        ("GaussianNoise(per='update')", "update", 0, False),
        ("GaussianNoise(per='step')", "probe", 0, False),
        ("Blur()", "probe", 0, False),
    ],
)
def test_a_row_says_when_privacy_and_accuracy_are_of_different_strength(
    pipeline: str, observation: str, local_steps: int, differs: bool
) -> None:
    task = Experiment.of(output_dir="/tmp/x", local_steps=local_steps).plan(pipeline).at(1)
    card = PROBE.but(**strength(task, one_step=observation == "probe"))
    found = line(psnr(15.0, 14.0, defense="D()", card=card))
    assert any("not the strength of the accuracy beside it" in caveat for caveat in found.caveats) is differs
