"""What a score is called: its metric and reference, and whose guess it is of. Objects inside the program, texts in messages."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import quote, unquote


class Role(StrEnum):
    """What a number is for."""

    TRAINING = "training"
    """About the run itself: accuracy, budget, cost."""
    ATTACK = "attack"
    UPPER_BOUND = "upper bound"
    """An attack with knowledge that no server of the run has."""
    NULL_BASELINE = "null baseline"
    """A guess that needs no attack, such as the grey image."""
    SCALE = "scale"
    """Made from the truth or its class, to read scores by, such as a blurred copy: neither a baseline nor an attack."""
    NULL_CONTROL = "null control"
    """An attack's guess from noise: a role of earlier versions alone. Its rows stay in their file, and no page shows them."""


BESIDE = (Role.NULL_BASELINE, Role.SCALE)
"""Roles of numbers to read an attack's scores by."""


class ScoreName(NamedTuple):
    """Metric and reference ("original", "transformed" or "") of a score."""

    metric: str
    reference: str = ""


class GuessName(NamedTuple):
    """Whose guess: its role, and its name among those of the role, such as "grey"."""

    role: Role = Role.ATTACK
    name: str = ""


Scores = dict[ScoreName, list[float]]
"""One value per image, batch, client or record."""


def scores_to_texts(scores: Mapping[GuessName, Mapping[ScoreName, list[float]]]) -> dict[str, list[float]]:
    """Scores under the texts that messages carry: role/guess/metric/reference, percent-encoded."""
    return {
        "/".join(quote(part, safe=" ") for part in (*guess, *name)): values
        for guess, of in scores.items()
        for name, values in of.items()
    }


def names_of(text: str) -> tuple[GuessName, ScoreName]:
    """What ``scores_to_texts`` wrote.

    Raises:
        ValueError: When the text is no name of a score.
    """
    role, guess, metric, reference = (unquote(part) for part in text.split("/"))
    return GuessName(Role(role), guess), ScoreName(metric, reference)
