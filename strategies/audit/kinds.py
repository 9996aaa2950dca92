"""Kinds of observations: what the server sees of clients, how a job keeps it, and what attacks receive of it.

A kind is an object without state. Those of this package are found in the modules ``strategies.NAME.observations``, those of others
by entry points of the group "fedveil.observations".
"""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor, nn

from attacks.base import AnyAttack, Knowledge
from attacks.observations import AttackError
from attacks.sender import Sender
from attacks.spec import ATTACKS, parse_attacks, stages_of
from clients.task.auxiliary import Auxiliary
from clients.task.scenarios import read_task
from clients.task.task import Plan, Task, WholeModelPlan, load_weights
from defenses.base import Batch, Tensors, part_of, under
from defenses.registry import RegistryError, collected, modules_in

ATTRIBUTE_SETTING = "attribute-attacks"
"""The setting that names attacks on a sensitive attribute, whatever they see of it."""


@dataclass(frozen=True)
class Seen:
    """One observation of the server. A kind adds its own fields: plain values, tensors or None, tensors by name.

    Attributes:
        partition: The client's partition.
        target: Number of the audit batch; 0 where there is one for each client.
        num_examples: Images behind it.
    """

    partition: int
    target: int
    num_examples: int

    @property
    def judges(self) -> tuple[int, ...]:
        """Partitions of the clients that score a guess about it: those whose images are behind it."""
        return (self.partition,)

    def scored(self, images: int) -> int:
        """Number of values that these clients return of one metric for a guess of so many images."""
        return images

    def tensors(self) -> Tensors:
        """The observation's tensors under flat names: FIELD, or FIELD/NAME for tensors by name."""
        found: Tensors = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                found[name] = value
            elif isinstance(value, Mapping):
                found |= under(f"{name}/", value)
        return found

    def plain(self) -> dict[str, Any]:
        """Fields that are neither tensors nor missing, for JSON."""
        return {name: value for name, value in vars(self).items() if isinstance(value, bool | int | float | str)}

    @classmethod
    def of(cls, plain: Mapping[str, Any], tensors: Tensors) -> Self:
        """Rebuild an observation from ``plain`` and ``tensors``."""
        values: dict[str, Any] = dict(plain)
        names = {spec.name for spec in fields(cls)}
        for name in sorted(names & {key.partition("/")[0] for key in tensors}):
            values[name] = tensors[name] if name in tensors else part_of(tensors, f"{name}/")
        return cls(**values)


@dataclass(frozen=True)
class Observed:
    """The observations of one kind in one round, and the weights of the global model of that round."""

    task: Task
    weights: Tensors
    seen: Sequence[Seen]

    def tensors(self) -> Tensors:
        """All tensors under flat names, for a file."""
        found = under("weights/", self.weights)
        for at, seen in enumerate(self.seen):
            found |= under(f"seen-{at}/", seen.tensors())
        return found

    def about(self) -> dict[str, Any]:
        """All fields that are not tensors, for JSON."""
        return {"task": self.task.to_json(), "seen": [seen.plain() for seen in self.seen]}

    @classmethod
    def of(cls, about: Mapping[str, Any], tensors: Tensors, seen: type[Seen]) -> Observed:
        """Rebuild observations of the type ``seen`` from ``about`` and ``tensors``."""
        found = [seen.of(plain, part_of(tensors, f"seen-{at}/")) for at, plain in enumerate(about["seen"])]
        return cls(read_task(about["task"]), part_of(tensors, "weights/"), found)

    def model(self) -> nn.Module:
        """The global model, where it is a whole one."""
        return load_weights(self.task.plan.build_model(), self.weights)

    def of_training(self) -> dict[str, Any]:
        """Fields of a ``ClientUpdate`` that are the same for all clients: the model, its images and the optimizer."""
        plan, card = WholeModelPlan.narrow(self.task.plan), self.task.plan.data_card()
        return {
            "model": self.model(), "input_shape": card.input_shape, "mean": card.mean, "std": card.std,
            "learning_rate": self.task.learning_rate, "weight_decay": plan.weight_decay, "momentum": plan.momentum,
            "nesterov": plan.nesterov,
        }  # fmt: skip


