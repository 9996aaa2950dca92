"""Claims of differential privacy as rows carry them."""

from __future__ import annotations

import json

from strategies.external_app.claim import METRICS, Claim


def test_a_row_that_was_tampered_with_gives_a_claim_without_its_numbers_or_none() -> None:
    kept = Claim(METRICS, "said", 2, 3.0, 1.0, 1e-5, "a note")
    assert Claim.from_json(json.loads(json.dumps(kept.to_json()))) == kept
    for odd in (None, 3, [], {}, {"text": 3}, {"text": ""}):
        assert Claim.from_json(odd) is None
    bent = Claim.from_json({"text": "said", "epsilon": "inf", "delta": 2.0, "lowest": -1, "rounds": None})
    assert bent == Claim("", "said")
