"""From scores to the columns of rows."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from scipy import stats

from attacks import InvertingGradients
from attacks.guesses import Reconstruction
from attacks.metrics.guesses import LABEL_ACCURACY, MEMBER_SCORE, OTHER_SCORE
from attacks.metrics.images import (
    FLAT_PSNR,
    IDENTIFIED,
    IDENTIFIED_CHANCE,
    LEAST_STRUCTURE,
    PLACE,
    PSNR,
    STRUCTURE,
)
from attacks.metrics.names import ScoreName, Scores, scores_to_texts
from clients.scoring.audit import audit_baselines, audit_guesses
from clients.wire.records import metrics
from simulations.report.studies.score import merge
from simulations.run_folder.rows import Row
from strategies.audit.audit_pictures import keep_guesses
from strategies.audit.jobs import Outcome
from strategies.audit.score_rows import FEW_FALSE, mean_and_interval, membership_rows, rows_of_clients, score_rows
from strategies.audit.threat_card import KnownLabels, Strength, ThreatCard
from tests.clients.federated.test_client import TASK, client
from tests.strategies.stub_grid import reply_of


def test_a_share_has_the_exact_interval_in_rows_and_report() -> None:
    """Student's t of one success in 50 begins below 0, and of none has no width."""
    for hits, metric in itertools.product((0, 1, 25, 50), ("ms-ssim-success", "attribute-accuracy")):
        values = [1.0] * hits + [0.0] * (50 - hits)
        exact = stats.binomtest(hits, 50).proportion_ci(0.95, "exact")
        (columns,) = score_rows({ScoreName(metric): values}, ThreatCard())
        assert (columns["value"], columns["n"]) == (hits / 50, 50)
        score = merge([Row(**columns)])
        for found in ((columns["value"], columns["ci_low"], columns["ci_high"]), (score.mean, score.low, score.high)):
            assert found == pytest.approx((hits / 50, exact.low, exact.high)), (hits, metric)
        # Whatever interval the rows carry, two seeds are one sample of 100 images.
        old = replace(Row(**columns), **mean_and_interval(values))
        both = stats.binomtest(2 * hits, 100).proportion_ci(0.95, "exact")
        pooled = merge([old, replace(old, seed=1)])
        assert (pooled.low, pooled.high, pooled.n) == pytest.approx((both.low, both.high, 100)), (hits, metric)


def test_accuracies_of_labels_stay_within_0_and_1() -> None:
    """Student's t of two batches runs from -0.23 to 1.36; of batches that are all right it has no width."""
    (columns,) = score_rows({LABEL_ACCURACY.of(): [0.5, 0.625]}, ThreatCard(images=24))
    assert (columns["value"], columns["n"]) == (0.5625, 2)
    assert 0 < columns["ci_low"] < 0.5 < 0.625 < columns["ci_high"] < 1
    for right in (0, 3, 16):
        exact = stats.binomtest(right, 16).proportion_ci(0.95, "exact")
        values = [1.0] * right + [0.0] * (16 - right)
        (columns,) = score_rows({LABEL_ACCURACY.of(): values}, ThreatCard(images=1))
        ends = (columns["ci_low"], columns["ci_high"])
        assert ends == pytest.approx((exact.low, exact.high)), "every image is a trial of its own"
    (columns,) = score_rows({LABEL_ACCURACY.of(): [1.0]}, ThreatCard(images=24))
    assert columns["ci_low"] is None
    rows = [Row(metric="label-accuracy", value=value, n=2, seed=seed) for seed, value in enumerate((0.55, 1.0))]
    pooled = merge(rows)
    assert 0 <= pooled.low < pooled.mean < pooled.high <= 1  # type: ignore[operator]


def verdicts(*images: tuple[float, float, float], places: Sequence[float] = (), chance: float = 0.01) -> Scores:
    """Scores of a client: identified, PSNR, structure of each image, whose own colour has 10 dB."""
    return {
        PSNR.of("original"): [psnr for _, psnr, _ in images],
        STRUCTURE.of("original"): [structure for *_, structure in images],
        IDENTIFIED.of("original"): [hit for hit, *_ in images],
        IDENTIFIED_CHANCE.of(): [chance] * len(images),
        FLAT_PSNR.of(): [10.0] * len(images),
        PLACE.of(): list(places) or [float(at) for at in range(len(images))],
    }


