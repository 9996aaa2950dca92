"""Published weights: real photographs get their classes through both halves, and what is missing is told with what to do."""

import importlib.metadata
from dataclasses import replace

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
from clients.models.classifiers import ModelError
from clients.models.cuts import CUTS
from clients.models.packaged_weights import NORMALISATIONS, PACKAGED, PackagedWeights, normalisation
from clients.models.pretrained_classifier import load_classifier
from defenses.pipeline import Pipeline
from tests.clients.inference.test_queries import PLAN as DIGITS

LITE = "efficientnet-lite0"
PLAN = replace(
    DIGITS, dataset="photos", image_size=224, train_limit=0, test_limit=0, model="efficientnet_lite0", norm="batch",
    card=DataCard(1000, (3, 224, 224), *NORMALISATIONS[LITE]),
)  # fmt: skip


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    try:
        importlib.metadata.distribution(PACKAGED[LITE].distribution)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the real weights are not installed: uv sync --group dev")
    model = PLAN.build_model()
    assert load_classifier(model, str(PACKAGED[LITE].path())), "1,000 classes are ImageNet's own"
    return shared_tensors(model)


def photograph(file: str) -> Tensor:
    with Image.open(packaged_file("skimage", f"data/{file}")) as picture:
        side = min(picture.size)
        left, top = ((length - side) // 2 for length in picture.size)
        square = picture.convert("RGB").crop((left, top, left + side, top + side))
        pixels: Tensor = pil_to_tensor(square.resize((224, 224), Image.Resampling.BICUBIC))
    return pixels[None].float() / 255


@pytest.mark.numeric
def test_photographs_get_their_imagenet_classes_through_both_halves(weights: dict[str, Tensor]) -> None:
    for cut in CUTS["efficientnet_lite0"]:
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


def test_normalisation_is_torchvisions_and_what_is_missing_is_named() -> None:
    for published in (VGG16_Weights, ResNet50_Weights):
        transforms = published.IMAGENET1K_V1.transforms()
        assert normalisation("imagenet", 3) == (tuple(transforms.mean), tuple(transforms.std))
    assert normalisation("imagenet", 1)[0] == pytest.approx((0.449,), abs=1e-6)
    with pytest.raises(ModelError, match="for images of 1 or 3 channels, not 4"):
        normalisation("imagenet", 4)
    missing = PackagedWeights("efficientnet_lite0", "fedveil-no-such-package", "weights.pth")
    with pytest.raises(ModelError, match=r"fedveil-no-such-package is not installed; install fedveil\[pretrained\]"):
        missing.path()
