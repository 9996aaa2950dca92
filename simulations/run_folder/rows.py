"""One result row, one number: a run writes a line of ``rows.jsonl`` for each, and a report reads them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from attacks.metrics.names import Role
from clients.wire.schema import fields_in, readable, refusal
from clients.wire.texts import changed
from defenses.checks import Limit
from simulations.run_folder.line_files import json_line, kept_lines
from strategies.audit.threat_card import MOST_VALUE, MOST_WHOLE, ThreatCard, Whole
from strategies.exchange.columns import OfClients

T = TypeVar("T")


def number_of(value: Any) -> float | None:
    """A number as rows hold it; None for NaN, for a finite one beyond ``MOST_VALUE`` and for any other value."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(number) or MOST_VALUE < abs(number) < math.inf else number


Number = Annotated[float | None, BeforeValidator(number_of)]
Count = Annotated[int, Limit(0, MOST_WHOLE)]


@functools.lru_cache(maxsize=4096)  # rows of one attack share a card
def _card(text: str) -> ThreatCard:
    return ThreatCard.from_json(json.loads(text))


_TEXT = json.JSONEncoder(default=repr)
Card = Annotated[ThreatCard, BeforeValidator(lambda data: _card(_TEXT.encode(data)))]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured number with all metadata needed to judge it.

    Attributes:
        scenario: How clients and server worked together.
        cut: Where the model was cut when the number was measured; "" where that is no question.
        defense: Pipeline text; "" is no defence.
        attack: Attack text, or the name of a null baseline or of a scale, such as "grey"; "" for a number about training.
        role: What the number is for. By default that of training where there is no attack, else that of an attack, or of an upper
            bound where the card names one.
        card: The threat card.
        round: Round that the number belongs to.
        final: Whether it is about the model after the last round, which is only attacked or served; ``round`` is then higher, by
            one, or where the model is served in several phases by the number of the phase.
        metric: What was measured.
        reference: What images were compared with: "original", "transformed" or "".
        value: The number, a mean over ``n``; None when there is none; infinite for the PSNR of an exact copy.
        n: Examples (or clients) behind the mean.
        status: "ok", "failed", "refused" (a node's configuration does not let it answer), "not-applicable" (the attack has no place
            on this network or message, as ``message`` says), "not-needed" (another attack has recovered all), "not-validated" (the
            attack did not break the undefended run either) or "under-powered". The last has too few images for a verdict, or others
            to look for them among, or too few records of a test of membership to tell a leak from none.
        seconds: Time that the number cost.
        computed_on: Device of an attack's worker, such as "cpu" or "NVIDIA H100".
        ci_low: Lower end of the 95 % interval of the mean; ``ci_high``: upper end.
        worst: The worst single example for privacy.
        failures: Trials that failed; they are part of ``value`` as the grey image, of membership (tests of clients) they are not.
        neighbours: Of an epsilon and its delta, between which data sets it holds (see ``defenses.neighbours``).
        message: Why the row failed, or has no value.
        client: Client that the row is about, if it is about one.
        extra: What has no field: the curve of a test of membership ("roc"), and fields that this version does not know.
    """

    metric: str
    experiment: str = ""
    scenario: str = ""
    dataset: str = ""
    model: str = ""
    cut: str = ""
    seed: Whole = 0
    defense: str = ""
    attack: str = ""
    role: Role = Role.TRAINING
    card: Card = field(default_factory=ThreatCard)
    round: Whole = 0
    final: bool = False
    reference: str = ""
    value: Number = None
    n: Count = 0
    status: str = "ok"
    seconds: Number = None
    computed_on: str = ""
    ci_low: Number = None
    ci_high: Number = None
    worst: Number = None
    failures: Count = 0
    neighbours: str = ""
    message: str = ""
    client: Whole | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.attack:
            object.__setattr__(self, "role", Role.TRAINING)
        elif self.role is Role.TRAINING:
            object.__setattr__(self, "role", self.card.role)

    @property
    def is_attack(self) -> bool:
        """Whether the row is about an attack: neither about training nor a null baseline nor a scale."""
        return self.role in (Role.ATTACK, Role.UPPER_BOUND)

    @property
    def study(self) -> tuple[str, str, str, str, str]:
        """Values that must agree before numbers may be averaged over seeds: each cut of a model is a deployment of its own."""
        return (self.experiment, self.scenario, self.dataset, self.model, self.cut)

    def read(self, kind: type[T]) -> T:
        """Columns without a field, as a type of them has these; its defaults where there are none, or one is not as it says."""
        return (readable(kind, self.extra) if self.extra else None) or kind()

    @functools.cached_property
    def of_clients(self) -> OfClients:
        """What it says of the clients behind it."""
        return self.read(OfClients)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """Reads one decoded line; a value that is not a number (NaN), or too large for one, makes the row a failed one.

        ``ValueError`` where another value is none that its field can hold.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("metric"), str):
            raise ValueError("expected an object with a metric")
        extra = {name: value for name, value in data.items() if name not in NAMES}
        try:
            row = _READER.validate_python({**{name: data[name] for name in data if name in NAMES}, "extra": extra})
        except ValidationError as error:
            raise ValueError(refusal(error, fields_in(cls))) from None
        if row.value is None and row.status == "ok" and data.get("value") is not None:
            why = f"value is {repr(data['value'])[:60]}, not a number that can be measured"
            return replace(row, status="failed", message=row.message or why)
        return row

    @functools.cached_property  # a run writes all its rows again after each round and each attack
    def line(self) -> str:
        """Strict JSON in ASCII with its line feed: NaN becomes null, infinities become text."""
        data = {name: getattr(self, name) for name in NAMES if name != "extra"}
        return json_line(changed(data | {"card": self.card.to_json(), **self.extra}, _strict))


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


NAMES = {spec.name: None for spec in fields(Row)}.keys()
"""Of the fields, in their order."""
_READER = TypeAdapter(Row)


PLACE = ("defense", "round", "attack", "observation")
"""Keys of an index line that identify the picture's cell."""


def kept(path: Path) -> tuple[list[Row], list[dict[str, Any]], list[str]]:
    """Rows and the pictures' index of a run's folder, and the loss by a cut-off last line of each (``kept_lines``)."""
    rows, rows_lost = kept_lines(path / "rows.jsonl", Row.from_json)
    pictures, pictures_lost = kept_lines(path / "pictures" / "index.jsonl", _placed)
    return rows, pictures, [lost for lost in (rows_lost, pictures_lost) if lost]


def _placed(entry: Any) -> dict[str, Any]:
    """Check that a line of the index identifies its picture's cell."""
    missing = [key for key in (*PLACE, "file") if key not in entry]
    if missing or not isinstance(entry, dict):
        raise ValueError(f"expected an object with {', '.join(PLACE)} and file")
    return entry
