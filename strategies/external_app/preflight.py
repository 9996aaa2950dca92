"""Checks before the first round of an audit: missing settings, and the number of images to attack."""

from __future__ import annotations

from collections.abc import Sequence
from logging import INFO, WARNING

from flwr.app import Message
from flwr.common import log
from flwr.serverapp.strategy import Result

from strategies.external_app.orders import STEPS_FROM, Orders
from strategies.external_app.settings import ENOUGH, AuditSettings

NO_RATE = "learning rate: unknown; give audited(..., learning_rate=...), or send it as lr or learning-rate"
NO_STEPS = f"{STEPS_FROM} are unknown; give audited(..., local_epochs=..., batch_size=...), or send them"


NO_REPLY = "no attacked round had a reply"


class AuditError(RuntimeError):
    """An audit that cannot begin, or that attacked nothing.

    Attributes:
        reasons: Each a sentence.
        result: Where rounds ran, what the wrapped strategy's ``start`` returned; else None.
    """

    def __init__(self, reasons: Sequence[str], what: str = "the audit cannot begin") -> None:
        listed = "".join(f"\n- {one}" for one in reasons)
        super().__init__(f"{what}:{listed}\nWith go_on=True the run goes on all the same.")
        self.reasons = tuple(reasons)
        self.result: Result | None = None


def missing(
    settings: AuditSettings, server_round: int, messages: Sequence[Message], ordered: Sequence[Orders]
) -> list[str]:
    """Settings that neither messages, app nor arguments contain; without them nothing can be attacked."""
    found = []
    if not all(one.learning_rate > 0 for one in ordered):
        named = sorted({key for message in messages for of in message.content.config_records.values() for key in of})
        found.append(f"{NO_RATE}. The messages of round {server_round} hold {', '.join(named) or 'no setting'}")
    if not (settings.canaries or settings.attacks_on_probes()) and not any(one.knows_steps for one in ordered):
        found.append(f"{NO_STEPS}. probe_attacks names no attack either")
    return found


def say_how_many(nodes: int, each: int, images: int) -> None:
    """Log how many images an attacked round probes at most: ``each`` probes of so many images from every node that replies."""
    total = nodes * each * images
    log(
        INFO if total >= ENOUGH else WARNING,
        "Audit: one-step probes of up to %s images in an attacked round (%s x %s from each of %s nodes, if all reply); "
        "a verdict needs %s",
        total, each, images, nodes, ENOUGH,
    )  # fmt: skip
