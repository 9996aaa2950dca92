"""The images of an app, read from the source: their normalisation, random transforms, and the fields of a batch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from simulations.external_app.check.source.origins import Origins
from simulations.external_app.check.source.project import Function, Module, Project
from simulations.external_app.check.source.training import Training

Numbers = tuple[float, ...]
LABEL = re.compile(r"label|target|class|^y$", re.IGNORECASE)


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation, one number for all channels or one for each, as the source writes them."""

    mean: Numbers
    std: Numbers
    where: str


@dataclass(frozen=True)
class Images:
    """What the source says of images.

    Attributes:
        normalisations: Different ones, each once.
        unreadable: Places that normalise by numbers which the source does not show.
        augmentations: Random transforms, with file and line.
        image_key: Of a batch that is a mapping; "" for a batch that is a tuple, or where nothing could be seen.
        label_key: Likewise.
    """

    normalisations: tuple[Normalisation, ...] = ()
    unreadable: tuple[str, ...] = ()
    augmentations: tuple[str, ...] = ()
    image_key: str = ""
    label_key: str = ""


def read_images(project: Project, origins: Origins, training: Training) -> Images:
    """Look through the files of the ClientApp."""
    found: dict[tuple[Numbers, Numbers], Normalisation] = {}
    unreadable, random = [], []
    for module, call in project.calls():
        name = module.full(call.func).rpartition(".")[2]
        if name == "Normalize":
            values = _of_call(call, module, origins)
            if values is None:
                unreadable.append(module.at(call))
            else:
                found.setdefault(values, Normalisation(*values, module.at(call)))
        elif name.startswith("Random") and name[6:7].isupper() or name in ("ColorJitter", "AutoAugment", "TrivialAugmentWide"):
            if "transforms" in module.full(call.func):
                random.append(f"{name} ({module.at(call)})")
    if not found:
        for module, values, node in _arithmetic(project):
            found.setdefault(values, Normalisation(*values, module.at(node)))
    keys = _keys(training)
    labels = [key for key in keys if LABEL.search(key)]
    others = [key for key in keys if key not in labels]
    named = len(labels) == 1 and len(others) == 1
    return Images(
        tuple(found.values()), tuple(unreadable), tuple(dict.fromkeys(random)),
        others[0] if named else "", labels[0] if named else "",
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
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.left, ast.BinOp):
                mean, std = node.left.right, node.right
                if isinstance(node.left.op, ast.Sub) and isinstance(mean, ast.Constant) and isinstance(std, ast.Constant):
                    if all(isinstance(one.value, float) and 0 < one.value < 1 for one in (mean, std)):
                        yield module, ((mean.value,), (std.value,)), node  # type: ignore[arg-type]


def _keys(training: Training) -> list[str]:
    """Text keys by which the training loops read a batch."""
    found: dict[str, None] = {}
    for function in training.loops:
        names = set(_batch_names(function))
        for node in ast.walk(function):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in names:
                if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                    found[node.slice.value] = None
    return list(found)


def _batch_names(function: Function) -> Iterator[str]:
    if function.name == "training_step":
        yield from (one.arg for one in function.args.args)
    for node in ast.walk(function):
        if isinstance(node, ast.For):
            yield from (one.id for one in ast.walk(node.target) if isinstance(one, ast.Name))
