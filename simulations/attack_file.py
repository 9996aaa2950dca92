"""Attacks on an update that any Flower app recorded: read from a file, checked before any work, attacked, written down."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import Attack, AttackError, ClientUpdate, Knowledge, LabelInference, Labels, Reconstruction, score
from attacks.base import Chain
from attacks.memory import trial_bytes
from attacks.metrics import null_baselines
from clients.data import DataError, load_dataset, to_float
from clients.models import build_model
from defenses.base import Batch, Update, generator_for
from defenses.spec import parse
from simulations.experiment import ConfigError
from strategies.attack_job import parse_attacks

DEFAULT_ATTACKS = "InvertingGradients(); LabelInference()"
MAX_EXAMPLES = 1_000_000


@dataclass(frozen=True)
class Request:
    """What ``fedveil attack`` was asked to do, as it was written; ``prepare`` checks it.

    Attributes:
        update: File of name -> (local - global), or of local weights with ``local``.
        model: Name of the model (see ``clients.models``), with ``num_classes``, ``width`` and ``norm``.
        input_shape: "C,H,W".
        learning_rate: Of the client's plain SGD.
        weights: File of the global weights; None: the model's initial ones, from ``seed``.
        local: ``update`` holds weights after local training.
        mean: Per channel, comma-separated; "" for 0.
        std: Per channel, comma-separated; "" for 1.
        num_examples: Examples that the update was computed on.
        local_steps: Optimizer steps.
        batch_size: Examples of a local step; 0 for all of them.
        weight_decay: L2 coefficient.
        labels: Known classes, comma-separated; "" for unknown.
        eval_mode: The client computed its gradients in eval mode.
        attacks: Text of the attacks, separated by ``;``.
        auxiliary: Data set that the attacks may learn from; "" for none.
        data_dir: Directory of its files.
        defense: Text of the client's pipeline, which the server knows.
        truth: File of the true images, for scores.
        seed: Of the attacks, and of the initial weights.
    """

    update: Path
    model: str
    num_classes: int
    input_shape: str
    learning_rate: float
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
    labels: str = ""
    eval_mode: bool = False
    attacks: str = DEFAULT_ATTACKS
    auxiliary: str = ""
    data_dir: str = ""
    defense: str = ""
    truth: Path | None = None
    seed: int = 0


@dataclass(frozen=True)
class Prepared:
    """A request that can be run. The truth is kept apart: ``run`` sees it only when the guesses are made.

    Attributes:
        request: As asked.
        observation: What the attacks see.
        attacks: In order; those that learn have learned.
        truth: "images" (N, C, H, W) in [0, 1] and perhaps "labels" (N,); empty without.
        notices: What was assumed.
    """

    request: Request
    observation: ClientUpdate
    attacks: Sequence[Attack[Any, Any]]
    truth: dict[str, Tensor]
    notices: Sequence[str]


def attack_update(
    observation: ClientUpdate, text: str = DEFAULT_ATTACKS, seed: int = 0, knowledge: Knowledge | None = None
) -> list[Any]:
    """Attacks one update that was recorded anywhere.

    Args:
        observation: The update, the global model that it starts from, and how it was made.
        text: Attacks as ``fedveil list attacks`` names them, separated by ``;``, refinements behind ``|``.
        seed: The guesses depend on it, the observation and the text alone.
        knowledge: What attacks that learn are fitted on; without it, only attacks that need none can run.

    Returns:
        One guess per attack: a ``Reconstruction``, ``Labels`` or ``Membership``. An update that cannot be attacked gives a guess
        whose ``failure`` says why.

    Raises:
        SpecError: When the text names nothing we know.
        AttackError: When an attack needs more than one update or auxiliary data, before any attack runs.
    """
    attacks = parse_attacks(text)
    for attack in attacks:
        _require_usable(attack, knowledge is not None)
    fitted = attacks if knowledge is None else [_fit(attack, seed, knowledge) for attack in attacks]
    return [_guess(attack, observation, seed) for attack in fitted]


def prepare(request: Request) -> Prepared:
    """Reads and checks everything before any attack starts, and lets attacks learn from auxiliary data.

    Raises:
        ConfigError: Naming the option or the file, what came and what is allowed.
    """
    try:
        return _prepare(request)
    except (AttackError, DataError, ValueError) as error:
        raise ConfigError(str(error)) from error
    except (RuntimeError, MemoryError) as error:  # of torch, such as an allocation that cannot be served
        raise ConfigError(
            f"--model {request.model} cannot be built for --input-shape {request.input_shape}: {error}"
        ) from error


def run(prepared: Prepared, out: Path) -> list[dict[str, Any]]:
    """Attacks, scores, and writes ``result.json``, ``guesses.safetensors`` and one PNG per guessed image into ``out``.

    Returns:
        One entry per attack, as in ``result.json``. An attack that crashes has an entry whose "failure" says so.
    """
    entries, tensors = [], {}
    names = _names(prepared.attacks)
    for attack, name in zip(prepared.attacks, names, strict=True):
        start = time.perf_counter()
        try:
            guess: Any = _guess(attack, prepared.observation, prepared.request.seed)
        except Exception as error:  # A crash of one attack is a result; the others go on.
            guess = _crashed(attack, prepared.observation, f"{type(error).__name__}: {error}")
        seconds = time.perf_counter() - start
        classes = guess.labels if isinstance(guess, Reconstruction) else guess.classes
        images = getattr(guess, "images", None)
        tensors[f"{name}/labels"] = classes.detach().cpu().contiguous()
        if images is not None:
            tensors[f"{name}/images"] = images.detach().cpu().contiguous()
        entries.append({
            "attack": repr(attack), "name": name, "failure": guess.failure, "seconds": round(seconds, 3),
            "labels": classes.tolist(), "diagnostics": dict(guess.diagnostics), "scores": _scores(guess, prepared.truth),
            "pictures": [] if images is None else _write_pictures(images, name, out),
        })  # fmt: skip
    save_file(tensors, out / "guesses.safetensors")
    about = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(prepared.request).items()}
    result = {
        "settings": about, "notices": list(prepared.notices), "attacks": entries, "null": _null_scores(prepared.truth)
    }  # fmt: skip
    (out / "result.json").write_text(json.dumps(_finite(result), indent=2, allow_nan=False) + "\n")
    return entries


def _prepare(request: Request) -> Prepared:
    notices: list[str] = []
    _check_numbers(request)
    shape = _shape(request.input_shape)
    mean, std = _per_channel("mean", request.mean, shape[0], 0.0), _per_channel("std", request.std, shape[0], 1.0)
    if not request.mean or not request.std:
        notices.append("without --mean and --std, images are assumed to enter the model with mean 0 and std 1")
    if min(std) <= 0:
        raise ConfigError(f"--std is {request.std!r}; allowed: positive numbers")
    labels = _labels(request)
    attacks = _attacks(request)
    model = build_model(
        request.model, num_classes=request.num_classes, input_shape=shape, width=request.width, norm=request.norm,
        seed=request.seed,
    )  # fmt: skip
    if request.weights is None:
        notices.append(
            f"without --weights, the client is assumed to have started from the initial weights of seed {request.seed}"
        )
    else:
        notices += _load_weights(model, request.weights)
    update = _read_update(model, request, notices)
    _check_memory(attacks, model, shape, request.num_examples)
    observation = ClientUpdate(
        model, update, shape, mean, std, request.num_examples, request.batch_size or request.num_examples,
        request.local_steps, request.learning_rate, request.weight_decay, labels, not request.eval_mode,
    )  # fmt: skip
    knowledge = _knowledge(request, observation)
    truth = _read_truth(request.truth, shape, request) if request.truth else {}
    # Last, because it may take minutes: by now everything else is known to be sound.
    fitted = [_fit(attack, request.seed, knowledge) for attack in attacks]
    return Prepared(request, observation, fitted, truth, notices)


def _check_numbers(request: Request) -> None:
    whole = {"num-classes": 2, "num-examples": 1, "local-steps": 1, "batch-size": 0, "width": 0, "seed": 0}
    for key, least in whole.items():
        value = getattr(request, key.replace("-", "_"))
        if value < least:
            raise ConfigError(f"--{key} is {value}; allowed: a whole number of at least {least}")
    if request.num_examples > MAX_EXAMPLES:
        raise ConfigError(f"--num-examples is {request.num_examples}; allowed: at most {MAX_EXAMPLES}")
    if request.seed >= 2**63:
        raise ConfigError(f"--seed is {request.seed}; allowed: below 2^63")
    if request.batch_size > request.num_examples:
        raise ConfigError(
            f"--batch-size is {request.batch_size}; allowed: at most --num-examples, {request.num_examples}"
        )
    if not 0 < request.learning_rate < math.inf:
        raise ConfigError(f"--learning-rate is {request.learning_rate}; allowed: a positive number")
    if not 0 <= request.weight_decay < math.inf:
        raise ConfigError(f"--weight-decay is {request.weight_decay}; allowed: a number of at least 0")


def _shape(text: str) -> tuple[int, int, int]:
    parts = text.replace(" ", "").split(",")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--input-shape is {text!r}; allowed: channels, height and width, such as 1,28,28")
    return int(parts[0]), int(parts[1]), int(parts[2])


def _per_channel(key: str, text: str, channels: int, default: float) -> tuple[float, ...]:
    if not text:
        return (default,) * channels
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in (1, channels) or not all(map(math.isfinite, values)):
        raise ConfigError(
            f"--{key} is {text!r}; allowed: one number, or one for each of {channels} channels, such as 0.5,0.5"
        )
    return values * channels if len(values) == 1 else values


def _labels(request: Request) -> Tensor | None:
    if not request.labels:
        return None
    parts = request.labels.replace(" ", "").split(",")
    if not all(part.isdecimal() and int(part) < request.num_classes for part in parts):
        raise ConfigError(
            f"--labels is {request.labels!r}; allowed: classes from 0 to {request.num_classes - 1}, such as 3,5"
        )
    if len(parts) != request.num_examples:
        raise ConfigError(
            f"--labels holds {len(parts)} classes; --num-examples is {request.num_examples}, and one each is needed"
        )
    return torch.tensor([int(part) for part in parts])


def _attacks(request: Request) -> list[Attack[Any, Any]]:
    attacks = parse_attacks(request.attacks)
    if not attacks:
        raise ConfigError(
            f"--attack is {request.attacks!r}; allowed: names of `fedveil list attacks`, such as {DEFAULT_ATTACKS}"
        )
    for attack in attacks:
        _require_usable(attack, bool(request.auxiliary))
        if "Membership" in str(getattr(type(attack), "__orig_bases__", "")):
            raise ConfigError(f"{attack} judges records that only the client holds; audit it with `fedveil run`")
    return attacks


def _require_usable(attack: Attack[Any, Any], has_auxiliary: bool) -> None:
    if attack.observes_history:
        raise AttackError(f"{attack} needs a client's updates of several rounds, and one was given; use `fedveil run`")
    if attack.needs_auxiliary and not has_auxiliary:
        raise AttackError(f"{attack} learns from auxiliary data; name a data set (--auxiliary), or pass knowledge")


def _fit(attack: Attack[Any, Any], seed: int, knowledge: Knowledge) -> Attack[Any, Any]:
    return attack.fit(knowledge, generator_for("attack", seed, repr(attack), "fit"))


def _guess(attack: Attack[Any, Any], observation: ClientUpdate, seed: int) -> Any:
    return attack(observation, generator_for("attack", seed, repr(attack)))


def _crashed(attack: Attack[Any, Any], observation: ClientUpdate, why: str) -> Any:
    """The guess of an attack that raised: classes -1, and grey images unless it guesses labels alone."""
    unknown = torch.full((observation.num_examples,), -1)
    if isinstance(attack, LabelInference):
        return Labels(unknown, failure=why)
    first: Any = attack.stages[0] if isinstance(attack, Chain) else attack
    count = min(observation.num_examples, getattr(first, "max_images", 1))
    return Reconstruction(torch.full((count, *observation.input_shape), 0.5), unknown[:count], failure=why)


def _read(path: Path, what: str) -> dict[str, Tensor]:
    if not path.is_file():
        raise ConfigError(f"{what}: there is no file {path}")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{what}: {path} cannot be read as safetensors: {error}") from error


def _checked(found: dict[str, Tensor], model: nn.Module, path: Path) -> dict[str, Tensor]:
    """The tensors of a file that fit the model: every parameter, any floating-point buffer; integer counters are dropped."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    if missing := [name for name in parameters if name not in found]:
        raise ConfigError(f"{path} lacks {_few(missing)} of the model's {len(parameters)} parameters")
    if unknown := [name for name in found if name not in parameters and name not in buffers]:
        raise ConfigError(
            f"{path} holds {_few(unknown)}, which the model does not have; its names begin {_few(parameters)}"
        )
    kept = {}
    for name, tensor in found.items():
        own = parameters.get(name, buffers.get(name))
        assert own is not None
        if tensor.shape != own.shape:
            raise ConfigError(f"{path}: {name!r} has shape {tuple(tensor.shape)}, the model {tuple(own.shape)}")
        if not own.is_floating_point():
            continue  # BatchNorm's batch counter: it carries nothing that a model needs.
        if not tensor.is_floating_point():
            raise ConfigError(f"{path}: {name!r} has type {tensor.dtype}; allowed: floating-point numbers")
        kept[name] = tensor.float()
        if not kept[name].isfinite().all():
            raise ConfigError(f"{path}: {name!r} holds NaN or infinite values (as float32)")
    return kept


