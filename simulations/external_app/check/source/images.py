"""The images of an app, read from the source: their normalisation, random transforms, and the fields of a batch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from simulations.external_app.check.source.origins import Origins
from simulations.external_app.check.source.project import Function, Module, Project
from simulations.external_app.check.source.training import SeenTraining

Numbers = tuple[float, ...]
RANDOM, OTHER_RANDOM = re.compile("Random[A-Z]"), ("ColorJitter", "AutoAugment", "TrivialAugmentWide")
LABEL = re.compile(r"label|target|class|^y$", re.IGNORECASE)


@dataclass(frozen=True)
class SeenNormalisation:
    """Mean and standard deviation, one number for all channels or one for each, as the source writes them."""

    mean: Numbers
    std: Numbers
    where: str


@dataclass(frozen=True)
class Images:
    """Facts about images in the source.

    Attributes:
        normalisations: Different ones, each once.
        unreadable: Places that normalise by numbers which the source does not show.
        augmentations: Random transforms, with file and line.
        image_key: Of a batch that is a mapping; "" where it could not be seen.
        label_key: Likewise.
        pairs: Whether batches are pairs of images and classes; else they are mappings, or could not be seen.
    """

    normalisations: tuple[SeenNormalisation, ...] = ()
    unreadable: tuple[str, ...] = ()
    augmentations: tuple[str, ...] = ()
    image_key: str = ""
    label_key: str = ""
    pairs: bool = False


def read_images(project: Project, origins: Origins, training: SeenTraining) -> Images:
    """Look through the files of the ClientApp."""
    found: dict[tuple[Numbers, Numbers], SeenNormalisation] = {}
    unreadable, random = [], []
    for module, call in project.calls():
        name = module.full(call.func).rpartition(".")[2]
        if name == "Normalize":
            values = _of_call(call, module, origins)
            if values is None:
                unreadable.append(module.at(call))
            else:
                found.setdefault(values, SeenNormalisation(*values, module.at(call)))
        elif "transforms" in module.full(call.func) and (RANDOM.match(name) or name in OTHER_RANDOM):
            random.append(f"{name} ({module.at(call)})")
    if not found:
        for module, values, node in _arithmetic(project):
            found.setdefault(values, SeenNormalisation(*values, module.at(node)))
    keys = _keys(training)
    labels = [key for key in keys if LABEL.search(key)]
    others = [key for key in keys if key not in labels]
    return Images(
        tuple(found.values()), tuple(unreadable), tuple(dict.fromkeys(random)),
        others[0] if len(others) == 1 else "", labels[0] if len(labels) == 1 else "", not keys and _are_pairs(training),
    )  # fmt: skip


def _of_call(call: ast.Call, module: Module, origins: Origins) -> tuple[Numbers, Numbers] | None:
    """Mean and std of ``Normalize(mean, std)`` or ``Normalize(*BOTH)``."""
    given: list[Any] = []
    if len(call.args) == 1 and isinstance(call.args[0], ast.Starred):
        both = origins.of(call.args[0].value, module)
        given = list(both.value) if both.kind == "constant" and isinstance(both.value, tuple | list) else []
    else:
        named = {one.arg: one.value for one in call.keywords}
        for at, name in enumerate(("mean", "std")):
            expression = call.args[at] if at < len(call.args) else named.get(name)
            origin = None if expression is None else origins.of(expression, module)
            given += [origin.value] if origin is not None and origin.kind == "constant" else []
    try:
        mean, std = (_numbers(one) for one in given)
    except (ValueError, TypeError):
        return None
    return (mean, std) if mean and std else None


def _numbers(value: Any) -> Numbers:
    numbers = tuple(float(one) for one in (value if isinstance(value, tuple | list) else (value,)))
    return numbers[:1] if len(set(numbers)) == 1 else numbers


def _arithmetic(project: Project) -> Iterator[tuple[Module, tuple[Numbers, Numbers], ast.AST]]:
    """``(x - 0.5) / 0.5`` with numbers from 0 to 1."""
    for module in project.of_client():
        for node in ast.walk(module.tree):
            if (
                not isinstance(node, ast.BinOp)
                or not isinstance(node.op, ast.Div)
                or not isinstance(node.left, ast.BinOp)
            ):
                continue
            numbers = [_share(one) for one in (node.left.right, node.right)]
            if isinstance(node.left.op, ast.Sub) and all(numbers):
                yield module, ((numbers[0],), (numbers[1],)), node


def _share(expression: ast.expr) -> float:
    """A number between 0 and 1 that stands in the source; 0 for anything else."""
    value = expression.value if isinstance(expression, ast.Constant) else 0.0
    return value if isinstance(value, float) and 0 < value < 1 else 0.0


def _keys(training: SeenTraining) -> list[str]:
    """Text keys by which the training loops read a batch."""
    found: dict[str, None] = {}
    for function in training.loops:
        names = set(_batch_names(function))
        for node in ast.walk(function):
            if (
                not isinstance(node, ast.Subscript)
                or not isinstance(node.value, ast.Name)
                or node.value.id not in names
            ):
                continue
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                found[node.slice.value] = None
    return list(found)


def _are_pairs(training: SeenTraining) -> bool:
    """Whether a training loop takes its batches apart: ``for images, labels in loader`` or ``images, labels = batch``."""
    return any(_takes_apart(node, set(_batch_names(one))) for one in training.loops for node in ast.walk(one))


def _takes_apart(node: ast.AST, batches: set[str]) -> bool:
    if isinstance(node, ast.For):
        counted = isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "enumerate"
        target = node.target.elts[1] if counted and isinstance(node.target, ast.Tuple) else node.target
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in batches:
        target = node.targets[0]
    else:
        return False
    return isinstance(target, ast.Tuple) and len(target.elts) == 2


def _batch_names(function: Function) -> Iterator[str]:
    if function.name == "training_step":
        yield from (one.arg for one in function.args.args)
    for node in ast.walk(function):
        if isinstance(node, ast.For):
            yield from (one.id for one in ast.walk(node.target) if isinstance(one, ast.Name))
