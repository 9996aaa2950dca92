"""What a client's training does, as torch's objects show it: one round of the ClientApp, on a few batches of each pass."""

from __future__ import annotations

import inspect
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, is_grad_enabled
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from simulations.external_app.check.trial.models import Built, noting

MOST_BATCHES = 64
"""Of a pass in which no optimizer takes a step; else a pass ends with its second batch."""
SUBTRACTIONS, DIVISIONS = {"sub", "isub", "subtract"}, {"div", "idiv", "truediv", "itruediv", "true_divide", "divide"}
SETTINGS = {"learning_rate": "lr", "momentum": "momentum", "weight_decay": "weight_decay"}
"""Of ``audited``, and what optimizers of PyTorch call them."""
RANDOM = re.compile("Random[A-Z]|ColorJitter|AutoAugment|TrivialAugmentWide")
LOSS = re.compile("(_loss|cross_entropy(_with_logits)?)$")
OF_CLASSES = re.compile("^(cross_entropy|nll_loss|multi_margin_loss)$")
OF_LABELS = re.compile("binary_cross_entropy|multilabel")
"""Losses of PyTorch: of one class for each image, and of several labels; others may take one-hot classes."""


class SecondsPassedError(BaseException):
    """The time of the trial's training is over. No handler of ``Exception`` in the app stops it."""


