"""Update defences of a client that trains a part of its model, and counted costs of a step."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.local_model import shared_tensors
from attacks.sender import Sender, smash
from clients.models.split.halves import EdgeHalf
from clients.models.split.split_models import SplitShape, build_split_model
from clients.training.sgd import protect_update
from clients.training.step_cost import StepCost, measure_step
from defenses.pipeline import Pipeline
from defenses.smashed.patch_shuffle import PatchShuffle
from defenses.smashed.spectral_shuffle import SpectralShuffle
from defenses.spec import parse


class Averaging(nn.Module):
    """A frozen parameter, a buffer and whole numbers that nothing differentiates, beside a layer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.average = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.codes = nn.Parameter(torch.zeros(4, dtype=torch.int8), requires_grad=False)
        self.register_buffer("seen", torch.zeros(3))
        self.last = nn.Linear(3, 2)


def protected(text: str, average: float = 0.5) -> dict[str, torch.Tensor]:
    model = Averaging()
    moved = {name: torch.full_like(value, 0.5) for name, value in shared_tensors(model).items()}
    found = protect_update(parse(text), model, moved | {"average": torch.full((3,), average)}, ("k",))
    assert list(found) == list(moved), "the names of whole numbers are not among them"
    return found


def test_defences_do_not_touch_frozen_layers_and_are_the_pipeline_alone_without_them() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    pipeline = parse("GaussianNoise(std=1.0, per='update')")
    tensors = [*model.named_parameters(), *model.named_buffers()]
    update = {name: torch.zeros_like(value) for name, value in tensors if value.is_floating_point()}
    found, expected = protect_update(pipeline, model, update, ("k",)), pipeline.protect_update(update, ("k",))
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    model[0].requires_grad_(False)
    found = protect_update(pipeline, model, update, ("k",))
    assert list(found) == list(update)
    assert [name for name, value in found.items() if not value.any()] == ["0.weight", "0.bias"]


def test_nothing_is_sent_of_a_frozen_parameter_that_a_defence_would_not_cover() -> None:
    # What follows the data without a gradient is protected, where a defence covers it.
    assert (protected("GaussianNoise(std=10.0, per='update')")["average"] - 0.5).abs().min() > 0.1
    for text in (
        "ClientDP()", "FlowerLocalDP()", "Clip() | ClientDP(noise_multiplier=0.5)", "DPSGD() | GaussianNoise(per='update')",
        "DPSGD()", "GaussianNoise(per='step')",
    ):  # fmt: skip
        found = protected(text)
        assert not found["average"].any(), text
        assert found["last.weight"].any(), text
        assert bool(found["seen"].any()) == ("DPSGD" not in text), "a bound for examples covers gradients alone"
    assert protected("ClientDP()", torch.nan)["average"].tolist() == [0.0, 0.0, 0.0]


def test_a_frozen_parameter_takes_nothing_of_the_clipping_norm() -> None:
    # Both clip to length 1; what is frozen would be nearly all of the length.
    for text in ("ClientDP(noise_multiplier=0.0)", "FlowerLocalDP(epsilon=1e6)"):
        rest = [value for name, value in protected(text, 1000.0).items() if name != "average"]
        assert sum(float(value.square().sum()) for value in rest) == pytest.approx(1.0, abs=1e-3)


def edge_of(name: str, edge_blocks: int, side: int = 16, patch: int = 4, width: int = 16, heads: int = 2) -> EdgeHalf:
    shape = SplitShape(patch_size=patch, width=width, depth=edge_blocks + 1, heads=heads, edge_blocks=edge_blocks)
    return build_split_model(name, num_classes=2, input_shape=(3, side, side), shape=shape, seed=0)[0]


def measure(edge: EdgeHalf, side: int = 16, trained: bool = False) -> StepCost:
    images = torch.rand(1, 3, side, side)
    return measure_step(lambda: edge(images), [edge], trained=trained)


def test_costs_are_the_closed_forms_of_all_models() -> None:
    cost = measure(edge_of("vit", 0, 224, 16, 768, 12), 224)
    assert cost.parameters == (3 * 16 * 16 + 1) * 768 == 590_592
    assert cost.macs == 196 * 768 * 768
    assert f"{cost.macs / 1e6:.1f}" == "115.6"
    # 16 tokens of 4 x 4 pixels; blocks also see the class token.
    assert measure(edge_of("vit", 2)).macs == 16 * 48 * 16 + 2 * block_macs(17, 16, 4)
    assert measure(edge_of("vit", 2), trained=True).training_macs == 3 * measure(edge_of("vit", 2)).macs
    # Strides 2, 2, 1: 64 windows of 3 x 3 x 3, then 16 of 3 x 3 x 64, twice.
    dense = sum(tokens * (into * 192 + 3 * 64 * 64) for tokens, into in ((64, 27), (16, 576))) + 16 * 576 * 16
    attention = sum(2 * tokens * tokens * 64 for tokens in (64, 16))
    assert measure(edge_of("t2t", 1)).macs == dense + attention + block_macs(17, 16, 3)
    # 32 features: of queries and keys, keys with values, queries with that, and the denominators.
    linear = sum(tokens * (4 * 64 * 32 + 32) for tokens in (64, 16))
    assert measure(edge_of("t2t-performer", 1)).macs == dense + linear + block_macs(17, 16, 3)


