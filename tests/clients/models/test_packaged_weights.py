"""Published weights: real photographs get their classes through both halves, and what is missing is told with what to do."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.models import ResNet50_Weights, VGG16_Weights  # type: ignore[import-untyped]
from torchvision.transforms.functional import pil_to_tensor  # type: ignore[import-untyped]

from attacks.local_model import shared_tensors
from attacks.sender import Sender
from clients.data.card import DataCard
from clients.data.packaged import packaged_file
from clients.inference.plan import InferencePlan
from clients.models.classifiers import ModelError, build_model
from clients.models.cuts import CUTS
from clients.models.packaged_weights import EXTRA, NORMALISATIONS, PACKAGED, PackagedWeights, normalisation
from clients.models.pretrained_classifier import load_classifier
from defenses.pipeline import Pipeline

ROOT = Path(__file__).parents[3]
LITE = "efficientnet-lite0"
PLAN = InferencePlan(
    scenario="inference",
    dataset="photos", data_dir="", download=False, image_size=224, train_limit=0, test_limit=0, model="efficientnet_lite0", width=0,
    norm="batch", pipeline="", seed=3, rounds=1, local_epochs=1, batch_size=8, momentum=0.0, weight_decay=0.0, probe_targets=1,
    probe_images=1, card=DataCard(1000, (3, 224, 224), *NORMALISATIONS[LITE]),
)  # fmt: skip


def is_installed(packaged: PackagedWeights) -> bool:
    try:
        importlib.metadata.distribution(packaged.distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


needs_weights = pytest.mark.skipif(
    not is_installed(PACKAGED[LITE]), reason="the real weights are not installed: uv sync --group dev"
)


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """The real ones, of the whole model."""
    model = PLAN.build_model()
    assert load_classifier(model, str(PACKAGED[LITE].path())), "1,000 classes are ImageNet's own"
    return shared_tensors(model)


def photograph(file: str) -> Tensor:
    """The central square, (1, 3, 224, 224) in [0, 1]."""
    with Image.open(packaged_file("skimage", f"data/{file}")) as picture:
        side = min(picture.size)
        left, top = ((length - side) // 2 for length in picture.size)
        square = picture.convert("RGB").crop((left, top, left + side, top + side))
        pixels: Tensor = pil_to_tensor(square.resize((224, 224), Image.Resampling.BICUBIC))
    return pixels[None].float() / 255


@needs_weights
@pytest.mark.parametrize("cut", CUTS["efficientnet_lite0"])
def test_photographs_get_their_imagenet_classes_through_both_halves(cut: str, weights: dict[str, Tensor]) -> None:
    """Numbers of the classes are ImageNet's; the probabilities were found with timm's model and the packaged file alone."""
    model = PLAN.build_cut(cut, weights)
    sender = Sender(model.client, Pipeline(), *NORMALISATIONS[LITE])
    for file, (number, expected) in {
        "chelsea.png": (285, 0.39),  # Egyptian cat
        "coffee.png": (967, 0.94),  # espresso
        "rocket.jpg": (657, 0.23),  # missile
    }.items():
        with torch.no_grad():
            features = sender.pipeline.decode_features(sender.latent(photograph(file), ("test",)))
            shares = model.server(features).softmax(1)[0]
        assert int(shares.argmax()) == number
        assert float(shares[number]) == pytest.approx(expected, abs=0.02)


@needs_weights
def test_real_weights_know_grey_images_by_one_channel(weights: dict[str, Tensor]) -> None:
    """The coffee in grey: a model of one channel answers what that of three answers to three equal channels."""
    grey = photograph("coffee.png").mean(1, keepdim=True)
    alone = build_model("efficientnet_lite0", num_classes=1000, input_shape=(1, 224, 224), norm="batch")
    load_classifier(alone, str(PACKAGED[LITE].path()))
    with torch.no_grad():
        (mean,), (std,) = normalisation(LITE, 1)
        one = alone.eval()((grey - mean) / std).softmax(1)
        whole = PLAN.build_cut("stage2", weights).whole
        three = whole((grey.expand(-1, 3, -1, -1) - 127 / 255) / (128 / 255)).softmax(1)
    torch.testing.assert_close(one, three, rtol=1e-3, atol=1e-5)
    assert int(one.argmax()) == 967


def test_imagenets_statistics_are_those_of_torchvision() -> None:
    for published in (VGG16_Weights, ResNet50_Weights):
        transforms = published.IMAGENET1K_V1.transforms()
        assert normalisation("imagenet", 3) == (tuple(transforms.mean), tuple(transforms.std))


def test_images_of_other_channels_are_refused() -> None:
    assert normalisation("imagenet", 1)[0] == pytest.approx((0.449,), abs=1e-6)
    with pytest.raises(ModelError, match="for images of 1 or 3 channels, not 4"):
        normalisation("imagenet", 4)


def test_a_package_that_is_not_there_is_told_with_the_extra() -> None:
    missing = PackagedWeights("efficientnet_lite0", "fedveil-no-such-package", "weights.pth")
    with pytest.raises(ModelError, match=r"fedveil-no-such-package is not installed; install fedveil\[pretrained\]"):
        missing.path()
    # A package that is always here, without such a file.
    with pytest.raises(ModelError, match=r"torch is installed without torch/no-such-file.pth; reinstall it"):
        PackagedWeights("efficientnet_lite0", "torch", "torch/no-such-file.pth").path()


def test_the_extra_installs_all_packages_and_every_name_has_a_normalisation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"][EXTRA]
    assert {requirement.split(">=")[0] for requirement in extra} == {one.distribution for one in PACKAGED.values()}
    checked = [one for one in project["dependency-groups"]["dev"] if isinstance(one, str)]  # others name groups
    assert set(extra) <= set(checked), "or no check would run with the real weights"
    assert set(PACKAGED) <= set(NORMALISATIONS)
