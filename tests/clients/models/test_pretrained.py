"""Weights from files that timm's own models write: against timm's uncut model, in every format, and what does not fit."""

from __future__ import annotations

import argparse
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from timm.models import adapt_input_conv
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from clients.data.card import DataCard
from clients.models.library import ModelError
from clients.models.split.halves import EdgeHalf, RawPatches, ServerHalf
from clients.models.split.split_models import SplitShape, build_split_model
from clients.split.plan import SplitPlan
from clients.task.scenarios import read_task

SHAPE = SplitShape(patch_size=4, width=16, depth=3, heads=2, edge_blocks=1)
UNCUT = replace(SHAPE, edge_blocks=0)
Weights = dict[str, Tensor]


def timm_model(seed: int = 0, **changes: Any) -> VisionTransformer:
    """With positions and 7 classes, and weights so large that each of them shows in the logits."""
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
    """Both halves under timm's names, without the new head."""
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


def test_halves_are_timms_pretrained_model_without_positions_and_with_a_new_head(tmp_path: Path) -> None:
    whole = timm_model()
    edge, server = build(saved(tmp_path, whole.state_dict()), UNCUT)
    images = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert isinstance(server.head, nn.Linear)
    whole.head = server.head
    edge.double().eval(), server.double().eval(), whole.double()
    logits = server(edge(images))
    assert logits.shape == (2, 5)
    # The negative control: with its positions the file's model is another one.
    assert not torch.allclose(logits, whole(images), atol=1e-3)
    whole.pos_embed.data.zero_()
    assert torch.allclose(logits, whole(images), atol=1e-10)


@pytest.mark.parametrize("edge_blocks", [0, 1, 2])
def test_a_cut_model_holds_the_files_weights_and_both_halves_its_class_token(tmp_path: Path, edge_blocks: int) -> None:
    weights = timm_model().state_dict()
    edge, server = build(saved(tmp_path, weights), replace(SHAPE, edge_blocks=edge_blocks))
    assert same(weights_of(edge, server), kept(weights))
    assert len(edge.blocks) == edge_blocks
    assert (edge.class_token is None) == (edge_blocks == 0)
    assert edge.class_token is None or torch.equal(edge.class_token, weights["cls_token"])


def test_the_head_is_always_new_and_depends_on_the_seed_alone(tmp_path: Path) -> None:
    whole = timm_model(num_classes=5)
    file = saved(tmp_path, whole.state_dict())

    def head(file: Path | str, seed: int) -> Tensor:
        found = build(file, seed=seed)[1].head.weight
        assert isinstance(found, Tensor)
        return found

    assert not torch.equal(head(file, 0), whole.head.weight)
    assert torch.equal(head(file, 0), head("", 0))
    assert not torch.equal(head(file, 0), head(file, 1))


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


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_of_torch_save_is_read(tmp_path: Path, name: str) -> None:
    weights, other = timm_model().state_dict(), timm_model(1).state_dict()
    halves = build(saved(tmp_path, FORMATS[name](weights, other)))
    assert same(weights_of(*halves), kept(weights))


def test_safetensors_and_half_precision_are_read(tmp_path: Path) -> None:
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


def test_raw_patches_ignore_the_embedding_and_keep_the_blocks(tmp_path: Path) -> None:
    weights = timm_model().state_dict()
    edge, server = build(saved(tmp_path, weights), replace(UNCUT, raw_patches=True))
    assert isinstance(edge.embedding, RawPatches)
    expected = {key: value for key, value in kept(weights).items() if not key.startswith("patch_embed.")}
    assert same(weights_of(edge, server), expected)


def test_a_file_is_read_again_only_when_its_modification_time_changes(tmp_path: Path) -> None:
    first, second = (timm_model(seed).state_dict() for seed in (0, 1))
    file = saved(tmp_path, first)
    halves = build(file)
    for half in halves:
        for parameter in half.parameters():
            parameter.data.add_(1.0)
    assert same(weights_of(*build(file)), kept(first))
    before = file.stat().st_mtime_ns
    saved(tmp_path, second)
    os.utime(file, ns=(before, before))
    assert same(weights_of(*build(file)), kept(first))
    os.utime(file, ns=(before + 1, before + 1))
    assert same(weights_of(*build(file)), kept(second))


def test_a_task_carries_the_file_to_the_client(tmp_path: Path) -> None:
    weights = timm_model().state_dict()
    task = SplitPlan(
        dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=0, test_limit=0, model="vit", width=16,
        norm="group", pipeline="", seed=0, rounds=1, local_epochs=1, batch_size=4, momentum=0.0,
        weight_decay=0.0, probe_targets=1, probe_images=1, scenario="split", depth=3, heads=2,
        pretrained=str(saved(tmp_path, weights)), card=DataCard(5, (3, 8, 12), (0.5,) * 3, (0.5,) * 3),
    ).at(1, 0.0)  # fmt: skip
    edge, server = SplitPlan.narrow(read_task(task.to_json()).plan).build_halves()
    assert same(weights_of(edge, server), kept(weights))


def without(key: str) -> Callable[[Weights], Weights]:
    return lambda weights: {name: value for name, value in weights.items() if name != key}


