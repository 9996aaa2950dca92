"""Policies that leave images as they are, and hybrids that would protect only some of the images by one of them."""

from __future__ import annotations

import torch

from defenses.images.ats import parse_policies
from defenses.random_draws import generator_for
from simulations.search.measured.proposals import candidates, controls
from simulations.search.measured.settings import Measured
from simulations.search.measured.unaltered import MOST, Sample
from simulations.search.space import effect, random_hybrid, text_of

SEARCH = Measured(dataset="mnist-5k", candidates=60, by_score=0, controls=40)
FULL = torch.linspace(0, 1, 784).view(1, 1, 28, 28)
"""It has all levels, so that autocontrast has nothing to stretch."""


def test_the_share_is_that_of_images_that_stay_alike() -> None:
    flat = 0.3 + 0.2 * FULL
    images = Sample(torch.cat([FULL, FULL, FULL, flat]), seed=0)
    assert images.unaltered((28,)) == 1.0  # solarize above the whitest level
    assert images.unaltered((8,)) == 0.75  # autocontrast stretches the flat one alone
    assert images.unaltered((0,)) == 0.0  # invert
    assert images.unaltered((0, 0)) == 1.0  # twice
    assert not images.altered_by(((0,), (8,)))
    assert images.altered_by(((0,), (3,)))  # inverted, or shifted


def test_no_judged_hybrid_leaves_most_images_as_they_are_by_one_of_its_policies() -> None:
    images = Sample.of(SEARCH, "mnist-5k")
    found = [*candidates(SEARCH, "mnist-5k", lambda what, done, of: None), *controls(SEARCH, "mnist-5k")]
    assert len(found) == 100
    for one in found:
        assert all(images.unaltered(policy) <= MOST for policy in parse_policies(one.hybrid)), one.hybrid
    # Without the rule there are such hybrids, although each policy has an effect on some image.
    drawn = [random_hybrid(generator_for("test", number), 1, 2) for number in range(100)]
    left = [hybrid for hybrid in drawn if not images.altered_by(hybrid)]
    assert left
    assert all(effect(policy, 1) for hybrid in left for policy in hybrid), text_of(left[0])


def test_the_same_seed_tries_policies_alike() -> None:
    first, again = (Sample(FULL.expand(8, -1, -1, -1) ** 2, seed=3) for _ in range(2))
    assert first.unaltered((38, 20)) == again.unaltered((38, 20))
