"""What an app says of itself: its claims of differential privacy and its accuracy, as rows carry them and reports show them."""

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from clients.wire.texts import one_line
from strategies.audit.threat_card import MOST_VALUE

CLAIMED = "claimed-privacy"
"""Metric of the row whose column ``claims`` lists the claims of the app, each a ``Claim`` as an object."""
METRICS, MOD, WRAPPER, ACCOUNTANT = "client metrics", "client mod", "server wrapper", "server accountant"
"""What makes a claim: ``Claim.source``."""


Reported = Annotated[float, Field(ge=0, le=MOST_VALUE)] | None


@dataclass(frozen=True)
class Claim:
    """An app's own statement about its differential privacy; fedveil proves no part of it.

    Attributes:
        source: What makes the claim: one of ``METRICS``, ``MOD``, ``WRAPPER`` and ``ACCOUNTANT``.
        text: The claim in sentences, for people.
        rounds: Number of rounds in which the claim was made.
        epsilon: Largest epsilon that was reported, finite and at least 0; None where none was.
        lowest: Smallest epsilon that was reported.
        delta: Largest delta that was reported, in [0, 1).
        note: What the number is about, such as "for each message"; "" where the app does not say.
        unusable: An epsilon was claimed that is no such number, or that its noise does not give.
    """

    source: str
    text: Annotated[str, Field(min_length=1)]
    rounds: int = 0
    epsilon: Reported = None
    lowest: Reported = None
    delta: Annotated[float, Field(ge=0, lt=1)] | None = None
    note: str = ""
    unusable: bool = False

    @property
    def number(self) -> str:
        """Epsilon as tables show it; "" where none was reported."""
        return "" if self.epsilon is None else f"{brief(self.epsilon)} (the app's word)"

    @property
    def detail(self) -> str:
        """The claim's delta, source and subject."""
        delta = "" if self.delta is None else f"\N{GREEK SMALL LETTER DELTA} = {brief(self.delta)}"
        return ", ".join(filter(None, (delta, self.source, self.note)))


def number_of(value: Any, below: float = math.inf) -> float | None:
    """A finite number from 0 on and under ``below``; None for any other value, truth values included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_VALUE:
        return None
    return float(value) if value < below else None


def brief(value: float) -> str:
    """A number with four digits at most."""
    return f"{value:.4g}"


REPORTED = "reported-accuracy"
"""Metric of the row with the accuracy that the app reports; its column ``reported`` is an ``AppAccuracy`` as an object."""
SERVER, CLIENTS = "the server's evaluation", "the clients' evaluation"
"""What evaluates: ``AppAccuracy.source``. Of one round the server's comes first, as its test data are the same in all rounds."""
NAMES = ("acc", "accuracy")
QUALIFIERS = (
    "test", "eval", "evaluate", "evaluation", "central", "centralized", "centralised", "server", "global", "federated",
    "distributed", "client", "clients", "mean", "avg", "average", "weighted", "aggregated", "model", "final", "top", "1", "top1",
    "val", "valid", "validation",
)  # fmt: skip
"""Words that may stand beside ``NAMES`` in the metric's name; any other makes it another number, such as a deviation."""
LONGEST_NAME = 60
PERCENT, ROUNDING = 100.0, 1e-6


@dataclass(frozen=True)
class AppAccuracy:
    """An accuracy by an app's own evaluation.

    Attributes:
        value: In [0, 1].
        name: The app's name of the metric.
        source: What evaluated: ``SERVER`` or ``CLIENTS``.
        round: Server round of the value, the last one that has it.
    """

    value: Annotated[float, Field(strict=True, ge=0, le=1)]
    name: str
    source: str
    round: Annotated[int, Field(strict=True, ge=0)]

    @property
    def number(self) -> str:
        """The accuracy as tables show it."""
        return f"{PERCENT * self.value:.1f} % (the app's word)"

    @property
    def detail(self) -> str:
        """The metric's name, its source and its round."""
        return f"{self.name}, {self.source}, round {self.round}"

    @property
    def text(self) -> str:
        """A sentence that states what the number is."""
        return f"The app reports an accuracy of {PERCENT * self.value:.1f} % ({self.detail}). fedveil did not check this number."


@dataclass(frozen=True)
class OfApp:
    """Columns of rows of ``CLAIMED`` and ``REPORTED``."""

    claims: tuple[Claim, ...] = ()
    reported: AppAccuracy | None = None


class ReportedAccuracy:
    """Collects accuracies from the metrics of an app's evaluations."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], dict[int, float]] = {}

    def observe(self, source: str, server_round: int, metrics: Mapping[str, Any] | None) -> None:
        """Keep every number of an evaluation whose name is that of an accuracy; round 0 is before training, and left out."""
        for name, value in (metrics or {}).items() if server_round > 0 else ():
            number, words = number_of(value), _words(str(name))
            known = set(NAMES).intersection(words) and set(words) <= {*NAMES, *QUALIFIERS}
            if number is not None and number <= PERCENT and known:
                self._values.setdefault((source, name), {})[server_round] = number

    def observed(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the server's evaluation function, ``evaluate_fn(server_round, arrays)``, so that its metrics are kept."""

        @functools.wraps(evaluate)
        def wrapped(server_round: int, *args: Any, **kwargs: Any) -> Any:
            metrics = evaluate(server_round, *args, **kwargs)
            if isinstance(metrics, Mapping):  # observe raises nothing, as the app's own run goes on from here
                self.observe(SERVER, server_round, metrics)
            return metrics

        return wrapped

    def found(self) -> AppAccuracy | None:
        """The accuracy of the latest round after training; None where none is reported.

        Of one round, the server's evaluation comes before the clients', and a metric with fewer words in its name before one with
        more; "validation" comes last. A metric that exceeds 1 in any round is in percent.
        """
        latest = [(max(values), source, name) for (source, name), values in self._values.items()]
        if not latest:
            return None
        last, source, name = max(latest, key=lambda entry: (entry[0], entry[1] == SERVER, *_preference(entry[2])))
        values = self._values[source, name]
        # A weighted mean of ones may be 1 plus a rounding error.
        scale = PERCENT if max(values.values()) > 1 + ROUNDING else 1.0
        return AppAccuracy(min(values[last] / scale, 1.0), one_line(name, LONGEST_NAME), source, last)


def _words(name: str) -> list[str]:
    """The words of a metric's name in lower case: "evalAcc" gives "eval" and "acc"."""
    return re.findall(r"[a-z]+[0-9]*|[0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())


def _preference(name: str) -> tuple[bool, int]:
    words = _words(name)
    return not any(word.startswith("val") for word in words), -len(words)
