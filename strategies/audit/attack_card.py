"""Threat card of one attack: facts about the observations, and facts that the attack adds."""

from __future__ import annotations

from typing import Any

from attacks.base import Attack
from attacks.spec import stages_of
from strategies.audit.jobs import AttackJob
from strategies.audit.threat_card import ThreatCard

AUXILIARY = {
    "held-out": "disjoint from all clients",
    "private": "the clients' training images (worst case); attacked are test images",
}
"""Value of the setting -> text about auxiliary data on threat cards."""


def attack_card(job: AttackJob, attack: Attack[Any, Any]) -> ThreatCard:
    """Extend a threat card by the facts that the attack adds."""
    bounds = " and ".join(bound for bound in (job.card.upper_bound, attack.upper_bound) if bound)
    card = job.card.but(**attack.card() | {"upper_bound": bounds, "threat_class": attack.threat_class or None})
    if any(_matches_statistics(one, card) for one in stages_of(attack)) and _reveals_statistics(card):
        known = "their mean over the local steps is matched" if (card.local_steps or 1) > 1 else "matched"
        card = card.but(batch_norm_statistics=f"{card.more['batch_norm_statistics']}; {known} by the attack")
    if attack.learns_prior:
        card = card.but(learns_prior=True)
    if not attack.knows_defenses:
        card = card.but(knows_defenses=False)
    if not attack.needs_auxiliary:
        return card
    data = job.task.plan.auxiliary_data
    return card.but(auxiliary_data=AUXILIARY.get(data, f"data set {data}"))


def _reveals_statistics(card: ThreatCard) -> bool:
    """Whether running averages came from steps in train mode: then they give the statistics of the batches, or their mean."""
    sent = str(card.more.get("batch_norm_statistics", "none")).startswith("sent")
    return sent and card.more.get("mode") == "train"


def _matches_statistics(attack: Any, card: ThreatCard) -> bool:
    """Whether a stage of an attack matches the statistics that observations like these reveal."""
    own = getattr(attack, "matches_statistics", None)
    return own is not None and own(card.local_steps or 1, card.images or 1)
