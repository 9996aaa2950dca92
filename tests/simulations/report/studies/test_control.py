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
from tests.simulations.report.report_run import PROBE, hits, null, scored

UPDATE = ThreatCard(observation="update")
FAILED, WEAK, OK = "not-validated", "under-powered", "ok"


def under(value: float | None, low: float | None = None, **given: Any) -> Row:
    return scored(value, low, **{"defense": "D()"} | given)


def with_hits(rows: Sequence[Row]) -> list[Row]:
    plain = [row for row in rows if row.is_attack and row.defense == "" and row.metric == "psnr"]
    return [*rows, *map(hits, plain)]


def statuses(*rows: Row) -> list[str]:
    return [row.status for row in validate(with_hits(rows))[: len(rows)]]


def test_the_interval_must_lie_above_the_best_null() -> None:
    inf = float("inf")
    for value, low, nulls, expected, why in (
        (20.0, 15.0, [8.0, 12.0], OK, ""),
        (20.0, 12.1, [8.0, 12.0], OK, ""),
        (inf, 90.0, [8.0], OK, ""),
        (20.0, 12.0, [8.0, 12.0], FAILED, "reaches down to mean"),  # must exceed, not reach
        (20.0, 11.0, [8.0, 12.0], FAILED, "reaches down to mean"),  # above grey, not above the best
        (11.0, 10.0, [12.0], FAILED, "no better than grey"),
        (20.0, None, [12.0], FAILED, "n = 16 gives no interval"),
        (20.0, 15.0, [], FAILED, "no null baseline"),
        (None, None, [8.0], FAILED, ""),
        (inf, None, [8.0], FAILED, ""),
    ):
        beside = [null(v, n) for v, n in zip(nulls, ("grey", "mean"), strict=False)]
        rows = [scored(value, low), under(30.0, 29.0), *beside]
        assert statuses(*rows) == [expected, expected, *[OK] * len(nulls)], (value, low, nulls)
        assert why in controls(with_hits(rows))[0].reason
    assert "failed" in controls(with_hits([scored(None, status="failed"), null(8.0)]))[0].reason
    assert statuses(under(30.0, 29.0), null(8.0, defense="D()")) == [FAILED, OK], "no undefended run"
    # A blurred copy of the truth is a scale and no baseline: on smooth photographs it scores more than any reconstruction.
    scale = scored(30.6, 30.0, attack="blurred", role=Role.SCALE)
    rows = with_hits([scored(22.9, 21.0), null(8.0), null(12.1, "mean"), scale])
    assert (validate(rows)[0].status, controls(rows)[0].null, validate([scale])) == (OK, ("mean", 12.1), [scale])


def test_one_failed_control_concerns_its_attack_round_observation_and_run_only() -> None:
    for change, expected in (
        ({}, FAILED), ({"metric": "ssim"}, FAILED), ({"metric": "mse"}, FAILED), ({"reference": "transformed"}, FAILED),
        ({"metric": "objective", "reference": ""}, OK), ({"metric": "attack-seconds", "reference": ""}, OK),
        ({"status": "failed", "value": None}, "failed"), ({"round": 2}, OK), ({"attack": "B()"}, OK), ({"card": UPDATE}, OK),
        ({"seed": 1}, OK), ({"experiment": "other"}, OK),
    ):  # fmt: skip
        rows = [scored(9.0, 8.5), null(10.0), replace(under(30.0, 29.0), **change)]
        place = {key: change[key] for key in ("round", "attack", "card", "seed", "experiment") if key in change}
        if place:
            rows += [scored(20.0, 15.0, **place), null(10.0, **{k: v for k, v in place.items() if k != "attack"})]
        assert statuses(*rows)[2] == expected, change
    # Where a round has several numbers of images, the same number decides.
    one, eight = PROBE.but(images=1), PROBE.but(images=8)
    rows = [scored(20.0, 15.0, card=one), scored(9.0, 8.0, card=eight), null(10.0, card=one)]
    rows += [under(12.0, 11.0, card=card) for card in (one, eight, PROBE.but(images=7))]
    assert statuses(*rows) == [OK, FAILED, OK, OK, FAILED, FAILED]


