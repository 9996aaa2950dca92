"""What a trial sees: a ServerApp's first messages, run with a stand-in Grid, and which call builds the model of their arrays."""

import ast
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from clients.external_app.partial import AppModel, ModelMismatchError
from clients.models.library import ModelError
from clients.models.own import answer_of, plain, require_attackable, require_one_input
from defenses.tensors import ImageShape
from simulations.runtime.local_grid import FIRST_NODE, LocalGrid
from strategies.recording.wrapper import WrappingStrategy, chain_of

LEAST_PIXELS = 64
"""Of an image; a model without convolutions that takes fewer numbers is one of tables."""
SIDES = (28, 32, 64, 96, 128, 224, 256, 299, 384)
IMAGES = "an audit probes images, (C, H, W) in [0, 1]"
ONE_OUTPUT = "the model ends in one output, or one for each pixel: an audit needs a classifier, with logits of classes"
NOT_SEEN = "no model of the server's arrays was seen: build it by a class or function of a module, and check again"
Arrays = Sequence[Sequence[Any]]
"""Name and shape of each array."""


class BuiltModel(NamedTuple):
    """A model as it is now, the class or function that made it, and the arguments by name that differ from their defaults."""

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
            model = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
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
        defaults = {name: parameter.default for name, parameter in inspect.signature(maker).parameters.items()}
        ast.literal_eval(repr(values))
        plain = not given.locals.get(str(given.varargs))
        return {name: value for name, value in values.items() if value != defaults.get(name, maker)} if plain else None
    except Exception:  # of the app's objects; here it would end the app
        return None


def find_model(arrays: Arrays, seen: Sequence[BuiltModel], refused: list[str]) -> dict[str, Any]:
    """The call whose model has the arrays that the server sends; reasons against an audit are added to ``refused``.

    Returns:
        ``factory``: ``module:name`` of what builds it without arguments, or "". ``call``: a call with arguments instead. ``home``:
        the module of that. ``images``: the size of images that it was tried on, or "".
    """
    part_of = ""
    for built in sorted(seen, key=lambda model: bool(model.given)):  # calls without arguments first
        fits = _fit(built.model, arrays)
        if fits == "part":
            part_of = part_of or built.target
        elif fits and (again := built.again()) is not None:
            images, why = _tried(again)
            if why or _fit(again, arrays):
                refused += why
                place = {"call": built.call} if built.given else {"factory": built.target}
                return {**place, "home": built.maker.__module__, "images": images}
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
    channels = [layer.in_channels for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    heads = [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)]
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
    rows = [(1, 1, layer.in_features) for layer in model.modules() if isinstance(layer, nn.Linear) and not channels]
    first: tuple[ImageShape, Any] = (0, 0, 0), None
    for shape in [*((count, side, side) for side in sides for count in counts), *rows[:1]]:
        with suppress(ModelError), torch.no_grad():
            answer = answer_of("the model", model, torch.rand(2, *shape))
            if isinstance(answer, Tensor) and answer.dim() == 2:
                return shape, answer
            first = first if first[1] is not None else (shape, answer)
    return first


PATIENT = 3
"""Requests for the nodes that get the same answer; from then on more nodes are reported, so that no loop waits for them."""
NODES_ARE_MANY = 1_000
OFTEN = 10
"""Requests other than of training after which a server is ended."""


class EnoughSeenError(BaseException):
    """The messages of training are there. No handler of ``Exception`` in the app stops it."""


