"""Observations of attacks from a recording's replies or from the update in a file, with the assumptions made on the way."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from attacks import AttackError, ClientUpdate
from attacks.gradient.labels import exact_learning_rate
from clients.external_app.partial import AppModel
from simulations.external_app.recorded.attack_file import (
    attacks_of,
    build,
    check_memory,
)
from simulations.external_app.recorded.missing import replies_of
from simulations.external_app.recorded.reply_numbers import NO_RATE, OF_ROUND, OF_SETTING, OF_SETTINGS, numbers_of_reply
from simulations.external_app.recorded.settings import AttackSettings, Request
from simulations.external_app.recorded.update_files import (
    few,
    observe_file,
    observe_reply,
    resembles_weights,
    started,
    tensors_of,
)
from simulations.settings.errors import ConfigError
from strategies.external_app.claim import Claim
from strategies.external_app.claimed_privacy import PrivacyClaims, wrappers_named
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
    """A client's update that can be attacked.

    Attributes:
        round: Server round; 1 for the update in a file.
        node: Who sent it.
        client: Number of its node, in order of the node ids of the recording.
        settings: With this update's numbers.
        read: Reads the observation; ``ConfigError`` when arrays do not fit the model.
        rate_source: Where the learning rate comes from, as threat cards say.
        inferred: Sentences on numbers that were inferred, each with its assumption.
        stated_rate: Learning rate that the recording states.
    """

    round: int
    node: int
    client: int
    settings: AttackSettings
    read: Callable[[AttackSettings], ClientUpdate]
    rate_source: str
    inferred: tuple[str, ...] = ()
    stated_rate: float | None = None

    def observe(self) -> ClientUpdate:
        """The update, and the global model that it starts from."""
        return self.read(self.settings)

    def with_rate(self, seen: ClientUpdate) -> Attackable:
        """With the learning rate that the observation proves (``exact_learning_rate``), where none is known."""
        if self.settings.learning_rate:
            return self
        try:
            rate = exact_learning_rate(seen)
        except AttackError:
            return self
        return replace(self, settings=self.settings.but(learning_rate=rate), rate_source=INFERRED_RATE)


@dataclass(frozen=True)
class Replay:
    """All updates of a recording, or the one in a file.

    Attributes:
        attackable: In order of rounds.
        unusable: (round, node, why) of the others.
        nodes: Node ids; their places are the clients' numbers.
        assumed: Sentences on what is not known, and what was taken instead.
        claims: What the app says about its differential privacy, in the metrics of all replies and by its strategy.
        warnings: Sentences on values that contradict what was given.
    """

    attackable: Sequence[Attackable]
    unusable: Sequence[tuple[int, int, str]]
    nodes: Sequence[int]
    assumed: Sequence[str]
    claims: Sequence[Claim] = ()
    warnings: Sequence[str] = ()


def read_updates(request: Request) -> Replay:
    """Reads the updates and checks all that can be checked before any attack.

    Raises:
        ConfigError: Naming the setting or the file, what came and what is allowed.
    """
    attacks = attacks_of(request.settings)
    try:
        replayed = _of_recording(request) if request.update.is_dir() else _of_file(request)
    except RecordingError as error:
        raise ConfigError(str(error)) from error
    largest = max(replayed.attackable, key=lambda reply: reply.settings.num_examples)
    check_memory(build(largest.settings), largest.settings, attacks)
    return replayed


def _of_recording(request: Request) -> Replay:
    replies, usable = replies_of(request)
    nodes = sorted({reply.node for reply in replies})
    sound, faulty = _sorted_out(usable, nodes, request)
    app, arrays = AppModel.of(build(sound[0].settings)), usable[0].sent_arrays()
    named = app.named(tensors_of(arrays))
    renamed = not all(ours.endswith(theirs) for ours, theirs in zip(named, arrays, strict=True))
    assumed = [
        *assumptions(request.settings, unsent=len(app.unsent(named))),
        *_of_replies(request, usable[0], renamed=renamed),
        *_of_rates(request.settings, sound),
        *request.assumed,
    ]
    assumed += dict.fromkeys(text for kept in sound for text in kept.inferred)
    claims = PrivacyClaims(wrappers_named(strategy_of(request.update)))
    for reply in replies:
        claims.read(reply.round, reply.node, (reply.values.get("metrics") or {}).values())
    unusable = [(reply.round, reply.node, reply.unusable) for reply in replies if reply.unusable] + faulty
    return Replay(sound, unusable, nodes, assumed, claims.found(), hidden_rates(request.settings.learning_rate, sound))


def _of_file(request: Request) -> Replay:
    """The update in a file, as the only reply of a round."""
    given = request.settings
    settings = given.but(num_examples=given.num_examples or 1, local_steps=given.local_steps or 1)
    _, absent = started(settings)
    source = OF_SETTING if settings.learning_rate else NO_RATE
    reply = Attackable(1, 0, 0, settings, partial(observe_file, request.update), source)
    seen, warnings = reply.observe(), list[str]()
    reply = reply.with_rate(seen)
    assumed = assumptions(settings)
    if not given.num_examples:
        assumed.append("How many examples there were: one was assumed, for want of num-examples.")
    if not given.local_steps:
        assumed.append("How many local steps there were: one was assumed, for want of local-steps.")
    if not settings.weights:
        assumed.append(
            f"Which weights the client started from: the initial ones of seed {settings.seed} were assumed, for want of weights."
        )
    if absent:
        assumed.append(
            f"What {few(absent)} were: {settings.weights} lacks them, and the model's own initial values stand in."
        )
    if not settings.local and resembles_weights(seen.update, seen.model):
        warnings.append(f"{request.update} is close to the global weights: if it holds local weights, set local = true")
    return Replay([reply], [], [reply.node], [*assumed, *_of_rates(settings, [reply])], (), warnings)


def assumptions(settings: AttackSettings, *, unsent: int = 0) -> list[str]:
    """Facts that no update shows, each with the assumption in its place; ``unsent`` frozen tensors are in no message."""
    facts = [
        f"Whether a defence acted on the replies before they were sent: {settings.defenses or 'none'} was assumed.",
        f"Which optimizer the clients ran, and that its state starts anew each round: SGD with momentum {settings.momentum:g}"
        f"{' (Nesterov)' if settings.nesterov else ''} and weight decay {settings.weight_decay:g} was assumed.",
        "Whether images were augmented, or the last, smaller batch of an epoch left out: neither was assumed.",
        f"Whether gradients were computed in {settings.probe_mode} mode, dropout included, and all layers learn but those that the "
        "model freezes: both assumed.",
        "Which loss the clients used: cross entropy, without label smoothing or weights, was assumed.",
        f"Whether {settings.model} computes what the clients' model does: names and shapes agree, and no more was compared.",
    ]
    if unsent:
        facts.append(
            f"Whether training starts from the {unsent} frozen tensors that no message holds, as the model builds them: assumed."
        )
    if not settings.labels:
        facts.append("Which classes the examples have: attacks inferred them where they need them.")
    if not settings.normalisation:
        facts.append("How images are normalised: mean 0 and std 1 were assumed, for want of normalisation.")
    if settings.auxiliary_data and not settings.originals:
        facts.append(
            f"Whether {settings.auxiliary_data} holds the clients' own images: attacks that learn from it would know what they "
            "guess."
        )
    if not settings.originals:
        facts.append(
            "What the images were: without originals nothing is scored, and no attack is validated or refuted."
        )
    return facts


def _of_replies(request: Request, reply: RecordedReply, *, renamed: bool) -> list[str]:
    """Facts that a recording, of which the first reply is given, does not show; ``renamed``: its arrays have other names."""
    settings = request.settings
    facts = [
        "Whether replies hold weights: weights were assumed; a reply that looks like a difference of weights is not attacked.",
        *_ignored(strategy_of(request.update), reply),
    ]
    if not settings.batch_size and not reply.number(*BATCHES):
        facts.append(
            f"How many examples a step saw: all of them in each of the {settings.local_steps} local steps, for want of batch-size."
        )
    if not settings.num_examples:
        facts.append("How many examples there were: the clients' own counts were believed.")
    if renamed:
        facts.append(
            f"Which array is which: their names are not those of {settings.model}, so they were taken in order."
        )
    return facts


def _of_rates(settings: AttackSettings, replies: Sequence[Attackable]) -> list[str]:
    """Where local steps and learning rates come from, which no setting gave."""
    sentences = []
    if not settings.local_steps and not all(reply.inferred for reply in replies):
        sentences.append(
            "How many local steps there were: counted from the local epochs, the batch size and the examples."
        )
    if settings.learning_rate:
        return sentences
    for source, text in RATE_SENTENCES.items():
        of_source = [reply.settings.learning_rate for reply in replies if reply.rate_source == source]
        if of_source:
            sentences.append(text.format(", ".join(f"{rate:g}" for rate in dict.fromkeys(of_source))))
    return sentences


def hidden_rates(given: float, replies: Sequence[Attackable]) -> list[str]:
    """Warnings about rounds whose recorded learning rates learning-rate replaces by another one; none where it is not ``given``."""
    rates = defaultdict[int, dict[int, float | None]](dict)
    for reply in replies:
        rates[reply.round][reply.client] = reply.stated_rate
    warnings = []
    for server_round, stated in rates.items() if given > 0 else ():
        known = [rate for rate in stated.values() if rate is not None and 0 < rate < math.inf]
        other = [rate for rate in known if not math.isclose(rate, given, rel_tol=1e-5)]
        each = sorted(set(other))
        listed = " or ".join(f"{rate:g}" for rate in each)
        if len(each) > 4:
            listed = f"{len(each)} rates from {each[0]:g} to {each[-1]:g}"
        if other:
            warnings.append(
                f"Learning rates differ in round {server_round}: attacks use {given:g} for every client, and {len(other)} of "
                f"{len(stated)} clients were sent or reported {listed}. For these clients, attacks that use the learning rate have "
                "unreliable scores."
            )
    return warnings


def _ignored(names: Sequence[str], reply: RecordedReply) -> list[str]:
    """What the server's own strategy asks of clients, and the attacks ignore."""
    sentences = []
    if (mu := reply.number("proximal-mu")) and mu > 0:
        sentences.append(
            f"FedProx asks clients for a proximal term of weight {mu:g}: 0 in the first step, left out in later ones."
        )
    if clipped := [name for name in names if name.startswith("DifferentialPrivacyClientSide")]:
        sentences.append(
            f"{clipped[0]} asks clients to clip their updates: by how much each was scaled down is not in the recording."
        )
    return sentences


def _sorted_out(
    usable: Sequence[RecordedReply], nodes: Sequence[int], request: Request
) -> tuple[list[Attackable], list[tuple[int, int, str]]]:
    """The replies that make an observation, and (round, node, why) of those that do not, such as one with NaN.

    Raises:
        ConfigError: When none does: then it is the settings that do not fit.
    """
    sound, faulty, errors = list[Attackable](), list[tuple[int, int, str]](), list[Exception]()
    for reply in usable:
        try:
            numbers = numbers_of_reply(reply, request.settings)
            if numbers.missing:
                raise ConfigError("; ".join(numbers.missing.values()))
            own = request.settings.but(**numbers.values)
            made = Attackable(
                reply.round, reply.node, nodes.index(reply.node), own, partial(observe_reply, reply), numbers.rate_source,
                numbers.inferred, reply.number(*RATES),
            )  # fmt: skip
            sound.append(made.with_rate(made.observe()))
        except (ConfigError, RecordingError) as error:
            faulty.append((reply.round, reply.node, str(error)))
            errors.append(error)
    if not sound:
        raise errors[0]
    return sound, faulty
