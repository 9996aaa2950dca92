"""The options of ``fedveil attack``, and errors in their numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from simulations.settings.defaults import DEFAULT_ATTACKS

MAX_EXAMPLES = 1_000_000


@dataclass(frozen=True)
class Request:
    """The options of ``fedveil attack``, as its help explains them, unchecked.

    ``update`` is a file of updates, or of local weights with ``local``. Without ``weights`` the model starts from the initial ones
    of ``seed``. A ``learning_rate`` of 0 stands for an unknown one, a ``batch_size`` of 0 for all examples, an empty text for the
    default or for nothing.
    """

    update: Path
    model: str
    num_classes: int
    input_shape: str
    learning_rate: float = 0.0
    weights: Path | None = None
    local: bool = False
    width: int = 0
    norm: str = "group"
    mean: str = ""
    std: str = ""
    num_examples: int = 1
    local_steps: int = 1
    batch_size: int = 0
    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    labels: str = ""
    eval_mode: bool = False
    attacks: str = DEFAULT_ATTACKS
    auxiliary: str = ""
    data_dir: str = ""
    defense: str = ""
    truth: Path | None = None
    seed: int = 0


@dataclass(frozen=True)
class RecordingRequest:
    """A request of ``fedveil attack FOLDER``.

    Attributes:
        options: Those that it shares with the attack on a single update; ``update`` is the recording's folder, and 0 as
            ``num_examples``, ``batch_size``, ``local_steps`` or ``learning_rate`` stands for what the recording says.
        local_epochs: Of the clients; 0 for what the recording says.
        rounds: Rounds to attack, comma-separated; "" for all.
        originals: Folder of the true images: ``round-0001-node-ID.safetensors``, or ``node-ID.safetensors`` for all rounds.
        unset: Fields of ``options``, of momentum and weight decay, that no option gave: a recording may fill them.
        assumed: Sentences on fields that the recording or the originals filled.
    """

    options: Request
    local_epochs: int = 0
    rounds: str = ""
    originals: Path | None = None
    unset: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


def wrong_options(request: Request, *, of_recording: bool = False) -> list[str]:
    """Errors in numbers, shape, normalisation and labels, one sentence each; model and shape may be missing.

    ``of_recording``: 0 stands for what the recording says of examples, steps and batches.
    """
    found = list(_wrong_numbers(request, of_recording=of_recording))
    shape = shape_of(request.input_shape)
    if request.input_shape and shape is None:
        found.append(f"--input-shape is {request.input_shape!r}; allowed: channels, height and width, such as 1,28,28")
    for key, text in (("mean", request.mean), ("std", request.std)):
        values = numbers_of(text)
        fits = values and (shape is None or len(values) in (1, shape[0]))
        if text and not fits:
            channels = f"each of {shape[0]} channels" if shape else "each channel"
            found.append(f"--{key} is {text!r}; allowed: one number, or one for {channels}, such as 0.5,0.5")
        elif text and key == "std" and min(values) <= 0:
            found.append(f"--std is {text!r}; allowed: positive numbers")
    return found + _wrong_labels(request)


def _wrong_numbers(request: Request, *, of_recording: bool) -> list[str]:
    counted = 0 if of_recording else 1
    least = {
        "num_classes": 2, "num_examples": counted, "local_steps": counted, "batch_size": 0, "width": 0, "seed": 0,
    }  # fmt: skip
    missing = (
        {"num_classes"} if not request.num_classes else set()
    )  # a missing number is reported apart from a wrong one
    rules = [
        (name, getattr(request, name) >= low, f"a whole number of at least {low}")
        for name, low in least.items()
        if name not in missing
    ]
    batches = request.batch_size <= request.num_examples or (of_recording and not request.num_examples)
    rules += [
        ("num_examples", request.num_examples <= MAX_EXAMPLES, f"at most {MAX_EXAMPLES}"),
        ("seed", request.seed < 2**63, "below 2^63"),
        ("batch_size", batches, f"at most --num-examples, {request.num_examples}"),
        ("learning_rate", 0 <= request.learning_rate < math.inf, "a positive number"),
        ("weight_decay", 0 <= request.weight_decay < math.inf, "a number of at least 0"),
        ("momentum", 0 <= request.momentum < 1, "from 0, below 1"),
    ]
    found = [
        f"--{name.replace('_', '-')} is {getattr(request, name)}; allowed: {allowed}"
        for name, fits, allowed in rules
        if not fits
    ]
    if request.nesterov and not request.momentum:
        found.append("--nesterov needs a --momentum above 0: there is nothing to look ahead by")
    return found


def _wrong_labels(request: Request) -> list[str]:
    if not request.labels or request.num_classes < 2:
        return []
    classes = whole_numbers(request.labels)
    if not classes or max(classes) >= request.num_classes:
        allowed = f"classes from 0 to {request.num_classes - 1}, such as 3,5"
        return [f"--labels is {request.labels!r}; allowed: {allowed}"]
    if len(classes) == request.num_examples:
        return []
    return [f"--labels holds {len(classes)} classes; --num-examples is {request.num_examples}, and one each is needed"]


def shape_of(text: str) -> tuple[int, int, int] | None:
    """(C, H, W) of "1,28,28"; None for any other text."""
    sizes = whole_numbers(text)
    return (sizes[0], sizes[1], sizes[2]) if len(sizes) == 3 and min(sizes) >= 1 else None


def whole_numbers(text: str) -> list[int]:
    """The numbers of "3,5"; none when it is no list of whole numbers that fit into 64 bits."""
    parts = text.replace(" ", "").split(",")
    return [int(part) for part in parts] if all(part.isdecimal() and len(part) < 19 for part in parts) else []


def numbers_of(text: str) -> tuple[float, ...]:
    """The finite numbers of "0.5,0.4"; none when it holds anything else."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        return ()
    return values if all(map(math.isfinite, values)) else ()
