from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attacks.metrics.names import Role
from simulations.report import Row, validate
from simulations.report.studies.baselines import picked_out
from simulations.report.studies.control import controls
from strategies.audit.threat_card import ThreatCard

PROBE = ThreatCard(observation="probe")


def scored(value: float | None, low: float | None, **given: Any) -> Row:
    base = Row(metric="psnr", reference="original", attack="A()", card=PROBE, round=1, value=value, ci_low=low, n=16)
    return replace(base, **given)


def null(value: float, name: str = "grey", **given: Any) -> Row:
    return scored(value, None, attack=name, role=Role.NULL_BASELINE, **given)


def hits(row: Row, k: int = 16, chance: float = 0.01, **given: Any) -> Row:
    """How many true images the attack of a row picked out."""
    card = row.card.but(chance=chance)
    found = replace(row, metric="retrieval", reference="original", value=k / row.n, ci_low=None, card=card, status="ok")
    return replace(found, **given)


def with_hits(rows: Sequence[Row]) -> list[Row]:
    """The rows, and behind them that every attack on the undefended run picks out all of its images."""
    plain = [row for row in rows if row.is_attack and row.defense == "" and row.metric == "psnr"]
    return [*rows, *(hits(row, row.n) for row in plain)]


def statuses(*rows: Row) -> list[str]:
    return [row.status for row in validate(with_hits(rows))[: len(rows)]]


@pytest.mark.parametrize(
    ("value", "low", "nulls", "expected"),
    [
        (20.0, 15.0, [8.0, 12.0], "ok"),
        (20.0, 12.1, [8.0, 12.0], "ok"),
        (20.0, 12.0, [8.0, 12.0], "not-validated"),  # must exceed, not reach
        (20.0, 11.0, [8.0, 12.0], "not-validated"),  # above grey, not above the best
        (11.0, 10.0, [12.0], "not-validated"),
        (20.0, None, [12.0], "not-validated"),  # one image gives no interval
        (20.0, 15.0, [], "not-validated"),  # nothing to compare with
        (None, None, [8.0], "not-validated"),
        (float("inf"), None, [8.0], "not-validated"),
        (float("inf"), 90.0, [8.0], "ok"),
    ],
)
def test_the_interval_must_lie_above_the_best_null(
    value: float | None, low: float | None, nulls: list[float], expected: str
) -> None:
    attack = scored(value, low)
    defended = scored(30.0, 29.0, defense="D()")
    baselines = [null(v, name) for v, name in zip(nulls, ("grey", "mean"), strict=False)]
    assert statuses(attack, defended, *baselines) == [expected, expected, *["ok"] * len(nulls)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "not-validated"),
        ({"metric": "ssim"}, "not-validated"),
        ({"metric": "mse"}, "not-validated"),
        ({"reference": "transformed"}, "not-validated"),
        ({"metric": "objective", "reference": ""}, "ok"),
        ({"metric": "attack-seconds", "reference": ""}, "ok"),
        ({"status": "failed", "value": None}, "failed"),
        ({"round": 2}, "ok"),
        ({"attack": "B()"}, "ok"),
        ({"card": ThreatCard(observation="update")}, "ok"),
        ({"seed": 1}, "ok"),
        ({"experiment": "other"}, "ok"),
    ],
)
def test_one_failed_control_concerns_its_attack_round_observation_and_run_only(
    change: dict[str, Any], expected: str
) -> None:
    """Every other place has a control of its own that passes."""
    rows = [scored(9.0, 8.5), null(10.0), replace(scored(30.0, 29.0, defense="D()"), **change)]
    place = {key: change[key] for key in ("round", "attack", "card", "seed", "experiment") if key in change}
    if place:
        rows += [scored(20.0, 15.0, **place), null(10.0, **{k: v for k, v in place.items() if k != "attack"})]
    assert statuses(*rows)[2] == expected


def test_without_an_undefended_run_nothing_is_validated() -> None:
    assert statuses(scored(30.0, 29.0, defense="D()"), null(8.0, defense="D()")) == ["not-validated", "ok"]


def test_the_same_number_of_images_decides_where_a_round_has_several() -> None:
    one, eight = PROBE.but(images=1), PROBE.but(images=8)
    rows = [scored(20.0, 15.0, card=one), scored(9.0, 8.0, card=eight), null(10.0, card=one)]
    rows += [scored(12.0, 11.0, defense="D()", card=card) for card in (one, eight, PROBE.but(images=7))]
    assert statuses(*rows) == ["ok", "not-validated", "ok", "ok", "not-validated", "not-validated"]


