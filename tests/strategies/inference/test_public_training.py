"""The server's training of the whole model, against descent by hand; pictures of learned masks; and the offline adversary."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from attacks.observations import AttackError
from clients.data.card import DataCard
from clients.models.classifiers import build_model
from clients.task.auxiliary import Auxiliary
from defenses import FitContext, parse
from defenses.base import Batch
from strategies.inference.mask_pictures import OBSERVATION, overlay, picture_masks
from strategies.inference.offline_adversary import OfflineAdversaries, OfflineAdversary
from strategies.inference.public_model import PublicTraining, read_weights
from tests.clients.inference.test_queries import PLAN as QUERIES

# One step on all of the server's 20 digits.
PLAN = replace(
    QUERIES, train_limit=40, test_limit=10, width=4, norm="batch", batch_size=20, auxiliary_fraction=0.5,
    card=DataCard(10, (1, 28, 28), (0.4,), (0.3,)),
)  # fmt: skip


def weights(classes: int, seed: int = 7) -> dict[str, Tensor]:
    """Of a model that has seen images: its running statistics are not those of a new one."""
    shape = PLAN.data_card().input_shape
    model = build_model("vgg_small", num_classes=classes, input_shape=shape, width=4, norm="batch", seed=seed)
    model(torch.rand(16, *shape, generator=torch.Generator().manual_seed(seed)))
    return model.state_dict()


def test_a_step_from_given_weights_is_one_by_hand() -> None:
    """Every layer by one learning rate, in train mode: normalised by the batch, and running statistics move to it."""
    start = weights(10)
    training = PublicTraining(PLAN, start)
    assert all(torch.equal(tensor, start[name]) for name, tensor in training.weights().items())
    loss, _ = training.run_round(PLAN.at(1))

    model = PLAN.build_model().train()
    model.load_state_dict(start)
    batch = Auxiliary(PLAN).examples()
    assert len(batch) == 20
    value = F.cross_entropy(model(normalise(batch.images, PLAN.data_card())), batch.targets.argmax(1))
    slopes = torch.autograd.grad(value, list(model.parameters()))
    with torch.no_grad():
        for parameter, slope in zip(model.parameters(), slopes, strict=True):
            parameter -= 0.1 * slope
    assert loss == pytest.approx(float(value.detach()), rel=1e-5)
    expected = shared_tensors(model)
    moved = [name for name in expected if "running" in name and not torch.allclose(expected[name], start[name])]
    assert len(moved) == 12, "mean and variance of six layers"
    for name, tensor in training.weights().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5, msg=name)


def test_other_classes_get_a_new_last_layer_and_as_many_the_files(tmp_path: Path) -> None:
    """A new one begins at the loss of guessing, and learns."""
    for classes, whole in ((10, True), (7, False)):
        file, expected = tmp_path / f"{classes}.pt", weights(classes)
        torch.save(expected, file)
        found = read_weights(PLAN, str(file))
        assert found.is_complete == whole
        new = {} if whole else {"24.weight": torch.zeros(10, 32), "24.bias": torch.zeros(10)}
        assert found.tensors.keys() == shared_tensors(PLAN.build_model()).keys()
        for name, tensor in found.tensors.items():
            assert torch.equal(tensor, new.get(name, expected[name])), name
    training = PublicTraining(PLAN, found.tensors)
    first, second = (training.run_round(PLAN.at(at))[0] for at in (1, 2))
    assert second < first == pytest.approx(math.log(10), rel=1e-5)


def test_what_a_checkpoint_holds_besides_is_left_alone(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    training = PublicTraining(replace(PLAN, momentum=0.9))
    training.run_round(PLAN.at(1))
    kept = training.tensors()
    assert any(name.startswith("optimizer/") for name in kept)
    save_file(kept, tmp_path / "checkpoint.safetensors")
    found = read_weights(PLAN, str(tmp_path / "checkpoint.safetensors"))
    assert found.is_complete
    assert all(torch.equal(tensor, training.weights()[name]) for name, tensor in found.tensors.items())


PICTURED = replace(
    QUERIES, dataset="photo-face", image_size=28, train_limit=160, test_limit=40, width=4, cuts="conv4", auxiliary_fraction=0.75
)  # fmt: skip
KEY = ("fit", 3)


@pytest.fixture(scope="module")
def own() -> Batch:
    return PublicTraining(PICTURED).examples()


def a_context(own: Batch, *, adversary: bool = False) -> FitContext:
    model, card = PICTURED.build_cut("conv4"), PICTURED.data_card()
    black = normalise(torch.zeros(1, *card.input_shape), card)[0, :, 0, 0]
    against = replace(PICTURED, seed=4).build_cut("conv4").server if adversary else None
    return FitContext(model.client, model.server, against, normalise(own.images, card), own.targets.argmax(1), black)


def shown(text: str, own: Batch, *, adversary: bool) -> list[dict[str, Any]]:
    pictures: list[dict[str, Any]] = []
    recorder: Any = SimpleNamespace(picture=lambda _, image, **fields: pictures.append({"image": image, **fields}))
    context = a_context(own, adversary=adversary)
    picture_masks(parse(text).fit(context, KEY), context, KEY, "conv4", PICTURED.at(1), recorder)
    return pictures


def test_pictures_show_image_maps_mask_and_what_is_left(own: Batch) -> None:
    """Outside the mask the masked image is the image, inside it is black: by what was drawn alone."""
    found = shown("DeltaAutoencoder(delta='min', fill='black', epochs=0)", own, adversary=True)
    assert [one["kind"] for one in found[::3]] == ["image", "server-cam", "adversary-cam", "mask", "masked"]
    assert {one["observation"] for one in found} == {OBSERVATION}
    assert [one["caption"] for one in found[:3]] == [f"cut at conv4, image {at}" for at in (1, 2, 3)]
    image, mask, masked = (
        torch.stack([one["image"] for one in found if one["kind"] == k]) for k in ("image", "mask", "masked")
    )
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(masked, image * (1 - mask), atol=1e-6, rtol=0)
    torch.testing.assert_close(image[0], own.images[0], atol=1e-6, rtol=0)


def test_an_overlay_runs_from_blue_over_green_to_red() -> None:
    """Against Matplotlib's rule for "jet" at its corners, half of it on a black image."""
    cams = torch.tensor([[[0.0, 0.25, 0.5, 0.75, 1.0]]])
    drawn = overlay(torch.zeros(1, 1, 1, 5), cams)[0, :, 0].T * 2
    expected = [[0, 0, 0.5], [0, 0.5, 1], [0.5, 1, 0.5], [1, 0.5, 0], [0.5, 0, 0]]
    torch.testing.assert_close(drawn, torch.tensor(expected))
    assert float(overlay(torch.ones(1, 3, 1, 5), cams).max()) <= 1


