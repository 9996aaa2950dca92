"""What scripts attack: updates, images and squares are those that the tables name, and the server has none that it attacks."""

import leak_map
import local_averages
import pytest
import spear_scaling
import split_tokens
import torch
import whole_rounds
from inversion_variants import FlatSurrogateMatching
from leak_networks import BASE, NETWORKS
from paired_guesses import CEILING
from peer_strength import ours
from photo_squares import FILES, photograph, squares, tiles
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import SurrogateMatching
from attacks.gradient.trial_gradients.batch_statistics import sent_statistics
from attacks.observations import AttackError

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


def test_the_originals_are_recovered_and_neither_the_mean_image_nor_a_sharp_wrong_one_is() -> None:
    cell = leak_map.Cell(BASE, "4", 0, 8)
    found = cell.scores([batch.flip(0) for batch in cell.truth.split(4)])
    assert found["recovered"] == found["identified"] == [1.0] * 8
    assert found["psnr"] == [CEILING] * 8
    nothing = cell.scores([cell.mean_image.expand(4, -1, -1, -1)] * 2)
    assert nothing["recovered"] == [0.0] * 8
    assert nothing["psnr"] == pytest.approx(nothing["mean"])
    assert cell.scores(list(cell.others[:8].split(4)))["recovered"] == [0.0] * 8


def test_clients_send_no_averages_and_the_server_s_images_are_its_own() -> None:
    cell, fresh = (local_averages.KeptCell("resnet20:train:photos:1", 0, 2, True, epochs) for epochs in (1, 0))
    with pytest.raises(AttackError, match="no running averages"):
        sent_statistics(cell.seen[0])
    own = {tuple(image.flatten().tolist()) for image in cell.knowledge.auxiliary.images}
    attacked = [tuple(image.flatten().tolist()) for image in torch.cat([cell.truth, cell.others])]
    assert len(own) > 100
    assert not own.intersection(attacked)
    # Training moved the averages; the attacked update belongs to the trained network.
    trained, drawn = (dict(one.seen[0].model.named_buffers())["1.running_mean"] for one in (cell, fresh))
    assert trained.any()
    assert not drawn.any()


def test_gradient_regularisation_acts_on_whole_rounds_by_its_radius() -> None:
    cell = whole_rounds.Rounds("width 8:none:photos:1:2:1:0.05", 0, 1, auxiliary=False)
    plain, none, some = (
        ours(attack, cell, 4, 0)[0]
        for attack in (SurrogateMatching(), FlatSurrogateMatching(radius=0.0), FlatSurrogateMatching(radius=5.0))
    )
    torch.testing.assert_close(none, plain)
    assert not torch.allclose(some, plain)


def test_attacked_squares_are_of_photographs_that_the_server_does_not_have() -> None:
    pair = [squares(seed, 20) for seed in (0, 1)]
    quarters = {name: tiles(photograph(name), 2) for name in FILES}
    owners = [
        {name for name, own in quarters.items() if any(torch.equal(one, square) for one in own for square in of)}
        for of in (pair[0].attacked, pair[0].others, pair[1].attacked)
    ]
    assert [len(one) for one in owners] == [5, 5, 5]
    assert owners[0].isdisjoint(owners[1])
    assert owners[1] == owners[2], "the second seed attacks the other half"
    for server in ("same", "other"):
        data = split_tokens.squares(56, 0, server, 16)
        assert torch.cdist(data.clients[:20].flatten(1), data.server.flatten(1)).min() > 1
        assert not torch.equal(data.clients[:5], split_tokens.squares(56, 1, server, 16).clients[:5])


def test_updates_of_spear_have_the_rank_of_the_batch_and_full_rank_with_noise() -> None:
    images, labels = spear_scaling.batch_of("mnist-5k", 2, 0)
    for noise, steps, rank in ((0.0, 1, 2), (0.0, 4, 2), (0.01, 1, 20)):
        cell = {"noise": noise, "steps": steps, "rate": 0.01, "single": False, "seed": 0}
        sent = spear_scaling.sent(spear_scaling.network(784, 20, 3, 0), images, labels, cell)
        values = torch.linalg.svdvals(sent.update["1.weight"].double())
        assert int((values > 1e-9 * values[0]).sum()) == rank, (noise, steps)
