"""The audit of an external app: its settings, each checked by its type and range before a run begins, and what is known of it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from attacks.base import AnyAttack
from clients.data.card import DataCard
from clients.external_app.plan import OWN_DATA, SCENARIO, AppPlan, ModelFactory, name_of
from defenses.checks import MOST_EXAMPLES, Count, Examples, Limit, check_fields
from defenses.pipeline import Pipeline
from strategies.audit.kinds import Kind
from strategies.federated.observations import PROBE, UPDATE
from strategies.recording.wrapper import whole_rounds

ENOUGH = 16
"""Images from which on a report gives a verdict."""


@dataclass(frozen=True)
class AuditSettings:
    """Settings of the audit of an external app.

    Attributes:
        model: Class or function without arguments that builds the app's model, at the top level of a module.
        probe_attacks: Attacks on one-step probes, separated by ";"; "" for no probes; "auto": every attack that applies.
        update_attacks: Attacks on the app's own updates, separated by ";"; "auto" as above.
        rounds: Attacked server rounds.
        probe_images: Number of images in a probe.
        probe_targets: Number of probes of each client in an attacked round; 0: as many as give ``ENOUGH`` images in all.
        seed: Seed of the attacks.
        share_images: Request pictures of attacked images; a deployed node decides.
        workers: Number of attacks in parallel with the rounds; 0: attacks run in the server's process, and the round waits.
        canaries: Compare the epsilon that clients claim with a lower bound from the canaries in their training, which the app adds
            by ``with_canaries`` and ``set_canary_gradients``. Updates are then not attacked, because they hold the canaries.
        timeout: Seconds that the server waits for a node's reply.
        go_on: Continue a run whose audit cannot begin or attacks nothing; otherwise the run ends with ``AuditError``.

    Raises:
        ValueError: With the setting, the value and the allowed values.
        AttackError: When an attack does not fit the kind of observation.
    """

    model: ModelFactory
    probe_attacks: str = "auto"
    update_attacks: str = "auto"
    rounds: Collection[int] = (1,)
    probe_images: Examples = 1
    probe_targets: Annotated[int, Limit(1, MOST_EXAMPLES, also=0)] = 0
    seed: Count = 0
    share_images: bool = True
    workers: Annotated[int, Limit(0, 1024)] = 1
    timeout: Annotated[float, Limit(0.001, 1e9)] = 600.0
    go_on: bool = False
    canaries: bool = False

    def __post_init__(self) -> None:
        name_of(self.model)
        object.__setattr__(self, "rounds", whole_rounds(self.rounds))
        for name, value in vars(self).items():
            if isinstance(value, np.number):  # Flower cannot send it
                object.__setattr__(self, name, value.item())
        check_fields(self)
        if not (self.canaries or any(self.attacks().values())):
            raise ValueError(
                "probe_attacks and update_attacks name no attack; allowed: at least one, as there is no audit else"
            )

    def attacks(self) -> dict[Kind, Sequence[AnyAttack]]:
        """Attacks on probes and on updates, parsed; none on updates with canaries. Of the usual ones, none on membership."""
        usual = {kind: [a for a in kind.usual("") if a.profile.guesses != "membership"] for kind in self.in_turn}
        texts = self._texts.items()
        return {kind: tuple(usual.get(kind) or kind.parse(text, (PROBE, UPDATE))) for kind, text in texts}

    @property
    def _texts(self) -> dict[Kind, str]:
        return {PROBE: self.probe_attacks, UPDATE: "" if self.canaries else self.update_attacks}

    @property
    def in_turn(self) -> list[Kind]:
        """Kinds of observations of which exact attacks may make others needless: those of "auto"."""
        return [kind for kind, text in self._texts.items() if text == "auto"]

    def targets(self, examples: Collection[int]) -> int:
        """Number of probes of each client, as far as its examples suffice: no image is probed twice."""
        if self.probe_targets or not examples:
            return self.probe_targets or 1
        wanted = -(-ENOUGH // (len(examples) * self.probe_images))
        return max(1, min(wanted, min(examples) // self.probe_images))

    def plan(self) -> AppPlan:
        """The plan before a node has replied, without the card of its data."""
        return AppPlan.known(
            scenario=SCENARIO, dataset=OWN_DATA, model=name_of(self.model), seed=self.seed, rounds=max(self.rounds),
            probe_targets=self.probe_targets or 1, probe_images=self.probe_images, card=DataCard(2, (1, 1, 1), (0.0,), (1.0,)),
        )  # fmt: skip


@dataclass(frozen=True)
class ForeignPipeline(Pipeline):
    """Mods that fedveil does not know, by their names (``text``); acts on nothing."""

    text: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class AppStudy:
    """The audit of an external app, as a run directory needs it.

    Attributes:
        plan: What is known of the app.
        attacks: Kind of observation -> the attacks on it.
        settings: As the page shows them.
        scenario: Of the plan, as the next three are: the source of the attacked data.
        dataset: The owner of the data, in words.
        model: Name of the model.
        seed: Of the attacks.
        experiment: Its name, as in every row.
    """

    plan: AppPlan
    attacks: Mapping[Kind, Sequence[AnyAttack]]
    settings: Mapping[str, Any]
    scenario: str
    dataset: str
    model: str
    seed: int
    experiment: str = "audit"
    auxiliary_data: str = ""
    resume: bool = False
    on_tables: bool = False

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of observations of the server."""
        return tuple(self.attacks)

    @property
    def pipelines(self) -> Sequence[Pipeline]:
        """Protection of the clients' replies."""
        known = self.plan.defenses
        return [known if str(known) == self.plan.pipeline else ForeignPipeline(text=self.plan.pipeline)]

    def attacks_on(self, pipeline: Pipeline, kind: Kind) -> Sequence[AnyAttack]:
        """Attacks of the audit."""
        del pipeline
        return self.attacks[kind]

    def to_mapping(self) -> dict[str, Any]:
        """Settings for the page."""
        return dict(self.settings)
