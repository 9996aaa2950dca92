"""What a client's own training did, as torch's objects show it while it runs: no number of it is a user's word.

A ``TrainingWatch`` counts the steps of ``torch.optim`` optimizers, and the images that a model is given with gradients on. It
changes nothing, draws no random number, and where it fails it stops and says why. Of an image it keeps its projections
(``own_images``).
"""

from __future__ import annotations

import json
import math
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Self

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from pydantic import ConfigDict
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.optim.optimizer import Optimizer

from clients.external_app.own_images import SAW, is_images, projected
from clients.wire.records import to_record, to_tensors
from clients.wire.schema import STRICT, parsed
from clients.wire.texts import RecordError
from defenses.checks import LEAST_RATE, MOST_EXAMPLES, MOST_RATE, MOST_STEPS, BelowOne, Decay, Length, Limit

DID = "fedveil-last-training"
"""Record of a context's state: what the last training did."""
MOST_SEEN = 4096
"""The first images of a training, which are recognised."""
DIVERGED = 1e6
MOST_NORMS = 64
"""The first steps of a training, whose gradients are compared."""
MOST_LOCAL_STEPS = 10**6
"""Of a training: attacks may go through them one by one."""
LONGEST_NAME = 100
NO_STEP = "no optimizer of torch.optim made a step in it"
OPACUS = "GradSampleModule"
"""Opacus' wrapper of a model."""


class UnseenTrainingError(ValueError):
    """A training that torch's objects did not show."""


@dataclass(frozen=True)
class OwnTraining:
    """What one training of a client did.

    Attributes:
        optimizer: Name of its class.
        highest_rate: Its highest learning rate.
        learning_rate: Of its steps, on average.
        momentum: 0 for an optimizer without.
        nesterov: Whether the momentum is Nesterov's.
        weight_decay: Of its first group of parameters.
        steps: Number of its steps.
        batch_size: The most common number of images for a step; 0 where no model was given images.
        steady: Whether at least half of the steps had so many.
        images: For all steps together.
        train_mode: Whether the model was in train mode.
        sent: Whether the reply holds the weights as the last step left them.
        notes: What else differs from plain SGD with these settings, each a few words.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    optimizer: Annotated[str, Length(LONGEST_NAME)]
    highest_rate: Annotated[float, Limit(LEAST_RATE, MOST_RATE)]
    learning_rate: Annotated[float, Limit(LEAST_RATE, MOST_RATE)]
    momentum: BelowOne
    nesterov: bool
    weight_decay: Decay
    steps: Annotated[int, Limit(1, MOST_LOCAL_STEPS)]
    batch_size: Annotated[int, Limit(0, MOST_EXAMPLES)]
    steady: bool
    images: Annotated[int, Limit(0, MOST_STEPS)]
    train_mode: bool
    sent: bool
    notes: Annotated[tuple[str, ...], Length(8)] = ()

    @classmethod
    def from_json(cls, text: str) -> OwnTraining:
        """Read what a client sends; ``UnseenTrainingError`` for a value that is not allowed."""
        return parsed(cls, text, UnseenTrainingError)

    def epochs(self, examples: int) -> int:
        """Passes over so many examples, to the nearest whole number from 1 on."""
        return max(1, round(self.images / max(examples, 1)))

    @property
    def rule(self) -> str:
        """The optimizer with its settings, which all clients of a round share."""
        kind = " (Nesterov)" if self.nesterov else ""
        momentum = f", momentum {self.momentum:g}{kind}" if self.momentum else ""
        decay = f", weight decay {self.weight_decay:g}" if self.weight_decay else ""
        return f"{self.optimizer} with learning rate {self.highest_rate:g}{momentum}{decay}"


@dataclass
class _Steps:
    """The steps of one optimizer, or of several one after the other on the same weights, which it does not keep alive."""

    kind: str
    weights: list[weakref.ref[Tensor]]
    groups: int
    settings: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    """Values of ``_READ`` -> steps with them."""
    rates: Counter[float] = field(default_factory=Counter)
    """Learning rate -> steps with it."""
    batches: Counter[int] = field(default_factory=Counter)
    """Number of images -> steps with so many."""
    gradients: list[tuple[float, float]] = field(default_factory=list)
    """Norm and sum of the gradients of all weights, in a step each."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.rates.total()

    @property
    def images(self) -> int:
        """In all steps."""
        return sum(size * count for size, count in self.batches.items())

    @property
    def rate(self) -> float:
        """Its learning rate on average."""
        rates = self.rates.items()
        return next(iter(self.rates)) if len(rates) == 1 else sum(rate * count for rate, count in rates) / self.steps

    def is_of(self, kind: str, weights: Sequence[Tensor]) -> bool:
        """Whether an optimizer of this class goes on with these weights."""
        mine = self.weights
        return (
            self.kind == kind
            and len(mine) == len(weights)
            and all(a() is b for a, b in zip(mine, weights, strict=True))
        )


