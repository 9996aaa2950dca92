"""How many replies a round needs."""

from __future__ import annotations

import pytest

from strategies.guard import TooFewReplies, require_enough
from tests.clients.test_training import TASK


@pytest.mark.parametrize(
    ("asked", "good", "share", "enough"),
    [
        (4, 2, 0.5, True),
        (4, 1, 0.5, False),
        (3, 2, 0.5, True),
        (3, 1, 0.5, False),
        (4, 1, 0.0, True),
        (4, 0, 0.0, False),  # of nobody's updates there is no mean
        (0, 0, 1.0, True),  # whoever refuses was not asked
    ],
)
def test_a_round_needs_its_share_of_replies_and_one_at_least(asked: int, good: int, share: float, enough: bool) -> None:
    if enough:
        require_enough(TASK, "train", range(asked), range(good), share)
        return
    with pytest.raises(TooFewReplies, match=f"{good} of {asked} train replies are usable"):
        require_enough(TASK, "train", range(asked), range(good), share)
