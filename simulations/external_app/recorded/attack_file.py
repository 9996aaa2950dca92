"""Attacks on an update that any Flower app recorded: all is checked before any work, then attacked, scored and written down."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from attacks import ClientUpdate, Knowledge, Labels, Reconstruction
from attacks.base import AnyAttack
from attacks.choice import Turns
from attacks.guesses import found_nothing
from attacks.scoring.metrics import blurred, null_baselines, score
from attacks.spec import stages_of
from clients.training.evaluation import place
from defenses.random_draws import generator_for
from defenses.tensors import NamedTensors, Tensors
from simulations.console.results import finite
from simulations.external_app.recorded.arguments.settings import Request
from simulations.external_app.recorded.known import (
    attacks_of,
    build,
    check_memory,
    doubts_of,
    fit,
    guess_type,
    knowledge_of,
    load_start,
    observation_of,
    parsed,
    require_usable,
    with_inferred_rate,
    without_rate,
    without_truth,
)
from simulations.external_app.recorded.update_files import read_truth, read_update, resembles_weights
from simulations.run_folder.drawn import drawn
from simulations.settings.defaults import AUTO
from simulations.settings.errors import naming


def guess_of(attack: AnyAttack, observation: ClientUpdate, seed: int, *which: int) -> Any:
    """The guess of an attack; ``which`` distinguishes observations of one seed."""
    return place().attack_many(attack, [observation], [generator_for("attack", seed, repr(attack), *which)])[0]


def guess_safely(attack: AnyAttack, observation: ClientUpdate, seed: int, *which: int) -> Reconstruction | Labels:
    """The guess; of an attack that raises, classes -1, and grey images unless it guesses labels alone."""
    try:
        guess: Reconstruction | Labels = guess_of(attack, observation, seed, *which)
        return guess
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    unknown = torch.full((observation.num_examples,), -1)
    if guess_type(attack) is Labels:
        return Labels(unknown, failure=why)
    count = min(observation.num_examples, getattr(stages_of(attack)[0], "max_images", 1))
    return Reconstruction(torch.full((count, *observation.input_shape), 0.5), unknown[:count], failure=why)


def file_names(attacks: Sequence[AnyAttack]) -> list[str]:
    """A file name per attack: its class, or those of its chain; repeats are numbered."""
    bases = ["+".join(type(stage).__name__ for stage in stages_of(attack)) for attack in attacks]
    return [f"{base}_{before + 1}" if (before := bases[:at].count(base)) else base for at, base in enumerate(bases)]


def guess_tensors(guess: Reconstruction | Labels) -> Tensors:
    """The guessed "labels", and of a reconstruction the "images", on the CPU."""
    found = {"labels": guess.classes} if isinstance(guess, Labels) else {"labels": guess.labels, "images": guess.images}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in found.items()}


def scores_of(guess: Reconstruction | Labels, truth: NamedTensors) -> dict[str, Any]:
    """Scores of a finished guess; a failed reconstruction is scored as the grey image that it is."""
    found = guess_tensors(guess)
    scores: dict[str, Any] = score(guess, truth["images"]) if "images" in found and "images" in truth else {}
    return scores | (score(Labels(found["labels"]), truth["labels"]) if "labels" in truth else {})


def compared(truth: NamedTensors) -> dict[str, dict[str, Any]]:
    """Scores to read others by: "null" of the grey image, which needs no attack, and "scale" of a blurred copy of the truth."""
    if "images" not in truth:
        return {"null": {}, "scale": {}}
    images = truth["images"]
    grey = null_baselines(images, torch.zeros_like(images[0]))["grey"]
    copy = Reconstruction(blurred(images), torch.full((len(images),), -1))
    return {"null": {"grey": score(grey, images)}, "scale": {"blurred": score(copy, images)}}


def write_pictures(images: Tensor, name: str, out: Path) -> list[str]:
    """Write NAME-0.png and so on of images (N, C, H, W) in [0, 1] with 1 or 3 channels; returns the names of the files."""
    if images.shape[1] not in (1, 3):
        return []
    written = [f"{name}-{number}.png" for number in range(len(images))]
    for file, image in zip(written, images, strict=True):
        drawn(image.float()).save(out / file)
    return written


@dataclass(frozen=True)
class PreparedRequest:
    """A request that can be run. Attacks see nothing of the truth.

    Attributes:
        request: With the numbers of examples and steps.
        observation: What the attacks see.
        attacks: In order; those that learn have learned.
        truth: "images" (N, C, H, W) in [0, 1] and perhaps "labels" (N,); empty without.
        notices: What was assumed.
    """

    request: Request
    observation: ClientUpdate
    attacks: Sequence[AnyAttack]
    truth: Tensors
    notices: Sequence[str]


def attack_update(
    observation: ClientUpdate, text: str = AUTO, seed: int = 0, knowledge: Knowledge | None = None
) -> list[Any]:
    """Attacks one update that was recorded anywhere.

    Args:
        observation: The update, the global model that it starts from, and how it was made.
        text: Attacks as ``fedveil list attacks`` names them, separated by ``;``, refinements behind ``|``; "auto": the usual ones.
        seed: The guesses depend on it, the observation and the text alone.
        knowledge: What attacks that learn are fitted on; without it, only attacks that need none can run.

    Returns:
        One guess per attack: a ``Reconstruction``, ``Labels`` or ``Membership``. An update that cannot be attacked gives a guess
        whose ``failure`` says why.

    Raises:
        SpecError: When the text names nothing we know.
        AttackError: When an attack needs more than one update or auxiliary data, before any attack runs.
    """
    attacks = parsed(text)
    for attack in attacks:
        require_usable(attack, has_auxiliary=knowledge is not None)
    fitted = attacks if knowledge is None else [fit(attack, seed, knowledge) for attack in attacks]
    return [guess_of(attack, observation, seed) for attack in fitted]


def prepare(request: Request) -> PreparedRequest:
    """Reads and checks everything before any attack starts, and lets attacks learn from auxiliary data.

    Raises:
        ConfigError: Naming the setting or the file, what came and what is allowed.
    """
    given = request.settings
    settings = given.but(num_examples=given.num_examples or 1, local_steps=given.local_steps or 1)
    attacks, model = attacks_of(settings), build(settings)
    notices = [f"{settings.model} {doubt}" for doubt in doubts_of(settings)] + load_start(model, settings)
    update = read_update(model, request.update, local=settings.local)
    if not settings.local and resembles_weights(update, model):
        notices.append(f"{request.update} is close to the global weights: if it holds local weights, set local = true")
    if not given.num_examples:
        notices.append("one example behind the update is assumed, for want of num-examples")
    if not settings.normalisation:
        notices.append("without normalisation, images are assumed to enter the model with mean 0 and std 1")
    check_memory(model, settings, attacks)
    observation = with_inferred_rate(observation_of(settings, model, update))
    if observation.learning_rate is None:
        attacks, left_out = without_rate(attacks)
        notices += ["the learning rate is unknown", *left_out]
    elif not settings.learning_rate:
        notices.append(
            f"the learning rate {observation.learning_rate:g} was inferred from the last layer's update, assuming one step of SGD "
            "with cross entropy on one example"
        )
    knowledge, truth = knowledge_of(settings), dict[str, Tensor]()
    if settings.originals:
        truth = read_truth(Path(settings.originals), settings)
        knowledge, overlap = without_truth(knowledge, truth["images"], settings.auxiliary_data)
        notices += overlap
    # Last, because it may take minutes: by now everything else is known to be sound.
    with naming("update-attacks"):
        fitted = [fit(attack, settings.seed, knowledge) for attack in attacks]
    return PreparedRequest(replace(request, settings=settings), observation, fitted, truth, notices)


def run(prepared: PreparedRequest, out: Path, begin: Callable[[str], object] = str) -> list[dict[str, Any]]:
    """Attacks, scores, and writes ``result.json``, ``guesses.safetensors`` and one PNG per guessed image into a folder.

    An interrupted run keeps what the attacks before have found; ``result.json`` then says which attack was interrupted.

    Returns:
        One entry per attack, as in ``result.json``. An attack that crashes has an entry whose "failure" says so.
    """
    entries: list[dict[str, Any]] = []
    guesses: Tensors = {}
    attack, turns = prepared.attacks[0], Turns()
    in_turn = prepared.request.settings.update_attacks == AUTO
    try:
        for attack, name in zip(prepared.attacks, file_names(prepared.attacks), strict=True):
            if in_turn and (why := turns.needless(attack)):
                entries.append({"attack": repr(attack), "name": name, "failure": why, "missing": "", "scores": {}})
                continue
            begin(repr(attack))
            start = time.perf_counter()
            guess = guess_safely(attack, prepared.observation, prepared.request.settings.seed)
            turns.note(attack, [guess])
            tensors, seconds = guess_tensors(guess), round(time.perf_counter() - start, 3)
            entries.append({
                "attack": repr(attack), "name": name, "failure": guess.failure if found_nothing(guess) else "",
                "missing": "" if found_nothing(guess) else guess.failure, "seconds": seconds,
                "labels": tensors["labels"].tolist(), "diagnostics": dict(guess.diagnostics),
                "scores": scores_of(guess, prepared.truth),
                "pictures": write_pictures(tensors["images"], name, out) if "images" in tensors else [],
            })  # fmt: skip
            guesses |= {f"{name}/{kind}": tensor for kind, tensor in tensors.items()}
    except KeyboardInterrupt:
        _write(prepared, out, entries, guesses, interrupted=repr(attack))
        raise
    _write(prepared, out, entries, guesses)
    return entries


def _write(
    prepared: PreparedRequest,
    out: Path,
    entries: Sequence[Mapping[str, Any]],
    guesses: NamedTensors,
    **more: str,
) -> None:
    """Writes ``guesses.safetensors``, then ``result.json``, whose presence says that all is there."""
    settings = {"update": str(prepared.request.update), **prepared.request.settings.to_mapping()}
    about = {"settings": settings, "notices": prepared.notices, "attacks": entries}
    result = finite(about | compared(prepared.truth) | more)
    save_file(dict(guesses), out / "guesses.safetensors")
    (out / "result.json").write_text(
        json.dumps(result, indent=2, allow_nan=False, default=str) + "\n", encoding="utf-8"
    )