@pytest.mark.parametrize(
    ("metric", "low", "baseline", "expected"),
    [
        ("label-accuracy", 0.2, 0.1, "ok"),
        ("label-accuracy", 0.1, 0.1, "not-validated"),
        ("label-accuracy", 0.1, None, "ok"),  # no chance level is known
        ("membership-auc", 0.51, None, "ok"),
        ("membership-auc", 0.5, None, "not-validated"),
        ("membership-auc", 0.55, 0.6, "not-validated"),
    ],
)
def test_labels_and_membership_are_judged_against_chance(
    metric: str, low: float, baseline: float | None, expected: str
) -> None:
    known = {"metric": metric, "reference": ""}
    rows = [scored(0.7, low, **known), scored(0.3, 0.2, defense="D()", **known)]
    rows += [null(baseline, "uniform", **known)] if baseline is not None else []
    assert statuses(*rows)[:2] == [expected, expected]
    assert statuses(*rows)[2:] == ["ok"] * (baseline is not None)


def test_reasons_say_what_is_missing() -> None:
    def reason(*rows: Row) -> str:
        return controls(with_hits(rows))[0].reason

    assert "no better than grey" in reason(scored(7.0, 6.0), null(8.0))
    assert "reaches down to grey" in reason(scored(9.0, 8.0), null(8.0))
    assert "n = 16 gives no interval" in reason(scored(9.0, None), null(8.0))
    assert "no null baseline" in reason(scored(9.0, 8.0))
    assert "failed" in reason(scored(None, None, status="failed"), null(8.0))


# Images: identification, and how many a verdict needs --------------------------------------------------------------


def exact_low(k: int, n: int) -> float:
    """scipy's own, as an oracle."""
    return float(stats.binomtest(k, n).proportion_ci(0.95, method="exact").low)


@pytest.mark.parametrize("chance", [0.01, 0.05, 0.099, 0.1, 1.0])
@pytest.mark.parametrize("n", [1, 2, 4, 16, 48])
def test_images_count_as_picked_out_if_the_exact_interval_lies_far_above_chance(n: int, chance: float) -> None:
    base = scored(20.0, 19.0, n=n)
    found = [picked_out(hits(base, k, chance)) for k in range(n + 1)]
    assert found == [exact_low(k, n) > 10 * chance for k in range(n + 1)]
    assert any(found) == (n > 1 and chance < 0.1 and exact_low(n, n) > 10 * chance)


def test_five_of_sixteen_images_out_of_a_hundred_suffice_and_four_do_not() -> None:
    base = scored(20.0, 19.0)
    assert [picked_out(hits(base, k)) for k in (0, 1, 4, 5, 16)] == [False, False, False, True, True]
    # A guess that is as near to every candidate reaches five once in 2.5 million runs; one that knows the class does not.
    assert stats.binom.sf(4, 16, 0.01) == pytest.approx(1 / 2.5e6, rel=0.02)
    assert stats.binom.sf(4, 16, 11 / 96) == pytest.approx(0.029, abs=0.0005)
    assert stats.binom.sf(4, 16, 3 / 96) == pytest.approx(0.0001, abs=0.00005)
    assert not picked_out(hits(base, 16, status="failed"))
    assert not picked_out(replace(hits(base), card=PROBE))


def test_where_there_are_too_few_others_the_control_is_open_and_not_failed() -> None:
    """Of six candidates nothing could ever be picked out far more often than chance: a reading stays a reading, unjudged."""
    good, bad = scored(20.0, 19.0), scored(13.0, 11.0)
    nulls = [null(8.0), null(12.0, "mean")]
    (few,) = controls([good, *nulls, hits(good, chance=1 / 6)])
    assert (few.open, few.passed, few.reason) == (
        True,
        False,
        "could not be judged, as only 6 candidates: too few to tell a hit from chance",
    )
    (none,) = controls([good, *nulls])
    assert (none.open, none.passed) == (True, False)
    (failed,) = controls([bad, *nulls])
    assert (failed.open, failed.passed) == (False, False), "no better than the mean image, whoever else there is"
    (enough,) = controls([good, *nulls, hits(good)])
    assert (enough.open, enough.passed) == (False, True)


