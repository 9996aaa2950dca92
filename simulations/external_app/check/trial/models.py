"""Which class or function of the app builds the model whose arrays the server sends."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from clients.external_app.partial import AppModel, ModelMismatchError

LEAST_PIXELS = 64
"""Of an image; a model whose first layer takes fewer numbers is one of tables."""
Arrays = Sequence[Sequence[Any]]
"""Name and shape of each array."""


class BuiltModel(NamedTuple):
    """A model, and the call that made it.

    Attributes:
        model: As it is now.
        maker: Class or function.
        given: Its arguments by name, without those that equal their defaults.
    """

    model: nn.Module
    maker: Any
    given: dict[str, Any]

    @property
    def target(self) -> str:
        """``module:name`` of the maker."""
        return f"{self.maker.__module__}:{self.maker.__qualname__}"

    @property
    def call(self) -> str:
        """Such as ``get_model(size='tiny')``."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.given.items())
        return f"{self.maker.__qualname__}({given})"

    def again(self) -> nn.Module | None:
        """What the call makes when it is repeated; None where it fails."""
        try:
            made = self.maker(**self.given)
        except Exception:
            return None
        return made if isinstance(made, nn.Module) else None


@contextmanager
def watched_models() -> Iterator[list[BuiltModel]]:
    """Note each model that a class or function gives meanwhile, the innermost call first."""
    seen: list[BuiltModel] = []

    def note(frame: FrameType, event: str, given: Any) -> None:
        if event != "return":
            return
        name, model, maker = frame.f_code.co_name, given, None
        if name == "__init__":
            model = frame.f_locals.get("self")
            maker = type(model)
            own = inspect.getattr_static(maker, "__init__")  # the frame may be of a base class
            if getattr(own, "__code__", None) is not frame.f_code or maker.__module__.startswith("torch.nn."):
                return
        elif isinstance(model, nn.Module):
            maker = getattr(sys.modules.get(frame.f_globals.get("__name__", "")), name, None)
        if isinstance(model, nn.Module) and (arguments := _arguments(maker, frame)) is not None:
            seen.append(BuiltModel(model, maker, arguments))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)


def _arguments(maker: Any, frame: FrameType) -> dict[str, Any] | None:
    """Arguments of a class or function of a module; None where they are no plain values, or the call was of something else."""
    if not hasattr(maker, "__qualname__") or "." in maker.__qualname__:
        return None
    given = inspect.getargvalues(frame)
    names = given.args[1:] if isinstance(maker, type) else given.args
    values = {name: given.locals.get(name) for name in names} | given.locals.get(str(given.keywords), {})
    try:
        defaults = {name: one.default for name, one in inspect.signature(maker).parameters.items()}
        ast.literal_eval(repr(values))
        plain = not given.locals.get(str(given.varargs))
        return {name: value for name, value in values.items() if value != defaults.get(name, maker)} if plain else None
    except Exception:  # of the app's objects; here it would end the app
        return None


def find_model(arrays: Arrays, seen: Sequence[BuiltModel], refused: list[str]) -> dict[str, Any]:
    """The call whose model has the arrays that the server sends; reasons against an audit are added to ``refused``.

    Returns:
        ``factory``: ``module:name`` of what builds it without arguments, or "". ``call``: a call with arguments instead. ``home``:
        the module of that. ``by``: "names", "order" or "trained" (all but frozen parameters are sent).
    """
    part_of = ""
    for one in sorted(seen, key=lambda one: bool(one.given)):  # calls without arguments first
        by = _fit(one.model, arrays)
        if by == "part":
            part_of = part_of or one.target
        elif by and (again := one.again()) is not None and _fit(again, arrays) == by:
            refused += _unfit(again)
            place = {"call": one.call} if one.given else {"factory": one.target}
            return {**place, "home": one.maker.__module__, "by": by}
    if part_of:
        refused.append(
            f"the server sends some of the arrays of {part_of}; an audit needs every parameter that the model trains, and all "
            "buffers, such as BatchNorm's running averages"
        )
    return {}


def _fit(model: nn.Module, arrays: Arrays) -> str:
    """How arrays are those of a model: "names", "order", "trained", or "part" where some are missing; "" for another model."""
    state = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    sent = {name: tuple(shape) for name, shape in arrays}
    if state == sent:
        return "names"
    app = AppModel.of(model)
    try:
        named = app.named({name: torch.empty(shape, device="meta") for name, shape in sent.items()})
    except ModelMismatchError:
        return ""
    if not named or not {name: tuple(value.shape) for name, value in named.items()}.items() <= state.items():
        return ""
    if app.whole(named).keys() < state.keys():
        return "part"
    return "trained" if app.unsent(named) else "order"


def _unfit(model: nn.Module) -> Iterator[str]:
    """Reasons against an audit: an input that is no image, or one output."""
    layers = list(model.modules())
    first = next((one for one in layers if next(one.parameters(recurse=False), None) is not None), None)
    on_patches = any(isinstance(one, nn.modules.conv._ConvNd | nn.LayerNorm | nn.MultiheadAttention) for one in layers)
    if isinstance(first, nn.Embedding):
        yield "the model begins with an embedding of tokens: an audit probes images, (C, H, W) in [0, 1]"
    elif isinstance(first, nn.Linear) and first.in_features < LEAST_PIXELS and not on_patches:
        row = first.in_features
        yield f"the model takes rows of {row} numbers, which are no image: an audit probes images, (C, H, W) in [0, 1]"
    last = next((one for one in reversed(layers) if isinstance(one, nn.Linear)), None)
    if last is not None and last.out_features == 1:
        yield "the model ends in one output: an audit needs a classifier, with a logit for each class"