def block_macs(tokens: int, width: int, ratio: int) -> int:
    return tokens * width * width * (4 + 2 * ratio) + 2 * tokens * tokens * width


def macs(function: object, *tensors: Tensor) -> int:
    return measure_step(lambda: function(*tensors), [], trained=False).macs  # type: ignore[operator]


def test_operators_by_hand() -> None:
    matrix, images = torch.rand(3, 5), torch.rand(2, 4, 6, 6)
    assert macs(torch.matmul, matrix, torch.rand(5, 7)) == 3 * 5 * 7
    assert macs(torch.matmul, torch.rand(2, 3, 5), torch.rand(2, 5, 7)) == 2 * 3 * 5 * 7
    assert macs(torch.addmm, torch.rand(7), matrix, torch.rand(5, 7)) == 3 * 5 * 7
    assert macs(lambda x: F.conv2d(x, torch.ones(8, 2, 3, 3), groups=2, padding=1), images) == 2 * 8 * 36 * 2 * 9
    assert macs(lambda x: F.conv_transpose2d(x, torch.ones(4, 3, 2, 2), stride=2), images) == 2 * 36 * 4 * 3 * 4
    assert macs(torch.exp, matrix) == 0
    heads = torch.rand(2, 4, 5, 8), torch.rand(2, 4, 9, 8), torch.rand(2, 4, 9, 8)
    assert macs(F.scaled_dot_product_attention, *heads) == 2 * 4 * 5 * 9 * (8 + 8)
    plane = 2.5 * 48 * math.log2(48)
    assert macs(torch.fft.fft2, torch.rand(3, 6, 8)) == round(3 * plane)
    assert macs(torch.fft.ifft2, torch.rand(3, 6, 8, dtype=torch.complex64)) == round(3 * plane)
    assert macs(torch.fft.rfft2, torch.rand(6, 8)) == macs(torch.fft.irfft2, torch.rand(6, 5) + 0j) == round(plane)


def test_defences_are_counted_with_the_client_half() -> None:
    # 16 x 16 patches of 3 channels: 48-long tokens, laid out as 3 planes of 16 x 16.
    edge, images = edge_of("vit", 0, width=48), torch.rand(1, 3, 16, 16)

    def cost(*defenses: PatchShuffle | SpectralShuffle) -> StepCost:
        sender = Sender(edge, Pipeline(defenses), (0.5,) * 3, (0.2,) * 3)
        return measure_step(lambda: smash(edge, sender.pipeline, images, sender, ("cost",)), [edge], trained=False)

    plain = cost()
    assert cost(PatchShuffle()).macs == plain.macs
    assert cost(SpectralShuffle()).macs == plain.macs + 3 * 2.5 * 256 * 8
    assert cost(SpectralShuffle()).peak_bytes > plain.peak_bytes
    with torch.inference_mode():
        assert cost().macs == plain.macs, "it hides nothing"


def test_memory_of_a_patch_embedding_is_exact_and_measuring_leaves_no_trace() -> None:
    edge = edge_of("vit", 0)
    weights, tokens = 4 * (48 + 1) * 16, 4 * 16 * 16
    assert measure(edge).peak_bytes == weights + tokens
    # Gradients of weights and of what was sent.
    assert measure(edge, trained=True).peak_bytes == 2 * (weights + tokens)
    edge = edge_of("vit", 1)
    before = {key: value.clone() for key, value in edge.state_dict().items()}
    measure(edge, trained=True)
    assert all(parameter.grad is None for parameter in edge.parameters())
    assert all(torch.equal(value, before[key]) for key, value in edge.state_dict().items())
    frozen = measure(edge.requires_grad_(False), trained=True)
    assert frozen.training_macs == frozen.macs
    assert frozen.peak_bytes == measure(edge).peak_bytes
    shared = measure_step(lambda: edge(torch.rand(1, 3, 16, 16)), [edge, edge], trained=False)
    assert shared.parameters == frozen.parameters
