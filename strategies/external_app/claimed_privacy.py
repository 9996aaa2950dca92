"""An app's own statements about its differential privacy: metrics of its clients, their mods, wrappers of its strategy."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from clients.external_app.mods import ModBudget
from clients.wire.texts import one_line
from strategies.external_app.claim import ACCOUNTANT, METRICS, MOD, WRAPPER, Claim, brief, number_of
from strategies.recording.wrapper import chain_of

WRAPPERS = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
EPSILON, DELTA, NOISE, NORM = "epsilon", "delta", "noise multiplier", "clipping norm"
NAMES = {
    "epsilon": EPSILON, "dp_epsilon": EPSILON, "privacy_epsilon": EPSILON,
    "delta": DELTA, "target_delta": DELTA, "dp_delta": DELTA,
    "noise_multiplier": NOISE, "max_grad_norm": NORM, "clipping_norm": NORM, "l2_norm_clip": NORM,
}  # fmt: skip
"""Name of a metric, with "_" for "-" -> what it says. Only an epsilon or a noise multiplier makes a claim: many apps clip."""
CLIPPING_MODS = ("fixedclipping_mod", "adaptiveclipping_mod")
LOCAL_DP = "LocalDpMod"
MOST_MODS, LONGEST = 8, 200
"""Mods that are named, and characters of a text that is not fedveil's."""

TRAINING = "of training, not of probes"
UNCHECKED = "fedveil did not check this claim."
TESTED = "fedveil tested this claim by canaries, which cannot prove it."
AFTER_ARRIVAL = (
    "The server adds the noise after it received the updates. "
    "So the noise does not protect the clients against this server."
)