def test_an_image_is_recognisable_if_identified_above_its_own_colour_and_alike_in_structure() -> None:
    """Each row has one value for each image, by client and place: a guess of a batch has no place of its own."""
    good, least = (1.0, 31.23456, 0.9), LEAST_STRUCTURE
    some = verdicts(good, (0.0, 31.0, 0.99), (1.0, 10.0, 0.99), (1.0, 11.0, least), places=(3, 0, 1, 2))
    other = verdicts((1.0, 11.0, least - 0.01), good)
    rows = {row["metric"]: row for row in rows_of_clients(score_rows, {4: some, 2: other}, ThreatCard())}
    assert set(rows) == {"psnr", STRUCTURE.name, "identified", "recognisable"}
    for metric, each in (("identified", [1, 1, 0, 1, 1, 1]), ("recognisable", [0, 1, 0, 0, 1, 1])):
        row = rows[metric]
        exact = stats.binomtest(sum(each), 6).proportion_ci(0.95, "exact")
        assert (row["each"], row["value"], row["n"]) == (each, sum(each) / 6, 6)
        assert (row["ci_low"], row["ci_high"]) == pytest.approx((exact.low, exact.high))
        assert row["each_of"] == [[2, 0], [2, 1], [4, 0], [4, 1], [4, 2], [4, 3]]
        assert (row["card"].chance, row["best_psnr"], row["best_structure"]) == (0.01, 31.2346, 0.9)
        without = row.get("without_client", {}).get("4", {})  # the other's images, each three times
        assert (without.get("value", row["value"]), "each" in without) == (sum(each[:2]) / 2, False)
    none = {row["metric"]: row for row in score_rows(other | {PSNR.of("original"): [9.0, 9.0]}, ThreatCard())}
    assert (none["recognisable"]["value"], none["recognisable"]["best_psnr"]) == (0.0, None)
    del some[FLAT_PSNR.of()]
    assert "recognisable" not in {row["metric"] for row in score_rows(some, ThreatCard())}


def test_a_curve_keeps_its_points_where_false_positives_are_few() -> None:
    """A thousand thresholds at up to 2 % false positives decide what the logarithmic chart shows there."""
    draw = np.random.default_rng(0)
    scores: Scores = {
        MEMBER_SCORE.of(): draw.normal(1, 1, 3000).tolist(),
        OTHER_SCORE.of(): draw.normal(0, 1, 3000).tolist(),
    }
    curve = next(row["roc"] for row in membership_rows(scores, ThreatCard()) if "roc" in row)
    few = [rate for rate, _ in curve if rate <= FEW_FALSE]
    assert 90 <= len(few) <= 210
    assert len(curve) - len(few) <= 210
    assert curve[0] == [0.0, 0.0]
    assert curve[-1] == [1.0, 1.0]
    assert min(rate for rate in few if rate) < 0.001


def areas(members: list[float], others: list[float]) -> list[dict[str, Any]]:
    scores: Scores = {MEMBER_SCORE.of(): members, OTHER_SCORE.of(): others}
    return list(membership_rows(scores, ThreatCard(attack_failures=("a test failed",))))


def test_a_membership_score_that_is_nan_is_the_lowest_for_members_and_others_alike_and_is_counted() -> None:
    """Against the count of pairs by hand: a NaN record lies below every finite one, and two NaN records tie."""
    nan, members, others = math.nan, [3.0, 2.0, 1.5, 1.0], [0.5, 0.25, 1.75, 0.0]
    whole = areas(members, others)
    assert [row["failures"] for row in whole] == [0, 0]
    assert whole[0]["card"].attack_failures == ("a test failed",)
    lost = areas([nan, *members[1:]], [nan, *others[1:]])
    wins = sum(member > other for member in members[1:] for other in others[1:])
    assert lost[0]["value"] == pytest.approx((wins + len(members[1:]) + 0.5) / 16)
    assert lost[0]["value"] < whole[0]["value"]
    hidden = areas(members, [nan, *others[1:]])
    assert hidden[1]["value"] >= whole[1]["value"], "non-members that send NaN hide no member"
    for few in (([math.nan], [1.0, 2.0]), ([1.0], [math.nan, math.nan]), ([], [1.0])):
        assert areas(*few) == []
    for row in lost:
        assert (row["n"], row["failures"]) == (8, 2)
        assert row["card"].attack_failures[1].startswith("2 of 8 records have the score NaN")
        assert (row["card"].members, row["card"].others) == (4, 4)


def test_a_rate_at_one_per_mille_needs_a_thousand_non_members() -> None:
    """Of 1,000 non-members one may lie above the threshold: of 50 members the 41 above the second highest non-member count."""
    for others in (999, 1000):
        members = [*map(float, range(others - 10, others + 40))]
        found = {row["metric"]: row for row in areas(members, [*map(float, range(others - 1)), others + 19.5])}
        assert ("membership-low-tpr" in found) == (others == 1000)
    low = found["membership-low-tpr"]
    assert low["value"] == 41 / 50
    # Between none and four of 1,000 lie above the true threshold, which 44 members at most exceed.
    assert (low["ci_low"], low["ci_high"]) == pytest.approx((0.0, stats.beta.ppf(1 - 0.0125, 45, 6)))
    assert (low["card"].members, low["card"].others, low["n"]) == (50, 1000, 1050)


def test_one_clients_chance_decides_for_no_other_client() -> None:
    """Its images count as not identified: nothing says that they could not be found blindly."""
    for chances, value, chance in (
        ([0.01] * 8 + [0.03] * 4 + [0.9] * 4, 12 / 16, 0.2 / 16),
        ([0.01] * 8 + [0.15] * 8, 1.0, 0.08),  # rare classes
        ([0.999] * 16, 1.0, 0.999),
    ):
        scores = verdicts(*[(1.0, 30.0, 0.9)] * 16) | {IDENTIFIED_CHANCE.of(): chances}
        rows = [row for row in score_rows(scores, ThreatCard()) if "each" in row]
        assert [(row["value"], row["n"]) for row in rows] == [(value, 16)] * 2
        assert [row["card"].chance for row in rows] == pytest.approx([chance] * 2)


