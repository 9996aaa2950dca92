"""What a client's own training did, as torch's objects show it while it runs: no number of it is a user's word.

A ``TrainingWatch`` counts the steps of ``torch.optim`` optimizers, and the images that a model is given with gradients on. It
changes nothing and draws no random number. Of an image it keeps ``PROJECTIONS`` numbers, which recognise it.
"""

from __future__ import annotations

import functools
import json
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Self

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from pydantic import ConfigDict
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from clients.wire.limits import LEAST_RATE, MOST_IMAGES, MOST_RATE, MOST_STEPS, BelowOne, Count, Decay, Length, Limit
from clients.wire.records import to_record, to_tensors
from clients.wire.schema import STRICT, parsed
from defenses.random_draws import generator_for

DID, SAW = "fedveil-last-training", "fedveil-last-images"
"""Records of a context's state: what the last training did, and the projections of the images that it saw."""
PROJECTIONS = 8
MOST_SEEN = 4096
"""The first images of a training, which are recognised."""
ALIKE = 1e-3
"""Largest distance between projections of one image, over their length or 1: numbers of 16 bits round less."""
LONGEST_NAME = 100
OPACUS = "GradSampleModule"
"""Opacus' wrapper of a model."""


class UnseenTrainingError(ValueError):
    """A training that torch's objects did not show."""


