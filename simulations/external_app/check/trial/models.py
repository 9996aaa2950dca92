"""Which class or function of the app builds the model whose arrays the server sends."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clients.external_app.partial import AppModel, ModelMismatchError

Arrays = Sequence[Sequence[Any]]
"""Name, shape and type of each array."""
LACKS = {"part": "part_of", "no buffers": "lacks_buffers_of"}
"""How arrays fail to be a whole model -> key of the model in ``find_models``."""


def find_models(folder: Path, arrays: Arrays | None, builders: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compare what the app builds with the arrays that are sent.

    Args:
        folder: Of the app, whose modules are imported.
        arrays: As sent; None where they are unknown.
        builders: Calls of the source that build a model: ``target``, ``arguments``, ``keywords``.

    Returns:
        ``model``: ``module:name`` of what fits and builds without arguments, or "". ``call``: index of the builder that fits with
        its arguments, or -1. ``by``: "names", "order", "trained" (all but frozen parameters are sent), or "source" without arrays.
        ``part_of``: a model of whose trained parameters the arrays are a part. ``lacks_buffers_of``: a model whose trained
        parameters are sent without all of its buffers. ``failed``: target -> error. ``facts``: about the model that was built.
    """
    found: dict[str, Any] = {
        "model": "",
        "call": -1,
        "by": "",
        "part_of": "",
        "lacks_buffers_of": "",
        "failed": {},
        "facts": {},
    }
    tried = [(at, one) for at, one in enumerate(builders)]
    for target, at, build in [*_calls(tried), *((name, -1, build) for name, build in _classes(folder))]:
        try:
            torch.manual_seed(0)
            model = build()
        except Exception as error:
            found["failed"][target] = f"{type(error).__name__}: {str(error)[:200]}"
            continue
        if not isinstance(model, nn.Module):
            continue
        by = _fit(model, arrays)
        if by in LACKS:
            found[LACKS[by]] = found[LACKS[by]] or target
        elif by and not (arrays is None and at < 0):
            whole = at < 0 or not (builders[at]["arguments"] or builders[at]["keywords"])
            found |= {"by": by, "facts": _facts(model), "model": target if whole else "", "call": at}
            return found
    return found


def _fit(model: nn.Module, arrays: Arrays | None) -> str:
    state = {name: list(value.shape) for name, value in model.state_dict().items()}
    if arrays is None:
        return "source"
    sent = {name: list(shape) for name, shape, _ in arrays}
    if state == sent:
        return "names"
    app = AppModel.of(model)
    try:
        named = app.named({name: torch.empty(shape, device="meta") for name, shape in sent.items()})
    except ModelMismatchError:
        return ""
    if not named or not {name: list(value.shape) for name, value in named.items()}.items() <= state.items():
        return ""
    lacking = state.keys() - app.whole(named).keys()
    if not lacking:
        return "trained" if app.unsent(named) else "order"
    return "part" if lacking & set(app.trained) else "no buffers"


def _facts(model: nn.Module) -> dict[str, Any]:
    kinds = [type(one).__name__ for one in model.modules()]
    first = next((one for one in model.modules() if next(one.parameters(recurse=False), None) is not None), None)
    return {
        "parameters": sum(one.numel() for one in model.parameters()),
        "batch_norm": any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in model.modules()),
        "dropout": any(kind.startswith("Dropout") for kind in kinds),
        "frozen": len(AppModel.of(model).frozen),
        "embeds": isinstance(first, nn.Embedding),
        "convolves": any(isinstance(one, nn.modules.conv._ConvNd) for one in model.modules()),
        "transformer": any(kind.endswith("Attention") for kind in kinds),
    }


def _calls(builders: Sequence[tuple[int, dict[str, Any]]]) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    for at, one in builders:
        module, _, name = str(one["target"]).partition(":")
        try:
            function: Any = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
        except (ImportError, AttributeError, ValueError):
            continue
        if one["known"] and callable(function):
            home = f"{function.__module__}:{name}" if hasattr(function, "__module__") else str(one["target"])
            yield home, at, partial(function, *one["arguments"], **dict(one["keywords"]))


def _classes(folder: Path) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Classes of models that the app's own modules define and that need no argument."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not file or not Path(file).is_relative_to(folder):
            continue
        for value in list(vars(module).values()):
            if (
                isinstance(value, type)
                and issubclass(value, nn.Module)
                and value.__module__ == module.__name__
                and _free(value)
            ):
                yield f"{module.__name__}:{value.__qualname__}", value


def _free(kind: type) -> bool:
    try:
        needed = [
            one
            for one in inspect.signature(kind).parameters.values()
            if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
    except (ValueError, TypeError):
        return False
    return not needed