_HERE = threading.local()
"""``watch``: of this thread, or None."""
_KEY = -1
"""Of the hooks, always the same: ``torch.compile`` compiles anew for hooks with another key."""
_users, _lock = 0, threading.Lock()


def _watch() -> TrainingWatch | None:
    """The watch of this thread; None where there is none, or torch reads the code in place of running it."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return None
    watch: TrainingWatch | None = getattr(_HERE, "watch", None)
    if watch is None or watch.failure or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return None
    return watch


def _begins(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    if watch := _watch():
        watch.safely(watch.begins, module, inputs)


def _ends(module: nn.Module, *_: object) -> None:
    if watch := _watch():
        watch.safely(watch.ends, module)


def _stepped(optimizer: Optimizer, *_: object) -> None:
    if watch := _watch():
        watch.safely(watch.stepped, optimizer)


class TrainingWatch:
    """Watches what this thread trains between entering and leaving; see the module. An error ends the watch and nothing else.

    Attributes:
        failure: Why watching ended early; "" where it did not.
    """

    def __init__(self) -> None:
        self.failure = ""
        self._of: list[_Steps] = []
        self._outer: nn.Module | None = None
        """The module that is working; those in it may be given its images, too."""
        self._counted = False
        self._pending: set[tuple[float, ...]] = set()
        """Batches since the last step: a teacher or a global model may be given the same one again."""
        self._modes, self._wrappers = set[bool](), set[str]()
        self._seen: list[Tensor] = []
        self._last: list[Tensor] = []
        """Weights of the last step, which a reply may hold; those of others may go."""

    def __enter__(self) -> Self:
        global _users
        with _lock:
            _users += 1
            modules._global_forward_pre_hooks[_KEY] = _begins
            modules._global_forward_hooks[_KEY] = _ends
            modules._global_forward_hooks_always_called[_KEY] = True
            optimizers._global_optimizer_post_hooks[_KEY] = _stepped
        _HERE.watch = self
        return self

    def __exit__(self, *_: object) -> None:
        global _users
        _HERE.watch = None
        with _lock:
            _users -= 1
            if not _users:
                del modules._global_forward_pre_hooks[_KEY], modules._global_forward_hooks[_KEY]
                del modules._global_forward_hooks_always_called[_KEY], optimizers._global_optimizer_post_hooks[_KEY]

    def safely(self, hook: Callable[..., None], *given: Any) -> None:
        """Have the watch see what torch does."""
        try:
            hook(*given)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {str(error)[:200]}"

    def begins(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """A module begins to work."""
        if self._outer is None:
            self._outer, self._counted = module, False
        # In a backward pass, layers of a checkpoint work once more.
        if self._counted or not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return
        images = next((given for given in inputs if is_images(given)), None)
        # A module that trains nothing normalises a batch, or is its loss.
        if images is None or not len(images) or not any(weight.requires_grad for weight in self._outer.parameters()):
            return
        self._counted = True
        kept = sum(map(len, self._seen))
        numbers = projected(images.detach()[: max(1, MOST_SEEN - kept)])  # the first one names the batch
        batch = (len(images), *numbers[0].tolist())
        if batch in self._pending:
            return
        self._pending.add(batch)
        self._modes.add(self._outer.training)
        self._wrappers.add(type(self._outer).__name__)
        if kept < MOST_SEEN:
            self._seen.append(numbers)

    def ends(self, module: nn.Module) -> None:
        """A module ends."""
        if module is self._outer:
            self._outer = None

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has made a step."""
        group, kind = optimizer.param_groups[0], type(optimizer).__name__
        weights = [weight for of in optimizer.param_groups for weight in of["params"]]
        mine = next((steps for steps in self._of if steps.is_of(kind, weights)), None)
        if mine is None:
            groups = len({str(_settings(options)) for options in optimizer.param_groups})
            mine = _Steps(kind, list(map(weakref.ref, weights)), groups)
            self._of.append(mine)
        self._last = weights
        mine.settings[tuple(_number(group.get(name)) for name in _READ)] += 1
        mine.rates[float(group["lr"])] += 1
        mine.batches[sum(int(size) for size, *_ in self._pending)] += 1
        self._pending.clear()
        self._counted = False  # in a module that trains itself
        grads = [weight.grad for weight in weights if weight.grad is not None and weight.grad.layout is torch.strided]
        if grads and len(mine.gradients) < MOST_NORMS:
            mine.gradients.append((float(nn.utils.get_total_norm(grads)), float(sum(grad.sum() for grad in grads))))

    def keep(self, context: Context, reply: Iterable[ArrayRecord] = ()) -> None:
        """Write what was seen until a ``reply`` of these arrays into a node's state, in the place of an earlier training."""
        for name in (DID, SAW):
            context.state.pop(name, None)
        why = f"watching ended early ({self.failure})" if self.failure else NO_STEP
        report = {"failure": why}
        try:
            if self._of and not self.failure:
                report = {"training": json.dumps(asdict(self._training(reply)))}
            if self._seen:
                context.state[SAW] = to_record({"images": torch.cat(self._seen)})
        except Exception as error:
            report = {"failure": f"what was seen cannot be kept ({type(error).__name__}: {str(error)[:200]})"}
        context.state[DID] = ConfigRecord({**report})

    def _training(self, reply: Iterable[ArrayRecord]) -> OwnTraining:
        """What was seen, of the optimizer with most images."""
        main = max(self._of, key=lambda watched: (watched.images, watched.steps))
        size = max(main.batches, key=lambda number: (main.batches[number], number))
        momentum, nesterov, decay, *_ = main.settings.most_common(1)[0][0]
        return OwnTraining(
            main.kind[:LONGEST_NAME], max(main.rates), main.rate, momentum, bool(nesterov), decay, main.steps, size,
            2 * main.batches[size] >= main.steps, main.images, self._modes != {False}, _holds(reply, main.weights),
            tuple(self._notes(main)),
        )  # fmt: skip

    def _notes(self, main: _Steps) -> Iterator[str]:
        _, _, _, dampening, maximize = main.settings.most_common(1)[0][0]
        if OPACUS in self._wrappers:
            yield "Opacus clips and adds noise"
        if len(main.rates) > 1:
            yield f"its learning rate lay between {min(main.rates):g} and {max(main.rates):g}"
        if (clip := _clipped(main.gradients)) and OPACUS not in self._wrappers and _sound(main.weights):
            yield f"gradients of several steps have the norm {clip:.4g}, as clipping leaves it"
        if main.groups > 1:
            yield f"{main.groups} groups of parameters have settings of their own"
        if len(main.settings) > 1:
            yield "its momentum or its other settings changed"
        if dampening or maximize:
            yield "with dampening or maximize"
        if len(self._of) > 1:
            yield "other optimizers stepped, too"
        if len(self._modes) > 1:
            yield "a part of its steps was in eval mode"


