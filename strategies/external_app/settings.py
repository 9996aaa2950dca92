"""What whoever runs an app says of its audit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from attacks.base import Attack
from clients.data.card import DataCard
from clients.external_app.plan import OWN_DATA, SCENARIO, AppPlan, ModelFactory, name_of
from strategies.external_app.ranges import checked
from strategies.federated.observations import PROBE, UPDATE
from strategies.recording.wrapper import whole_rounds


@dataclass(frozen=True)
class AuditSettings:
    """How an app is audited.

    Attributes:
        model: Builds the app's model, without arguments; a class or function at the top level of a module.
        probe_attacks: On one-step probes, separated by ";"; "" asks for none.
        update_attacks: On the app's own updates.
        rounds: Server rounds that are attacked.
        probe_images: Images of a probe.
        probe_targets: Probes of each client in an attacked round.
        momentum: Of the app's SGD.
        nesterov: The app's SGD looks ahead by its momentum, as probes then do.
        weight_decay: Of the app's SGD; probes decay likewise.
        seed: Of the attacks.
        share_images: Nodes are asked for pictures of probed images; a deployed node decides.
        workers: Attacks that run at the same time, beside the rounds; 0: in the server's process, while the round waits.
        timeout: Seconds that a node may take for an answer.
        settings: Where learning rate, local epochs and batch size are looked for where a round's own message does not tell them:
            ``context.run_config``.

    Raises:
        ValueError: Naming the setting, what came, and what is allowed.
        AttackError: When an attack is not one on that kind of observation.
    """

    model: ModelFactory
    probe_attacks: str = "InvertingGradients(); LabelInference()"
    update_attacks: str = "LabelInference()"
    rounds: Collection[int] = (1,)
    probe_images: int = 1
    probe_targets: int = 4
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    seed: int = 0
    share_images: bool = True
    workers: int = 1
    timeout: float = 600.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name_of(self.model)
        object.__setattr__(self, "rounds", whole_rounds(self.rounds))
        for one in fields(self):
            object.__setattr__(self, one.name, checked(one.name, getattr(self, one.name), str(one.type)))
        if not isinstance(self.settings, Mapping):
            raise ValueError(f"settings is {self.settings!r}; allowed: a mapping, such as context.run_config")
        if self.nesterov and not self.momentum > 0:
            raise ValueError(f"nesterov is True with a momentum of {self.momentum:g}; allowed: with a momentum above 0")
        if not (*self.attacks_on_probes(), *self.attacks_on_updates()):
            raise ValueError(
                "probe_attacks and update_attacks name no attack; allowed: at least one, as there is no audit else"
            )

    def attacks_on_probes(self) -> tuple[Attack[Any, Any], ...]:
        """As objects."""
        return tuple(PROBE.parse(self.probe_attacks, (PROBE, UPDATE)))

    def attacks_on_updates(self) -> tuple[Attack[Any, Any], ...]:
        """As objects."""
        return tuple(UPDATE.parse(self.update_attacks, (PROBE, UPDATE)))

    def plan(self, num_rounds: int = 1) -> AppPlan:
        """What can be said before a node has answered."""
        # The card is what a node says of its data; a model can be built without one.
        return AppPlan.known(
            scenario=SCENARIO, dataset=OWN_DATA, model=name_of(self.model), seed=self.seed, rounds=num_rounds,
            momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay,
            probe_targets=self.probe_targets, probe_images=self.probe_images, card=DataCard(2, (1, 1, 1), (0.0,), (1.0,)),
        )  # fmt: skip