def test_labels_membership_and_classes_are_judged_against_chance() -> None:
    for metric, low, baseline, expected in (
        ("label-accuracy", 0.2, 0.1, OK), ("label-accuracy", 0.1, 0.1, FAILED), ("label-accuracy", 0.1, None, OK),
        ("membership-auc", 0.51, None, OK), ("membership-auc", 0.5, None, FAILED), ("membership-auc", 0.55, 0.6, FAILED),
    ):  # fmt: skip
        known = {"metric": metric, "reference": ""}
        rows = [scored(0.7, low, **known), under(0.3, 0.2, **known)]
        rows += [null(baseline, "uniform", **known)] if baseline is not None else []
        assert statuses(*rows) == [expected, expected, OK][: len(rows)], (metric, low, baseline)
    for low, classes, expected in ((0.3, 10, OK), (0.1, 10, FAILED), (0.0, None, OK)):
        known = {"attack": "G()", "reference": "", "card": PROBE.but(num_classes=classes)}
        rows = [scored(0.4, low, metric="recognition", **known)]
        rows += [scored(60.0, 59.0, metric="class-mean-psnr", defense=one, **known) for one in ("", "D()")]
        assert statuses(*rows) == [expected] * 3, (low, classes)
    # Recognition of reconstructions is judged with their PSNR.
    seen = under(0.9, 0.8, metric="recognition", reference="")
    assert [statuses(seen, scored(v, v - 1), null(10.0))[0] for v in (20.0, 9.0)] == [OK, FAILED]


def test_images_count_as_picked_out_if_the_exact_interval_lies_far_above_chance() -> None:
    for n in (1, 2, 4, 16, 48):
        lows = [float(stats.binomtest(k, n).proportion_ci(0.95, method="exact").low) for k in range(n + 1)]
        for chance in (0.01, 0.05, 0.099, 0.1, 1.0):
            found = [picked_out(hits(scored(20.0, 19.0, n=n), k, chance)) for k in range(n + 1)]
            assert found == [low > 10 * chance for low in lows], (n, chance)
            assert any(found) == (n > 1 and chance < 0.1 and lows[n] > 10 * chance)
    base = scored(20.0, 19.0)
    assert [picked_out(hits(base, k)) for k in (0, 1, 4, 5, 16)] == [False, False, False, True, True]
    # A guess that is as near to every candidate reaches five once in 2.5 million runs; one that knows the class does not.
    assert stats.binom.sf(4, 16, 0.01) == pytest.approx(1 / 2.5e6, rel=0.02)
    assert not picked_out(hits(base, status="failed"))
    assert not picked_out(hits(base, card=PROBE))


def test_an_attack_counts_if_it_beats_the_mean_image_and_finds_the_true_images() -> None:
    good, bad, nulls = scored(20.0, 19.0), scored(13.0, 11.0), [null(8.0), null(12.0, "mean")]
    for row, picked, expected in (
        (good, [hits(good)], OK), (good, [hits(good, 4)], FAILED), (bad, [hits(bad)], FAILED), (bad, [], FAILED),
        (good, [], WEAK), (good, [hits(good, card=PROBE)], WEAK), (good, [hits(good, round=2)], WEAK),
        (good, [hits(good, attack="B()")], WEAK), (good, [hits(good, chance=1 / 6)], WEAK),
    ):  # fmt: skip
        rows = [row, replace(row, defense="D()"), *nulls, *picked]
        assert [one.status for one in validate(rows)][:2] == [expected, expected], picked
        control = controls(rows)[0]
        assert (control.open, control.passed) == (expected is WEAK, expected is OK)
    assert control.reason == "could not be judged, as only 6 candidates: too few to tell a hit from chance"


