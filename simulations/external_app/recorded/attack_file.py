"""Attacks on an update that any Flower app recorded: everything is checked before any work, then attacked and written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import Attack, AttackError, ClientUpdate, Knowledge, Labels, Reconstruction
from attacks.gradient.trial_gradients.memory import fitting_trials
from attacks.spec import stages_of
from clients.data.datasets import load_dataset, to_float
from clients.data.images import MissingDataError
from clients.models.classifiers import build_model
from clients.scoring.same_images import KnownImages
from defenses.base import Batch
from defenses.random_draws import generator_for
from simulations.external_app.recorded.request import (
    Parsed,
    Request,
    blaming,
    guess_type,
    parse_request,
    require_usable,
)
from simulations.external_app.recorded.results import (
    file_names,
    guess_tensors,
    null_scores,
    scale_scores,
    scores_of,
    write_pictures,
    write_results,
)
from simulations.external_app.recorded.update_files import (
    few,
    load_global_weights,
    read_truth,
    read_update,
    resembles_weights,
)
from simulations.runtime.own_code_trials import try_dataset, try_model
from simulations.settings.defaults import DEFAULT_ATTACKS
from simulations.settings.errors import ConfigError
from strategies.federated.observations import UPDATE


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
    attacks = UPDATE.parse(text)
    for attack in attacks:
        require_usable(attack, has_auxiliary=knowledge is not None)
    fitted = attacks if knowledge is None else [fit(attack, seed, knowledge) for attack in attacks]
    return [guess_of(attack, observation, seed) for attack in fitted]


def prepare(request: Request) -> Prepared:
    """Reads and checks everything before any attack starts, and lets attacks learn from auxiliary data.

    Raises:
        ConfigError: Naming the option or the file, what came and what is allowed.
    """
    parsed = parse_request(request)
    model = build(request, parsed)
    notices = [f"{request.model} {doubt}" for doubt in doubts_of(request, parsed)] + _load_start(model, request)
    update = read_update(model, request.update, local=request.local)
    if not request.local and resembles_weights(update, model):
        notices.append(f"{request.update} is close to the global weights: if it holds local weights, add --local")
    if not request.mean or not request.std:
        notices.append("without --mean and --std, images are assumed to enter the model with mean 0 and std 1")
    check_memory(model, request, parsed)
    observation = ClientUpdate(
        model, update, parsed.input_shape, parsed.mean, parsed.std, request.num_examples,
        request.batch_size or request.num_examples, request.local_steps, request.learning_rate, request.weight_decay,
        parsed.labels, not request.eval_mode, request.momentum, request.nesterov,
    )  # fmt: skip
    knowledge, truth = knowledge_of(request, parsed), dict[str, Tensor]()
    if request.truth:
        truth = read_truth(request.truth, parsed.input_shape, request.num_examples, request.num_classes)
        knowledge, overlap = without_truth(knowledge, truth["images"], request.auxiliary)
        notices += overlap
    # Last, because it may take minutes: by now everything else is known to be sound.
    with blaming("--attack"):
        fitted = [fit(attack, request.seed, knowledge) for attack in parsed.attacks]
    return Prepared(request, observation, fitted, truth, notices)


def run(prepared: Prepared, out: Path, begin: Callable[[str], object] = str) -> list[dict[str, Any]]:
    """Attacks, scores, and writes ``result.json``, ``guesses.safetensors`` and one PNG per guessed image into ``out``.

    Who interrupts it keeps what the attacks before have found; ``result.json`` then says which attack was interrupted.

    Args:
        prepared: What is attacked.
        out: A folder.
        begin: Takes the text of every attack before it begins.

    Returns:
        One entry per attack, as in ``result.json``. An attack that crashes has an entry whose "failure" says so.
    """
    entries: list[dict[str, Any]] = []
    guesses: dict[str, Tensor] = {}
    attack = prepared.attacks[0]
    try:
        for attack, name in zip(prepared.attacks, file_names(prepared.attacks), strict=True):
            begin(repr(attack))
            entry, tensors = _attacked(prepared, attack, name, out)
            guesses |= {f"{name}/{kind}": tensor for kind, tensor in tensors.items()}
            entries.append(entry)
    except KeyboardInterrupt:
        _write(prepared, out, entries, guesses, interrupted=repr(attack))
        raise
    _write(prepared, out, entries, guesses)
    return entries


def _attacked(
    prepared: Prepared, attack: Attack[Any, Any], name: str, out: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One attack: its entry in ``result.json``, and the tensors of its guess; pictures are written."""
    start = time.perf_counter()
    guess = guess_safely(attack, prepared.observation, prepared.request.seed)
    seconds = time.perf_counter() - start
    tensors = guess_tensors(guess)
    entry = {
        "attack": repr(attack), "name": name, "failure": guess.failure, "seconds": round(seconds, 3),
        "labels": tensors["labels"].tolist(), "diagnostics": dict(guess.diagnostics),
        "scores": scores_of(guess, prepared.truth),
        "pictures": write_pictures(tensors["images"], name, out) if "images" in tensors else [],
    }  # fmt: skip
    return entry, tensors


def _write(
    prepared: Prepared, out: Path, entries: Sequence[Mapping[str, Any]], guesses: Mapping[str, Tensor], **more: str
) -> None:
    about = {"settings": asdict(prepared.request), "notices": prepared.notices}
    compared = {"null": null_scores(prepared.truth), "scale": scale_scores(prepared.truth)}
    write_results(out, about | {"attacks": entries} | compared | more, guesses)


