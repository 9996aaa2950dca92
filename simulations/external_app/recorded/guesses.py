"""Attacks on one recorded update, and their guesses: a crash of an attack is a failed guess."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any

import torch

from attacks import AttackError, ClientUpdate, Labels, Reconstruction
from attacks.base import AnyAttack
from attacks.spec import stages_of
from clients.training.evaluation import place
from defenses.base import Tensors
from defenses.random_draws import generator_for


def require_usable(attack: AnyAttack, *, has_auxiliary: bool) -> None:
    """Refuse an attack that needs more than one update and the available auxiliary data.

    Raises:
        AttackError: Saying what it needs.
    """
    if attack.observes_history:
        raise AttackError(f"{attack} needs a client's updates of several rounds, and one was given; use `fedveil run`")
    if attack.needs_auxiliary and not has_auxiliary:
        raise AttackError(f"{attack} learns from auxiliary data; name a data set (auxiliary-data), or pass knowledge")


def guess_type(attack: AnyAttack) -> Any:
    """The class of an attack's guesses, as its own class declares it: ``Labels`` for an ``Attack[ClientUpdate, Labels]``."""
    bases = getattr(type(attack), "__orig_bases__", ())
    return next(types[1] for base in bases if len(types := typing.get_args(base)) == 2)


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
    names: list[str] = []
    seen: dict[str, int] = {}
    for attack in attacks:
        base = "+".join(type(stage).__name__ for stage in stages_of(attack))
        seen[base] = seen.get(base, 0) + 1
        names.append(base if seen[base] == 1 else f"{base}_{seen[base]}")
    return names


def guess_tensors(guess: Reconstruction | Labels) -> Tensors:
    """The guessed "labels", and of a reconstruction the "images", on the CPU."""
    if isinstance(guess, Labels):
        return {"labels": guess.classes.detach().cpu().contiguous()}
    return {"labels": guess.labels.detach().cpu().contiguous(), "images": guess.images.detach().cpu().contiguous()}