def test_an_attack_counts_if_it_beats_the_mean_image_and_finds_the_true_images() -> None:
    """Either alone is not enough; where nobody could look for true images among others, nobody can judge."""
    good, bad = scored(20.0, 19.0), scored(13.0, 11.0)
    for row, picked, expected in (
        (good, [hits(good)], "ok"),
        (good, [hits(good, 4)], "not-validated"),
        (good, [], "under-powered"),
        (good, [hits(good, card=PROBE)], "under-powered"),
        (good, [hits(good, round=2)], "under-powered"),
        (good, [hits(good, attack="B()")], "under-powered"),
        (bad, [hits(bad)], "not-validated"),
    ):
        rows = [row, replace(row, defense="D()"), null(8.0), null(12.0, "mean"), *picked]
        assert [one.status for one in validate(rows)][:2] == [expected, expected]


def test_a_blurred_copy_of_the_truth_is_a_scale_and_no_bar() -> None:
    """On smooth photographs it scores more than any reconstruction."""
    scale = scored(30.6, 30.0, attack="blurred", role=Role.SCALE)
    rows = with_hits([scored(22.9, 21.0), null(8.0), null(12.1, "mean"), scale])
    assert [row.status for row in validate(rows)][:1] == ["ok"]
    (control,) = controls(rows)
    assert control.null == ("mean", 12.1)
    assert validate([scale])[0] == scale


@pytest.mark.parametrize("metric", ["psnr", "ssim", "label-accuracy", "recognition"])
@pytest.mark.parametrize(("n", "expected"), [(2, "under-powered"), (15, "under-powered"), (16, "ok")])
def test_fewer_than_sixteen_images_give_no_verdict(metric: str, n: int, expected: str) -> None:
    reference = "original" if metric in {"psnr", "ssim"} else ""
    for value in (31.5, 9.0):  # far above the baselines, and below them
        rows = [scored(value, value - 1, n=n), scored(value, value - 1, n=n, defense="D()", metric=metric)]
        rows[1] = replace(rows[1], reference=reference)
        if metric == "label-accuracy":
            rows += [scored(value, value - 1, n=n, metric=metric, reference=""), null(12.0, "uniform", metric=metric)]
            rows[-1] = replace(rows[-1], reference="")
        passed = expected if value > 12 or n < 16 else "not-validated"
        assert statuses(*rows, null(12.0))[:2] == [passed, passed]


def test_labels_are_counted_by_images_not_by_batches() -> None:
    known = {"metric": "label-accuracy", "reference": "", "n": 2}
    for images, expected in ((8, "ok"), (7, "under-powered")):
        card = PROBE.but(images=images)
        rows = [scored(0.7, 0.5, card=card, **known), null(0.1, "uniform", **known | {"card": card})]
        assert statuses(*rows)[0] == expected


CHAIN = "A() | R()"


@pytest.mark.parametrize(
    ("first", "own", "expected"),
    [
        (15.0, None, "ok"),  # the first stage broke the undefended run
        (9.0, None, "not-validated"),
        (9.0, 15.0, "ok"),  # an undefended row of its own wins, either way
        (15.0, 9.0, "not-validated"),
        (None, None, "not-validated"),
    ],
)
def test_a_chain_has_the_control_of_its_first_stage(first: float | None, own: float | None, expected: str) -> None:
    rows = [scored(20.0, 19.0, attack=CHAIN, defense="D()"), null(10.0)]
    rows += [scored(20.0, low, attack=name) for name, low in (("A()", first), (CHAIN, own)) if low is not None]
    # Neither another round, another observation nor another attack is its control.
    rows += [
        scored(20.0, 15.0, round=2),
        scored(20.0, 15.0, card=ThreatCard(observation="update")),
        scored(20.0, 15.0, attack="R()"),
    ]
    assert statuses(*rows)[0] == expected


@pytest.mark.parametrize(("low", "card", "expected"), [(0.3, 10, "ok"), (0.1, 10, "not-validated"), (0.0, None, "ok")])
def test_class_representatives_are_judged_by_recognition_against_chance(
    low: float, card: int | None, expected: str
) -> None:
    known = {"attack": "G()", "reference": "", "card": PROBE.but(num_classes=card)}
    rows = [scored(0.4, low, metric="recognition", **known)]
    rows += [scored(60.0, 59.0, metric="class-mean-psnr", defense=one, **known) for one in ("", "D()")]
    assert statuses(*rows) == [expected] * 3