class ObservedTraining(TorchFunctionMode):
    """Notes what trains in this process meanwhile: optimizer, loader and its passes, losses, normalisation, random transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizers: dict[str, dict[str, float | bool]] = {}
        self.private = False
        self.losses: dict[str, bool] = {}
        self.normalisations: dict[tuple[tuple[float, ...], tuple[float, ...]], None] = {}
        self.augmentations: dict[str, None] = {}
        self.trained: dict[object, DataLoader[Any]] = {}
        self.passes = 0
        self.batch: Any = None
        self.target: Any = None
        self.built: list[Built] = []
        self._subtracted: tuple[Any, tuple[float, ...]] | None = None
        self._passing: tuple[object, DataLoader[Any], Any] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note losses, and subtractions from images that a division follows."""
        name, given = str(getattr(func, "__name__", "")), kwargs or {}
        if LOSS.search(name) and func.__module__ == "torch.nn.functional" and is_grad_enabled():
            self._note_loss(name, inspect.signature(func).bind(*args, **given))
        result = func(*args, **given)
        word = name.strip("_")
        if word in SUBTRACTIONS | DIVISIONS and len(args) > 1 and isinstance(args[0], Tensor) and args[0].dim() > 2:
            numbers = _numbers(args[1])
            if word in SUBTRACTIONS:
                self._subtracted = (result, numbers)
            elif self._subtracted and self._subtracted[0] is args[0] and numbers and self._subtracted[1]:
                self.normalisations[self._subtracted[1], numbers] = None
        return result

    def _note_loss(self, name: str, loss: inspect.BoundArguments) -> None:
        self.target = loss.arguments.get("target")
        usual = {key: one.default for key, one in loss.signature.parameters.items()}
        options = [key for key, value in loss.arguments.items() if usual[key] is not inspect.Parameter.empty]
        shown = ", ".join(f"{key}=..." for key in options if loss.arguments[key] not in (usual[key], None))
        classes = OF_CLASSES.match(name) or (not OF_LABELS.search(name) and _one_hot(self.target))
        self.losses.setdefault(f"{name}({shown})" if shown else name, bool(classes))

    def note_module(self, module: Any, _: Any) -> None:
        """Note a random transform."""
        if RANDOM.match(type(module).__name__):
            self.augmentations[type(module).__name__] = None

    def note_step(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        """Note an optimizer's settings at its first step, and the batch that it learns from."""
        group = optimizer.param_groups[0]
        settings = {ours: float(group.get(theirs, 0.0)) for ours, theirs in SETTINGS.items()}
        self.optimizers.setdefault(type(optimizer).__name__, settings | {"nesterov": bool(group.get("nesterov"))})
        self.private |= any(hasattr(one, "grad_sample") for one in group["params"])
        if self._passing is not None:
            token, loader, self.batch = self._passing
            self.trained[token] = loader

    def batches(self, loader: DataLoader[Any], iterate: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        """The first batches of a pass; they are read in this process, where transforms are seen."""
        sys.setprofile(None)
        loader.num_workers, loader.timeout = 0, 0.0
        token = object()
        for at, batch in enumerate(iterate(loader)):
            if at == MOST_BATCHES or (at > 1 and token in self.trained):
                break
            self._passing = token, loader, batch
            yield batch
        self.passes += token in self.trained  # not where the app itself left the loop


@contextmanager
def observed(seconds: int) -> Iterator[ObservedTraining]:
    """Note what trains within the block, which ends with ``SecondsPassedError`` after some seconds."""
    seen, build, iterate = ObservedTraining(), DataLoader.__init__, DataLoader.__iter__

    def built(loader: Any, *args: Any, **kwargs: Any) -> None:
        build(loader, *args, **kwargs)
        sys.setprofile(noting(seen.built, lambda made: bool(loaders_in(made))))  # until the first batch

    def stop(*_: Any) -> NoReturn:
        raise SecondsPassedError

    hooks = register_optimizer_step_pre_hook(seen.note_step), register_module_forward_pre_hook(seen.note_module)
    patched: Any = DataLoader
    patched.__init__, patched.__iter__ = built, lambda loader: seen.batches(loader, iterate)
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        with seen:
            yield seen
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        sys.setprofile(None)
        patched.__init__, patched.__iter__ = build, iterate
        for hook in hooks:
            hook.remove()


def loaders_in(made: Any) -> list[int]:
    """Where loaders stand in a tuple that a function returned; [0] for a loader alone."""
    several = made if isinstance(made, tuple | list) else [made]
    return [at for at, one in enumerate(several) if isinstance(one, DataLoader)]


def _one_hot(target: Any) -> bool:
    if not isinstance(target, Tensor) or target.dim() != 2:
        return False
    return bool(((target == 0) | (target == 1)).all() and (target.sum(1) == 1).all())


def _numbers(value: Any) -> tuple[float, ...]:
    """One number for all channels, or one for each; () for anything else."""
    if isinstance(value, Tensor):
        if value.numel() > 4:
            return ()
        value = value.flatten().tolist()
    numbers = tuple(float(f"{one:.6g}") for one in (value if isinstance(value, list) else [value]))
    return numbers[:1] if len(set(numbers)) == 1 else numbers


def known(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Values of a context that carry, as a function of the app gets them, how a person writes them."""
    return {
        key: value
        if isinstance(value, bool)
        else type("Known", (type(value),), {"written": f'{place}["{key}"]'})(value)
        for key, value in values.items()
    }


def train_once(
    app: ClientApp, message: Message, run_config: Mapping[str, Any], nodes: int, seconds: int
) -> dict[str, Any]:
    """One client trains as the server's first message asks; the facts for ``TrainingFacts``."""
    node = known({"partition-id": 0, "num-partitions": nodes}, "context.node_config")
    run = known(run_config, "context.run_config")
    failed = ""
    with observed(seconds) as seen:
        try:
            reply = app(message, Context(1, 1, node, RecordDict(), run))
            failed = str(reply.error.reason) if reply.has_error() else ""
        except SecondsPassedError:
            failed = f"not done after {seconds} s"
        except BaseException as error:
            failed = f"{type(error).__name__}: {str(error)[:300]}"
    return {"failed": failed, **_facts(seen), "loading": _loading(seen, [*node.values(), *run.values()])}


def _facts(seen: ObservedTraining) -> dict[str, Any]:
    name, settings = next(iter(seen.optimizers.items()), ("", {}))
    sizes = {loader.batch_size for loader in seen.trained.values()}
    numbers: dict[str, Any] = dict(settings)
    if seen.passes and seen.passes == len(seen.trained):
        numbers["local_epochs"] = seen.passes
    if len(sizes) == 1 and (size := sizes.pop()):
        numbers["batch_size"] = int(size)
    image, label, pairs = _fields(seen.batch, seen.target)
    images = next((one for one in _values(seen.batch) if isinstance(one, Tensor) and one.dim() == 4), None)
    return {
        "optimizer": name, "settings": numbers, "private": seen.private, "losses": list(seen.losses),
        "classes": not seen.losses or any(seen.losses.values()), "normalisations": [*map(list, seen.normalisations)],
        "augmentations": list(seen.augmentations), "image_key": image, "label_key": label, "pairs": pairs,
        "outside": images is not None and bool(float(images.min()) < 0 or float(images.max()) > 1),
    }  # fmt: skip


def _values(batch: Any) -> list[Any]:
    return list(batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else [])


def _fields(batch: Any, target: Any) -> tuple[str, str, bool]:
    """Keys of images and classes in a batch that is a mapping, "" for those not seen; whether it is a pair instead."""
    if not isinstance(batch, Mapping):
        return "", "", len(_values(batch)) == 2
    images = [str(key) for key, value in batch.items() if isinstance(value, Tensor) and value.dim() == 4]
    labels = [str(key) for key, value in batch.items() if value is target]
    image, label = (one[0] if len(one) == 1 else "" for one in (images, labels))
    return image, label, False


def _loading(seen: ObservedTraining, values: Collection[Any]) -> dict[str, Any]:
    """The app's function that gave the loader of training; its "arguments" as text are None where one is not of the context."""
    trained = [loader.dataset for loader in seen.trained.values()]  # Opacus trains with a loader of its own on them
    found: dict[str, Any] = {}
    for one in seen.built:
        parts = one.made if isinstance(one.made, tuple | list) else (one.made,)
        train = next((at for at in loaders_in(one.made) if any(parts[at].dataset is own for own in trained)), None)
        if train is None or found.get("arguments") is not None:
            continue
        texts = {name: _written(value, values) for name, value in one.given.items()}
        found = {
            "function": one.target, "parts": len(parts), "train": train,
            "held_out": next((at for at in loaders_in(one.made) if at != train), -1),
            "arguments": None if None in texts.values() else [f"{name}={text}" for name, text in texts.items()],
        }  # fmt: skip
    return found


def _written(value: Any, values: Collection[Any]) -> str | None:
    """An argument in terms of the context, or as a literal; None where several values of the context are equal to it."""
    if written := getattr(value, "written", None):
        return str(written)
    same = [one for one in values if type(one) is not bool and isinstance(one, type(value)) and one == value]
    return None if len(same) > 1 else str(same[0].written) if same else repr(value)
