"""The policies of ATS: how many there are, which are the same, and which can be one hybrid."""

import itertools

import pytest
import torch
from torch import Tensor

from defenses.images.ats import parse_policies, transform_images
from defenses.images.transforms import LIBRARY
from simulations.search.space import SIZE, disjoint, effect, effective, random_hybrid, sample, space, text_of


def test_the_space_has_the_paper_s_size_and_every_policy_once() -> None:
    assert len(set(space())) == len(space()) == SIZE == 50 + 2500 + 125000 == 127_550
    assert space()[:2550] == (*itertools.product(range(50)), *itertools.product(range(50), repeat=2))
    assert space()[-1] == (49, 49, 49)


def alike(one: Tensor, other: Tensor) -> bool:
    """But for the last bit, which blending with a grey copy of a grey image changes."""
    return torch.allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_transforms_of_the_same_effect_do_the_same_to_images_and_others_do_not(channels: int) -> None:
    """Against what they do to images, for both signs; what is held to be alike is so for all of them, and conversely."""
    generator = torch.Generator().manual_seed(0)
    # Neither black nor white, so that stretching contrast changes something.
    images = (torch.rand(4, channels, 32, 32, generator=generator) * 0.85 + 0.1).mul(255).round() / 255
    done = {
        index: transform_images(images, ((index,),), generator=torch.Generator().manual_seed(5))
        for index in range(len(LIBRARY))
    }
    for index, made in done.items():
        assert (effective(index, channels) is None) == alike(made, images), LIBRARY[index]
    for one, other in itertools.combinations(done, 2):
        same = alike(done[one], done[other])
        assert (effective(one, channels) == effective(other, channels)) == same, (LIBRARY[one], LIBRARY[other])


def test_effects_leave_out_what_does_nothing_and_samples_differ_in_theirs_depend_on_the_seed_and_end() -> None:
    assert effect((28, 39), 3) == ()
    assert effect((3, 39, 1), 3) == (3, 1)
    assert effect((20, 3), 1) == (3,)  # colour, of grey images
    assert effect((16, 17, 22), 3) == (9, 9, 9)  # all of them equalize
    every, grey = (list(sample(torch.Generator().manual_seed(0), channels)) for channels in (3, 1))
    assert {effect(policy, 3) for policy in every} == {effect(policy, 3) for policy in space()} - {()}
    assert len({effect(policy, 3) for policy in every}) == len(every) > len(grey), "grey images have no colour"
    first, again, other = (list(itertools.islice(sample(torch.Generator().manual_seed(s), 3), 200)) for s in (1, 1, 2))
    assert first == again != other
    # Of a space that is nearly all triples, about 98 % of the draws are.
    assert sum(len(policy) == 3 for policy in first) > 180


def test_a_hybrid_takes_the_best_that_share_no_transform() -> None:
    ranked = [(3, 1, 7), (3, 9), (43, 18, 18), (2,)]
    assert disjoint(ranked, 2, 3) == ((3, 1, 7), (43, 18, 18))
    assert disjoint(ranked, 5, 3) == ((3, 1, 7), (43, 18, 18), (2,))
    # 17, 22 and 9 all equalize; 39 does nothing, but a hybrid cannot name it twice.
    assert disjoint([(17, 45, 1), (23, 22, 40), (9,), (21, 39), (5, 39)], 5, 3) == ((17, 45, 1), (21, 39))
    assert text_of(((3, 1, 7), (43, 18, 18))) == "3-1-7+43-18-18"
    assert parse_policies(text_of(disjoint(ranked, 3, 3))) == disjoint(ranked, 3, 3)
    assert text_of(()) == ""


def test_a_random_hybrid_has_the_lengths_that_are_asked_for_and_shares_no_transform() -> None:
    one, other = (random_hybrid(torch.Generator().manual_seed(seed), 3, (2, 3, 3)) for seed in (0, 1))
    assert one != other
    for found in (one, other):
        assert [len(policy) for policy in found] == [2, 3, 3]
        assert disjoint(found, 3, 3) == found
    assert random_hybrid(torch.Generator(), 3, ()) == ()
