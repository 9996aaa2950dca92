from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import comb
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from attacks.metrics.names import Role
from simulations.report import Row, validate
from simulations.report.studies.baselines import names_members
from simulations.report.studies.control import controls
from simulations.report.studies.intervals import LEVEL
from strategies.audit.threat_card import ThreatCard
from tests.simulations.report.report_run import PROBE, hits, null, scored

UPDATE = ThreatCard(observation="update")
FAILED, WEAK, OK = "not-validated", "under-powered", "ok"
LABEL = {"metric": "label-accuracy", "reference": ""}


def under(value: float | None, low: float | None = None, **given: Any) -> Row:
    return scored(value, low, **{"defense": "D()"} | given)


def found(k: int | None = None, chance: float = 0.01, **given: Any) -> Row:
    """The row of an undefended run that controls images."""
    return hits(scored(20.0, 19.0, **given), k, chance)


def statuses(*rows: Row) -> list[str]:
    return [row.status for row in validate(rows)]


def test_images_count_where_they_are_identified_without_a_defence_beyond_chance_over_all_attacks() -> None:
    blind, told = replace(found(), card=PROBE), "attack failed"
    for control, others, expected, why in (
        (found(), 0, OK, ""), (found(2), 0, OK, ""), (found(2), 3, OK, ""),
        (found(2), 4, FAILED, "2 of 16 images are identified (expected by chance: 0.16; 5 tried)"),
        (found(1), 0, FAILED, "1 of 16"), (found(0), 0, FAILED, "0 of 16"),
        (replace(found(), value=None), 0, FAILED, told), (replace(found(), status="failed"), 0, FAILED, told),
        (found(chance=5 / 6), 0, WEAK, "too few other images"), (blind, 0, WEAK, "too few other images"),
        (found(15, n=15), 0, WEAK, ""), (found(0, n=2), 0, WEAK, ""),
    ):  # fmt: skip
        tried = [found(0, attack=f"Other{at}()") for at in range(others)]
        rows = [under(9.0, 8.0), under(0.9, metric="ssim"), under(30.0, reference="transformed"), control, *tried]
        marked = [expected] * 3
        assert statuses(*rows)[:3] == marked, (control, others)
        one = controls(rows)[0]
        assert why in one.reason
        assert one.open == (expected is WEAK and bool(why))
    # Without an undefended run nothing is validated; of too few images under the defence nothing is said either.
    assert statuses(under(30.0, 29.0), null(8.0, defense="D()")) == [FAILED, OK]
    assert statuses(under(30.0, 29.0, n=15), found())[0] == WEAK


def test_one_failed_control_concerns_its_attack_round_observation_and_run_only() -> None:
    for change, expected in (
        ({}, FAILED), ({"metric": "ssim"}, FAILED), ({"metric": "mse"}, FAILED), ({"reference": "transformed"}, FAILED),
        ({"metric": "recognition", "reference": ""}, FAILED),
        ({"metric": "objective", "reference": ""}, OK), ({"metric": "attack-seconds", "reference": ""}, OK),
        ({"status": "failed", "value": None}, "failed"), ({"round": 2}, OK), ({"attack": "B()"}, OK), ({"card": UPDATE}, OK),
        ({"seed": 1}, OK), ({"experiment": "other"}, OK),
    ):  # fmt: skip
        place = {key: change[key] for key in ("round", "attack", "card", "seed", "experiment") if key in change}
        rows = [replace(under(30.0, 29.0), **change), found(0), *([found(**place)] if place else [])]
        assert statuses(*rows)[0] == expected, change
    # Of messages of several sizes, those of its own size decide, or smaller ones that passed; never larger ones.
    one, eight, seven = (PROBE.but(images=images) for images in (1, 8, 7))
    for passed, expected in ((one, [OK, FAILED, OK]), (eight, [FAILED, OK, FAILED]), (None, [FAILED] * 3)):
        rows = [under(12.0, 11.0, card=card) for card in (one, eight, seven)]
        rows += [found(None if card == passed else 0, card=card) for card in (one, eight)]
        assert statuses(*rows)[:3] == expected