def test_recognition_of_reconstructions_is_judged_with_their_psnr() -> None:
    seen = scored(0.9, 0.8, metric="recognition", reference="", defense="D()")
    assert statuses(seen, scored(20.0, 15.0), null(10.0))[0] == "ok"
    assert statuses(seen, scored(9.0, 8.0), null(10.0))[0] == "not-validated"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.45, 0.75, "under-powered"),  # holds chance and the undefended 0.7: all of the leak or nothing of it
        (0.5, 0.7, "under-powered"),
        (0.45, 0.65, "ok"),  # less than without a defence
        (0.55, 0.75, "ok"),  # more than chance
        (0.71, 0.9, "ok"),
        (0.45, None, "ok"),
    ],
)
def test_an_auc_that_may_be_no_leak_or_the_whole_is_under_powered(
    low: float, high: float | None, expected: str
) -> None:
    known = {"metric": "membership-auc", "reference": ""}
    plain = scored(0.7, 0.6, ci_high=0.8, **known)
    assert statuses(plain, scored(0.6, low, ci_high=high, defense="D()", **known)) == ["ok", expected]
    # The undefended run is no evidence about itself, and an attack that is too weak says still less than too few records.
    assert statuses(replace(plain, ci_low=0.4), scored(0.6, low, ci_high=high, defense="D()", **known)) == [
        "not-validated",
        "not-validated",
    ]


@pytest.mark.parametrize(("others", "expected"), [(99, "under-powered"), (100, "ok"), (None, "ok")])
def test_one_false_positive_in_a_hundred_needs_a_hundred_non_members(others: int | None, expected: str) -> None:
    card = PROBE if others is None else PROBE.but(others=others)
    rows = [scored(0.7, 0.6, metric="membership-auc", reference="", card=card)]
    rows += [scored(0.1, 0.05, metric="membership-tpr", reference="", card=card, defense=one) for one in ("", "D()")]
    assert statuses(*rows) == ["ok", expected, expected]


some_rows = st.lists(
    st.builds(
        scored,
        st.none() | st.sampled_from([5.0, 10.0, 15.0]),
        st.none() | st.sampled_from([4.0, 9.0, 10.0, 14.0]),
        attack=st.sampled_from(["A()", "B()", "grey", "mean", ""]),
        defense=st.sampled_from(["", "", "D()"]),
        metric=st.sampled_from(["psnr", "psnr", "ssim", "test-accuracy"]),
        reference=st.sampled_from(["original", "original", "transformed"]),
        round=st.integers(1, 2),
        status=st.sampled_from(["ok", "ok", "failed", "not-validated"]),
    ),
    max_size=12,
)


def slow_validate(rows: Sequence[Row]) -> list[str]:
    """The rule read aloud, row by row, of attacks that pick out every image."""
    found = []
    for row in rows:
        status = row.status
        if status == "ok" and row.metric in {"psnr", "ssim"} and row.attack in {"A()", "B()"}:
            plain = [r for r in rows if (r.defense, r.metric, r.reference) == ("", "psnr", "original")]
            plain = [r for r in plain if r.round == row.round]
            nulls = [r.value for r in plain if r.role is Role.NULL_BASELINE and r.value is not None]
            mine = [r for r in plain if r.attack == row.attack]
            broken = bool(mine) and bool(nulls)
            for r in mine:
                best = max(nulls, default=0.0)
                broken &= r.status != "failed" and r.value is not None and r.value > best
                broken &= r.ci_low is not None and r.ci_low > best
            status = "ok" if broken else "not-validated"
        found.append(status)
    return found


@given(some_rows)
def test_it_agrees_with_the_rule_read_aloud(rows: list[Row]) -> None:
    # A defence's own baselines come first when it has them; the rule above knows the undefended run's only.
    rows = [replace(row, role=Role.NULL_BASELINE) if row.attack in ("grey", "mean") else row for row in rows]
    rows = [row for row in rows if not (row.role is Role.NULL_BASELINE and row.defense)]
    assert statuses(*rows) == slow_validate(rows)


@given(some_rows)
def test_it_is_pure_keeps_order_and_changes_nothing_but_statuses(rows: list[Row]) -> None:
    before = list(rows)
    once = validate(rows)
    assert rows == before
    assert [replace(row, status="") for row in once] == [replace(row, status="") for row in rows]
    assert validate(once) == once
