"""Flower's own client mod for local differential privacy as a defence: the installed Flower's code clips and adds the noise.

Flower is imported when an update is protected, and not before.
"""

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from defenses.base import DefenseError, UpdateDefense
from defenses.checks import LARGEST_NOISE, Limit, algorithm
from defenses.neighbours import REPLACE_CLIENT, SENSITIVITY
from defenses.tensors import Numbers, Update
from defenses.training.accounting import budget_terms
from defenses.updates.client_dp import epsilon_of_releases, finite, length, with_release

Norm = Annotated[float, Limit(1e-6, LARGEST_NOISE)]
SEED_WORDS = 8
"""Of 32 bits each, in a seed of NumPy's generator."""
STARTING = 1e-6
"""Share of the clipping norm at which an update of length 0 is handed to the mod, which divides by the length."""
SHORTEST = 1e-12
"""Share of the clipping norm below which an update counts as one of length 0."""
_DRAWING = threading.Lock()

Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
"""A client mod of Flower: (message, context, the app behind it) -> reply."""


class _WithoutMods(logging.Filter):
    """Leaves out what mods log of every message: two lines for each client and round."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is logged."""
        return record.levelno > logging.INFO or "mod: " not in str(record.msg).lower()


@dataclass
class _Sent:
    """What a mod reads of a message."""

    content: Any

    def has_error(self) -> bool:
        """A reply of training that ended."""
        return False


@algorithm
class FlowerLocalDP(UpdateDefense):
    """Flower's ``LocalDpMod``: clip the client's whole update and add Gaussian noise of the textbook size to every entry.

        u~ = u min(1, C / ||u||_2) + N(0, s^2 I),    s = sensitivity sqrt(2 ln(1.25 / delta)) / epsilon

    C is ``clipping_norm``. The installed Flower's mod does both, with noise from NumPy's generator, which is seeded from the
    client's own draws. The formula for s is proved for an epsilon below 1; the mod accepts larger ones. Flower's epsilon is for one
    message and names no neighbours. The epsilon that is claimed here is exact, and of all messages together: T of them are mu-GDP
    with mu = 2 C sqrt(T) / s. Neighbours ("replace-client"): the client's whole training set, replaced by any other of as many
    examples. What is public, and what the bound leaves out: as for ``ClientDP``. Frozen parameters are left out of u, and the
    client sends 0 for them, where the mod itself would clip and noise them.

    The mod does not protect three kinds of updates. They are changed before it receives them, so that the claim holds for them:

    - An array without dimensions gets neither clipping nor noise from it. It is handed over as an array of one entry.
    - At an update of length 0, or so short that its square is 0 in float32, it raises ``ZeroDivisionError``. An update shorter than
      1e-12 C is handed over with one entry of 1e-6 C.
    - An entry that is not finite counts as 0.

    Args:
        clipping_norm: C, in the unit of the update.
        sensitivity: In the unit of the update. Two clipped updates lie up to 2 C apart; the mod accepts any number.
        epsilon: Flower's, of one message.
        delta: Flower's, in (0, 1); also that of the claimed epsilon.

    Raises:
        DefenseError: When an update is protected and Flower is not installed.
    """

    clipping_norm: Norm = 1.0
    sensitivity: Norm = 2.0
    # The mod divides by both.
    epsilon: Annotated[float, Limit(1e-3, 1e6)] = 1.0
    delta: Annotated[float, Limit(1e-300, 1, below=True)] = 1e-5

    neighbours = REPLACE_CLIENT
    bounds_client = True
    always_shown = ("clipping_norm", "sensitivity", "epsilon", "delta")
    adaptive_attacks = ("NoiseModelInversion",)
    caveat = (
        "Flower's epsilon in the defence's text is for one message and names no neighbours; the budget beside it is of all "
        "messages, for a client's data replaced by any other"
    )
    source = (
        "Flower 1.41, flwr.clientapp.mod.LocalDpMod; noise: Dwork, Roth, The Algorithmic Foundations of Differential Privacy, "
        "2014, Theorem A.1; composition: Dong, Roth, Su, Gaussian Differential Privacy, 2019, Cor. 3.3"
    )

    @property
    def max_norm(self) -> float:
        """The clipping norm, under the name that canary clients use."""
        return self.clipping_norm

    @property
    def std(self) -> float:
        """Standard deviation of the mod's noise, in the unit of the update."""
        return self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    @property
    def ratio(self) -> float:
        """The noise over the largest distance of two clipped updates."""
        return self.std / (SENSITIVITY[self.neighbours] * self.clipping_norm)

    def protect_update(self, update: Update, generator: torch.Generator) -> Update:
        """Hand the update to the mod, its tensors in the order of their names."""
        try:
            from flwr.clientapp.mod import LocalDpMod
        except ImportError as error:
            raise DefenseError(f"Flower's mods need the package flwr, which cannot be imported: {error}") from error
        mod = LocalDpMod(self.clipping_norm, self.sensitivity, self.epsilon, self.delta)
        given = finite(update)
        # The mod divides by the length in float32, which may be 0.
        if length(given) < SHORTEST * self.clipping_norm:
            given = _started(given, STARTING * self.clipping_norm)
        return _through(mod, given, update, generator)

    def recorded(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state with one more release; see ``with_release``."""
        return with_release(state, self.ratio)

    def privacy(self, *states: Mapping[str, Any]) -> Numbers:
        """The exact epsilon at ``delta`` of all releases recorded in the states together, with its terms."""
        terms = budget_terms(states, self.neighbours, self.clipping_norm)
        return {"epsilon": epsilon_of_releases(states, self.delta), "delta": self.delta} | terms


def _started(update: Update, value: float) -> Update:
    """The update with this value at the first entry of the first tensor that has one."""
    first = next((name for name in sorted(update) if update[name].numel()), None)
    if first is None:
        return update
    changed = update[first].clone()
    changed.view(-1)[0] = value
    return update | {first: changed}


def _through(mod: Mod, given: Update, like: Update, generator: torch.Generator) -> Update:
    """What a mod makes of an update, with the types, shapes and places of ``like``.

    The mod receives weights of zero from the server and the update as the weights after training. What it subtracts and adds then
    rounds nothing. ``like`` is the update before it was made ready, and ``generator`` seeds what the mod draws.
    """
    if not any(tensor.numel() for tensor in given.values()):
        return {name: tensor.clone() for name, tensor in like.items()}
    import numpy as np
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

    names = sorted(given)
    arrays = {name: np.atleast_1d(given[name].cpu().numpy()) for name in names}
    server = RecordDict({"arrays": ArrayRecord({name: Array(np.zeros_like(arrays[name])) for name in names})})
    trained = ArrayRecord({name: Array(arrays[name]) for name in names})
    reply = _Sent(RecordDict({"arrays": trained, "metrics": MetricRecord({"num-examples": 1})}))
    log, quiet = logging.getLogger("flwr"), _WithoutMods()
    with _DRAWING:  # one generator of the whole process
        before = np.random.get_state()
        log.addFilter(quiet)
        try:
            np.random.seed(torch.randint(2**32, (SEED_WORDS,), generator=generator).numpy())
            answer = mod(_Sent(server), None, lambda *_: reply)
        finally:
            log.removeFilter(quiet)
            np.random.set_state(before)
    sent = {name: torch.from_numpy(np.array(answer.content["arrays"][name].numpy())) for name in names}
    return {name: sent[name].reshape(of.shape).to(of.device, of.dtype) for name, of in like.items()}