def test_fewer_than_sixteen_images_give_no_verdict() -> None:
    for n, enough in ((2, False), (15, False), (16, True)):
        for metric in ("psnr", "ssim", "label-accuracy", "recognition"):
            reference = "original" if metric in {"psnr", "ssim"} else ""
            for value in (31.5, 9.0):  # far above the baselines, and below them
                rows = [scored(value, value - 1, n=n), under(value, value - 1, n=n, metric=metric, reference=reference)]
                if metric == "label-accuracy":
                    known = {"metric": metric, "reference": ""}
                    rows += [scored(value, value - 1, n=n, **known), null(12.0, "uniform", **known)]
                expected = WEAK if not enough else OK if value > 12 else FAILED
                assert statuses(*rows, null(12.0))[:2] == [expected, expected], (n, metric, value)
    # Labels are counted by images, not by batches.
    for images, expected in ((8, OK), (7, WEAK)):
        known = {"metric": "label-accuracy", "reference": "", "n": 2, "card": PROBE.but(images=images)}
        assert statuses(scored(0.7, 0.5, **known), null(0.1, "uniform", **known))[0] == expected


def test_a_chain_has_the_control_of_its_first_stage_unless_it_has_its_own() -> None:
    chain = "A() | R()"
    # Neither another round, another observation nor another attack is its control.
    others = [scored(20.0, 15.0, **one) for one in ({"round": 2}, {"card": UPDATE}, {"attack": "R()"})]
    for first, own, expected in (
        (15.0, None, OK), (9.0, None, FAILED), (9.0, 15.0, OK), (15.0, 9.0, FAILED), (None, None, FAILED),
    ):  # fmt: skip
        rows = [under(20.0, 19.0, attack=chain), null(10.0), *others]
        rows += [scored(20.0, low, attack=name) for name, low in (("A()", first), (chain, own)) if low is not None]
        assert statuses(*rows)[0] == expected, (first, own)


def test_an_auc_that_may_be_no_leak_or_the_whole_is_under_powered() -> None:
    known = {"metric": "membership-auc", "reference": ""}
    plain = scored(0.7, 0.6, ci_high=0.8, **known)
    for low, high, expected in (
        (0.45, 0.75, WEAK), (0.5, 0.7, WEAK),  # holds chance and the undefended 0.7
        (0.45, 0.65, OK), (0.55, 0.75, OK), (0.71, 0.9, OK), (0.45, None, OK),
    ):  # fmt: skip
        defended = under(0.6, low, ci_high=high, **known)
        assert statuses(plain, defended) == [OK, expected], (low, high)
        # An attack that is too weak says still less than too few records.
        assert statuses(replace(plain, ci_low=0.4), defended) == [FAILED, FAILED]
    # One false positive in a hundred needs a hundred non-members.
    for others, expected in ((99, WEAK), (100, OK), (None, OK)):
        card = PROBE if others is None else PROBE.but(others=others)
        rate = {"metric": "membership-tpr", "reference": "", "card": card}
        rows = [scored(0.7, 0.6, metric="membership-auc", reference="", card=card), scored(0.1, 0.05, **rate)]
        assert statuses(*rows, under(0.1, 0.05, **rate)) == [OK, expected, expected], others


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
def test_it_agrees_with_the_rule_read_aloud_and_changes_nothing_but_statuses(rows: list[Row]) -> None:
    before = list(rows)
    once = validate(rows)
    assert rows == before
    assert [replace(row, status="") for row in once] == [replace(row, status="") for row in rows]
    assert validate(once) == once
    # A defence's own baselines come first when it has them; the rule above knows the undefended run's only.
    rows = [replace(row, role=Role.NULL_BASELINE) if row.attack in ("grey", "mean") else row for row in rows]
    rows = [row for row in rows if not (row.role is Role.NULL_BASELINE and row.defense)]
    assert statuses(*rows) == slow_validate(rows)
