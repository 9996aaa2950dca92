"""Every attack with an observation of its kind, and what a server knows that fits it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Attack, Knowledge
from attacks.guesses import Reconstruction
from attacks.membership.loss_threshold import Membership
from attacks.observations import ClientUpdate
from attacks.queries.base import Query
from attacks.smashed.base import SmashedData
from attacks.uploads.base import UploadedImages
from defenses.base import Batch
from defenses.images.visual_mixer import VisualMixer
from defenses.spec import parse
from tests.attacks.queries import query_wire
from tests.attacks.tabular import test_reading as tables
from tests.attacks.uploads import test_joint_encodings as encodings
from tests.attacks.wire import CLASSES, MEAN, STD, classes, pictures
from tests.card.stand_in import uncounted
from tests.common import test_every_attack as updates
from tests.common import test_every_smashed_attack as smashed
from tests.common.any_attack import pipelines_against, quick
from tests.common.test_every_attack import EVERY

FEW = 3
"""Iterations: what matters is where they compute."""


@dataclass(frozen=True)
class Case:
    """An attack, the defence that it is fitted against, and what makes the server's knowledge and two observations or fewer."""

    name: str
    defense: str
    knowledge: Callable[[], Knowledge]
    seen: Callable[[], Sequence[Any]]

    def __str__(self) -> str:
        return f"{self.name}-{self.defense}"

    def attack(self) -> Attack[Any, Any]:
        """The attack, unfitted, with as little effort as its settings allow."""
        attack: Attack[Any, Any] = quick(EVERY[self.name])
        for field in attack.profile.effort:
            value = getattr(attack, field)
            if isinstance(value, int) and value > FEW:
                # A step of L-BFGS without a line search is up to 20 evaluations.
                attack = replace(attack, **{field: 1 if self.name.startswith("LBFGS") else FEW})  # type: ignore[type-var]
        return attack


def cases() -> Iterator[Case]:
    """All attacks, those on updates and smashed data against each defence that names them."""
    for name, cls in EVERY.items():
        yield from _cases(name, cls)


def _cases(name: str, cls: Any) -> Iterator[Case]:
    if issubclass(cls.profile.observes, ClientUpdate):
        for defense in pipelines_against(name):
            yield Case(name, defense, lambda d=defense: _known(name, d), lambda: updates.wires(cls, 2))  # type: ignore[misc]
    elif cls.profile.observes is SmashedData and "images" in cls.profile.data:
        for defense in smashed.defenses_against(name):
            yield Case(
                name,
                defense,
                lambda d=defense: smashed.known_of(name, d, 24),
                lambda d=defense: [smashed.wire(name, d)[0]],
            )  # type: ignore[misc]
    elif cls.profile.observes is SmashedData:
        yield Case(name, "plain", tables.knowledge, lambda: [tables.observe(targets=6)[0]])
    elif cls.profile.observes is Query:
        yield Case(
            name, "plain", lambda: query_wire.knowledge(count=32),
            lambda: [query_wire.query(query_wire.pictures(2, 6)[0])],
        )  # fmt: skip
    elif cls.profile.observes is UploadedImages:
        yield Case(
            name, "plain", lambda: _known("Jigsaw", "VisualMixer"),
            lambda: [UploadedImages(pictures(2, seed=3), classes(2, seed=3))],
        )  # fmt: skip
    elif name == "PassAveraging":
        yield Case(
            name, "VisualMixer", lambda: Knowledge(encodings.own(), parse("VisualMixer()"), MEAN, STD, updates.train),
            lambda: [encodings.reshuffled(VisualMixer(), 3)],
        )  # fmt: skip
    else:
        yield Case(name, "InstaHide", encodings.knowledge, lambda: [encodings.uploaded(8)])


def _known(name: str, defense: str) -> Knowledge:
    auxiliary = Batch(pictures(24, seed=8), F.one_hot(classes(24, seed=8), CLASSES).float())
    pipeline = pipelines_against(name)[defense]
    return Knowledge(auxiliary, pipeline, MEAN, STD, _train)


def _train(batch: Batch, seed: int) -> nn.Module:
    with uncounted():  # as a client does, who chooses its own device
        return updates.train(batch, seed)


def first_guesses(seen: Sequence[Any]) -> list[Any]:
    """Guesses that a refinement can start from: pictures, spoilt a little."""
    images = (pictures(len(seen), seed=3) + 0.1 * pictures(len(seen), seed=4)).clamp(0, 1)
    return [Reconstruction(image[None], torch.tensor([0])) for image in images]


def tensors_of(guess: Any) -> dict[str, Tensor]:
    """All that a guess says, as tensors by name."""
    if isinstance(guess, Membership):
        return guess.to_tensors()
    found = {name: value for name, value in vars(guess).items() if isinstance(value, Tensor)}
    return found | {name: torch.tensor(value) for name, value in guess.diagnostics.items()}
