"""The clients' training, read from the source: optimizer, learning rate, epochs, batch size, loss, and what a probe lacks."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from simulations.external_app.check.source.origins import Origin, Origins, argument
from simulations.external_app.check.source.project import Function, Module, Project

POSITIONS = {"lr": 1, "momentum": 2, "weight_decay": 4, "nesterov": 5}
"""Of the arguments of SGD; other optimizers share the first alone."""
CROSS_ENTROPY = ("torch.nn.CrossEntropyLoss", "torch.nn.functional.cross_entropy")
LOSSES = "torch.nn."
FLAGS = {
    "clip_grad_norm_": "train clips gradients (clip_grad_norm_)", "clip_grad_value_": "train clips gradients (clip_grad_value_)",
    "GradScaler": "train uses mixed precision (GradScaler)", "autocast": "train uses mixed precision (autocast)",
    "requires_grad_": "some layers may be frozen (requires_grad_)",
}  # fmt: skip
"""Name of a call -> what it says of training that a probe does not do."""
PRIVACY = {
    "PrivacyEngine": "Opacus' PrivacyEngine runs DP-SGD inside train",
    "make_private": "Opacus' PrivacyEngine runs DP-SGD inside train",
    "make_private_with_epsilon": "Opacus' PrivacyEngine runs DP-SGD inside train",
}


@dataclass(frozen=True)
class Optimizer:
    """An optimizer that the source builds.

    Attributes:
        name: Such as SGD.
        where: File and line.
        arguments: ``lr``, ``momentum``, ``weight_decay`` and ``nesterov``, those that are given.
    """

    name: str
    where: str
    arguments: Mapping[str, Origin]

    def number(self, name: str, default: float = 0.0) -> float | None:
        """A constant argument; ``default`` where it is not given, None where its value is not in the source."""
        origin = self.arguments.get(name)
        if origin is None:
            return default
        return float(origin.value) if origin.kind == "constant" and isinstance(origin.value, int | float) else None


@dataclass(frozen=True)
class Loss:
    """A loss of the training loop: ``text`` as written, ``plain`` if it is cross entropy without settings."""

    text: str
    where: str
    plain: bool


@dataclass(frozen=True)
class SeenTraining:
    """Facts about the clients' training in the source; an empty tuple, or None, where the source shows none."""

    optimizers: tuple[Optimizer, ...] = ()
    losses: tuple[Loss, ...] = ()
    epochs: Origin | None = None
    batch_sizes: tuple[Origin, ...] = ()
    beyond: tuple[str, ...] = ()
    """What train does that a probe does not."""
    privacy: tuple[str, ...] = ()
    loops: tuple[Function, ...] = field(default=(), compare=False)
    """Functions with the training loop."""


def read_training(project: Project, origins: Origins) -> SeenTraining:
    """Look through the files of the ClientApp."""
    loops = list(_loops(project))
    return SeenTraining(
        tuple(_optimizers(project, origins)),
        tuple(_losses(project, [function for _, function in loops])),
        _epochs(project, origins, loops),
        tuple(_batch_sizes(project, origins)),
        tuple(dict.fromkeys(_flags(project, FLAGS, with_assignments=True))),
        tuple({text.rpartition(" at ")[0]: text for text in reversed(list(_flags(project, PRIVACY)))}.values()),
        tuple(function for _, function in loops),
    )


def _optimizers(project: Project, origins: Origins) -> Iterator[Optimizer]:
    for module, call in project.calls():
        full = module.full(call.func)
        name = full.rpartition(".")[2]
        if not full.startswith("torch.optim.") or "lr_scheduler" in full or not name[:1].isupper():
            continue
        given = {}
        for key, position in POSITIONS.items():
            if position > 1 and name != "SGD":
                position = len(call.args)  # only by its name
            if (found := argument(call, key, position)) is not None:
                given[key] = origins.of(found, module)
        yield Optimizer(name, module.at(call), given)


def _loops(project: Project) -> Iterator[tuple[Module, Function]]:
    """Functions that compute gradients: those with ``.backward()``, and Lightning's ``training_step``."""
    for module in project.of_client():
        for node in ast.walk(module.tree):
            if isinstance(node, Function) and (node.name == "training_step" or _calls(node, "backward")):
                yield module, node


def _calls(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == name
        for one in ast.walk(node)
    )


