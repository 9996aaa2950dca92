"""The settings of ``fedveil attack``: each key's type, default, meaning and range, and which values contradict each other."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from clients.wire.schema import Settings, setting
from defenses.checks import (
    LEAST_RATE,
    MOST_EXAMPLES,
    MOST_RATE,
    Allowed,
    BelowOne,
    Count,
    Decay,
    Limit,
    Norm,
    ProbeMode,
    StepsOrNone,
    WidthOrNone,
)
from simulations.settings.defaults import AUTO
from simulations.settings.errors import ConfigError


def shape_of(text: str) -> tuple[int, int, int] | None:
    """(C, H, W) of "1,28,28"; None for any other text."""
    sizes = whole_numbers(text)
    return (sizes[0], sizes[1], sizes[2]) if len(sizes) == 3 and min(sizes) >= 1 else None


def whole_numbers(text: str) -> list[int]:
    """The numbers of "3,5"; none when it is no list of whole numbers that fit into 64 bits."""
    parts = text.replace(" ", "").split(",")
    return [int(part) for part in parts] if all(part.isdecimal() and len(part) < 19 for part in parts) else []


def mean_and_std(text: str) -> list[tuple[float, ...]]:
    """The finite means and the positive standard deviations of "0.5,0.4/0.2,0.3"; none when it holds anything else."""
    try:
        parts = [tuple(map(float, part.split(","))) for part in text.split("/")]
    except ValueError:
        return []
    finite = all(math.isfinite(value) for part in parts for value in part)
    return parts if finite and len(parts) == 2 and min(parts[1]) > 0 else []


@dataclass(frozen=True)
class Readable(Allowed):
    """A text that ``read`` makes something of, or an empty one; ``form`` describes it."""

    read: Callable[[str], object]
    form: str

    def allows(self, value: str) -> bool:
        """Whether it is read, or empty."""
        return not value or bool(self.read(value))

    def words(self, kind: Any) -> str:
        """See ``Allowed``."""
        return self.form


class AttackSettings(Settings):
    """Settings of the attack on a recorded update or a recording. Keys of files and of the command line have hyphens."""

    refused: ClassVar[type[ValueError]] = ConfigError

    model: str = setting(
        "", "needed: a name of `fedveil list models`, or your own: file.py:Class, package.module:factory"
    )
    num_classes: Annotated[int, Limit(2, also=0)] = setting(0, "needed: number of logits")
    input_shape: Annotated[str, Readable(shape_of, "channels, height and width, such as 1,28,28")] = setting(
        "", "needed: channels, height and width of an image, such as 1,28,28"
    )
    width: WidthOrNone = setting(0, "width of a model that has one; 0: its default")
    norm: Norm = setting("group", "normalisation layers of the model")
    normalisation: Annotated[str, Readable(mean_and_std, "mean/std, such as 0.5/0.5 or 0.5,0.4/0.2,0.3")] = setting(
        "",
        "mean/std of images in [0, 1], one number or one for each channel, such as 0.5/0.5, that of fedveil's own runs on "
        "folders of pictures; needed with --weights; else empty: what the originals say, or 0/1",
    )
    weights: str = setting(
        "", "safetensors of the weights that an update started from; empty: the model's initial ones of seed"
    )
    local: bool = setting(False, "UPDATE holds the local weights, and not their difference from the global ones")
    learning_rate: Annotated[float, Limit(LEAST_RATE, MOST_RATE, also=0)] = setting(
        0.0,
        "of the client's SGD; 0: what a recording says, or what the update shows. Attacks that compare directions of gradients "
        "need none",
    )
    num_examples: Annotated[int, Limit(0, 1_000_000)] = setting(
        0, "examples that the update was computed on; 0: what a recording, originals, labels or batch-size say, or 1"
    )
    batch_size: Annotated[int, Limit(0, MOST_EXAMPLES)] = setting(
        0, "examples of a local step; 0: what a recording says, or all"
    )
    local_steps: StepsOrNone = setting(
        0, "optimizer steps of the client; 0: those that a recording states or shows, or 1"
    )
    local_epochs: StepsOrNone = setting(0, "local epochs of the clients of a recording; 0: what it says")
    momentum: BelowOne = setting(
        0.0, "of the client's SGD, which starts each round without any; not given: what a recording says, or 0"
    )
    nesterov: bool = setting(False, "the client's SGD looks ahead by its momentum")
    weight_decay: Decay = setting(0.0, "L2 coefficient of the client; not given: what a recording says, or 0")
    probe_mode: ProbeMode = setting("train", "mode of the client's model when it computed its gradients")
    labels: Annotated[str, Readable(whole_numbers, "classes, such as 3,5")] = setting(
        "", "classes of the examples of an update; empty: unknown"
    )
    update_attacks: str = setting(
        AUTO, "attacks, separated by ;; auto: every attack on images and labels that applies, exact ones first"
    )
    attack_rounds: str = setting(
        "all", "rounds of a recording that are attacked, separated by commas: numbers, first, last or all"
    )
    auxiliary_data: str = setting("", "data set that attacks may learn from")
    data_dir: str = setting("", "directory of its files")
    defenses: str = setting("", "the client's defences, which attacks know: one pipeline")
    originals: str = setting(
        "",
        "true images, to score the guesses: a safetensors file with images in [0, 1] and perhaps labels; of a recording, the "
        "folder of clients.save_originals",
    )
    seed: Count = setting(0, "seed of the attacks, and of the model's initial weights")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of complete settings."""
        shape = shape_of(self.input_shape)
        assert shape is not None  # as ``require_complete`` has checked
        return shape

    @property
    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of the normalisation of complete settings, C numbers each; 0 and 1 where it is empty."""
        known = mean_and_std(self.normalisation) or [(0.0,), (1.0,)]
        mean, std = (values * self.shape[0] if len(values) == 1 else values for values in known)
        return mean, std


@dataclass(frozen=True)
class Request:
    """An attack on an update in a file, on a recording, or on a final model.

    Attributes:
        update: A safetensors file, or the folder of a recording.
        settings: As given.
        assumed: Sentences on settings that the recording or the originals filled.
        paths: Option of `fedveil attack` for a final model -> its file or folder; empty for others.
    """

    update: Path
    settings: AttackSettings
    assumed: tuple[str, ...] = ()
    paths: Mapping[str, Path] = field(default_factory=dict)


def contradictions(settings: AttackSettings, *, of_recording: bool = False) -> list[str]:
    """Values that are allowed, but not together: sentences that begin with a key; model, classes and shape may be missing."""
    problems, shape, classes = list[str](), shape_of(settings.input_shape), settings.num_classes
    examples = settings.num_examples or (0 if of_recording else 1)
    if 0 < examples < settings.batch_size:
        problems.append(f"batch-size is {settings.batch_size}; allowed: at most num-examples, {examples}")
    if settings.nesterov and not settings.momentum:
        problems.append("nesterov is true with a momentum of 0; allowed: with a momentum above 0")
    if shape and any(len(values) not in (1, shape[0]) for values in mean_and_std(settings.normalisation)):
        problems.append(
            f"normalisation is {settings.normalisation!r}; allowed: one number each, or one for each of {shape[0]} channels"
        )
    known = whole_numbers(settings.labels)
    if known and classes and max(known) >= classes:
        problems.append(f"labels is {settings.labels!r}; allowed: classes from 0 to {classes - 1}, such as 3,5")
    elif known and len(known) != examples:
        problems.append(f"labels holds {len(known)} classes; num-examples is {examples}, and one each is needed")
    return problems
