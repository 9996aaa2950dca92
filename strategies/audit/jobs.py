"""Attacks on the updates of one round as a piece of work: what goes into it, what comes out, and how it is kept in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import attacks
from attacks.base import Attack, AttackError, ClientUpdate
from attacks.local_model import shared_tensors
from attacks.refinement.base import Chain
from attacks.registry import ATTACKS
from attacks.sender import Sender
from attacks.smashed.base import EdgeStep, SmashedAttack, SmashedData
from clients.models.halves import EdgeHalf, ServerHalf
from clients.task import Task, load_weights
from clients.training import device
from defenses.base import Update
from defenses.spec import parse_statements

EDGE, SERVER = "edge/", "server/"
"""Prefixes of the weights of a split model's halves."""


@dataclass(frozen=True)
class Seen:
    """One update, or one batch of smashed data, that the server received, and what it knows of its making.

    Attributes:
        partition: The client's partition.
        target: Number of the probe, 0 for a training update.
        update: Name -> (local - global); of smashed data the client half's one-step update, empty without one.
        num_examples: Examples that the update was computed on, as the client said; images to reconstruct from smashed data.
        local_steps: Optimizer steps, as the client said.
        labels: Classes of the examples where clients publish them, else None.
        features: Smashed data (R, B, N, D), see ``attacks.smashed.base.SmashedData``; None for an update.
        orders: True order of its tokens (R, B, N), for upper bounds only.
        gradient: What the server returned for the first sending, (B, N, D), behind ``update``.
        windows: Sides of the windows that VisualMixer shuffled the images in, (B, H, W), for upper bounds only.
        train_mode: The client's model was in train mode.
    """

    partition: int
    target: int
    update: Update
    num_examples: int
    local_steps: int
    labels: Tensor | None = None
    features: Tensor | None = None
    orders: Tensor | None = None
    gradient: Tensor | None = None
    windows: Tensor | None = None
    train_mode: bool = True


_OPTIONAL = ("labels", "features", "orders", "gradient", "windows")
"""Fields of ``Seen`` that hold a tensor or nothing."""


@dataclass(frozen=True)
class Observed:
    """The updates of one kind in one round, and the global model that they start from.

    Attributes:
        task: Carries the model, the pipeline, the round and the seed.
        weights: The global model; of a split model both halves, under "edge/" and "server/".
        seen: The updates, or batches of smashed data.
    """

    task: Task
    weights: dict[str, Tensor]
    seen: Sequence[Seen]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors under flat names, for a file."""
        found = {f"weights/{name}": tensor for name, tensor in self.weights.items()}
        for at, seen in enumerate(self.seen):
            found |= {f"update-{at}/{name}": tensor for name, tensor in seen.update.items()}
            optional = {f"{name}-{at}": getattr(seen, name) for name in _OPTIONAL}
            found |= {name: tensor for name, tensor in optional.items() if tensor is not None}
        return found

    def about(self) -> dict[str, Any]:
        """All that is not a tensor, for JSON."""
        entries = [
            [seen.partition, seen.target, seen.num_examples, seen.local_steps, seen.train_mode] for seen in self.seen
        ]
        return {"task": self.task.to_json(), "seen": entries}

    @classmethod
    def of(cls, about: dict[str, Any], tensors: dict[str, Tensor]) -> Observed:
        """What ``about`` and ``tensors`` returned."""
        seen = [
            Seen(
                partition,
                target,
                _part(tensors, f"update-{at}/"),
                examples,
                steps,
                **{name: tensors.get(f"{name}-{at}") for name in _OPTIONAL},
                train_mode=train_mode,
            )
            for at, (partition, target, examples, steps, train_mode) in enumerate(about["seen"])
        ]
        return cls(Task.from_json(about["task"]), _part(tensors, "weights/"), seen)

    def updates(self) -> list[ClientUpdate]:
        """What an attack gets to see of each update."""
        task = self.task
        card = task.data_card()
        model = load_weights(task.build_model(), self.weights)
        return [
            ClientUpdate(
                model=model,
                update=seen.update,
                input_shape=card.input_shape,
                mean=card.mean,
                std=card.std,
                num_examples=seen.num_examples,
                batch_size=min(task.batch_size, seen.num_examples),
                local_steps=seen.local_steps,
                learning_rate=task.round_learning_rate,
                weight_decay=task.weight_decay,
                labels=seen.labels,
                train_mode=seen.train_mode,
                momentum=task.momentum,
                nesterov=task.nesterov,
                window_sides=seen.windows,
            )
            for seen in self.seen
        ]

    @property
    def in_halves(self) -> bool:
        """Whether the model is one in two halves."""
        return any(name.startswith(SERVER) for name in self.weights)

    def sender(self) -> Sender | None:
        """The clients' sending side with the weights of this round, as the server can run it; None of whole models."""
        if not self.in_halves:
            return None
        edge, card = self._halves()[0], self.task.data_card()
        return Sender(edge, self.task.defenses(), card.mean, card.std)

    def smashed(self) -> list[SmashedData]:
        """What an attack gets to see of each batch of smashed data."""
        task, card = self.task, self.task.data_card()
        edge, server = self._halves()
        return [
            SmashedData(
                features=seen.features.to(device()),
                num_targets=seen.num_examples,
                edge=edge,
                server=server,
                input_shape=card.input_shape,
                mean=card.mean,
                std=card.std,
                orders=seen.orders,
                step=None
                if seen.gradient is None
                else EdgeStep(seen.update, seen.gradient, task.edge_learning_rate, task.weight_decay),
            )
            for seen in self.seen
            if seen.features is not None
        ]

    def _halves(self) -> tuple[EdgeHalf, ServerHalf]:
        edge, server = self.task.build_halves()
        load_weights(edge, {name: self.weights.get(EDGE + name, t) for name, t in shared_tensors(edge).items()})
        load_weights(server, _part(self.weights, SERVER))
        for half in (edge, server):
            half.to(device()).eval().requires_grad_(False)
        return edge, server


