import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional as F

from attacks.gradient.trial_gradients.batch_statistics import (
    batch_norms,
    call_with_statistics,
    sent_statistics,
    statistics_distance,
)
from attacks.gradient.trial_gradients.matching import attackable
from attacks.observations import AttackError
from clients.models.classifiers import build_model
from tests.attacks.wire import CLASSES, MEAN, STD, classes, linear_net, observe, pictures


def bn_net(momentum=0.1):
    model = build_model("resnet20", num_classes=CLASSES, input_shape=(1, 12, 12), width=1, norm="batch", seed=0)
    for layer in batch_norms(model).values():
        layer.momentum = momentum
    model(torch.randn(8, 1, 12, 12, generator=torch.Generator().manual_seed(1)))  # running averages of no special value
    return model


def sent(model, images, labels):
    """The update of a client that really takes one step in train mode, buffers included."""
    client = copy.deepcopy(model).train()
    seen = observe(client, images, labels)
    deltas = {
        name: (buffer - dict(model.named_buffers())[name]).detach()
        for name, buffer in client.named_buffers()
        if buffer.is_floating_point()
    }
    return replace(seen, model=model, update=seen.update | deltas, train_mode=True)


def direct_statistics(model, images):
    """What enters each BatchNorm layer, kept as it is."""
    client, inputs = copy.deepcopy(model).train(), {}
    for name, layer in batch_norms(client).items():
        layer.register_forward_hook(lambda _, x, __, name=name: inputs.update({name: x[0]}))
    with torch.no_grad():
        client((images - MEAN[0]) / STD[0])
    return {name: (x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)) for name, x in inputs.items()}


@pytest.mark.parametrize(("count", "momentum"), [(1, 0.1), (4, 0.1), (3, 0.7)])
def test_sent_statistics_are_those_of_the_batch(count, momentum):
    model, images = bn_net(momentum), pictures(count)
    found = sent_statistics(sent(model, images, classes(count)))
    truth = direct_statistics(model, images)
    assert list(found) == list(batch_norms(model))
    for name, values in truth.items():
        for guess, value in zip(found[name], values, strict=True):
            assert torch.allclose(guess, value, atol=1e-4)


def test_collected_under_vmap_and_grad():
    model, images = bn_net(), pictures(6)
    private = attackable(model, train_mode=True)
    state = dict(private.named_parameters()), dict(private.named_buffers())
    many = ((images - MEAN[0]) / STD[0]).view(2, 3, *images.shape[1:])
    logits, found = vmap(lambda x: call_with_statistics(private, *state, x))(many)
    for row in range(2):
        truth = direct_statistics(model, images.view(many.shape)[row])
        for name, values in truth.items():
            for guess, value in zip(found[name], values, strict=True):
                assert torch.allclose(guess[row], value, atol=1e-4)
    assert torch.allclose(logits[0], copy.deepcopy(model).train()(many[0]), atol=1e-4)
    assert not any(layer._forward_pre_hooks for layer in batch_norms(private).values())

    observed = direct_statistics(model, images[:3])
    distance = lambda x: statistics_distance(observed, call_with_statistics(private, *state, x)[1])  # noqa: E731
    gradients = vmap(grad(distance))(many)
    assert gradients[1].abs().sum() > 100 * gradients[0].abs().sum()  # the first batch is the one that was observed
    step = many[1] - 1e-2 * gradients[1] / gradients[1].norm()
    assert distance(step) < distance(many[1])


def test_distance_is_zero_for_the_batch_only():
    model, images = bn_net(), pictures(6)
    observed = sent_statistics(sent(model, images[:3], classes(3)))
    same, other = (direct_statistics(model, batch) for batch in (images[:3], images[3:]))
    assert statistics_distance(observed, same) < 1e-6
    assert statistics_distance(observed, other) > 1e-3
    with pytest.raises(AttackError, match="lack"):
        statistics_distance(observed, {})


def test_a_variance_that_noise_pushed_below_zero_does_not_outweigh_the_others():
    truth, other = ({"layer": (torch.zeros(2), torch.tensor(values))} for values in ([0.1, 0.1], [0.3, 0.001]))
    noised = {"layer": (torch.zeros(2), torch.tensor([0.1, 0.0]))}
    # Relative to eps alone the truth would be at 5e7, the other batch at 5e3.
    assert statistics_distance(noised, truth) == 0
    assert statistics_distance(noised, other) > 1


def test_refuses_what_holds_no_statistics():
    model, images, labels = bn_net(), pictures(2), classes(2)
    seen = sent(model, images, labels)
    for broken in (
        replace(seen, train_mode=False),
        replace(seen, update={}),
        replace(seen, update={name: torch.zeros(1) for name in seen.update}),
        observe(linear_net(), images, labels),
        replace(seen, model=bn_net(None)),
    ):
        with pytest.raises(AttackError):
            sent_statistics(broken)
    noisy = replace(seen, update={name: value - 10 for name, value in seen.update.items()})
    assert all(value[1].min() >= 0 for value in sent_statistics(noisy).values())


def test_vectors_have_one_position():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(144), nn.Linear(144, CLASSES))
    images = pictures(5)
    found = sent_statistics(sent(model, images, classes(5)))
    rows = ((images - MEAN[0]) / STD[0]).flatten(1)
    assert torch.allclose(found["1"][0], rows.mean(0), atol=1e-4)
    assert torch.allclose(found["1"][1], rows.var(0, correction=0), atol=1e-4)
    assert F.mse_loss(found["1"][1], rows.var(0)) > 1e-4