def test_defences_without_masks_have_no_pictures(own: Batch) -> None:
    for text, kinds in (
        ("DeltaAutoencoder(delta='max', epochs=0) | FeatureNoise(std=0.1)", {"image", "server-cam", "mask", "masked"}),
        ("FeaturePCA(components=2)", set()),
        ("", set()),
    ):
        assert {one["kind"] for one in shown(text, own, adversary=False)} == kinds, text


def examples(count: int = 64) -> tuple[Batch, Tensor]:
    """Bright images have the attribute, dark ones do not: anybody can learn it."""
    images = torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(0)) / 4
    hidden = torch.arange(count) % 2
    return Batch(images + 0.7 * hidden[:, None, None, None], torch.zeros(count, 10)), hidden


def trained(adversaries: OfflineAdversaries, cut: str) -> OfflineAdversary:
    return adversaries.at(cut, QUERIES, QUERIES.build_cut(cut), *examples())


@pytest.fixture(scope="module")
def learned() -> OfflineAdversaries:
    found = OfflineAdversaries("split", 30)
    trained(found, "conv4")
    return found


def test_it_learns_what_can_be_learned_and_says_on_how_many_images(learned: OfflineAdversaries) -> None:
    found, (batch, hidden) = trained(learned, "conv4"), examples()
    with torch.no_grad():
        features = QUERIES.build_cut("conv4").client(normalise(batch.images, QUERIES.data_card()))
        answers = found.network(features).argmax(1)
    assert float((answers == hidden).float().mean()) > 0.95
    assert (found.held, round(found.accuracy * 8) / 8) == (8, found.accuracy)


def test_a_checkpoint_brings_back_the_very_same_one(learned: OfflineAdversaries) -> None:
    """With steps that would lead elsewhere, were they taken again."""
    kept = learned.tensors()
    later = OfflineAdversaries("split", 1)
    later.restore(kept)
    assert set(later.tensors()) == set(kept), "also before it is asked for"
    first, again = trained(learned, "conv4"), trained(later, "conv4")
    assert (again.accuracy, again.majority, again.held) == (first.accuracy, first.majority, first.held)
    for name, tensor in first.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name])
    assert all(torch.equal(tensor, later.tensors()[name]) for name, tensor in kept.items())


def test_without_an_attribute_there_is_none() -> None:
    with pytest.raises(AttackError, match="no sensitive attribute"):
        OfflineAdversaries("split", 1).at("conv4", QUERIES, QUERIES.build_cut("conv4"), examples()[0], None)