@dataclass(frozen=True)
class AttackJob:
    """Attacks on every update of one kind in one round.

    Attributes:
        name: Unique in the run, and usable as a file name.
        attacks: Texts of the attacks. Chains that begin with the same attack belong into one job, which runs that attack once.
        observation: "probe", "update" or "smashed".
        observed: What they attack.
        setting: The threat card so far.
        earlier: The same kind of observation in earlier rounds, oldest first, for attacks on a history.
    """

    name: str
    attacks: tuple[str, ...]
    observation: str
    observed: Observed
    setting: dict[str, Any]
    earlier: tuple[Observed, ...] = ()

    @property
    def task(self) -> Task:
        """The clients' orders in the attacked round."""
        return self.observed.task

    @property
    def learns(self) -> bool:
        """Whether one of the attacks is fitted to auxiliary data first."""
        return any(attack.needs_auxiliary for text in self.attacks for attack in parse_attacks(text))

    def save(self, directory: Path) -> None:
        """Writes the job to ``directory``, so that a killed run need not collect its updates again."""
        rounds = [self.observed, *self.earlier]
        tensors = {f"{at}/{name}": t.contiguous() for at, one in enumerate(rounds) for name, t in one.tensors().items()}
        about = {"attacks": self.attacks, "observation": self.observation, "setting": self.setting}
        path = directory / f"{self.name}.safetensors"
        partial = path.with_suffix(".tmp")
        text = json.dumps(about | {"rounds": [one.about() for one in rounds]})
        # safetensors refuses tensors that share memory, as the global weights of two jobs' rounds may.
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, partial, metadata={"job": text})
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> AttackJob:
        """Reads what ``save`` wrote."""
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["job"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        rounds = [Observed.of(one, _part(tensors, f"{at}/")) for at, one in enumerate(about["rounds"])]
        texts = tuple(about["attacks"])
        return cls(path.stem, texts, about["observation"], rounds[0], about["setting"], tuple(rounds[1:]))


@dataclass(frozen=True)
class Outcome:
    """What one attack of a job ended with.

    Attributes:
        attack: Its text.
        guesses: One per observed update; none when it ended with an error.
        seconds: Its share of the time.
        error: What ended it, or "".
        recognised: Per guess, the class that the oracle sees in each image (B,); none without auxiliary data.
        oracle_accuracy: The oracle's accuracy on auxiliary examples that it was not trained on.
        oracle: The oracle's weights, for the clients; only where guesses are paired with the images (smashed data).
        oracle_error: Why there is no oracle although the server has auxiliary data, or "".
    """

    attack: str
    guesses: Sequence[Any]
    seconds: float
    error: str = ""
    recognised: Sequence[Tensor] = ()
    oracle_accuracy: float | None = None
    oracle: dict[str, Tensor] = field(default_factory=dict)
    oracle_error: str = ""


@dataclass(frozen=True)
class AttackResult:
    """A finished job: the outcomes of its attacks, in their order."""

    job: AttackJob
    outcomes: list[Outcome] = field(default_factory=list)


def parse_attacks(text: str) -> list[Attack[Any, Any]]:
    """Reads ``InvertingGradients(); DLG(iterations=100) | LearnedRestorer()``: ``|`` refines what the attack before it found.

    Raises:
        SpecError: Naming what is unknown or not allowed.
        AttackError: When a chain cannot be one.
    """
    statements = parse_statements(text, ATTACKS, "attack")
    lone = [stages[0] for stages in statements if len(stages) == 1 and isinstance(stages[0], attacks.Refinement)]
    if lone:
        raise AttackError(f"{lone[0]} refines what another attack found; write InvertingGradients() | {lone[0]}")
    return [stages[0] if len(stages) == 1 else Chain(tuple(stages)) for stages in statements]


def parse_update_attacks(text: str) -> list[Attack[Any, Any]]:
    """Reads attacks on updates.

    Raises:
        SpecError: Naming what is unknown or not allowed.
        AttackError: When one of them attacks smashed data.
    """
    found = parse_attacks(text)
    if wrong := [attack for attack in found if attack.observes == "smashed"]:
        raise AttackError(f"{wrong[0]} attacks smashed data, which only scenario = 'split' sends: see smashed-attacks")
    return found


def parse_smashed_attacks(text: str) -> list[SmashedAttack[Any]]:
    """Reads attacks on smashed data.

    Raises:
        SpecError: Naming what is unknown or not allowed.
        AttackError: When one of them attacks something else.
    """
    found = parse_attacks(text)
    if wrong := [attack for attack in found if not isinstance(attack, SmashedAttack)]:
        known = sorted(name for name, c in ATTACKS.items() if getattr(c, "observes", "") == "smashed")
        raise AttackError(f"{wrong[0]} does not attack smashed data; these do: {', '.join(known)}")
    return [attack for attack in found if isinstance(attack, SmashedAttack)]


def stages_of(attack: Attack[Any, Any]) -> tuple[Attack[Any, Any], ...]:
    """The attacks of a chain in order, or the attack alone."""
    return attack.stages if isinstance(attack, Chain) else (attack,)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
