"""What holds for every attack on queries: reconstructions and the inference of attributes."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from attacks import AttackError, AttributeInference, Attributes, InverseNetwork, QueryInversion, score
from attacks.image_measures import psnr
from attacks.queries.backward import BackwardReconstruction
from tests.attacks.queries.query_wire import knowledge, pictures, query, seeded
from tests.common.any_attack import quick

ATTACKS: tuple[Any, ...] = (QueryInversion, BackwardReconstruction, InverseNetwork, AttributeInference)


@cache
def fitted(cls: Any, iterations: int) -> Any:
    return replace(quick(cls), iterations=iterations).fit(knowledge(count=64), seeded(4))


def shown(guess: Any) -> Tensor:
    assert not guess.failure
    return guess.logits if isinstance(guess, Attributes) else guess.images


def test_a_guess_repeats_depends_on_its_own_image_and_leaves_everything_alone() -> None:
    seen = query(pictures(3, seed=4)[0])
    before = [seen.latent.clone(), *(weight.clone() for weight in seen.client_model.parameters())]
    one = replace(seen, features=seen.features[1:2], latent=seen.latent[1:2])
    for cls in ATTACKS:
        attack, known = fitted(cls, 5), knowledge(count=64)
        weights = {name: value.clone() for name, value in known.sender.edge.state_dict().items()}
        torch.manual_seed(1)
        state = torch.get_rng_state()
        first, other = (shown(attack(seen, seeded(at))) for at in (0, 1))
        again = shown(attack.fit(known, seeded(4))(seen, seeded(0)))
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(first, again), cls
        assert attack.needs_auxiliary or not torch.equal(first, other), cls
        # Adam's first steps have the sign of a gradient, which rounding decides where it is all but zero.
        alone = shown(attack(one, seeded(0)))[0]
        assert ((alone - first[1]).abs() < 1e-3).double().mean() > 0.95, cls
        now = [seen.latent, *seen.client_model.parameters()]
        assert all(torch.equal(*pair) for pair in zip(before, now, strict=True)), cls
        assert all(torch.equal(value, weights[name]) for name, value in known.sender.edge.state_dict().items())
        assert not any(layer.training for layer in known.sender.edge.modules())


def test_features_that_do_not_fit_make_a_failed_guess_that_is_never_right() -> None:
    images, right = pictures(4, seed=1)
    seen = query(images)
    for cls in ATTACKS:
        for features, why in ((seen.features[:, :2], "4, 16, 16)"), (seen.features * math.nan, "NaN")):
            guess = fitted(cls, 20)(replace(seen, features=features, latent=features), seeded(0))
            assert why in guess.failure, cls
            if isinstance(guess, Attributes):
                assert score(guess, right) == {"attribute-accuracy": [0.0] * 4}
            else:
                assert torch.equal(guess.images, torch.full_like(images, 0.5))
                assert guess.labels.tolist() == [-1] * 4


@pytest.mark.numeric
def test_on_noise_nothing_is_found() -> None:
    images, right = pictures(100, seed=7)
    seen = query(images)
    noise = torch.randn(seen.features.shape, generator=seeded(7)) * seen.features.std() + seen.features.mean()
    for cls in ATTACKS:
        guess = fitted(cls, 40)(replace(seen, features=noise, latent=noise), seeded(0))
        if isinstance(guess, Attributes):
            hits = int((guess.values == right).sum())
            assert stats.binomtest(hits, len(right), 0.5).pvalue > 1e-4
        else:
            blind = psnr(images.mean(0).expand_as(images), images).mean()
            assert psnr(guess.images, images).mean() < blind + 1, cls


def test_what_learns_needs_enough_knowledge() -> None:
    for cls in (InverseNetwork, AttributeInference):
        with pytest.raises(AttackError, match="call fit first"):
            quick(cls)(query(pictures(1, seed=1)[0]), seeded(0))
        for changes, message in (
            ({"count": 15}, "15 auxiliary examples are too few .* at least 16"),
            ({"sender": None}, "edge-cloud inference"),
        ):
            with pytest.raises(AttackError, match=message):
                quick(cls).fit(knowledge(**changes), seeded(0))