def _few(names: Any) -> str:
    listed = list(names)
    return ", ".join(map(repr, listed[:3])) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def _load_weights(model: nn.Module, path: Path) -> list[str]:
    weights = _checked(_read(path, "--weights"), model, path)
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)
    absent = [name for name, value in own.items() if name not in weights and value.is_floating_point()]
    return [f"{path} lacks {_few(absent)}: the model's own initial values stand in"] if absent else []


def _read_update(model: nn.Module, request: Request, notices: list[str]) -> Update:
    found = _checked(_read(request.update, "UPDATE"), model, request.update)
    start = {name: value.detach() for name, value in [*model.named_parameters(), *model.named_buffers()]}
    names = [name for name, _ in model.named_parameters()]
    if request.local:
        found = {name: value - start[name] for name, value in found.items()}
    if not any(found[name].any() for name in names):
        why = "the local weights equal the global ones" if request.local else "every value is 0"
        raise ConfigError(f"{request.update} holds no update: {why}")
    away = sum(float((found[name] - start[name]).square().sum()) for name in names)
    size = sum(float(start[name].square().sum()) for name in names)
    if not request.local and away < 0.25 * size:
        notices.append(f"{request.update} is close to the global weights: if it holds local weights, add --local")
    return found


def _check_memory(
    attacks: Sequence[Attack[Any, Any]], model: nn.Module, shape: tuple[int, int, int], examples: int
) -> None:
    count = sum(parameter.numel() for parameter in model.parameters())
    for attack in attacks:
        first: Any = attack.stages[0] if isinstance(attack, Chain) else attack
        images, restarts = min(examples, getattr(first, "max_images", 1)), getattr(first, "restarts", 1)
        trials = min(restarts, getattr(first, "chunk", restarts))
        needed, free = trials * trial_bytes(model, shape, images, count), psutil.virtual_memory().available
        if needed > free:
            raise ConfigError(
                f"{attack} would need about {needed / 1e9:.1f} GB for {trials} trials of {images} images, and "
                f"{free / 1e9:.1f} GB are free; lower its max_images, restarts or chunk"
            )


