"""Threat cards of a run: what each attack was given and what it spent stands on its rows, and in the report."""

import json
import math

from attacks.metrics.names import Role
from strategies.audit.threat_card import KnownLabels, Strength, ThreatCard


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


def test_the_card_says_the_role_of_an_attack() -> None:
    plain, helped = ThreatCard(), ThreatCard(upper_bound="knows the labels")
    assert [card.role for card in (plain, helped)] == [Role.ATTACK, Role.UPPER_BOUND]