def _losses(project: Project, loops: list[Function]) -> Iterator[Loss]:
    for module, call in project.calls():
        full, function = module.full(call.func), module.within.get(call)
        name = full.rpartition(".")[2]
        if not full.startswith(LOSSES) or not (name.endswith(("Loss", "_loss")) or name.endswith("cross_entropy")):
            continue
        # A criterion that belongs to a class or to the file may be that of any loop in it.
        if function is None or function in loops or function.name in ("__init__", "fit") or not loops:
            settings = [one.arg for one in call.keywords if one.arg not in ("input", "target")]
            plain = full in CROSS_ENTROPY and not settings and not (name.endswith("Loss") and call.args)
            yield Loss(ast.unparse(call), module.at(call), plain)


def _epochs(project: Project, origins: Origins, loops: list[tuple[Module, Function]]) -> Origin | None:
    found = [one for module, loop in loops if (one := _epochs_of(module, loop, origins)) is not None]
    for module, call in project.calls():
        if module.full(call.func).rpartition(".")[2] == "Trainer":
            given = argument(call, "max_epochs", len(call.args))
            found += [] if given is None else [origins.of(given, module)]
    different = {(one.kind, repr(one.value)) for one in found}
    return found[0] if len(different) == 1 else None


def _epochs_of(module: Module, function: Function, origins: Origins) -> Origin | None:
    """How often a function goes through its data; where it does so once, its callers may do so in a loop."""
    batches = [node for node in ast.walk(function) if isinstance(node, ast.For) and _calls(node, "backward")]
    for loop in batches:
        bound = _range(loop.iter)
        if bound is not None and any(inner is not loop for inner in ast.walk(loop) if isinstance(inner, ast.For)):
            return origins.of(bound, module)
    if not batches or any(isinstance(node, ast.While) and _calls(node, "backward") for node in ast.walk(function)):
        return None
    for caller, call in origins.callers(module, function):
        for node in ast.walk(caller.tree):
            if isinstance(node, ast.For) and call in ast.walk(node) and (bound := _range(node.iter)) is not None:
                return origins.of(bound, caller)
    return Origin("constant", 1, "one pass over the data", module.at(batches[0]))


def _range(iterable: ast.expr) -> ast.expr | None:
    """The number of turns of ``range(n)``, ``range(1, n + 1)`` or either inside ``tqdm(...)``; None for another iterable."""
    if not isinstance(iterable, ast.Call):
        return None
    name = ast.unparse(iterable.func).rpartition(".")[2]
    if name == "tqdm" and iterable.args:
        return _range(iterable.args[0])
    if name not in ("range", "trange") or not 1 <= len(iterable.args) <= 2:
        return None
    last = iterable.args[-1]
    if len(iterable.args) == 1 or ast.unparse(iterable.args[0]) == "0":
        return last
    if isinstance(last, ast.BinOp) and isinstance(last.op, ast.Add) and ast.unparse(last.right) == "1":
        return last.left if ast.unparse(iterable.args[0]) == "1" else None
    return None


def _batch_sizes(project: Project, origins: Origins) -> Iterator[Origin]:
    """Of the loaders for training; of all loaders where none can be told to be for training."""
    found: list[tuple[bool, Origin]] = []
    for module, call in project.calls():
        if (
            module.full(call.func).rpartition(".")[2] == "DataLoader"
            and (size := argument(call, "batch_size", 1)) is not None
        ):
            shuffled = argument(call, "shuffle", 2)
            words = ast.unparse(call.args[0]) if call.args else ""
            training = "train" in words.replace("train_test", "").lower() and 'test"' not in words
            found.append(
                ((isinstance(shuffled, ast.Constant) and shuffled.value is True) or training, origins.of(size, module))
            )
    chosen = [origin for training, origin in found if training] or [origin for _, origin in found]
    different = {(one.kind, repr(one.value)): one for one in chosen}
    yield from different.values()


def _flags(project: Project, known: Mapping[str, str], *, with_assignments: bool = False) -> Iterator[str]:
    for module in project.of_client():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                full = module.full(node.func)
                name = full.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
                if name == "requires_grad_" and not any(ast.unparse(one) == "False" for one in node.args):
                    continue
                if "lr_scheduler" in full and with_assignments:
                    yield f"train changes the learning rate ({name}, {module.at(node)})"
                if name in known:
                    yield f"{known[name]} at {module.at(node)}"
            elif with_assignments and isinstance(node, ast.Attribute) and ast.unparse(node) == "context.state":
                yield f"clients keep values between rounds (context.state, {module.path.name})"
            elif with_assignments and isinstance(node, ast.Assign) and ast.unparse(node.value) == "False":
                for one in node.targets:
                    if not isinstance(one, ast.Attribute) or one.attr != "requires_grad":
                        continue
                    yield f"some layers may be frozen (requires_grad = False) at {module.at(node)}"
