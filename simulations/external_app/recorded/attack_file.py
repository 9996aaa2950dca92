"""Attacks on recorded updates: the server's knowledge, the attacks that apply to it, and their guesses."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import AttackError, ClientUpdate, Knowledge, Labels, Membership, Reconstruction
from attacks.base import AnyAttack
from attacks.gradient.trial_gradients.memory import fitting_trials
from attacks.spec import stages_of
from clients.data.datasets import load_dataset
from clients.data.images import MissingDataError, to_float
from clients.models.classifiers import build_model
from clients.process.own_code import is_own
from clients.scoring.retrieval import KnownImages
from clients.training.evaluation import place
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.random_draws import generator_for
from defenses.spec import parse
from defenses.tensors import Tensors, Update
from simulations.external_app.recorded.settings import AttackSettings, whole_numbers
from simulations.settings.defaults import AUTO
from simulations.settings.errors import ConfigError, naming
from strategies.federated.observations import PROBE, UPDATE


def pipeline_of(settings: AttackSettings) -> Pipeline:
    """The client's defences; ``ConfigError`` for a text that names none."""
    with naming("defenses"):
        return parse(settings.defenses)


def build(settings: AttackSettings) -> nn.Module:
    """The model that settings name, with the initial weights of its seed.

    Raises:
        ConfigError: When there is none of that name, or it cannot be built so.
    """
    try:
        return build_model(
            settings.model, num_classes=settings.num_classes, input_shape=settings.shape, width=settings.width,
            norm=settings.norm, seed=settings.seed,
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(str(error) if is_own(settings.model) else f"model {settings.model}: {error}") from error
    except (RuntimeError, MemoryError) as error:  # of torch, such as an allocation that cannot be served
        raise ConfigError(
            f"model {settings.model} cannot be built for input-shape {settings.input_shape}: {error}"
        ) from error


def observation_of(settings: AttackSettings, model: nn.Module, update: Update) -> ClientUpdate:
    """The attacks' observation of a client's update, which started from the model."""
    labels = torch.tensor(whole_numbers(settings.labels)) if settings.labels else None
    return ClientUpdate(
        model, update, settings.shape, *settings.statistics, settings.num_examples,
        settings.batch_size or settings.num_examples, settings.local_steps, settings.learning_rate or None, settings.weight_decay,
        labels, settings.probe_mode == "train", settings.momentum, settings.nesterov,
    )  # fmt: skip


def knowledge_of(settings: AttackSettings) -> Knowledge:
    """Auxiliary data and the defence; an empty batch without auxiliary data."""
    shape, classes = settings.shape, settings.num_classes
    batch = Batch(torch.zeros(0, *shape), torch.zeros(0, classes))
    if settings.auxiliary_data:
        size = shape[1] if shape[1] == shape[2] else 0
        with naming("auxiliary-data"):
            try:
                data = load_dataset(settings.auxiliary_data, data_dir=settings.data_dir, image_size=size)
            except MissingDataError as error:  # whose own message may name a download
                raise MissingDataError(error.found) from error
        if data.multi_label:
            raise ConfigError(
                f"auxiliary-data {settings.auxiliary_data} has several labels for each image; the model tells classes apart"
            )
        if data.input_shape != shape or data.num_classes != classes:
            raise ConfigError(
                f"auxiliary-data {settings.auxiliary_data} has {data.num_classes} classes of images {data.input_shape}; the model "
                f"has {classes} and {shape}"
            )
        batch = Batch(to_float(data.train.images[:]), F.one_hot(data.train.labels, classes).float())

    def train(_: Batch, __: int) -> nn.Module:
        raise AttackError(
            "how the client trains is not known for a recorded update; audit this attack with `fedveil run`"
        )

    return Knowledge(batch, pipeline_of(settings), *settings.statistics, train)


def without_truth(knowledge: Knowledge, truth: Tensor, name: str) -> tuple[Knowledge, list[str]]:
    """The auxiliary examples, of data of that name, that are no true image (N, C, H, W), and a sentence on how many are.

    Raises:
        ConfigError: When nothing is left of them.
    """
    known = KnownImages(truth)
    kept = torch.tensor([image not in known for image in knowledge.auxiliary.images], dtype=torch.bool)
    if kept.all():  # as where there are none
        return knowledge, []
    lost = int((~kept).sum())
    if not kept.any():
        raise ConfigError(
            f"auxiliary-data {name} holds nothing but true images; allowed: data that are not the clients'"
        )
    own = knowledge.auxiliary
    which = f"{lost} of the {len(kept)} images of auxiliary-data {name}"
    sentence = f"{which} are true images: they were left out of what attacks learn from."
    return replace(knowledge, auxiliary=Batch(own.images[kept], own.targets[kept])), [sentence]


def parsed(text: str) -> list[AnyAttack]:
    """Attacks on one update; of "auto" those on probes, which guess images and labels of any update."""
    return PROBE.usual("") if text == AUTO else UPDATE.parse(text)


def attacks_of(settings: AttackSettings) -> list[AnyAttack]:
    """The attacks in order, before they have learned anything.

    Raises:
        ConfigError: Naming a wrong attack, what came and what is allowed.
    """
    with naming("update-attacks"):
        attacks = parsed(settings.update_attacks)
        for attack in attacks:
            require_usable(attack, has_auxiliary=bool(settings.auxiliary_data))
    if not attacks:
        raise ConfigError(
            f"update-attacks is {settings.update_attacks!r}; allowed: names of `fedveil list attacks`, or {AUTO}"
        )
    if membership := [attack for attack in attacks if guess_type(attack) is Membership]:
        raise ConfigError(
            f"update-attacks: {membership[0]} judges records that only the client holds; audit it with `fedveil run`"
        )
    return attacks


def require_usable(attack: AnyAttack, *, has_auxiliary: bool) -> None:
    """Refuse an attack that needs more than one update and the available auxiliary data.

    Raises:
        AttackError: Saying what it needs.
    """
    if attack.profile.observes_history:
        raise AttackError(f"{attack} needs a client's updates of several rounds, and one was given; use `fedveil run`")
    if attack.needs_auxiliary and not has_auxiliary:
        raise AttackError(f"{attack} learns from auxiliary data; name a data set (auxiliary-data), or pass knowledge")


def guess_type(attack: AnyAttack) -> Any:
    """The class of an attack's guesses, as its own class declares it: ``Labels`` for an ``Attack[ClientUpdate, Labels]``."""
    bases = getattr(type(attack), "__orig_bases__", ())
    return next(types[1] for base in bases if len(types := get_args(base)) == 2)


def without_rate(attacks: Sequence[AnyAttack]) -> tuple[list[AnyAttack], list[str]]:
    """The attacks that need no learning rate, and a sentence that names the others.

    Raises:
        ConfigError: When every attack needs one.
    """
    left_out = [attack for attack in attacks if any(stage.needs_learning_rate for stage in stages_of(attack))]
    kept = [attack for attack in attacks if attack not in left_out]
    names = "; ".join(map(repr, left_out))
    if not kept:
        raise ConfigError(
            f"learning-rate is missing, and {names} compares lengths of gradients; set it, or update-attacks that do not need "
            f"it, such as InvertingGradients()"
        )
    if not left_out:
        return kept, []
    return kept, [f"Attacks left out because the learning rate is unknown: {names}. learning-rate adds them."]


def check_memory(model: nn.Module, settings: AttackSettings, attacks: Sequence[AnyAttack]) -> None:
    """Refuse inversions of which not even one trial fits into memory."""
    for attack in attacks:
        most = getattr(stages_of(attack)[0], "max_images", 1)
        with naming(f"update-attacks: {attack} on model {settings.model} for input-shape {settings.input_shape}"):
            fitting_trials(model, settings.shape, min(settings.num_examples, most))


def fit(attack: AnyAttack, seed: int, knowledge: Knowledge) -> AnyAttack:
    """The attack once it has learned from the server's knowledge."""
    return place().fit(attack, knowledge, generator_for("attack", seed, repr(attack), "fit"))


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
    named = {"labels": guess.classes} if isinstance(guess, Labels) else {"labels": guess.labels, "images": guess.images}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}


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
