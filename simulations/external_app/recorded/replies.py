"""Observations of attacks from the replies of a recording, with the assumptions made on the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from attacks import ClientUpdate
from attacks.local_model import shared_tensors
from attacks.observations import trained_parameters
from clients.external_app.partial import AppModel, ModelMismatchError
from clients.task.task import load_weights
from defenses.tensors import Tensors
from simulations.external_app.recorded.arguments.missing import replies_of
from simulations.external_app.recorded.arguments.reply_numbers import NO_RATE, numbers_of_reply
from simulations.external_app.recorded.arguments.settings import AttackSettings, Request
from simulations.external_app.recorded.known import (
    attacks_of,
    build,
    check_memory,
    observation_of,
    with_inferred_rate,
)
from simulations.external_app.recorded.update_files import model_tensors, resembles_differences
from simulations.settings.errors import ConfigError
from strategies.external_app.claim import Claim
from strategies.external_app.claimed_privacy import PrivacyClaims, wrappers_named
from strategies.external_app.orders import OF_ROUND, OF_SETTINGS, other_rates, sgd
from strategies.recording.files import BATCHES, RATES, RecordedReply, RecordingError, strategy_of

INFERRED_RATE = "inferred from the reply: one step of cross entropy on one example"
_READ = "The learning rate: {} was read from what the server sent or the app was set to."
RATE_SENTENCES = {
    OF_ROUND: _READ,
    OF_SETTINGS: _READ,
    INFERRED_RATE: "The learning rate: {} was inferred from the last layer's update, which fits one step of SGD with cross entropy "
    "on one example within 1 %. If the client clipped its update, this is the clipped rate.",
    NO_RATE: "The learning rate: it is unknown. Attacks that compare directions need none; those that simulate several steps "
    "estimate it from the last layer's bias, which is too low for a trained model.",
}
"""Source of a learning rate, as threat cards say it -> the sentence in the list of what could not be known."""


@dataclass(frozen=True)
class Attackable:
    """A reply that can be attacked.

    Attributes:
        reply: As recorded.
        client: Number of its node, in order of the node ids of the recording.
        settings: With this reply's numbers.
        rate_source: Where the learning rate comes from, as threat cards say.
        inferred: Sentences on numbers that were inferred, each with its assumption.
    """

    reply: RecordedReply
    client: int
    settings: AttackSettings
    rate_source: str
    inferred: tuple[str, ...] = ()

    def observe(self) -> ClientUpdate:
        """The update, and the global model that it starts from.

        Raises:
            ConfigError: When the arrays do not fit the model.
        """
        model = build(self.settings)
        start = fitted(self.reply.sent_arrays(), model, f"{self.reply.path}: the weights sent")
        load_weights(model, shared_tensors(model) | start)
        came = fitted(self.reply.arrays(), model, str(self.reply.path))
        before = shared_tensors(model)
        names = trained_parameters(model)
        if resembles_differences(came, {name: before[name] for name in names}):
            raise ConfigError(
                f"{self.reply.path}: the reply seems to hold differences (local - global), not weights: it is short beside the "
                "weights sent, and points elsewhere; allowed: weights. Its file of arrays can be attacked as a single update, with "
                "the file of what was sent as weights"
            )
        update = {name: value - before[name] for name, value in came.items()}
        if not any(update[name].any() for name, _ in model.named_parameters()):
            raise ConfigError(f"{self.reply.path}: the client sent back what it was sent: there is nothing to attack")
        return observation_of(self.settings, model, update)


@dataclass(frozen=True)
class Replay:
    """All replies of a recording.

    Attributes:
        attackable: In order of rounds.
        unusable: (round, node, why) of the others.
        nodes: Node ids; their places are the clients' numbers.
        assumed: Sentences on what is not known, and what was taken instead.
        claims: What the app says about its differential privacy, in the metrics of all replies and by its strategy.
        warnings: Sentences on rounds whose clients had other learning rates than the one given.
    """

    attackable: Sequence[Attackable]
    unusable: Sequence[tuple[int, int, str]]
    nodes: Sequence[int]
    assumed: Sequence[str]
    claims: Sequence[Claim] = ()
    warnings: Sequence[str] = ()


def replay(request: Request) -> Replay:
    """Reads a recording and checks all that can be checked before any attack.

    Raises:
        ConfigError: Naming the setting or the file, what came and what is allowed.
    """
    attacks = attacks_of(request.settings)
    try:
        replies, usable = replies_of(request)
        nodes = sorted({reply.node for reply in replies})
        found, faulty = _sorted_out(usable, nodes, request)
        largest = max(found, key=lambda one: one.settings.num_examples)
        model = build(largest.settings)
        check_memory(model, largest.settings, attacks)
        app, arrays = AppModel.of(model), usable[0].sent_arrays()
        named = app.named(_tensors(arrays))
        renamed = not all(ours.endswith(theirs) for ours, theirs in zip(named, arrays, strict=True))
        unsent = len(app.unsent(named))
    except RecordingError as error:
        raise ConfigError(str(error)) from error
    unusable = [(reply.round, reply.node, reply.unusable) for reply in replies if reply.unusable] + faulty
    assumed = [
        *assumptions(request, usable[0], renamed=renamed, unsent=unsent),
        *_of_rates(request, found),
        *request.assumed,
    ]
    assumed += dict.fromkeys(text for one in found for text in one.inferred)
    claims = PrivacyClaims(wrappers_named(strategy_of(request.update)))
    for reply in replies:
        claims.read(reply.round, reply.node, (reply.values.get("metrics") or {}).values())
    return Replay(found, unusable, nodes, assumed, claims.found(), hidden_rates(request.settings.learning_rate, found))


def fitted(arrays: dict[str, np.ndarray], model: nn.Module, where: str) -> Tensors:
    """Arrays as tensors by the model's names (``AppModel.named``), with the model's own frozen parameters where none came.

    Raises:
        ConfigError: When a parameter that is not frozen is missing, or names, shapes or values do not fit.
    """
    app = AppModel.of(model)
    try:
        named = app.named(_tensors(arrays))
    except ModelMismatchError as error:
        raise ConfigError(f"{where}: {error}") from error
    return model_tensors(where, app.whole(named), model)


def _tensors(arrays: dict[str, np.ndarray]) -> Tensors:
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def assumptions(request: Request, reply: RecordedReply, *, renamed: bool, unsent: int = 0) -> list[str]:
    """Facts that the wire does not show, each with the assumption in its place.

    ``reply`` is the first one; ``renamed``: names of arrays are not those of the model; ``unsent`` frozen tensors are in no
    message.
    """
    settings = request.settings
    found = [
        f"Whether a defence acted on the replies before they were sent: {settings.defenses or 'none'} was assumed.",
        "Which classes the examples have: attacks inferred them where they need them.",
        f"Which optimizer the clients ran, and that its state starts anew each round: {sgd(settings)} was assumed.",
        "Whether images were augmented, or the last, smaller batch of an epoch left out: neither was assumed.",
        f"Whether gradients were computed in train mode: {settings.probe_mode} mode was assumed; nor whether "
        "dropout acted, or layers were frozen that the model does not freeze: neither was assumed.",
        "Which loss the clients used: cross entropy, without label smoothing or weights, was assumed.",
        f"Whether {settings.model} computes what the clients' model does: names and shapes agree, and no more was compared.",
        "Whether replies hold weights: weights were assumed; a reply that looks like a difference of weights is not attacked.",
    ]
    found += _ignored(strategy_of(request.update), reply)
    if not settings.batch_size and not reply.number(*BATCHES):
        found.append(
            f"How many examples a step saw: all of them in each of the {settings.local_steps} local steps, for want of batch-size."
        )
    if not settings.num_examples:
        found.append("How many examples there were: the clients' own counts were believed.")
    if not settings.normalisation:
        found.append("How images are normalised: mean 0 and std 1 were assumed, for want of normalisation.")
    if renamed:
        found.append(
            f"Which array is which: their names are not those of {settings.model}, so they were taken in order."
        )
    if unsent:
        found.append(
            f"Whether training started from the {unsent} frozen tensors that no message holds, as {settings.model} builds them: "
            "assumed."
        )
    if settings.auxiliary_data and not settings.originals:
        found.append(
            f"Whether {settings.auxiliary_data} holds the clients' own images: attacks that learn from it would know what they "
            "guess."
        )
    if not settings.originals:
        found.append(
            "What the images were: without originals nothing is scored, and no attack is validated or refuted."
        )
    return found


def _of_rates(request: Request, found: Sequence[Attackable]) -> list[str]:
    """Where local steps and learning rates come from, which no setting gave."""
    sentences = []
    if not request.settings.local_steps and not all(one.inferred for one in found):
        sentences.append(
            "How many local steps there were: counted from the local epochs, the batch size and the examples."
        )
    if request.settings.learning_rate:
        return sentences
    for source, text in RATE_SENTENCES.items():
        of_source = [one.settings.learning_rate for one in found if one.rate_source == source]
        if of_source:
            sentences.append(text.format(", ".join(f"{rate:g}" for rate in dict.fromkeys(of_source))))
    return sentences


def hidden_rates(given: float, found: Sequence[Attackable]) -> list[str]:
    """Warnings about rounds whose recorded learning rates learning-rate replaces by another one; none where it is not ``given``."""
    rates = defaultdict[int, dict[int, float | None]](dict)
    for one in found:
        rates[one.reply.round][one.client] = one.reply.number(*RATES)
    return list(filter(None, (other_rates(at, "were sent or reported", known, given) for at, known in rates.items())))


def _ignored(names: Sequence[str], reply: RecordedReply) -> list[str]:
    """What the server's own strategy asks of clients, and the attacks ignore."""
    found = []
    if (mu := reply.number("proximal-mu")) and mu > 0:
        found.append(
            f"FedProx asks clients for a proximal term of weight {mu:g}: 0 in the first step, left out in later ones."
        )
    if clipped := [name for name in names if name.startswith("DifferentialPrivacyClientSide")]:
        found.append(
            f"{clipped[0]} asks clients to clip their updates: by how much each was scaled down is not in the recording."
        )
    return found


def _sorted_out(
    usable: Sequence[RecordedReply], nodes: Sequence[int], request: Request
) -> tuple[list[Attackable], list[tuple[int, int, str]]]:
    """The replies that make an observation, and (round, node, why) of those that do not, such as one with NaN.

    Raises:
        ConfigError: When none does: then it is the settings that do not fit.
    """
    found, faulty, errors = list[Attackable](), list[tuple[int, int, str]](), list[Exception]()
    for reply in usable:
        try:
            numbers = numbers_of_reply(reply, request.settings)
            if numbers.missing:
                raise ConfigError("; ".join(numbers.missing.values()))
            own = request.settings.but(**numbers.values)
            client = nodes.index(reply.node)
            one = Attackable(reply, client, own, numbers.rate_source, numbers.inferred)
            rate = with_inferred_rate(one.observe()).learning_rate
            if rate and not one.settings.learning_rate:
                one = replace(one, settings=one.settings.but(learning_rate=rate), rate_source=INFERRED_RATE)
            found.append(one)
        except (ConfigError, RecordingError) as error:
            faulty.append((reply.round, reply.node, str(error)))
            errors.append(error)
    if not found:
        raise errors[0]
    return found, faulty
