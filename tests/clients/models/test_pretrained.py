"""Weights from files, published ones among them: against the uncut models, in every format, and what does not fit."""

import argparse
import importlib.metadata
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.models import adapt_input_conv
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torchvision.models import ResNet50_Weights, VGG16_Weights  # type: ignore[import-untyped]
from torchvision.transforms.functional import pil_to_tensor  # type: ignore[import-untyped]

from attacks.local_model import shared_tensors
from attacks.sender import Sender
from clients.data.card import DataCard
from clients.data.packaged import packaged_file
from clients.models.classifiers import ModelError, build_model
from clients.models.cuts import CUTS
from clients.models.packaged_weights import NORMALISATIONS, PACKAGED, PackagedWeights, normalisation
from clients.models.pretrained_classifier import load_classifier
from clients.models.split.halves import EdgeHalf, ServerHalf
from clients.models.split.split_models import SplitShape, build_split_model
from defenses.pipeline import Pipeline
from tests.clients.inference.test_queries import PLAN as DIGITS

SHAPE = SplitShape(patch_size=4, width=16, depth=3, heads=2, edge_blocks=1)
UNCUT = replace(SHAPE, edge_blocks=0)
Weights = dict[str, Tensor]


def timm_model(seed: int = 0, **changes: Any) -> VisionTransformer:
    sizes = {
        "img_size": (8, 12), "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 7, **changes
    }  # fmt: skip
    whole = VisionTransformer(**sizes)
    generator = torch.Generator().manual_seed(seed)
    for parameter in whole.parameters():
        parameter.data = 1.5 / parameter[0].numel() ** 0.5 * torch.randn(parameter.shape, generator=generator)
    return whole.eval()


def build(
    file: Path | str, shape: SplitShape = SHAPE, images: tuple[int, int, int] = (3, 8, 12), seed: int = 0
) -> tuple[EdgeHalf, ServerHalf]:
    return build_split_model("vit", num_classes=5, input_shape=images, shape=shape, seed=seed, pretrained=str(file))


def weights_of(edge: EdgeHalf, server: ServerHalf) -> Weights:
    found = {f"patch_embed.{key}": value for key, value in edge.embedding.state_dict().items()}
    for index, block in enumerate([*edge.blocks, *server.blocks]):
        found |= {f"blocks.{index}.{key}": value for key, value in block.state_dict().items()}
    found |= {f"norm.{key}": value for key, value in server.norm.state_dict().items()}
    return found | {"cls_token": server.class_token.detach()}


def kept(weights: Weights) -> Weights:
    return {key: value for key, value in weights.items() if key != "pos_embed" and not key.startswith("head.")}


def same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def saved(folder: Path, content: Any) -> Path:
    torch.save(content, folder / "weights.pth")
    return folder / "weights.pth"


def test_a_cut_model_holds_the_files_weights_and_both_halves_its_class_token(tmp_path: Path) -> None:
    for edge_blocks in [0, 1, 2]:
        weights = timm_model().state_dict()
        edge, server = build(saved(tmp_path, weights), replace(SHAPE, edge_blocks=edge_blocks))
        assert same(weights_of(edge, server), kept(weights))
        assert len(edge.blocks) == edge_blocks
        assert (edge.class_token is None) == (edge_blocks == 0)
        assert edge.class_token is None or torch.equal(edge.class_token, weights["cls_token"])


FORMATS: dict[str, Callable[[Weights, Weights], Any]] = {
    "plain": lambda weights, _: weights,
    "state_dict": lambda weights, _: {"state_dict": weights},
    "model": lambda weights, _: {"model": weights},
    "average first": lambda weights, other: {"state_dict": other, "state_dict_ema": weights},
    "data parallel": lambda weights, _: {f"module.{key}": value for key, value in weights.items()},
    "timm's training script": lambda weights, _: {
        "epoch": 3, "arch": "vit", "state_dict": weights, "optimizer": {"state": {}}, "args": argparse.Namespace(lr=0.1)
    },
}  # fmt: skip


def test_every_format_and_half_precision_are_read(tmp_path: Path) -> None:
    for name in FORMATS:
        weights, other = timm_model().state_dict(), timm_model(1).state_dict()
        halves = build(saved(tmp_path, FORMATS[name](weights, other)))
        assert same(weights_of(*halves), kept(weights))
    halved = {key: value.half() for key, value in timm_model().state_dict().items()}
    save_file(halved, tmp_path / "model.safetensors")
    edge, server = build(tmp_path / "model.safetensors")
    assert same(weights_of(edge, server), {key: value.float() for key, value in kept(halved).items()})


def test_colour_is_summed_for_grey_images(tmp_path: Path) -> None:
    whole = timm_model()
    file = saved(tmp_path, whole.state_dict())
    edge, _ = build(file, UNCUT, (1, 8, 12))
    found = edge.embedding.state_dict()["proj.weight"]
    assert torch.allclose(found, adapt_input_conv(1, whole.patch_embed.proj.weight))
    grey = torch.rand(2, 1, 8, 12)
    assert torch.allclose(edge(grey), whole.patch_embed(grey.expand(-1, 3, -1, -1)), atol=1e-5)


MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"embed_dim": 32}, "cls_token has shape (1, 1, 32), expected (1, 1, 16)"),
    ({"patch_size": 2}, "set patch-size = 2, as"),
    ({"depth": 4}, "set depth = 4, as"),
    ({"depth": 2}, "blocks.2.norm1.weight is missing, expected with shape (16,)"),
    ({"reg_tokens": 2}, "without register tokens"),
    ({"class_token": False, "global_pool": "avg"}, "with a class token"),
    ({"in_chans": 1}, "has shape (16, 1, 4, 4), expected (16, 3, 4, 4)"),
]


def test_the_first_weight_that_does_not_fit_is_named_with_what_would(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for changes, said in MISFITS:
        file = saved(tmp_path, timm_model(**changes).state_dict())
        with subtests.test(said), pytest.raises(ModelError, match=f"does not fit the model.*{re.escape(said)}"):
            build(file)
    build(saved(tmp_path, timm_model(in_chans=1).state_dict()), images=(1, 8, 12))


class Bomb:
    """Unpickling it writes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


def test_what_is_no_state_dict_is_not_executed(tmp_path: Path, subtests: pytest.Subtests) -> None:
    whole, bomb = timm_model().state_dict(), Bomb(tmp_path / "executed")
    for name, content, said in (
        ("text.pth", b"not a checkpoint at all", "is no checkpoint"),
        ("text.safetensors", b"not a checkpoint at all", "is no checkpoint"),
        ("list.pth", [torch.zeros(2)], "is no checkpoint"),
        ("none.pth", {"state_dict": None}, "is no checkpoint"),
        ("bomb.pth", {"model": whole, "extra": bomb}, "is no checkpoint"),
        ("numbers.pth", {"epoch": 3}, "holds int under 'epoch'"),
        ("integers.pth", {"cls_token": torch.zeros(1, 1, 16).char()}, "holds torch.int8 under 'cls_token'"),
        ("", None, "is a folder; expected the file of a checkpoint in it"),
        ("missing.pth", None, r"cannot read .*missing\.pth \(No such file"),
    ):
        if isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
        elif content is not None:
            torch.save(content, tmp_path / name)
        with subtests.test(name), pytest.raises(ModelError, match=f"weights: .*{said}"):
            build(tmp_path / name)
    assert not bomb.target.exists()
    pickle.loads(pickle.dumps(bomb))
    assert bomb.target.exists(), "the control: unpickling executes it"


def classifier(classes: int, channels: int = 3, name: str = "efficientnet_lite0", **changes: Any) -> nn.Module:
    return build_model(name, num_classes=classes, input_shape=(channels, 32, 32), **{"norm": "batch"} | changes).eval()


def port_of(path: Path, model: nn.Module, **changes: Tensor) -> str:
    weights = {name: value for name, value in model.state_dict().items() if "num_batches" not in name}
    torch.save({f"port.{number}": value for number, value in enumerate(weights.values())} | changes, path)
    return str(path)


def test_a_port_under_other_names_answers_as_the_original_or_keeps_another_last_layer(tmp_path: Path) -> None:
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    original, model = classifier(7, seed=1), classifier(7, seed=2)
    assert not torch.allclose(model(images), original(images))
    port = port_of(tmp_path / "port.pt", original)
    assert load_classifier(model, port)
    assert torch.equal(model(images), original(images))
    model = classifier(7, channels=1, seed=2)
    load_classifier(model, port)
    grey = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(model(grey), original(grey.expand(-1, 3, -1, -1)), atol=1e-4)
    model = classifier(2, seed=2)
    before = {name: value.clone() for name, value in model.classifier.state_dict().items()}
    assert not load_classifier(model, port)
    assert torch.equal(model.forward_features(images), original.forward_features(images))
    assert all(torch.equal(value, before[name]) for name, value in model.classifier.state_dict().items())


def test_what_does_not_fit_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    file, bomb = tmp_path / "weights.pt", Bomb(tmp_path / "executed")
    lite, small = classifier(7), classifier(7, name="resnet20")
    grouped, vgg = classifier(7, name="resnet20", norm="group"), classifier(7, name="vgg_small", norm="group")
    for model, content, message in (
        (classifier(7, norm="group"), lite.state_dict(), r"247 tensors, the model .*; set norm to batch"),
        (vgg, grouped.state_dict(), r"tensors, the model \d+$"),  # nothing says that statistics are what is too many
        (small, bomb, r"holds objects, not only tensors; save model.state_dict"),
        (small, {1: torch.zeros(2)}, "holds a dict, not tensors by name"),
        (small, {"weight": torch.zeros(2, device="meta")}, r"in weight \(meta\); expected dense ones"),
        (small, {"weight": torch.eye(2).to_sparse()}, r"torch.sparse_coo\); expected dense"),
        (small, {"weight": torch.zeros(2, dtype=torch.int64)}, "torch.int64 in weight; expected real"),
        (small, {"weight": torch.tensor([float("nan")])}, "NaN or infinite"),
    ):
        torch.save(content, file)
        with subtests.test(message), pytest.raises(ModelError, match=message):
            load_classifier(model, str(file))
    assert not bomb.target.exists()
    other = port_of(file, lite, **{"port.0": torch.zeros(32, 3, 5, 5)})
    with pytest.raises(ModelError, match=r"port.0 has shape \(32, 3, 5, 5\), expected \(32, 3, 3, 3\) of conv_stem"):
        load_classifier(lite, other)


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