def _knowledge(request: Request, observation: ClientUpdate) -> Knowledge:
    """Auxiliary data and the defence; an empty batch without auxiliary data."""
    shape, classes = observation.input_shape, request.num_classes
    batch = Batch(torch.zeros(0, *shape), torch.zeros(0, classes))
    if request.auxiliary:
        size = shape[1] if shape[1] == shape[2] else 0
        data = load_dataset(request.auxiliary, data_dir=request.data_dir, image_size=size)
        if data.input_shape != shape or data.num_classes != classes:
            raise ConfigError(
                f"--auxiliary {request.auxiliary} has {data.num_classes} classes of images {data.input_shape}; the model has "
                f"{classes} and {shape}"
            )
        batch = Batch(to_float(data.train.images), F.one_hot(data.train.labels, classes).float())

    def train(_: Batch, __: int) -> nn.Module:
        raise AttackError(
            "how the client trains is not known for a recorded update; audit this attack with `fedveil run`"
        )

    return Knowledge(batch, parse(request.defense), observation.mean, observation.std, train)


def _read_truth(path: Path, shape: tuple[int, int, int], request: Request) -> dict[str, Tensor]:
    found = _read(path, "--truth")
    if "images" not in found or set(found) - {"images", "labels"}:
        raise ConfigError(f"--truth: {path} holds {_few(found) or 'nothing'}; allowed: 'images', and perhaps 'labels'")
    images, expected = found["images"], (request.num_examples, *shape)
    if tuple(images.shape) != expected or not images.is_floating_point():
        raise ConfigError(
            f"--truth: images are {images.dtype} {tuple(images.shape)}; allowed: floating point {expected}"
        )
    if not (images.isfinite().all() and images.min() >= 0 and images.max() <= 1):
        raise ConfigError(
            f"--truth: images run from {images.min():g} to {images.max():g}; allowed: 0 to 1, before normalisation"
        )
    labels = found.get("labels", torch.zeros(request.num_examples, dtype=torch.int64))
    whole = not labels.is_floating_point() and labels.shape == (request.num_examples,)
    if not whole or labels.min() < 0 or labels.max() >= request.num_classes:
        raise ConfigError(
            f"--truth: labels are {labels.dtype} {tuple(labels.shape)}; allowed: {request.num_examples} whole numbers from 0 to "
            f"{request.num_classes - 1}"
        )
    return {name: value.float() if name == "images" else value.long() for name, value in found.items()}