def said_in(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What metrics say about differential privacy, by the values of ``NAMES``; each from the first record that holds it."""
    said: dict[str, Any] = {}
    for record in records:
        for key, value in record.items():
            if (name := NAMES.get(key.lower().replace("-", "_"))) is not None:
                said.setdefault(name, value)
    return said


@dataclass
class PrivacyClaims:
    """Collect the claims of one app over its rounds.

    Attributes:
        wrappers: The strategies for differential privacy around the app's own; of a recording, their class names.
        tested: Whether canaries tested what the clients' metrics claim.
    """

    wrappers: Sequence[Any] = ()
    tested: bool = False
    _rounds: set[int] = field(default_factory=set)
    _reported: set[int] = field(default_factory=set)
    _nodes: set[int] = field(default_factory=set)
    _known: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By the values of ``NAMES`` the smallest and the largest number that was reported."""
    _faulty: Counter[str] = field(default_factory=Counter)

    def observe(self, server_round: int, replies: Iterable[Message]) -> None:
        """Read the metrics of a round's replies to training; replies with an error have none."""
        self._rounds.add(server_round)
        for reply in replies:
            if not reply.has_error():
                self.read(server_round, reply.metadata.src_node_id, reply.content.metric_records.values())

    def read(self, server_round: int, node: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Read the metrics of one reply."""
        self._rounds.add(server_round)
        said = said_in(records)
        if EPSILON not in said and NOISE not in said:
            return
        self._reported.add(server_round)
        self._nodes.add(node)
        for name, value in said.items():
            number = number_of(value, 1.0 if name == DELTA else math.inf)
            if number is None:
                self._faulty[name] += 1
                continue
            low, high = self._known.get(name, (number, number))
            self._known[name] = (min(low, number), max(high, number))

    def found(self, mods: str = "", budgets: Sequence[ModBudget] = ()) -> list[Claim]:
        """The claims of metrics, then of mods, then of wrappers.

        Args:
            mods: The clients' mods as ``clients.external_app.mods.named`` gives them.
            budgets: What each ``LocalDpMod`` among them is set to.
        """
        return [
            *([self._of_metrics()] if self._reported else []),
            *_of_mods(mods, budgets, len(self._rounds)),
            *(_of_wrapper(wrapper, len(self._rounds)) for wrapper in self.wrappers),
        ]

    def _of_metrics(self) -> Claim:
        low, high = self._known.get(EPSILON, (None, None))
        _, delta = self._known.get(DELTA, (None, None))
        said = [] if high is None else [f"epsilon {brief(high)}"]
        if delta is not None:
            said = [" at ".join([*said, f"delta {brief(delta)}"])]
        said += [f"{name} {_span(*self._known[name])}" for name in (NOISE, NORM) if name in self._known]
        who = f"{_count(len(self._nodes), 'node')} in {_count(len(self._reported), 'round')}"
        text = [
            f"The clients' metrics claim {', '.join(said) or 'differential privacy without a usable number'} ({who})."
        ]
        if low is not None and high is not None and low < high:
            text.append(f"Epsilon is {_span(low, high)} over nodes and rounds; the largest is shown.")
        text += [
            f"{_count(count, 'value')} of {name} {'was' if count == 1 else 'were'} left out: "
            f"allowed is a finite number from 0 on{' and below 1' if name == DELTA else ''}."
            for name, count in self._faulty.items()
        ]
        text.append("The claim is about training, not about one-step probes.")
        text.append(TESTED if self.tested else "fedveil did not check this claim, nor which rounds its numbers cover.")
        unusable = high is None or EPSILON in self._faulty
        return Claim(METRICS, " ".join(text), len(self._reported), high, low, delta, TRAINING, unusable)


def _span(low: float, high: float) -> str:
    return brief(high) if low == high else f"{brief(low)} to {brief(high)}"


def wrappers_in(strategy: Any) -> list[Any]:
    """The strategies for differential privacy among a strategy and those inside it."""
    return [layer for layer in chain_of(strategy) if isinstance(layer, WRAPPERS)]


def wrappers_named(names: Iterable[str]) -> list[str]:
    """The class names of Flower's strategies for differential privacy among those of a recording."""
    known = {wrapper.__name__ for wrapper in WRAPPERS}
    return [name for name in names if name in known]


def _of_mods(mods: str, budgets: Sequence[ModBudget], rounds: int) -> Iterator[Claim]:
    names = [part.partition("(")[0].strip() for part in mods.split(" | ")]
    for budget in budgets[:MOST_MODS]:
        said = f"epsilon {brief(budget.epsilon)} at delta {brief(budget.delta)} for each message"
        kept = (
            UNCHECKED
            if budget.holds
            else (
                f"Its noise does not give that: it is for a sensitivity of {brief(budget.sensitivity)}, and two clipped updates "
                f"lie up to {brief(budget.farthest)} apart."
            )
        )
        text = f"The clients' mod {LOCAL_DP} claims {said} ({_count(rounds, 'round')}). {kept}"
        epsilon = number_of(budget.epsilon)
        delta, unusable = number_of(budget.delta, 1.0), epsilon is None or not budget.holds
        yield Claim(MOD, text, rounds, epsilon, epsilon, delta, "for each message", unusable)
    if names.count(LOCAL_DP) > len(budgets):
        text = f"The clients' mod {LOCAL_DP} claims an epsilon or delta that is no finite number from 0 on."
        yield Claim(MOD, f"{text} {UNCHECKED}", rounds, unusable=True)
    for name in dict.fromkeys(name for name in names if name in CLIPPING_MODS):
        text = f"The clients' mod {name} clips each update in {_count(rounds, 'round')}. It adds no noise and claims no epsilon."
        yield Claim(MOD, f"{text} {UNCHECKED}", rounds)


def _of_wrapper(wrapper: Any, rounds: int) -> Claim:
    """A wrapper's settings, and the epsilon of its accountant; of a recording the name alone is known."""
    over = f"in {_count(rounds, 'round')}"
    if isinstance(wrapper, str):
        known = f"The server's {wrapper} claims differential privacy {over}; the recording does not hold its settings."
        return Claim(WRAPPER, f"{known} {AFTER_ARRIVAL} {UNCHECKED}", rounds)
    noise, norm = (_setting(wrapper, name) for name in ("noise_multiplier", "clipping_norm"))
    name = one_line(type(wrapper).__name__, LONGEST)
    text = [
        f"The server's {name} claims differential privacy {over}, with noise multiplier {noise} and clipping norm {norm}."
    ]
    text.append("With this multiplier it adds no noise." if noise == "0" else AFTER_ARRIVAL)
    accountant = getattr(wrapper, "accountant", None)
    if accountant is None:
        return Claim(WRAPPER, " ".join([*text, UNCHECKED]), rounds)
    return _accounted(accountant, text, rounds)


def _accounted(accountant: Any, text: Sequence[str], rounds: int) -> Claim:
    name = one_line(type(accountant).__name__, LONGEST)
    try:
        spent = accountant.get_privacy_spent()
        epsilon, delta = number_of(spent.epsilon), number_of(spent.delta, 1.0)
    except Exception as error:  # foreign code, whose failure costs its number and no audit
        why = one_line(f"{type(error).__name__}: {error}", LONGEST)
        return Claim(
            ACCOUNTANT, " ".join([*text, f"Its {name} gave no number ({why}).", UNCHECKED]), rounds, unusable=True
        )
    if epsilon is None:
        said = f"Its {name} gives an epsilon that is no finite number from 0 on."
    else:
        limit = number_of(getattr(getattr(accountant, "config", None), "max_epsilon", None))
        at = f" at delta {brief(delta)}" if delta is not None else ""
        most = f", of at most {brief(limit)}" if limit is not None else ""
        said = f"Its {name} gives epsilon {brief(epsilon)}{at}{most}, for the models that the server publishes."
    return Claim(
        ACCOUNTANT,
        " ".join([*text, said, UNCHECKED]),
        rounds,
        epsilon,
        epsilon,
        delta,
        "not against this server",
        epsilon is None,
    )


def _setting(wrapper: Any, name: str) -> str:
    number = number_of(getattr(wrapper, name, None))
    return "unknown (no finite number from 0 on)" if number is None else brief(number)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
