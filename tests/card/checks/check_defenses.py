"""Every defence on a machine with a card: what it protects stays there, and is what the processor makes of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attacks.placement import Placement
from clients.training.evaluation import device
from defenses import Batch, InputDefense, SmashedDefense, UpdateDefense
from defenses.random_draws import generator_for
from tests.common import test_every_defense as every

HERE = Placement(device())


def protected(defense: Any, moved: Callable[[Any], Any]) -> dict[str, torch.Tensor]:
    """What a defence makes of images, an update or smashed data."""
    if isinstance(defense, InputDefense):
        batch: Batch = moved(every.a_batch())
        found = defense.protect_batch(batch, generator_for(0))
        return {"images": found.images, "targets": found.targets}
    if isinstance(defense, UpdateDefense):
        return defense.protect_update(moved(every.an_update()), generator_for(0))
    assert isinstance(defense, SmashedDefense)
    return {"features": every.ready(defense).protect_features(moved(every.some_smashed(defense)), generator_for(0))}


MESSAGES = [one for one in every.INSTANCES if isinstance(one, InputDefense | UpdateDefense | SmashedDefense)]


@pytest.mark.parametrize("defense", MESSAGES, ids=str)
def test_results_stay_on_the_device_and_do_not_depend_on_it(defense: Any) -> None:
    found = protected(defense, HERE.moved)
    assert all(tensor.device.type == device().type for tensor in found.values())
    for name, tensor in protected(defense, lambda one: one).items():
        torch.testing.assert_close(found[name].cpu(), tensor, rtol=1e-5, atol=1e-5)
