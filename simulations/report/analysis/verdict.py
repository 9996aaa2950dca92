"""The verdicts on a defence's messages of one kind and size, and their rule in words."""

from enum import StrEnum

from simulations.report.studies.intervals import LEVEL
from simulations.report.text import capital


class Verdict(StrEnum):
    """What attacks found; never a promise of privacy. The worst comes first."""

    RECOGNISABLE = "recognisable"
    IDENTIFIABLE = "identifiable"
    INFERRED = "inferred"
    UNKNOWN = "unknown"
    NOTHING = "nothing found"


MEANING = {
    Verdict.RECOGNISABLE: "identifiable, and enough guesses also show their image's structure, beyond its colour",
    Verdict.IDENTIFIABLE: "guesses are nearest to their own image among up to 99 others of its class, mean and contrast removed, "
    "more often than guesses of the class alone",
    Verdict.INFERRED: "attributes or cells are right more often than their most frequent value",
    Verdict.NOTHING: "none of that, by an attack that passed its positive control",
    Verdict.UNKNOWN: "no attack passed its positive control, or fewer than 16 images were attacked",
}
"""Verdict -> its rule in words."""
LEAKS = (Verdict.RECOGNISABLE, Verdict.IDENTIFIABLE, Verdict.INFERRED)
"""Verdicts of messages from which attacks take something."""


def rule() -> str:
    """The rule as pages state it, with the level of its tests."""
    words = " ".join(f"{capital(word)}: {MEANING[word]}." for word in Verdict if word is not Verdict.INFERRED)
    return f"{words} Each kind and size of message is tested by itself, at {100 * LEVEL:.0f} % over all attacks on it."