def test_labels_membership_and_classes_must_lie_above_their_best_null_with_the_whole_interval() -> None:
    for value, low, nulls, expected, why in (
        (0.9, 0.5, [0.1, 0.4], OK, ""),
        (0.9, 0.4, [0.1, 0.4], FAILED, "reaches down to mean"),  # must exceed, not reach
        (0.9, 0.3, [0.1, 0.4], FAILED, "reaches down to mean"),  # above the first, not above the best
        (0.3, 0.2, [0.4], FAILED, "no better than grey"),
        (0.9, None, [0.4], FAILED, "n = 16 gives no interval"),
        (None, None, [0.4], FAILED, "failed"),
    ):
        beside = [null(v, n, **LABEL) for v, n in zip(nulls, ("grey", "mean"), strict=False)]
        rows = [scored(value, low, **LABEL), under(0.9, 0.8, **LABEL), *beside]
        assert statuses(*rows)[:2] == [expected, expected], (value, low, nulls)
        assert why in controls(rows)[0].reason
    # A scale is no baseline, and labels without a baseline get no verdict.
    scale = scored(0.8, 0.7, attack="blurred", role=Role.SCALE, **LABEL)
    assert statuses(scored(0.7, 0.6, **LABEL), null(0.1, **LABEL), scale) == [OK] * 3
    assert statuses(scored(0.1, 0.0, **LABEL)) == [OK]
    for low, baseline, expected in ((0.51, None, OK), (0.5, None, FAILED), (0.55, 0.6, FAILED)):
        known = {"metric": "membership-auc", "reference": ""}
        beside = [null(baseline, **known)] if baseline is not None else []
        assert statuses(scored(0.7, low, **known), under(0.3, 0.2, **known), *beside)[:2] == [expected, expected], low
    for low, classes, expected in ((0.3, 10, OK), (0.1, 10, FAILED), (0.0, None, OK)):
        known = {"attack": "G()", "reference": "", "card": PROBE.but(num_classes=classes)}
        rows = [scored(0.4, low, metric="recognition", **known)]
        rows += [scored(60.0, 59.0, metric="class-mean-psnr", defense=one, **known) for one in ("", "D()")]
        assert statuses(*rows) == [expected] * 3, (low, classes)
    # Labels are counted by images, not by batches.
    for images, expected in ((8, OK), (7, WEAK)):
        known = LABEL | {"n": 2, "card": PROBE.but(images=images)}
        assert statuses(scored(0.7, 0.5, **known), null(0.1, "uniform", **known))[0] == expected


def test_a_chain_has_the_control_of_its_first_stage_unless_it_has_its_own() -> None:
    chain = "A() | R()"
    # Neither another round, another observation nor another attack is its control.
    others = [found(**one) for one in ({"round": 2}, {"card": UPDATE}, {"attack": "R()"})]
    for first, own, expected in ((9, None, OK), (0, None, FAILED), (0, 9, OK), (9, 0, FAILED), (None, None, FAILED)):
        rows = [under(20.0, 19.0, attack=chain), *others]
        rows += [found(k, attack=name) for name, k in (("A()", first), (chain, own)) if k is not None]
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
        st.none() | st.sampled_from([0.0, 1 / 16, 2 / 16, 1.0]),
        attack=st.sampled_from(["A()", "B()", "C()", ""]),
        defense=st.sampled_from(["", "", "D()"]),
        metric=st.sampled_from(["psnr", "identified", "identified", "test-accuracy"]),
        reference=st.sampled_from(["original", "original", "transformed"]),
        round=st.integers(1, 2),
        status=st.sampled_from(["ok", "ok", "failed", "not-validated"]),
        card=st.just(PROBE.but(chance=0.01)),
    ),
    max_size=12,
)


def slow_validate(rows: Sequence[Row]) -> list[str]:
    plain = [r for r in rows if (r.defense, r.metric, r.reference) == ("", "identified", "original") and r.attack]

    def passed(row: Row) -> bool:
        k = round(16 * (row.value or 0.0))
        tail = sum(comb(16, i) * 0.01**i * 0.99 ** (16 - i) for i in range(k, 17))
        return row.status != "failed" and row.value is not None and len(plain) * tail <= LEVEL

    told = []
    for row in rows:
        status = row.status
        if status == "ok" and row.metric in {"psnr", "identified"} and row.attack:
            mine = [passed(r) for r in plain if (r.attack, r.round) == (row.attack, row.round)]
            status = OK if mine and all(mine) else FAILED
        told.append(status)
    return told


@given(some_rows)
def test_it_agrees_with_the_rule_read_aloud_and_changes_nothing_but_statuses(rows: list[Row]) -> None:
    before = list(rows)
    once = validate(rows)
    assert rows == before
    assert [replace(row, status="") for row in once] == [replace(row, status="") for row in rows]
    assert validate(once) == once
    assert statuses(*rows) == slow_validate(rows)


OTHERS = 100


def rate(count: int, members: int, **given: object) -> Row:
    card = ThreatCard(observation="training update", members=members, others=OTHERS)
    known = {"metric": "membership-tpr", "attack": "A()", "round": 1, "n": members + OTHERS, "value": count / members}
    return Row(**(known | {"card": card} | given))


def test_members_are_named_where_few_orders_of_like_records_would_do_as_well() -> None:
    for members in (2, 3):
        # Member number i (from 0) at place p, from the highest, has p - i others before it.
        orders = combinations(range(members + OTHERS), members)
        found = [sum(place - i <= 1 for i, place in enumerate(places)) for places in orders]
        for count in range(members + 1):
            luck = sum(one >= count for one in found) / len(found)
            assert names_members(rate(count, members)) == (luck <= 0.025), (count, luck)
        assert [names_members(rate(count, members)) for count in (0, members)] == [False, True]
    update = ThreatCard(observation="training update")
    for changed in ({"status": "failed"}, {"card": update}, {"metric": "membership-auc"}):
        assert not names_members(rate(3, 3, **changed)), "a failed row or one without counts names no member"
