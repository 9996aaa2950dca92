"""The gradients of single examples by one layer, against autograd of each example alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from simulations.search.gradients.layer_gradients import GradientError, Passed, gradients_of, is_known

LAYERS = {
    "few channels": (nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 7, 9)),
    "many channels": (nn.Conv2d(8, 6, (3, 2), padding=(1, 0), dilation=2, bias=False), (8, 9, 9)),
    "groups": (nn.Conv2d(16, 4, 3, groups=2), (16, 6, 6)),
    "depth-wise": (nn.Conv2d(4, 4, 3, groups=4), (4, 6, 6)),
    "vectors": (nn.Linear(5, 3), (5,)),
    "tokens": (nn.Linear(5, 3, bias=False), (2, 4, 5)),
    "group norm": (nn.GroupNorm(2, 6), (6, 5, 4)),
    "layer norm of tokens": (nn.LayerNorm(5), (4, 5)),
    "layer norm of images": (nn.LayerNorm((3, 4, 4)), (3, 4, 4)),
    "batch norm of images": (nn.BatchNorm2d(3), (3, 4, 5)),
    "batch norm of vectors": (nn.BatchNorm1d(6), (6,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_they_are_those_of_each_example_alone(name: str) -> None:
    layer, shape = LAYERS[name]
    generator = torch.Generator().manual_seed(1)
    layer = layer.double().eval()
    with torch.no_grad():
        for tensor in (*layer.parameters(), *(one for one in layer.buffers() if one.is_floating_point())):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    given = torch.randn(3, *shape, generator=generator).double()
    returned = torch.randn(layer(given).shape, generator=generator).double()
    found = list(gradients_of(layer, Passed(given, returned)))
    assert is_known(layer)
    assert len(found) == len(list(layer.parameters()))
    for at in range(3):
        alone = (layer(given[at : at + 1]) * returned[at : at + 1]).sum()
        for mine, known in zip(found, torch.autograd.grad(alone, list(layer.parameters())), strict=True):
            torch.testing.assert_close(mine[at].reshape(known.shape), known, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(3, 3, 3, padding="same"), nn.Conv2d(3, 3, 3, padding_mode="reflect"), nn.Conv1d(3, 3, 3), nn.PReLU()],
)
def test_other_layers_are_not_known(layer: nn.Module) -> None:
    assert not is_known(layer)


def test_a_norm_over_the_batch_has_no_gradients_of_single_examples() -> None:
    layer = nn.BatchNorm2d(3, track_running_stats=False)
    with pytest.raises(GradientError, match="mixes the examples of a batch"):
        list(gradients_of(layer, Passed(torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4))))
