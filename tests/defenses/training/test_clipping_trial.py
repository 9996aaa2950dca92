"""Models on which the bound of DP-SGD would be false, or a step would fail, are refused before a run; all others train right."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.models.classifiers import build_model
from defenses.base import DefenseError
from defenses.training.dp_sgd import DPSGD
from defenses.training.example_gradients import GHOST, PER_EXAMPLE
from tests.defenses.training.test_dp_sgd import mean_of_clipped, one_step, protect, set_up, weights

pytestmark = pytest.mark.filterwarnings("ignore:Optimal order is the")
SHAPE, CLASSES = (1, 6, 6), 3


class Net(nn.Module):
    """A forward pass over named layers."""

    def __init__(self, run: Callable[["Net", Tensor], Tensor], **layers: Any) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, images: Tensor) -> Tensor:
        return self.run(self, images)


class Average(nn.Module):
    """Subtracts a running average of all examples so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(36), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        self.kept.mul_(0.9).add_(rows.detach().mean(0), alpha=0.1)
        return rows - self.kept


def padded(mode: str) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Conv2d(1, 4, 5, padding=2, padding_mode=mode), nn.Tanh(), nn.Flatten(), nn.Linear(144, CLASSES)
    )


def over(run: Callable[[Any, Tensor], Tensor], **sizes: tuple[int, int]) -> Callable[[], nn.Module]:
    return lambda: Net(run, **{name: nn.Linear(*size) for name, size in sizes.items()})


def positions(net: Any, images: Tensor) -> Tensor:
    places: Tensor = net.at(torch.arange(6))
    return net.head((net.mix(images[:, 0]) + places).tanh().mean(1))  # type: ignore[no-any-return]


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    **{mode: (padded(mode), r"0\.weight: the clipped sum.*put a padding layer") for mode in ("circular", "reflect", "replicate")},
    "weight of another layer": (
        over(lambda net, x: net.head(net.mix(0.01 * x.flatten(1)).tanh() @ net.mix.weight), mix=(36, 8), head=(36, CLASSES)),
        r"mix\.weight: a gradient comes from outside.*act in their own layer alone",
    ),
    "weight without its layer": (over(lambda net, x: F.linear(x.flatten(1), net.mix.weight), mix=(36, CLASSES)), r"mix\.weight"),
    "sequence first": (
        over(lambda net, x: net.head(net.mix(x[:, 0].transpose(0, 1)).tanh().mean(0)), mix=(6, 8), head=(8, CLASSES)),
        r"at mix\.weight, mix\.bias: layers see 5 and 6 examples.*examples as first axis",
    ),
    "as many rows as examples": (
        over(lambda net, x: net.head(net.mix(x[:, 0, :5].transpose(0, 1)).tanh().mean(0)), mix=(6, 8), head=(8, CLASSES)),
        r"mix\.weight, mix\.bias: the clipped sum",
    ),
    "positions once": (
        lambda: Net(positions, mix=nn.Linear(6, 8), at=nn.Embedding(6, 8), head=nn.Linear(8, CLASSES)),
        r"at at\.weight: layers see 5 and 6 examples",
    ),
    "in place": (
        over(lambda net, x: net.head(F.relu(net.mix(x.flatten(1)), inplace=True)), mix=(36, 8), head=(8, CLASSES)),
        "cannot be computed.*no operation in place",
    ),
    **{f"mean over {count}": (  # examples: of either batch of the trial alone
        over(lambda net, x, n=count: net.head(x.flatten(1) - (x.flatten(1).mean(0) if len(x) == n else 0)), head=(36, CLASSES)),
        r"head\.weight.*: the clipped sum",
    ) for count in (4, 5)},
    "old-form weight_norm": (
        lambda: nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(36, CLASSES))),  # type: ignore[no-untyped-call]
        r"cannot be copied: use torch\.nn\.utils\.parametrizations",
    ),
    "sparse": (
        lambda: Net(positions, mix=nn.Linear(6, 8), at=nn.Embedding(6, 8, sparse=True), head=nn.Linear(8, CLASSES)),
        r"at\.weight with sparse gradients; use sparse=False",
    ),
    "running average": (
        lambda: nn.Sequential(nn.Flatten(), Average(), nn.Linear(36, CLASSES)),
        r"changes 1\.kept, which carries examples to later steps.*no buffer that a forward pass changes",
    ),
    "one image": (
        over(lambda net, x: net.head(x.flatten(1)).squeeze(), head=(36, CLASSES)),
        r"one random example: the model returns the shape \(3,\) for 1 images",
    ),
}  # fmt: skip
"""Name -> a model that neither clipping has the right gradients of, and what the refusal says."""

