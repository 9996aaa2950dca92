"""The verdict on published code that judged the same confidences: differences count, not sampling intervals."""

from __future__ import annotations

import torch
from against_published import agreement
from torch import Tensor

from attacks.scoring.roc import tpr_at_fpr

COUNT = 1000
INSIDE = torch.arange(2 * COUNT) < COUNT


def scores(named: int) -> Tensor:
    """Of members and as many others; so many members lie above all others, and the rest of both kinds alternates below."""
    order = torch.arange(COUNT, dtype=torch.float64)
    members = torch.where(order < named, 2.0 * COUNT + order, order)
    return torch.cat([members, order + 0.5])


def test_equal_scores_and_small_differences_agree() -> None:
    ours = scores(205)
    assert agreement(ours, ours.clone(), INSIDE) == "agrees"
    assert agreement(ours, 3 * ours - 7, INSIDE) == "agrees"
    assert agreement(ours, scores(195), INSIDE) == "agrees"  # by 0.01, the limit itself


def test_a_lower_rate_differs_although_its_interval_begins_at_zero() -> None:
    """Ties above all but one non-member: 0.205 at 0.1 % of false positives becomes 0, and little else changes."""
    ours = scores(205)
    tied = ours.clone()
    tied[:205] = 2 * COUNT
    tied[-2:] = 2 * COUNT
    assert tpr_at_fpr(tied[INSIDE], tied[~INSIDE], 0.001).value == 0.0
    assert tpr_at_fpr(ours[INSIDE], ours[~INSIDE], 0.001).low == 0.0
    assert agreement(ours, tied, INSIDE) == "differs"
    assert agreement(tied, ours, INSIDE) == "differs"


def test_a_rate_beyond_the_limit_and_an_area_beyond_it_differ() -> None:
    assert agreement(scores(205), scores(194), INSIDE) == "differs"
    ours = scores(205)
    lower = ours.clone()
    lower[300:900] -= 200  # of members that no small false positive rate names
    rates = [tpr_at_fpr(lower[INSIDE], lower[~INSIDE], rate).value for rate in (0.01, 0.001)]
    assert rates == [tpr_at_fpr(ours[INSIDE], ours[~INSIDE], rate).value for rate in (0.01, 0.001)]
    assert agreement(ours, lower, INSIDE) == "differs"