@dataclass(frozen=True)
class Kind(ABC):
    """Rules of the audit for one kind of observation.

    Attributes:
        name: In messages and file names; the setting that names the attacks on it is NAME-attacks, or ATTRIBUTE_SETTING.
        title: What threat cards and reports call one.
        plural: What sentences call several.
        observation: Type of the observations that attacks get; attacks with this type as ``observes`` fit the kind.
        seen: Type of an observation at the server.
        start: Text of the first attack that a chain may have.
        chosen: The audit chooses the images (``probe-targets``, ``probe-images``), so that pictures of them can be shown;
            of others while they are few (``MOST_SHARED``).
        instead_of: Title of the kind that training sends, in whose place the server requests this kind; reports show both; "" for
            none.
        paired: The observation keeps the rows of images, so that guess i is of image i.
        pooled: An observation covers several clients together, each of which scores the guess.
        of_attributes: Attacks guess a sensitive attribute; on other kinds they never do.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    plural: ClassVar[str]
    observation: ClassVar[type]
    seen: ClassVar[type[Seen]]
    start: ClassVar[str] = "InvertingGradients()"
    chosen: ClassVar[bool] = True
    instead_of: ClassVar[str] = ""
    paired: ClassVar[bool] = False
    pooled: ClassVar[bool] = False
    of_attributes: ClassVar[bool] = False

    @property
    def setting(self) -> str:
        """The setting that names the attacks on this kind, as users write it."""
        return ATTRIBUTE_SETTING if self.of_attributes else f"{self.name}-attacks"

    def suits(self, attack: AnyAttack) -> bool:
        """Whether the attack runs on this kind, and guesses the right target."""
        first = stages_of(attack)[0]
        return first.observes is self.observation and first.infers_attributes == self.of_attributes

    def meant(self, attack: AnyAttack) -> bool:
        """Whether the attack, alone or in a chain, is made for this kind: as an adaptive attack it then runs by default."""
        return attack.observes is self.observation and attack.infers_attributes == self.of_attributes

    def usual(self, dataset: str) -> list[AnyAttack]:
        """Attacks for the setting "auto", of attributes those on a data set's sensitive one; by default none."""
        return []

    @abstractmethod
    def observations(self, observed: Observed) -> list[Any]:
        """Observations in the form that attacks receive, one for each entry of ``observed.seen``."""

    def limited(self, stage: AnyAttack, observed: Observed) -> AnyAttack:
        """The attack to fit for these observations; by default the attack itself."""
        return stage

    def depends_on(self, observed: Observed) -> str:
        """Facts that a fitted attack depends on besides text and pipeline, such as a digest of weights; "" for none."""
        return ""

    def undefended(self, observed: Observed) -> Observed:
        """Observations as if clients had no defences, for attacks that learn of none (``Attack.learns_from_defenses``)."""
        return replace(observed, task=observed.task.but(pipeline=""))

    def sender(self, observed: Observed) -> Sender | None:
        """Function that makes smashed data of images as a client would; None where clients send none."""
        return None

    def train(self, plan: Plan) -> Callable[[Batch, int], nn.Module]:
        """Function (examples, seed) -> model that trains on the server's own examples as in the run; by default none."""
        return functools.partial(_untrainable, self.plural)

    def knowledge(self, observed: Observed) -> Knowledge:
        """The server's knowledge besides its observations; without auxiliary data, an empty batch."""
        plan = observed.task.plan
        card, own = plan.data_card(), _auxiliary(replace(plan.of_training, pipeline=""))
        return Knowledge(own, plan.defenses, card.mean, card.std, self.train(plan), self.sender(observed))

    def parse(self, text: str, beside: Sequence[Kind] = ()) -> list[AnyAttack]:
        """Parse attacks on this kind from its setting's text, which may name attacks on the other kinds with that setting, too.

        ``beside`` are the scenario's kinds, of which errors about misplaced attacks name the right one.

        Raises:
            SpecError: Naming what is unknown or not allowed.
            AttackError: When one of them attacks something else.
        """
        found = parse_attacks(text, self.start)
        if twice := next((one for at, one in enumerate(found) if one in found[:at]), None):
            raise AttackError(f"{twice} is given twice; allowed: each attack once")
        together = {self, *(kind for kind in beside if kind.setting == self.setting)}
        if wrong := [attack for attack in found if not any(kind.suits(attack) for kind in together)]:
            fitting = sorted(name for name, cls in ATTACKS.items() if any(kind.meant(cls()) for kind in together))
            other = next((kind for kind in (*beside, *kinds().values()) if kind.meant(stages_of(wrong[0])[0])), None)
            see = f" (see {other.setting})" if other and other in beside else ""
            where = f" but {other.plural}{see}" if other and other is not self else ""
            raise AttackError(f"{wrong[0]} does not attack {self.plural}{where}; these do: {', '.join(fitting)}")
        return [attack for attack in found if self.suits(attack)]


@functools.cache
def kinds() -> dict[str, Kind]:
    """Name -> kind; ``RegistryError`` for one of another package that cannot be loaded, or whose name is taken."""
    modules = modules_in("strategies", "observations")
    return collected(Kind, "kind of observation", "fedveil.observations", modules, "KINDS")


def kind_of(name: str) -> Kind:
    """The kind of a name; ``RegistryError``, with the known names, for an unknown one."""
    known = kinds()
    if name not in known:
        raise RegistryError(f"no kind of observation is called {name!r}; known: {', '.join(known)}")
    return known[name]


def digest(tensors: Tensors) -> str:
    """Digest of tensors by name: 32 hexadecimal digits of their names and values."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(np.ascontiguousarray(tensors[name].cpu().numpy()).tobytes())
    return found.hexdigest()


def _untrainable(plural: str, _: Batch, __: int) -> nn.Module:
    raise AttackError(f"attacks on {plural} have no models of their own")


@functools.lru_cache(maxsize=1)
def _auxiliary(plan: Plan) -> Batch:
    return Auxiliary(plan).examples()