def doubts_of(request: Request, parsed: Parsed) -> Sequence[str]:
    """What an own model does that changes what numbers mean, one clause each; it is tried in a child process, once.

    Raises:
        ConfigError: When it does not work there.
    """
    return try_model("--model", request.model, request.num_classes, parsed.input_shape, request.width, request.norm)


def build(request: Request, parsed: Parsed) -> nn.Module:
    """The model that a request names, with the initial weights of its seed.

    Raises:
        ConfigError: When there is none of that name, or it cannot be built so.
    """
    doubts_of(request, parsed)
    try:
        return build_model(
            request.model, num_classes=request.num_classes, input_shape=parsed.input_shape, width=request.width,
            norm=request.norm, seed=request.seed,
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(f"--model {request.model}: {error}") from error
    except (RuntimeError, MemoryError) as error:  # of torch, such as an allocation that cannot be served
        raise ConfigError(
            f"--model {request.model} cannot be built for --input-shape {request.input_shape}: {error}"
        ) from error


def _load_start(model: nn.Module, request: Request) -> list[str]:
    """Loads the global weights; returns what had to be assumed about them."""
    if request.weights is None:
        return [
            f"without --weights, the client is assumed to have started from the initial weights of seed {request.seed}"
        ]
    absent = load_global_weights(model, request.weights)
    return [f"{request.weights} lacks {few(absent)}: the model's own initial values stand in"] if absent else []


def check_memory(model: nn.Module, request: Request, parsed: Parsed) -> None:
    """Refuses inversions of which not even one trial fits into memory."""
    for attack in parsed.attacks:
        most = getattr(stages_of(attack)[0], "max_images", 1)
        with blaming(f"--attack {attack} on --model {request.model} for --input-shape {request.input_shape}"):
            fitting_trials(model, parsed.input_shape, min(request.num_examples, most))


def knowledge_of(request: Request, parsed: Parsed) -> Knowledge:
    """Auxiliary data and the defence; an empty batch without auxiliary data."""
    shape, classes = parsed.input_shape, request.num_classes
    batch = Batch(torch.zeros(0, *shape), torch.zeros(0, classes))
    if request.auxiliary:
        size = shape[1] if shape[1] == shape[2] else 0
        try_dataset("--auxiliary", request.auxiliary)
        with blaming("--auxiliary"):
            try:
                data = load_dataset(request.auxiliary, data_dir=request.data_dir, image_size=size)
            except MissingDataError as error:
                raise MissingDataError(error.found, "--data-dir") from error
        if data.multi_label:
            raise ConfigError(
                f"--auxiliary {request.auxiliary} has several labels for each image; the model tells classes apart"
            )
        if data.input_shape != shape or data.num_classes != classes:
            raise ConfigError(
                f"--auxiliary {request.auxiliary} has {data.num_classes} classes of images {data.input_shape}; the model has "
                f"{classes} and {shape}"
            )
        batch = Batch(to_float(data.train.images[:]), F.one_hot(data.train.labels, classes).float())

    def train(_: Batch, __: int) -> nn.Module:
        raise AttackError(
            "how the client trains is not known for a recorded update; audit this attack with `fedveil run`"
        )

    return Knowledge(batch, parsed.pipeline, parsed.mean, parsed.std, train)


def without_truth(knowledge: Knowledge, truth: Tensor, name: str) -> tuple[Knowledge, list[str]]:
    """The auxiliary examples that are no true image, and a sentence on how many were: who learns from the truth knows it.

    Args:
        knowledge: What attacks learn from.
        truth: (N, C, H, W) in [0, 1].
        name: Of the auxiliary data.

    Raises:
        ConfigError: When nothing is left of them.
    """
    known = KnownImages(truth)
    kept = torch.tensor([image not in known for image in knowledge.auxiliary.images], dtype=torch.bool)
    if kept.all():  # as where there are none
        return knowledge, []
    lost = int((~kept).sum())
    if not kept.any():
        raise ConfigError(f"--auxiliary {name} holds nothing but true images; allowed: data that are not the clients'")
    own = knowledge.auxiliary
    which = f"{lost} of the {len(kept)} images of --auxiliary {name}"
    sentence = f"{which} are true images: they were left out of what attacks learn from."
    return replace(knowledge, auxiliary=Batch(own.images[kept], own.targets[kept])), [sentence]


def fit(attack: Attack[Any, Any], seed: int, knowledge: Knowledge) -> Attack[Any, Any]:
    """The attack once it has learned from what the server knows."""
    return attack.fit(knowledge, generator_for("attack", seed, repr(attack), "fit"))


def guess_of(attack: Attack[Any, Any], observation: ClientUpdate, seed: int, *which: int) -> Any:
    """The guess of an attack; ``which`` tells observations of one seed apart."""
    return attack(observation, generator_for("attack", seed, repr(attack), *which))


def guess_safely(
    attack: Attack[Any, Any], observation: ClientUpdate, seed: int, *which: int
) -> Reconstruction | Labels:
    """The guess; a crash of one attack is a result, and the others go on."""
    try:
        guess: Reconstruction | Labels = guess_of(attack, observation, seed, *which)
    except Exception as error:
        return _crashed(attack, observation, f"{type(error).__name__}: {error}")
    return guess


def _crashed(attack: Attack[Any, Any], observation: ClientUpdate, why: str) -> Reconstruction | Labels:
    """The guess of an attack that raised: classes -1, and grey images unless it guesses labels alone."""
    unknown = torch.full((observation.num_examples,), -1)
    if guess_type(attack) is Labels:
        return Labels(unknown, failure=why)
    count = min(observation.num_examples, getattr(stages_of(attack)[0], "max_images", 1))
    return Reconstruction(torch.full((count, *observation.input_shape), 0.5), unknown[:count], failure=why)