MISFITS: dict[str, tuple[dict[str, Any], Callable[[Weights], Weights], tuple[str, ...]]] = {
    "width": ({"embed_dim": 32}, dict, ("cls_token has shape (1, 1, 32), expected (1, 1, 16)", "set width = 32, as")),
    "patch": (
        {"patch_size": 2},
        dict,
        ("patch_embed.proj.weight has shape (16, 3, 2, 2), expected (16, 3, 4, 4)", "set patch-size = 2, as"),
    ),
    "deeper": ({"depth": 4}, dict, ("blocks.3.norm1.weight of shape (16,) came", "not have", "set depth = 4, as")),
    "shallower": (
        {"depth": 2},
        dict,
        ("blocks.2.norm1.weight is missing, expected with shape (16,)", "set depth = 2, as"),
    ),
    "all sizes": (
        {"embed_dim": 32, "depth": 2, "patch_size": 2},
        dict,
        ("set width = 32, patch-size = 2, depth = 2, as in the file",),
    ),
    "wider perceptron": (
        {"mlp_ratio": 2.0},
        dict,
        ("blocks.0.mlp.fc1.weight has shape (32, 16), expected (64, 16)", "only plain transformers"),
    ),
    "no bias": ({"qkv_bias": False}, dict, ("blocks.0.attn.qkv.bias is missing, expected with shape (48,)",)),
    "registers": ({"reg_tokens": 2}, dict, ("reg_token of shape (1, 2, 16) came", "without register tokens")),
    "layer scale": ({"init_values": 0.1}, dict, ("blocks.0.ls1.gamma of shape (16,) came", "layer scale")),
    "average": ({"global_pool": "avg"}, dict, ("norm.weight is missing, expected with shape (16,)", "averaged tokens")),
    "no class token": (
        {"class_token": False, "global_pool": "avg"},
        dict,
        ("cls_token is missing, expected with shape (1, 1, 16)", "with a class token"),
    ),
    "channels": (
        {"in_chans": 2},
        dict,
        ("patch_embed.proj.weight has shape (16, 2, 4, 4), expected (16, 3, 4, 4)", "as many channels"),
    ),
    "lost": (
        {},
        without("blocks.1.attn.proj.bias"),
        ("blocks.1.attn.proj.bias is missing, expected with shape (16,)",),
    ),
    "other names": (
        {},
        lambda weights: {f"encoder.{key}": value for key, value in weights.items()},
        ("cls_token is missing", "only plain transformers fit, as timm's vit_base_patch16_224"),
    ),
    "flat patches": (
        {},
        lambda weights: weights | {"patch_embed.proj.weight": torch.zeros(16, 48)},
        ("patch_embed.proj.weight has shape (16, 48), expected (16, 3, 4, 4)",),
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_the_first_weight_that_does_not_fit_is_named_with_what_would(tmp_path: Path, name: str) -> None:
    changes, change, said = MISFITS[name]
    file = saved(tmp_path, change(timm_model(**changes).state_dict()))
    with pytest.raises(ModelError) as caught:
        build(file)
    for part in (f"pretrained: {file} does not fit the model", *said):
        assert part in str(caught.value)


def test_three_channels_are_summed_for_one_but_never_made_of_one(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has shape \(16, 1, 4, 4\), expected \(16, 3, 4, 4\)"):
        build(saved(tmp_path, timm_model(in_chans=1).state_dict()))
    build(saved(tmp_path, timm_model(in_chans=1).state_dict()), images=(1, 8, 12))


class Bomb:
    """Unpickling it writes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no checkpoint"),
        (b"not a checkpoint at all", "is no checkpoint"),
        (pickle.dumps([1, 2], protocol=2), "is no checkpoint"),
        ([torch.zeros(2)], "is no checkpoint"),
        ({"state_dict": None}, "is no checkpoint"),
        (nn.Linear(2, 2), "is no checkpoint"),
        ({"epoch": 3}, "holds int under 'epoch'"),
        ({"cls_token": torch.zeros(1, 1, 16, dtype=torch.int8)}, "holds torch.int8 under 'cls_token'"),
    ],
    ids=["empty", "text", "pickle", "list", "none", "module", "numbers", "integers"],
)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_what_is_no_state_dict_is_refused(tmp_path: Path, content: Any, said: str, suffix: str) -> None:
    file = tmp_path / f"weights{suffix}"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
        said = said if suffix == ".pth" else "is no checkpoint"
    with pytest.raises(ModelError) as caught:
        build(file)
    for part in (f"pretrained: {file} {said}", "expected the state dict of a VisionTransformer of timm"):
        assert part in str(caught.value)


def test_a_truncated_file_is_refused_and_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    file = saved(tmp_path, timm_model().state_dict())
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(ModelError, match="is no checkpoint"):
        build(file)
    bomb = Bomb(tmp_path / "executed")
    pickle.loads(pickle.dumps(bomb))
    assert bomb.target.exists()
    bomb.target.unlink()
    with pytest.raises(ModelError, match="is no checkpoint"):
        build(saved(tmp_path, {"model": timm_model().state_dict(), "extra": bomb}))
    assert not bomb.target.exists()


def test_missing_files_and_folders_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"cannot read .*none\.pth \(No such file.* every client need the file at this path"
    ):
        build(tmp_path / "none.pth")
    with pytest.raises(ModelError, match="is a folder; expected the file of a checkpoint in it"):
        build(tmp_path)