def _scores(guess: Any, truth: dict[str, Tensor]) -> dict[str, Any]:
    """Scores of a finished guess; a failed reconstruction is scored as the grey image that it is."""
    scores: dict[str, Any] = {}
    if isinstance(guess, Reconstruction) and "images" in truth:
        scores |= score(guess, truth["images"])
    if isinstance(guess, Reconstruction | Labels) and "labels" in truth:
        classes = guess.labels if isinstance(guess, Reconstruction) else guess.classes
        scores |= score(Labels(classes), truth["labels"])
    return scores


def _null_scores(truth: dict[str, Tensor]) -> dict[str, Any]:
    """What one could answer without attacking: the grey image; "blurred" is the level of detail to beat."""
    if "images" not in truth:
        return {}
    guesses = null_baselines(truth["images"], truth["images"][0])
    return {name: score(guesses[name], truth["images"]) for name in ("grey", "blurred")}


def _names(attacks: Sequence[Attack[Any, Any]]) -> list[str]:
    """A file name per attack: its class, or those of its chain; repeats are numbered."""
    names: list[str] = []
    for attack in attacks:
        stages = attack.stages if isinstance(attack, Chain) else (attack,)
        base = "+".join(type(stage).__name__ for stage in stages)
        count = sum(name.split("_")[0] == base for name in names)
        names.append(f"{base}_{count + 1}" if count else base)
    return names


def _write_pictures(images: Tensor, name: str, out: Path) -> list[str]:
    """PNG files of images with 1 or 3 channels; others are in ``guesses.safetensors`` alone."""
    from PIL import Image

    written: list[str] = []
    if images.shape[1] not in (1, 3):
        return written
    pixels = (images.detach().cpu().float().clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    for number, picture in enumerate(pixels):
        written.append(f"{name}-{number}.png")
        Image.fromarray(picture.squeeze(-1) if picture.shape[-1] == 1 else picture).save(out / written[-1])
    return written


def _finite(value: Any) -> Any:
    """The same value with null for numbers that JSON cannot hold, such as the PSNR of equal images."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