def test_a_row_says_what_it_would_be_without_each_client() -> None:
    """By the scores of the others in its place; what decides no verdict, and a row of one client, says nothing."""
    flat, good = {PSNR.of("original"): [0.0] * 4}, {PSNR.of("original"): [30.0, 31.0, 32.0, 33.0]}
    (row,) = rows_of_clients(score_rows, {0: good, 1: flat, 7: good}, ThreatCard(), unscored=2)
    assert (row["clients"], row["unscored"], row["n"], row["value"]) == (3, 2, 12, 21.0)
    without = row["without_client"]
    assert {client: one["value"] for client, one in without.items()} == {
        client: pytest.approx(np.mean([values[at * 8 // 12] for at in range(12)]))
        for client, values in {
            "0": [0.0] * 4 + good[PSNR.of("original")], "1": 2 * good[PSNR.of("original")],
            "7": good[PSNR.of("original")] + [0.0] * 4,
        }.items()
    }  # fmt: skip
    assert all(set(one) <= {"value", "ci_low", "ci_high", "worst"} for one in without.values())
    (alone,) = rows_of_clients(score_rows, {0: good}, ThreatCard())
    assert (alone["clients"], "without_client" in alone) == (1, False)
    (time,) = rows_of_clients(score_rows, {0: {ScoreName("objective"): [1.0]}, 1: {}}, ThreatCard())
    assert "clients" not in time
    members = {MEMBER_SCORE.of(): [2.0, 3.0], OTHER_SCORE.of(): [0.0, 1.0]}
    swapped = {MEMBER_SCORE.of(): [0.0, 0.5], OTHER_SCORE.of(): [2.0, 2.5]}
    area = rows_of_clients(membership_rows, {0: members, 1: swapped}, ThreatCard())[0]
    assert (area["clients"], "without_client" in area) == (2, False)


def test_a_card_survives_a_file_and_equal_cards_have_one_hash() -> None:
    card = ThreatCard(
        images=3, labels=KnownLabels.UNKNOWN, more={"sizes": (1, 2), "rate": math.inf, "who": Strength.STEP}
    )
    assert ThreatCard.from_json(json.loads(json.dumps(card.to_json(), allow_nan=False))) == card
    assert card.to_json() == {
        "images": 3, "labels": "unknown", "sizes": [1, 2], "rate": "inf", "who": "per step, as in training"
    }  # fmt: skip
    assert card.but(images=3) == card != card.but(images=4)
    assert len({card, card.but(images=3), card.but(images=4)}) == 2


def test_what_a_field_cannot_hold_is_kept_beside_the_fields() -> None:
    card = ThreatCard(images=3, upper_bound="knows the order")
    assert card.but(images=None, upper_bound=None) == ThreatCard()
    odd = ThreatCard.from_json({"images": "8 of 9", "batch": 2, "labels": None})
    assert (odd.images, odd.batch, odd.more) == (None, 2, {"images": "8 of 9"})
    assert ThreatCard.from_json({"images": 4.0, "members": 9.0, "chance": 1}) == ThreatCard(
        images=4, members=9, chance=1
    )
    assert ThreatCard.from_json({"images": True, "chance": math.nan}).images is None


def test_a_guess_has_the_number_of_the_original_that_the_client_compares_it_with() -> None:
    for steps, observation, order in (
        (0, "probe", [2, 0, 1]), (0, "probe", [1, 2]), (2, "update", [3, 1, 0, 2]), (0, "probe", [2, 2, 2, 2]),
    ):  # fmt: skip
        one, found = client(probe_images=3, local_steps=steps, batch_size=2), list[Any]()
        shared = audit_baselines(one, observation, pictures=True, images=1).pictures
        images = [view.original.images[order] for view in one.truths(observation).views]
        guesses = [Reconstruction(of, torch.full((len(of),), -1)) for of in images]
        scores = audit_guesses(one, observation, [(guess, None) for guess in guesses]).scores
        reply = reply_of(RecordDict({"metrics": metrics(scores_to_texts(scores))}))
        recorder = SimpleNamespace(picture=lambda _, image, found=found, **about: found.append((image, about)))
        job: Any = SimpleNamespace(task=TASK, card=ThreatCard(observation="one-step probe"))
        outcome = Outcome(InvertingGradients(), guesses, 0.0)
        of_both = {partition: list(enumerate(guesses)) for partition in (0, 1)}  # 1 does not answer
        keep_guesses(recorder, job, outcome, of_both, {0: reply})
        assert len(found) == len(images) * len(order)
        if len(order) > 3 and not steps:  # only the client knows which of too many it scored
            assert [(about["image_number"], about["psnr"]) for _, about in found] == [(at, None) for at in range(4)] * 2
            continue
        for image, about in found:
            assert torch.equal(image, shared[f"original-{about['target']}-{about['image_number']}"])
            assert about["psnr"] > 90