TAKEN = {
    "twice": over(lambda net, x: net.head(net.mix(net.mix(x.flatten(1)).tanh())), mix=(36, 36), head=(36, CLASSES)),
    "inputs of four dimensions": over(lambda net, x: net.head(net.mix(x).mean((1, 2))), mix=(6, 8), head=(8, CLASSES)),
    "zeros": padded("zeros"),
    "unused head": over(lambda net, x: (net.other(x.flatten(1)), net.head(x.flatten(1)))[1], head=(36, CLASSES), other=(36, 2)),
    "views": over(
        lambda net, x: net.head(net.mix(x.flatten(1)).view(-1, 4, 9)[:, 1:].mT.flatten(1)), mix=(36, 36), head=(27, CLASSES)
    ),
    "zero at first": lambda: Net(
        lambda net, x: net.head(x.flatten(1)) * net.gate, head=nn.Linear(36, CLASSES), gate=nn.Parameter(torch.zeros(1))
    ),
    "dropout": over(lambda net, x: net.head(F.dropout(net.mix(x.flatten(1)), 0.5)), mix=(36, 8), head=(8, CLASSES)),
}  # fmt: skip


def both(name: str, build: Callable[[], nn.Module]) -> dict[str, str]:
    """Clipping -> the refusal, or ""."""
    found = {}
    for clipping in (PER_EXAMPLE, GHOST):
        torch.manual_seed(0)
        model = build()
        before = copy.deepcopy(model.state_dict())
        try:
            DPSGD(noise_multiplier=1.0, clipping=clipping).check_model(model, SHAPE)
            found[clipping] = ""
        except DefenseError as error:
            found[clipping] = str(error)
        assert all(torch.equal(one, before[key]) for key, one in model.state_dict().items()), name
        assert not hasattr(next(model.parameters()), "_norm_sample"), name
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_with_false_gradients_per_example_is_refused_with_the_weight_and_the_way_out(name: str) -> None:
    build, message = REFUSED[name]
    for clipping, refusal in both(name, build).items():
        assert re.search(message, refusal), (clipping, refusal)


def test_a_model_that_is_taken_makes_the_step_of_a_loop_over_examples() -> None:
    for name, build in TAKEN.items():
        assert both(name, build) == {PER_EXAMPLE: "", GHOST: ""}, name
        if name == "dropout":
            continue
        for clipping in (PER_EXAMPLE, GHOST):
            torch.manual_seed(0)
            training = set_up(count=6, batch_size=6, model=build().train())
            images, targets = training.loader.dataset.tensors  # type: ignore[attr-defined]
            expected, before = mean_of_clipped(training.model, images, targets, 0.4), weights(training.model)
            one_step(
                protect(DPSGD(noise_multiplier=0.0, max_grad_norm=0.4, clipping=clipping), training), images, targets
            )
            for key, one in weights(training.model).items():
                said = f"{name} {clipping} {key}"
                torch.testing.assert_close(before[key] - one, 0.5 * expected[key], rtol=1e-4, atol=1e-6, msg=said)


@pytest.mark.long
def test_the_networks_that_ship_pass() -> None:
    for name, shape in (
        ("cnn", (1, 28, 28)), ("lenet", (1, 28, 28)), ("resnet20", (3, 32, 32)), ("vit_lite", (3, 32, 32)),
    ):  # fmt: skip
        for clipping in (PER_EXAMPLE, GHOST):
            DPSGD(clipping=clipping).check_model(build_model(name, num_classes=10, input_shape=shape), shape)


def test_the_trial_uses_one_thread_and_restores_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    both("zeros", padded("zeros"))
    assert asked == [1, 7] * 2
