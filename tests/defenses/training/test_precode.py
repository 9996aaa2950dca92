"""PRECODE: the bottleneck by hand, its divergence by torch's own, where it is inserted, and what it draws."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from defenses import DefenseError, Precode
from defenses.random_draws import generator_for, spawned
from defenses.training.precode import VariationalBottleneck, divergence
from tests.attacks.wire import CLASSES, classes, pictures, sigmoid_net
from tests.defenses.training.test_dp_sgd import set_up


def built(size: int = 4) -> nn.Module:
    return Precode(size=size).extended(sigmoid_net(), generator_for("first"))


def loss_of(model: nn.Module, defense: Precode, seed: int) -> float:
    made = defense.protect_training(set_up(model=model), generator_for(seed))
    return float(made.loss(model, pictures(4), F.one_hot(classes(4), CLASSES).float()).detach())


def test_the_bottleneck_and_its_divergence_compute_what_they_say() -> None:
    layer = VariationalBottleneck(7, 3)
    features = torch.randn(4, 7, generator=torch.Generator().manual_seed(1))
    encoded = features @ layer.encoder.weight.T + layer.encoder.bias
    mean, log_variance = encoded[:, :3], encoded[:, 3:]
    torch.testing.assert_close(layer(features), layer.decoder(mean))
    layer.noise = torch.Generator().manual_seed(2)
    draws = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(layer(features), layer.decoder(mean + (0.5 * log_variance).exp() * draws))
    expected = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(0.0, 1.0)).sum(1).mean()
    torch.testing.assert_close(divergence(encoded), expected)
    assert float(divergence(torch.zeros(2, 6))) == 0


def test_it_stands_in_front_of_the_head_and_is_built_alike_everywhere() -> None:
    plain, model, again = sigmoid_net(), built(), built()
    names = list(dict(plain.named_parameters()))
    assert [n for n in dict(model.named_parameters()) if n not in names] == [
        "5.0.encoder.weight", "5.0.encoder.bias", "5.0.decoder.weight", "5.0.decoder.bias", "5.1.weight", "5.1.bias",
    ]  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert torch.equal(model[5][1].weight, plain[5].weight)
    assert model[5][0].encoder.weight.shape == (8, 288)
    assert Precode().extended(model, generator_for(1)) is model
    assert list(dict(model.named_parameters())) == list(dict(again.named_parameters()))
    other = Precode(size=4).extended(sigmoid_net(), generator_for("other"))
    assert not torch.equal(other[5][0].encoder.weight, model[5][0].encoder.weight)


def test_the_loss_is_that_of_the_task_and_beta_times_the_divergence() -> None:
    plain, loss = (loss_of(built(), Precode(size=4, beta=beta), 5) for beta in (0.0, 0.5))
    assert plain != loss_of(built(), Precode(size=4, beta=0.0), 6), "the noise is drawn"
    model = built()
    encoded = model[5][0].encoder(model[:5](pictures(4)))
    assert loss - plain == pytest.approx(0.5 * float(divergence(encoded).detach()), rel=1e-4)


def test_a_model_without_it_or_without_a_head_is_refused() -> None:
    with pytest.raises(DefenseError, match="build it with extended"):
        Precode(size=4).protect_training(set_up(model=sigmoid_net()), generator_for(0))
    for bare in (nn.Sequential(nn.Conv2d(1, 4, 12), nn.Flatten()), nn.Linear(3, 2)):
        with pytest.raises(DefenseError, match="there is none"):
            Precode().extended(bare, spawned(generator_for(0)))