class StandInGrid(LocalGrid):
    """Reports nodes that there are not, ``nodes`` of them at first, and ends the server at messages of training, which it keeps."""

    def __init__(self, nodes: int) -> None:
        super().__init__(0)
        self.nodes = nodes
        self.messages: list[Message] = []
        self.others: list[str] = []
        self._asked = 0

    def get_node_ids(self) -> list[int]:
        """As many node ids as the server requests; more, when it repeats the request."""
        self._asked += 1
        more = 2 ** max(0, self._asked - PATIENT)
        return list(range(FIRST_NODE, FIRST_NODE + min(self.nodes * more, max(self.nodes, NODES_ARE_MANY))))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Ends the server at messages of training, and where it sent others often; no node answers those."""
        sent = list(messages)
        self.messages = [message for message in sent if message.metadata.message_type.partition(".")[0] == "train"]
        self.others += [message.metadata.message_type for message in sent[:1]]
        if self.messages or len(self.others) > OFTEN:
            raise EnoughSeenError
        return []


def run_server(app: ServerApp, run_config: dict[str, Any], nodes: int, refused: list[str]) -> dict[str, Any]:
    """Start the server; returns its strategy, rounds, initial arrays and the messages of its first round.

    Where it ended before its first messages of training, ``refused`` names why.
    """
    if getattr(app, "_main", None) is None:
        refused.append("the ServerApp is of the older interface: it has no @app.main()")
        return {}
    grid = StandInGrid(nodes)
    seen: dict[str, Any] = {}
    failed = list[str]()
    _watch_starts(seen, failed)
    try:
        app(grid, Context(1, 1, {}, RecordDict(), run_config))
        failed.append("its main ended without a message of training")
    except EnoughSeenError:
        pass
    except BaseException as error:
        failed.append(f"its main raised {type(error).__name__}: {str(error)[:500]}")
    if not grid.messages:
        why = failed[0] if failed else "it gave no message of training"
        others = f", after its message {grid.others[0]!r}, which no node answers here" if grid.others else ""
        refused.append(
            f"the first round of the ServerApp was not seen, as {why}{others} (the check offers neither network nor data)"
        )
        return seen
    if "strategy" not in seen:
        refused.append(
            "the ServerApp sends its messages of training itself: audited wraps a strategy of flwr.serverapp.strategy"
        )
    content = grid.messages[0].content
    values = (pair for record in content.config_records.values() for pair in record.items())
    records = list(content.array_records.values())
    if len(records) != 1:
        refused.append(
            f"the message of training holds {len(records)} ArrayRecords; an audit needs one, with all weights"
        )
    return seen | {
        "asked": len(grid.messages),
        "message": {key: value for key, value in values if isinstance(value, bool | int | float | str)},
        "arrays": [[name, list(array.shape)] for record in records for name, array in record.items()],
    }


def _watch_starts(seen: dict[str, Any], failed: list[str]) -> None:
    """Put in the place of every strategy's ``start`` one that asks for the messages of round 1 and ends the server.

    The strategy's own would evaluate on the server's data first.
    """
    kinds: list[Any] = [Strategy]
    for kind in kinds:  # which grows
        kinds += kind.__subclasses__()
        if "start" in vars(kind):
            kind.start = _watched(kind.start, seen, failed)


def _watched(original: Callable[..., Any], seen: dict[str, Any], failed: list[str]) -> Callable[..., NoReturn]:
    def start(strategy: Strategy, *args: Any, **kwargs: Any) -> NoReturn:
        bound = inspect.signature(original).bind(strategy, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments | bound.arguments.get("kwargs", {})
        grid, arrays, rounds = (given.get(name) for name in ("grid", "initial_arrays", "num_rounds"))
        chain = chain_of(strategy)
        waits_for = max((int(getattr(link, "min_available_nodes", 0) or 0) for link in chain), default=0)
        names = [type(link).__name__ for link in chain]
        seen.update(strategy=names, rounds=rounds if isinstance(rounds, int) else 0, waits_for=waits_for)
        if isinstance(grid, StandInGrid) and isinstance(arrays, ArrayRecord):
            grid.nodes = max(grid.nodes, waits_for)
            inner = next(link for link in chain if not isinstance(link, WrappingStrategy))
            try:
                grid.push_messages(inner.configure_train(1, arrays, given.get("train_config") or ConfigRecord(), grid))
            except Exception as error:
                failed.append(f"configure_train raised {type(error).__name__}: {str(error)[:300]}")
        raise EnoughSeenError

    return start