def _holds(reply: Iterable[ArrayRecord], weights: Iterable[weakref.ref[Tensor]]) -> bool:
    """Whether each of the weights that are not gone is one of the arrays; False for arrays that are no tensors."""
    sent = defaultdict[torch.Size, list[Tensor]](list)
    try:
        for record in reply:
            for array in to_tensors(record).values():
                sent[array.shape].append(array)
    except RecordError:
        return False
    tensors = (reference() for reference in weights)
    return all(tensor is None or any(_equal(tensor, array) for array in sent[tensor.shape]) for tensor in tensors)


def _sound(weights: Iterable[weakref.ref[Tensor]]) -> bool:
    """Whether no weight left the range of trained ones: gradients of a diverged network are alike, too."""
    tensors = (reference() for reference in weights)
    return all(tensor is None or bool((tensor.detach().abs() < DIVERGED).all()) for tensor in tensors)


def _equal(weight: Tensor, array: Tensor) -> bool:
    """Whether two tensors of a shape hold the same numbers, or NaN at the same places."""
    return torch.allclose(weight.detach().cpu().to(array.dtype), array, rtol=0, atol=0, equal_nan=True)


def _clipped(gradients: Sequence[tuple[float, float]]) -> float:
    """The largest norm, where different gradients have it and none a larger one; else 0."""
    most = max((norm for norm, _ in gradients), default=0.0)
    alike = [total for norm, total in gradients if math.isclose(norm, most, rel_tol=1e-5)]
    several = len(alike) > 2 or (1 < len(alike) < len(gradients) <= 2 * len(alike))
    return most if several and len(set(alike)) > 1 else 0.0


_READ = ("momentum", "nesterov", "weight_decay", "dampening", "maximize")


def _settings(group: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted((name, value) for name, value in group.items() if name != "params")


def _number(value: Any) -> float:
    """A setting that an optimizer may lack, or have one for each parameter of."""
    return float(value) if isinstance(value, int | float) else 0.0


def last_training(context: Context) -> ConfigRecord:
    """The record of a node's last training; ``UnseenTrainingError`` where it had none that was seen."""
    record: Any = context.state.get(DID) or {"failure": "this node has not trained"}
    if "training" not in record:
        raise UnseenTrainingError(f"its training was not seen: {record['failure']}")
    return ConfigRecord({"training": record["training"]})
