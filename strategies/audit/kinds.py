"""Kinds of observations: what the server sees of clients, how a job keeps it, and what attacks receive of it.

A kind is a value. Those of this package are found in the modules ``strategies.NAME.observations``, those of others by entry points
of the group "fedveil.observations".
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from torch import Tensor, nn

from attacks.base import AnyAttack, Knowledge, Profile
from attacks.observations import AttackError
from attacks.refinement.base import Chain, Refinement
from attacks.spec import ATTACKS, parse_attacks, stages_of
from clients.data.datasets import has_sensitive_attribute
from clients.task.auxiliary import Auxiliary
from clients.task.scenarios import read_task
from clients.task.task import Plan, Task, WholeModelPlan, load_weights
from defenses.base import Batch
from defenses.registry import RegistryError, collected, modules_in
from defenses.tensors import Tensors, part_of, under

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
        flat: Tensors = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                flat[name] = value
            elif isinstance(value, Mapping):
                flat |= under(f"{name}/", value)
        return flat

    def plain(self) -> dict[str, Any]:
        """Fields that are neither tensors nor missing, for JSON."""
        return {name: value for name, value in vars(self).items() if isinstance(value, bool | int | float | str)}

    @classmethod
    def of(cls, plain: Mapping[str, Any], tensors: Tensors) -> Self:
        """Rebuild an observation from ``plain`` and ``tensors``."""
        values: dict[str, Any] = dict(plain)
        for name in sorted({spec.name for spec in fields(cls)} & {key.partition("/")[0] for key in tensors}):
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
        flat = under("weights/", self.weights)
        for at, seen in enumerate(self.seen):
            flat |= under(f"seen-{at}/", seen.tensors())
        return flat

    def about(self) -> dict[str, Any]:
        """All fields that are not tensors, for JSON."""
        return {"task": self.task.to_json(), "seen": [seen.plain() for seen in self.seen]}

    @classmethod
    def of(cls, about: Mapping[str, Any], tensors: Tensors, seen: type[Seen]) -> Observed:
        """Rebuild observations of the type ``seen`` from ``about`` and ``tensors``."""
        views = [seen.of(plain, part_of(tensors, f"seen-{at}/")) for at, plain in enumerate(about["seen"])]
        return cls(read_task(about["task"]), part_of(tensors, "weights/"), views)

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


def undefended(observed: Observed) -> Observed:
    """Observations as if clients had no defences."""
    return replace(observed, task=observed.task.but(pipeline=""))


@dataclass(frozen=True, eq=False)
class Kind:
    """What one kind of observation is, and how attacks get it: a declaration, of which the rules of the audit follow.

    Attributes:
        name: In messages and file names; the setting that names the attacks on it is NAME-attacks, or ATTRIBUTE_SETTING.
        title: What threat cards and reports call one.
        observation: Type of the observations that attacks get; attacks with this type as ``Profile.observes`` fit the kind.
        observations: Makes observations in the form that attacks receive, one for each entry of ``Observed.seen``.
        plural: What sentences call several; "" for the title.
        seen: Type of an observation at the server.
        start: Text of the first attack that a chain may have.
        auto: Attacks for the setting "auto", of attributes only on a data set with a sensitive one: a function, as it may change.
        accepts: Attacks that observe a subclass of this type fit as well; None: no others.
        refuses: Whether an attack of this profile does not fit, although it observes the right type.
        made_for: Attacks that observe this type are made for the kind, too: as adaptive attacks they run by default.
        refined: Refinements are made for the kind as well.
        chains: A refinement may follow an attack on it.
        setting_of: Name of the kind whose setting names attacks on this kind, too; "" for its own.
        chosen: The audit chooses the images (``probe-targets``, ``probe-images``), so that pictures of them can be shown;
            of others while they are few (``MOST_SHARED``).
        instead_of: Title of the kind that training sends, in whose place the server requests this kind; reports show both; "" for
            none.
        paired: The observation keeps the rows of images, so that guess i is of image i.
        pooled: An observation covers several clients together, each of which scores the guess.
        of_attributes: Attacks guess a sensitive attribute; on other kinds they never do.
        limited: The attack to fit for what was observed.
        depends_on: Facts that a fitted attack depends on besides text and pipeline, such as a digest of weights; "" for none.
        undefended: What attacks that learn of no defences are fitted for (``Attack.learns_from_defenses``).
        knows: Fields of ``Knowledge`` that differ for this kind.
    """

    name: str
    title: str
    observation: type
    observations: Callable[[Observed], list[Any]]
    plural: str = ""
    seen: type[Seen] = Seen
    start: str = "InvertingGradients()"
    auto: Callable[[], Sequence[AnyAttack]] = tuple
    accepts: type | None = None
    refuses: Callable[[Profile], bool] = lambda _: False
    made_for: type | None = None
    refined: bool = False
    chains: bool = True
    setting_of: str = ""
    chosen: bool = True
    instead_of: str = ""
    paired: bool = False
    pooled: bool = False
    of_attributes: bool = False
    limited: Callable[[AnyAttack, Observed], AnyAttack] = lambda stage, _: stage
    depends_on: Callable[[Observed], str] = lambda _: ""
    undefended: Callable[[Observed], Observed] = undefended
    knows: Callable[[Observed], Mapping[str, Any]] = lambda _: {}

    def __init_subclass__(cls) -> None:
        raise TypeError(
            f"{cls.__name__} derives from Kind; declare a kind as a value: Kind(name=..., observations=...)"
        )

    def __post_init__(self) -> None:
        object.__setattr__(self, "plural", self.plural or self.title)

    def __reduce__(self) -> tuple[Any, ...]:
        # Its functions stay at home: another process has the same kind under its name.
        return kind_of, (self.name,)

    @property
    def setting(self) -> str:
        """The setting that names the attacks on this kind, as users write it."""
        return ATTRIBUTE_SETTING if self.of_attributes else f"{self.setting_of or self.name}-attacks"

    def suits(self, attack: AnyAttack) -> bool:
        """Whether the attack runs on this kind, and guesses the right target."""
        profile = stages_of(attack)[0].profile
        observes = profile.observes is self.observation or (self.accepts and issubclass(profile.observes, self.accepts))
        return bool(observes) and self._fits(profile) and (self.chains or not isinstance(attack, Chain))

    def meant(self, attack: AnyAttack) -> bool:
        """Whether a single attack is made for this kind: as an adaptive attack it then runs by default."""
        if isinstance(attack, Refinement) and self.refined:
            return True
        return attack.profile.observes in (self.observation, self.made_for) and self._fits(attack.profile)

    def _fits(self, profile: Profile) -> bool:
        return (profile.guesses == "attributes") == self.of_attributes and not self.refuses(profile)

    def usual(self, dataset: str) -> list[AnyAttack]:
        """Attacks for the setting "auto", of attributes those on a data set's sensitive one."""
        if self.of_attributes and not has_sensitive_attribute(dataset):
            return []
        return [attack for attack in self.auto() if self.suits(attack)]

    def knowledge(self, observed: Observed) -> Knowledge:
        """The server's knowledge besides its observations; without auxiliary data, an empty batch."""
        plan = observed.task.plan
        card, own = plan.data_card(), _auxiliary(replace(plan.of_training, pipeline=""))
        train = functools.partial(untrainable, self.plural)
        return replace(Knowledge(own, plan.defenses, card.mean, card.std, train), **self.knows(observed))

    def parse(self, text: str, beside: Sequence[Kind] = ()) -> list[AnyAttack]:
        """Parse attacks on this kind from its setting's text, which may name attacks on the other kinds with that setting, too.

        ``beside`` are the scenario's kinds, of which errors about misplaced attacks name the right one.

        Raises:
            SpecError: Naming what is unknown or not allowed.
            AttackError: When one of them attacks something else.
        """
        attacks = parse_attacks(text, self.start)
        if twice := next((attack for at, attack in enumerate(attacks) if attack in attacks[:at]), None):
            raise AttackError(f"{twice} is given twice; allowed: each attack once")
        together = {self, *(kind for kind in beside if kind.setting == self.setting)}
        if wrong := [attack for attack in attacks if not any(kind.suits(attack) for kind in together)]:
            fitting = sorted(name for name, cls in ATTACKS.items() if any(kind.meant(cls()) for kind in together))
            other = next((kind for kind in (*beside, *kinds().values()) if kind.meant(stages_of(wrong[0])[0])), None)
            see = f" (see {other.setting})" if other and other in beside else ""
            where = f" but {other.plural}{see}" if other and other is not self else ""
            raise AttackError(f"{wrong[0]} does not attack {self.plural}{where}; these do: {', '.join(fitting)}")
        return [attack for attack in attacks if self.suits(attack)]


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
    hashed = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        hashed.update(name.encode())
        hashed.update(np.ascontiguousarray(tensors[name].cpu().numpy()).tobytes())
    return hashed.hexdigest()


def untrainable(plural: str, _: Batch, __: int) -> nn.Module:
    """Refuse to train a model, where attacks on such observations have none."""
    raise AttackError(f"attacks on {plural} have no models of their own")


@functools.lru_cache(maxsize=1)
def _auxiliary(plan: Plan) -> Batch:
    return Auxiliary(plan).examples()
