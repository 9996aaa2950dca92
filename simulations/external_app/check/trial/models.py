"""Which call of an app builds the model whose arrays its server sends, and whether an audit can attack that model."""

from __future__ import annotations

import ast
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clients.external_app.partial import AppModel, ModelMismatchError
from clients.models.library import ModelError
from clients.models.own import answer_of, plain, require_attackable, require_one_input
from defenses.tensors import ImageShape

LEAST_PIXELS = 64
"""Of an image; a model without convolutions that takes fewer numbers is one of tables."""
SIDES = (28, 32, 64, 96, 128, 224, 256, 299, 384)
IMAGES = "an audit probes images, (C, H, W) in [0, 1]"
ONE_OUTPUT = "the model ends in one output, or one for each pixel: an audit needs a classifier, with logits of classes"
NOT_SEEN = "no model of the server's arrays was seen: build it by a class or function of a module, and check again"
Arrays = Sequence[Sequence[Any]]
"""Name and shape of each array."""


class Built(NamedTuple):
    """What a class or function made, such as a model as it is now, the maker, and the arguments that differ from their defaults."""

    made: Any
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
        """What the call makes when it is repeated; None where it fails or makes no model."""
        try:
            made = self.maker(**self.given)
        except Exception:
            return None
        return made if isinstance(made, nn.Module) else None


def noting(seen: list[Built], wanted: Callable[[Any], bool]) -> Callable[[FrameType, str, Any], None]:
    """A profile function that notes each wanted object that a class or function gives, the innermost call first."""

    def note(frame: FrameType, event: str, given: Any) -> None:
        if event != "return":
            return
        name, made, maker = frame.f_code.co_name, given, None
        if name == "__init__":
            made = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
            maker = type(made)
            own = inspect.getattr_static(maker, "__init__")  # the frame may be of a base class
            if getattr(own, "__code__", None) is not frame.f_code or maker.__module__.startswith("torch.nn."):
                return
        elif wanted(made):
            maker = getattr(sys.modules.get(frame.f_globals.get("__name__", "")), name, None)
        if wanted(made) and (arguments := _arguments(maker, frame)) is not None:
            seen.append(Built(made, maker, arguments))

    return note


@contextmanager
def watched_models() -> Iterator[list[Built]]:
    """Note each model that a class or function gives meanwhile."""
    seen: list[Built] = []
    before = sys.getprofile()
    sys.setprofile(noting(seen, lambda made: isinstance(made, nn.Module)))
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
        if given.locals.get(str(given.varargs)):
            return None
        different = (
            name for name, value in values.items() if hasattr(value, "written") or value != defaults.get(name, maker)
        )
        return {name: values[name] for name in different}
    except Exception:  # of the app's objects; here it would end the app
        return None


def find_model(arrays: Arrays, seen: Sequence[Built], refused: list[str]) -> dict[str, Any]:
    """The call whose model has the arrays that the server sends; reasons against an audit are added to ``refused``.

    Returns:
        ``factory``: ``module:name`` of what builds it without arguments, or "". ``call``: a call with arguments instead. ``home``:
        the module of that. ``images``: the size of images that it was tried on, or "".
    """
    part_of = ""
    for one in sorted(seen, key=lambda one: bool(one.given)):  # calls without arguments first
        fits = _fit(one.made, arrays)
        if fits == "part":
            part_of = part_of or one.target
        elif fits and (again := one.again()) is not None:
            images, why = _tried(again)
            if why or _fit(again, arrays):
                refused += why
                place = {"call": one.call} if one.given else {"factory": one.target}
                return {**place, "home": one.maker.__module__, "images": images}
    matrices = [shape for _, shape in arrays if len(shape) == 2]
    if not part_of:
        refused.append(ONE_OUTPUT if matrices and matrices[-1][0] == 1 else NOT_SEEN)
    else:
        refused.append(
            f"the server sends some of the arrays of {part_of}; an audit needs every parameter that the model trains, and all "
            "buffers, such as BatchNorm's running averages"
        )
    return {}


def _fit(model: nn.Module, arrays: Arrays) -> str:
    """Whether arrays are those of a model: "all", "part" where some are missing, or "" for those of another model."""
    try:
        state = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        app = AppModel.of(model)
        named = app.named({name: torch.empty(shape, device="meta") for name, shape in arrays})
    except (RuntimeError, ModelMismatchError):  # of a lazy layer; of arrays that fit several modules
        return ""
    if not named or not {name: tuple(value.shape) for name, value in named.items()}.items() <= state.items():
        return ""
    return "part" if app.whole(named).keys() < state.keys() else "all"


def _tried(model: nn.Module) -> tuple[str, list[str]]:
    """The size of images that a model was tried on, "" where none of many was taken, and reasons against an audit."""
    channels = [one.in_channels for one in model.modules() if isinstance(one, nn.Conv2d)]
    heads = [one.out_features for one in model.modules() if isinstance(one, nn.Linear)]
    try:
        model = plain("the model", model).eval()
        require_one_input("the model", model)
        shape, logits = _answer(model, channels)
        if logits is None and not channels:
            return "", [f"the model takes none of the images that were tried, such as (1, 28, 28): {IMAGES}"]
        sizes = logits.shape if isinstance(logits, Tensor) else (2, *heads[-1:])
        if not channels and (len(sizes) > 2 or math.prod(shape) < LEAST_PIXELS):
            return "", [f"the model takes rows of {math.prod(shape)} numbers, which are no image: {IMAGES}"]
        if len(sizes) < 2 or sizes[-1] in (1, math.prod(shape)):
            return "", [ONE_OUTPUT]
        if logits is not None:
            require_attackable("the model", model, sizes[-1], shape)
        return str(shape) if logits is not None else "", []
    except ModelError as error:
        return "", [str(error)]


def _answer(model: nn.Module, channels: Sequence[int]) -> tuple[ImageShape, Any]:
    """A size of images that a model takes, the likely ones first, and its answer to two of them, logits if there are any.

    Models without convolutions may take rows. The answer is None where the model takes no size.
    """
    sides, counts = (*SIDES, *(range(4, 129) if channels else ())), channels[:1] or (1, 3)
    rows = [(1, 1, one.in_features) for one in model.modules() if isinstance(one, nn.Linear) and not channels]
    first: tuple[ImageShape, Any] = (0, 0, 0), None
    for shape in [*((count, side, side) for side in sides for count in counts), *rows[:1]]:
        with suppress(ModelError), torch.no_grad():
            answer = answer_of("the model", model, torch.rand(2, *shape))
            if isinstance(answer, Tensor) and answer.dim() == 2:
                return shape, answer
            first = first if first[1] is not None else (shape, answer)
    return first