@dataclass(frozen=True)
class Training:
    """What one training of a client did.

    Attributes:
        optimizer: Name of its class.
        learning_rate: Of its steps, on average.
        momentum: 0 for an optimizer without.
        nesterov: Whether the momentum is Nesterov's.
        weight_decay: Of its first group of parameters.
        steps: Number of its steps.
        batch_size: Most images for a step; 0 where no model was given images.
        images: For all steps together.
        train_mode: Whether the model was in train mode.
        sent: Whether the reply holds the weights as the last step left them.
        notes: What else differs from plain SGD with these settings, each a few words.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    optimizer: Annotated[str, Length(LONGEST_NAME)]
    learning_rate: Annotated[float, Limit(LEAST_RATE, MOST_RATE)]
    momentum: BelowOne
    nesterov: bool
    weight_decay: Decay
    steps: Annotated[int, Limit(1, MOST_STEPS)]
    batch_size: Annotated[int, Limit(0, MOST_IMAGES)]
    images: Count
    train_mode: bool
    sent: bool
    notes: Annotated[tuple[str, ...], Length(8)] = ()

    @classmethod
    def from_json(cls, text: str) -> Training:
        """Read what a client sends; ``UnseenTrainingError`` for a value that is not allowed."""
        return parsed(cls, text, UnseenTrainingError)

    def epochs(self, examples: int) -> int:
        """Passes over so many examples, to the nearest whole number from 1 on."""
        return max(1, round(self.images / max(examples, 1)))

    @property
    def rule(self) -> str:
        """The optimizer with its settings, which all clients of a round share."""
        kind = " (Nesterov)" if self.nesterov else ""
        settings = f"momentum {self.momentum:g}{kind} and weight decay {self.weight_decay:g}"
        return f"{self.optimizer} with learning rate {self.learning_rate:g}, {settings}"


@dataclass
class _Steps:
    """The steps of one optimizer."""

    settings: dict[str, Any]
    weights: list[Tensor]
    groups: int
    rates: Counter[float] = field(default_factory=Counter)
    """Learning rate -> steps with it, in order of appearance."""
    norms: list[float] = field(default_factory=list)
    """Of the gradients of all weights, in a step each."""
    steps: int = 0
    batch_size: int = 0
    images: int = 0

    @property
    def rate(self) -> float:
        """Its learning rate on average."""
        return (
            next(iter(self.rates)) if len(self.rates) == 1 else sum(k * n for k, n in self.rates.items()) / self.steps
        )


class TrainingWatch:
    """Watches what this thread trains between entering and leaving; see the module."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._of: dict[int, _Steps] = {}
        self._model: nn.Module | None = None
        """While it works on images: modules in it may be given images, too."""
        self._pending, self._kept = 0, 0
        self._modes, self._wrappers = set[bool](), set[str]()
        self._seen: list[Tensor] = []
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        for handle in (
            register_optimizer_step_pre_hook(self._steps),
            register_module_forward_pre_hook(self._begins),
            register_module_forward_hook(self._ends, always_call=True),
        ):
            self._hooks.callback(handle.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def _begins(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._model is not None or threading.get_ident() != self._thread or not torch.is_grad_enabled():
            return
        images = next((one for one in inputs if _is_images(one)), None)
        if images is not None:
            self._model = module
            self._modes.add(module.training)
            self._wrappers.add(type(module).__name__)
            self._pending += len(images)
            if self._kept < MOST_SEEN:
                self._seen.append(projected(images.detach()[: MOST_SEEN - self._kept]))
                self._kept += len(self._seen[-1])

    def _ends(self, module: nn.Module, *_: object) -> None:
        if module is self._model:
            self._model = None

    def _steps(self, optimizer: Optimizer, *_: object) -> None:
        if threading.get_ident() != self._thread:
            return
        group = optimizer.param_groups[0]
        rate = float(group["lr"])
        if id(optimizer) not in self._of:
            settings = {"optimizer": type(optimizer).__name__, **{name: group.get(name) for name in _READ}}
            weights = [one for of in optimizer.param_groups for one in of["params"]]
            groups = len({str(_settings(one)) for one in optimizer.param_groups})
            self._of[id(optimizer)] = _Steps(settings, weights, groups)
        mine = self._of[id(optimizer)]
        mine.rates[rate] += 1
        mine.steps += 1
        gradients = [one.grad for one in mine.weights if one.grad is not None and not one.grad.is_sparse]
        mine.norms.append(float(nn.utils.get_total_norm(gradients)))
        mine.batch_size, mine.images = max(mine.batch_size, self._pending), mine.images + self._pending
        self._pending = 0

    def keep(self, context: Context, reply: Iterable[ArrayRecord] = ()) -> None:
        """Write what was seen until a ``reply`` of these arrays into a node's state, in the place of an earlier training."""
        for name in (DID, SAW):
            context.state.pop(name, None)
        if self._of:
            context.state[DID] = ConfigRecord({"training": json.dumps(asdict(self._training(reply)))})
        if self._seen:
            context.state[SAW] = to_record({"images": torch.cat(self._seen)})

    def _training(self, reply: Iterable[ArrayRecord]) -> Training:
        """What was seen, of the optimizer with most images."""
        main = max(self._of.values(), key=lambda one: (one.images, one.steps))
        settings = main.settings
        return Training(
            str(settings["optimizer"])[:LONGEST_NAME], main.rate, _number(settings["momentum"]), bool(settings["nesterov"]),
            _number(settings["weight_decay"]), main.steps, main.batch_size, main.images,
            self._modes != {False}, _holds(reply, main.weights),
            tuple(self._notes(main)),
        )  # fmt: skip

    def _notes(self, main: _Steps) -> Iterator[str]:
        if OPACUS in self._wrappers:
            yield "Opacus clips and adds noise"
        if len(rates := list(main.rates)) > 1:
            yield f"its learning rate ran from {rates[0]:g} to {rates[-1]:g}"
        if (clip := _clipped(main.norms)) and OPACUS not in self._wrappers:
            yield f"gradients of several steps have the norm {clip:.4g}, as clipping leaves it"
        if main.groups > 1:
            yield f"{main.groups} groups of parameters have settings of their own"
        if _number(main.settings["dampening"]) or main.settings["maximize"]:
            yield "with dampening or maximize"
        if len(self._of) > 1:
            yield f"{len(self._of) - 1} other optimizers stepped, too"
        if len(self._modes) > 1:
            yield "a part of its steps was in eval mode"


def _holds(reply: Iterable[ArrayRecord], weights: Iterable[Tensor]) -> bool:
    """Whether each of the weights is one of the arrays."""
    sent = defaultdict[torch.Size, list[Tensor]](list)
    for record in reply:
        for array in to_tensors(record).values():
            sent[array.shape].append(array)
    return all(
        any(torch.equal(one.detach().cpu().to(array.dtype), array) for array in sent[one.shape]) for one in weights
    )


def _clipped(norms: Sequence[float]) -> float:
    """The largest norm, where two steps or more have it and none a larger one; else 0."""
    most = max(norms, default=0.0)
    return most if sum(math.isclose(one, most, rel_tol=1e-5) for one in norms) > 1 else 0.0


_READ = ("momentum", "nesterov", "weight_decay", "dampening", "maximize")


def _settings(group: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted((name, value) for name, value in group.items() if name != "params")


def _number(value: Any) -> float:
    """A setting that an optimizer may lack, or have one for each parameter of."""
    return float(value) if isinstance(value, int | float) else 0.0


def _is_images(value: Any) -> bool:
    """Whether a model's argument is a batch of images (B, C, H, W): of features between layers a gradient is wanted."""
    return isinstance(value, Tensor) and value.dim() == 4 and value.is_floating_point() and not value.requires_grad


@functools.lru_cache(maxsize=4)
def _directions(size: int) -> Tensor:
    generator = generator_for("recognise images", size)
    return torch.randn(size, PROJECTIONS, generator=generator, dtype=torch.float64) / math.sqrt(size)


def projected(images: Tensor) -> Tensor:
    """Images (N, C, H, W) as (N, PROJECTIONS) float64: the same image gives the same numbers, up to rounding."""
    flat = images.flatten(1).double()
    numbers: Tensor = flat @ _directions(flat.shape[1]).to(flat.device)
    return numbers.cpu()


def last_training(context: Context) -> ConfigRecord:
    """The record of a node's last training; ``UnseenTrainingError`` where it had none."""
    record = context.state.get(DID)
    if not isinstance(record, ConfigRecord):
        raise UnseenTrainingError(
            "this node has not trained, or no optimizer of torch.optim made a step in its training"
        )
    return record


def recognised(context: Context, own: Tensor) -> tuple[int, int]:
    """How many images that the last training saw are among ``own`` (N, C, H, W), as the model takes them, and of how many."""
    record: Any = context.state.get(SAW)
    if record is None:
        return 0, 0
    seen = to_tensors(record)["images"]
    known = torch.cat([projected(part) for part in torch.split(own, 1024)])
    near = torch.cat([torch.cdist(part, known).amin(1) for part in torch.split(seen, 256)])
    return int((near <= ALIKE * seen.norm(dim=1).clamp(min=1)).sum()), len(seen)
