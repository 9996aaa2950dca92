"""Words for the run without a defence: an audited app may have an unknown one."""

from collections.abc import Iterable
from dataclasses import dataclass

from attacks.metrics.training import EPSILON_SHOWN
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import ThreatCard
from strategies.external_app.trainings import ASSUMED


@dataclass(frozen=True)
class Plain:
    """Words: its ``name`` as of a defence, ``without`` behind a verb, the ``run`` itself, and what is ``acting`` on its messages.

    ``alone``: there never is such a run beside one with defences.
    """

    name: str = "No defence"
    without: str = "without a defence"
    run: str = "undefended run"
    alone: bool = False
    acting: str = "these mods"


OWN_CLIENTS = Plain()
NO_MOD = Plain("No mod known", "where no mod is known", "run with no mod known", alone=True)
"""Of an audited app: its mods are read from it, and what its ``train`` does inside itself is not."""
AS_RECORDED = Plain("No defence known", "where no defence is known", "run as recorded", True, "the defence")
"""Of a recording: the recorder cannot know whether a defence acted on the replies before they were sent."""


def plain_words(card: ThreatCard) -> Plain:
    """Words for a card: audited apps name their mods, recordings the known facts about a defence."""
    return AS_RECORDED if card.reported_defence else NO_MOD if card.mods else OWN_CLIENTS


def plain_words_of(rows: Iterable[Row]) -> Plain:
    """Words for a study, whose clients are of one kind; an audited app whose epsilon alone was tested has no attack."""
    every = list(rows)
    otherwise = NO_MOD if {ASSUMED, EPSILON_SHOWN.name} <= {row.metric for row in every} else OWN_CLIENTS
    return next((plain_words(row.card) for row in every if row.attack), otherwise)
