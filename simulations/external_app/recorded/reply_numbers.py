"""The numbers of a client's training behind one recorded reply: of the settings, of the recording, or inferred from it.

Facts of files of arrays are read from their headers and counters; no large array is read.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

from clients.wire.texts import regular
from simulations.external_app.recorded.settings import AttackSettings
from strategies.recording.files import (
    BATCHES,
    EPOCHS,
    EXAMPLES,
    RATES,
    STEPS,
    RecordedReply,
    RecordingError,
    counted_examples,
    first_number,
)

T = TypeVar("T")

OF_ROUND, OF_SETTINGS = "known: the round's messages tell it", "as the app's settings tell, the same in every round"
OF_SETTING = "as learning-rate says, the same in every round"
NO_RATE = "unknown: neither learning-rate nor the recording gives it"
NEEDED_FOR_DECAY = "gives no learning rate, and weight decay cannot be subtracted without it; set learning-rate"
NO_EXAMPLES, NO_RATE_ABOVE_0, NO_STEPS = "num-examples", "learning-rate", "local-steps"


@dataclass(frozen=True)
class ReplyNumbers:
    """Numbers of one client's training in one round; 0 means missing, or unknown for the learning rate.

    Attributes:
        values: "num_examples", "learning_rate", "local_steps" and "batch_size", as settings name them.
        rate_source: Where the rate comes from, as threat cards say.
        inferred: Sentences on what was inferred, each with its assumption.
        missing: Key to set -> what is missing, one sentence each.
    """

    values: dict[str, float]
    rate_source: str
    inferred: tuple[str, ...]
    missing: dict[str, str]


def numbers_of_reply(reply: RecordedReply, settings: AttackSettings) -> ReplyNumbers:
    """The numbers of a reply. A setting replaces the recorded number, which replaces an inferred one."""
    known = [*reply.reported, reply.settings]
    epochs = settings.local_epochs or int(first_number(known, EPOCHS) or 0)
    batch = settings.batch_size or int(first_number(known, BATCHES) or 0)
    missing = dict[str, str]()
    examples = settings.num_examples or counted_examples(known)
    if not examples:
        missing[NO_EXAMPLES] = _absent(reply, EXAMPLES, NO_EXAMPLES)
    stated = settings.learning_rate or float(first_number(known, RATES) or 0.0)
    rate = stated if 0 < stated < math.inf else 0.0
    recorded = OF_SETTINGS if first_number(reply.reported, RATES) is None else OF_ROUND
    source = (OF_SETTING if settings.learning_rate else recorded) if rate else NO_RATE
    if not rate and reply.number(*RATES) is not None:
        missing[NO_RATE_ABOVE_0] = _absent(reply, RATES, NO_RATE_ABOVE_0)
    elif not rate and settings.weight_decay:
        missing[NO_RATE_ABOVE_0] = f"{reply.path} {NEEDED_FOR_DECAY}"
    steps, inferred = _steps(settings, epochs * -(-examples // batch) if epochs > 0 and batch > 0 else 0, reply)
    if not steps:
        missing[NO_STEPS] = (
            f"{reply.path} does not tell how often a client stepped; set local-steps, or local-epochs and batch-size"
        )
    values = {"num_examples": examples, "learning_rate": rate, "local_steps": steps}
    values["batch_size"] = min(max(batch, 0) or examples, examples)
    return ReplyNumbers(values, source, inferred, missing)


def _steps(settings: AttackSettings, by_epochs: int, reply: RecordedReply) -> tuple[int, tuple[str, ...]]:
    """The number of local steps, 0 where nothing shows it, and a sentence where it was inferred or is contradicted."""
    if settings.local_steps:
        return settings.local_steps, ()
    counter = counted_steps(reply)
    reported = first_number(reply.reported, STEPS)
    stated = by_epochs if settings.local_epochs or not isinstance(reported, int) or reported < 1 else reported
    if stated:
        if counter in (0, stated):
            return stated, ()
        return stated, (
            f"Whether clients took {stated} local steps: BatchNorm's batch counters went up by {counter} in a reply of round "
            f"{reply.round}. The stated number was used; local-steps replaces it.",
        )
    if not counter:
        return 0, ()
    return counter, (
        "How many local steps there were: inferred from BatchNorm's batch counters, which count forward passes in train mode; one "
        "such pass for each step was assumed.",
    )


def _absent(reply: RecordedReply, names: Sequence[str], key: str) -> str:
    number = reply.number(*names)
    shown, what = "" if number is None else f" ({number:g})", " or ".join(map(repr, names))
    return f"{reply.path} holds no {what} above 0{shown}; set {key}"


def _read(path: Path, fact: Callable[[Any], T], unknown: T) -> T:
    """A fact from an open safetensors file; ``unknown`` where the file lacks it, or cannot be read."""
    try:
        with safe_open(regular(path), framework="np") as file:
            return fact(file)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return unknown


def count_of_images(path: Path) -> int:
    """The number of images in a file of originals; 0 where it holds none, or cannot be read."""
    return _read(path, lambda file: int(file.get_slice("images").get_shape()[0]), 0)


def counted_steps(reply: RecordedReply) -> int:
    """Increase of BatchNorm's batch counters between the sent weights and the reply; 0 where they disagree.

    A counter is a whole number without dimensions. PyTorch raises it at each forward pass in train mode.
    """
    try:
        before, after = (_read(path, _counters, dict[str, int]()) for path in (reply.sent_file, reply.arrays_file))
    except RecordingError:
        return 0
    steps = {after[name] - before[name] for name in before if name in after}
    return max(steps.pop(), 0) if len(steps) == 1 else 0


def _counters(file: Any) -> dict[str, int]:
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    counters = [name for name, part in slices.items() if part.get_dtype() == "I64" and not part.get_shape()]
    return {name: int(file.get_tensor(name)) for name in counters}


def originals_file(folder: Path, server_round: int, node: int) -> Path | None:
    """The file with the true images behind a reply: of its round and node, else of its node in all rounds; None without one."""
    names = (f"round-{server_round:04d}-node-{node}", f"node-{node}")
    return next((path for name in names if (path := folder / f"{name}.safetensors").is_file()), None)


def normalisation_of(path: Path) -> str:
    """The client's normalisation, such as "0.5,0.5/0.2,0.3"; empty where the file does not state it."""

    def stated(file: Any) -> str:
        numbers = json.loads((file.metadata() or {}).get("normalisation", "{}"))
        return "/".join(",".join(f"{float(number):.9g}" for number in numbers[key]) for key in ("mean", "std"))

    return _read(path, stated, "")
