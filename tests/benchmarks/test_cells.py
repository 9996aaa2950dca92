"""What scripts attack: updates and images are those that the tables name."""

import leak_map
import pytest
import spear_scaling
import torch
from leak_networks import BASE, NETWORKS
from paired_guesses import CEILING
from torch import Tensor, nn
from torch.nn import functional as F

pytestmark = pytest.mark.long


def test_one_step_sends_the_gradient() -> None:
    cell = leak_map.Cell(BASE, "4", 0, 4)
    (seen,) = cell.seen
    assert (seen.local_steps, seen.batch_size, seen.num_examples) == (1, 4, 4)
    assert seen.labels is not None
    loss = F.cross_entropy(cell.model(cell.normalised(cell.truth)), seen.labels)
    gradient = torch.autograd.grad(loss, list(cell.model.parameters()))
    for name, value in zip(dict(cell.model.named_parameters()), gradient, strict=True):
        torch.testing.assert_close(seen.gradient()[name], value, rtol=1e-3, atol=1e-6)


def test_measured_averages_are_those_of_training_images() -> None:
    cell = leak_map.Cell(NETWORKS["BatchNorm, eval, measured"], "1", 0, 1)
    convolution, norm = cell.model[0][0], cell.model[0][1]  # type: ignore[index]
    assert isinstance(norm, nn.BatchNorm2d)
    assert not norm.training
    with torch.no_grad():
        entered: Tensor = convolution(cell.normalised(leak_map.to_float(cell.card.train.images)))
    torch.testing.assert_close(norm.running_mean, entered.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_the_originals_are_recognisable_and_neither_the_mean_image_nor_a_sharp_wrong_one_is() -> None:
    cell = leak_map.Cell(BASE, "4", 0, 8)
    found = cell.scores([batch.flip(0) for batch in cell.truth.split(4)])
    assert found["recognisable"] == found["identified"] == [1.0] * 8
    assert found["psnr"] == [CEILING] * 8
    nothing = cell.scores([cell.mean_image.expand(4, -1, -1, -1)] * 2)
    assert nothing["recognisable"] == [0.0] * 8
    assert nothing["psnr"] == pytest.approx(nothing["mean"])
    assert cell.scores(list(cell.others[:8].split(4)))["recognisable"] == [0.0] * 8


def test_updates_of_spear_have_the_rank_of_the_batch_and_full_rank_with_noise() -> None:
    images, labels = spear_scaling.batch_of("mnist-5k", 2, 0)
    for noise, steps, rank in ((0.0, 1, 2), (0.0, 4, 2), (0.01, 1, 20)):
        cell = {"noise": noise, "steps": steps, "rate": 0.01, "single": False, "seed": 0}
        sent = spear_scaling.sent(spear_scaling.network(784, 20, 3, 0), images, labels, cell)
        values = torch.linalg.svdvals(sent.update["1.weight"].double())
        assert int((values > 1e-9 * values[0]).sum()) == rank, (noise, steps)
