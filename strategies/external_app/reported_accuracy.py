"""The accuracy that an app reports from its own evaluation, which fedveil repeats and does not check."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from clients.wire.texts import one_line
from strategies.external_app.claim import number_of

REPORTED = "reported-accuracy"
"""Metric of the row with the accuracy that the app reports; its column ``reported`` is what ``AppAccuracy.to_json`` gives."""
SERVER, CLIENTS = "the server's evaluation", "the clients' evaluation"
"""What evaluates: ``AppAccuracy.source``. The server comes first, as its test data are the same for all rounds."""
WORD = re.compile(r"(?<![a-z])acc(uracy)?(?![a-z])")
OTHER = re.compile(r"(?<![a-z])(train|top[-_ ]?[2-9])")
"""In names of accuracies that are not the usual one on test data."""
LONGEST_NAME = 60
PERCENT = 100.0


@dataclass(frozen=True)
class AppAccuracy:
    """An accuracy by an app's own evaluation.

    Attributes:
        value: In [0, 1].
        name: The app's name of the metric.
        source: What evaluated: ``SERVER`` or ``CLIENTS``.
        round: Server round of the value, the last one that has it.
    """

    value: float
    name: str
    source: str
    round: int

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

    def to_json(self) -> dict[str, Any]:
        """One object of JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> AppAccuracy | None:
        """Read what ``to_json`` gave; None for anything else."""
        found = data if isinstance(data, Mapping) else {}
        value, at = number_of(found.get("value")), number_of(found.get("round"))
        if value is None or value > 1 or at is None:
            return None
        return cls(value, str(found.get("name", "")), str(found.get("source", "")), int(at))


class ReportedAccuracy:
    """Collects accuracies from the metrics of an app's evaluations."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], dict[int, float]] = {}

    def observe(self, source: str, server_round: int, metrics: Mapping[str, Any] | None) -> None:
        """Keep every number of an evaluation whose name is that of an accuracy."""
        for name, value in (metrics or {}).items():
            number = number_of(value)
            if number is not None and number <= PERCENT and _is_accuracy(name):
                self._values.setdefault((source, name), {})[server_round] = number

    def observed(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the server's evaluation function, ``evaluate_fn(server_round, arrays)``, so that its metrics are kept."""

        @functools.wraps(evaluate)
        def wrapped(server_round: int, *args: Any, **kwargs: Any) -> Any:
            metrics = evaluate(server_round, *args, **kwargs)
            if isinstance(metrics, Mapping):
                self.observe(SERVER, server_round, metrics)
            return metrics

        return wrapped

    def found(self) -> AppAccuracy | None:
        """The last accuracy of the server's evaluation, else of the clients'; None where neither reports one.

        A metric that exceeds 1 in any round is in percent.
        """
        for source in (SERVER, CLIENTS):
            for (of, name), values in self._values.items():
                if of == source:
                    scale = PERCENT if max(values.values()) > 1 else 1.0
                    last = max(values)
                    return AppAccuracy(values[last] / scale, one_line(name, LONGEST_NAME), source, last)
        return None


def _is_accuracy(name: str) -> bool:
    # "evalAcc" -> "eval_acc"
    lower = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return WORD.search(lower) is not None and OTHER.search(lower) is None
