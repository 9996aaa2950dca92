"""From the replies of a recording to observations of attacks, and the assumptions on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attacks import ClientUpdate
from attacks.local_model import shared_tensors
from clients.task.task import load_weights
from simulations.external_app.recorded.known import build, check_memory, observation_of
from simulations.external_app.recorded.request import Parsed, Request, parse_request
from simulations.external_app.recorded.update_files import model_tensors, resembles_differences
from simulations.settings.errors import ConfigError
from strategies.external_app.claim import Claim
from strategies.external_app.claimed_privacy import PrivacyClaims, wrappers_named
from strategies.external_app.orders import Orders, orders_in
from strategies.recording.files import RecordedReply, RecordingError, read_recording, strategy_of
from strategies.recording.usual_names import BATCHES, EXAMPLES, RATES


@dataclass(frozen=True)
class RecordingRequest:
    """A request of ``fedveil attack FOLDER``.

    Attributes:
        options: Those that it shares with the attack on a single update; ``update`` is the recording's folder, and 0 as
            ``num_examples``, ``batch_size``, ``local_steps`` or ``learning_rate`` stands for what the recording says.
        local_epochs: Of the clients; 0 for what the recording says.
        rounds: Rounds to attack, comma-separated; "" for all.
        originals: Folder of the true images: ``round-0001-node-ID.safetensors``, or ``node-ID.safetensors`` for all rounds.
    """

    options: Request
    local_epochs: int = 0
    rounds: str = ""
    originals: Path | None = None


@dataclass(frozen=True)
class Attackable:
    """A reply that can be attacked.

    Attributes:
        reply: As recorded.
        client: Number of its node, in order of the node ids of the recording.
        request: The request with this reply's numbers.
        parsed: The same, read.
        rate_source: Where the learning rate comes from, as threat cards say.
    """

    reply: RecordedReply
    client: int
    request: Request
    parsed: Parsed
    rate_source: str

    def observe(self) -> ClientUpdate:
        """The update, and the global model that it starts from.

        Raises:
            ConfigError: When the arrays do not fit the model.
        """
        model = build(self.request, self.parsed)
        start = fitted(self.reply.sent_arrays(), model, f"{self.reply.path}: the weights sent")
        load_weights(model, shared_tensors(model) | start)
        came = fitted(self.reply.arrays(), model, str(self.reply.path))
        before = shared_tensors(model)
        names = [name for name, _ in model.named_parameters()]
        if resembles_differences(came, {name: before[name] for name in names}):
            raise ConfigError(
                f"{self.reply.path}: the reply seems to hold differences (local - global), not weights: it is short beside the "
                "weights sent, and points elsewhere; allowed: weights. Its file of arrays can be attacked as a single update, with "
                "the file of what was sent as --weights"
            )
        update = {name: value - before[name] for name, value in came.items()}
        if not any(update[name].any() for name, _ in model.named_parameters()):
            raise ConfigError(f"{self.reply.path}: the client sent back what it was sent: there is nothing to attack")
        return observation_of(self.request, self.parsed, model, update)


@dataclass(frozen=True)
class Replay:
    """All replies of a recording.

    Attributes:
        attackable: In order of rounds.
        unusable: (round, node, why) of the others.
        nodes: Node ids; their places are the clients' numbers.
        assumed: Sentences on what is not known, and what was taken instead.
        claims: What the app says about its differential privacy, in the metrics of all replies and by its strategy.
    """

    attackable: Sequence[Attackable]
    unusable: Sequence[tuple[int, int, str]]
    nodes: Sequence[int]
    assumed: Sequence[str]
    claims: Sequence[Claim] = ()


def replay(request: RecordingRequest) -> Replay:
    """Reads a recording and checks all that can be checked before any attack.

    Raises:
        ConfigError: Naming the option or the file, what came and what is allowed.
    """
    _refuse_options_of_files(request.options)
    if request.local_epochs < 0:
        raise ConfigError(f"--local-epochs is {request.local_epochs}; allowed: a whole number of at least 0")
    try:
        replies = _chosen(read_recording(request.options.update), request.rounds)
        nodes = sorted({reply.node for reply in replies})
        usable = [reply for reply in replies if not reply.unusable]
        if not usable:
            why = "; ".join(sorted({reply.unusable for reply in replies})[:3]) or "no client replied"
            raise ConfigError(f"{request.options.update} holds no reply that can be attacked: {why}")
        found, faulty = _sorted_out(usable, nodes, request)
        largest = max(found, key=lambda one: one.request.num_examples)
        model = build(largest.request, largest.parsed)
        check_memory(model, largest.request, largest.parsed)
        renamed = not _names_fit(usable[0].sent_arrays(), model)
    except RecordingError as error:
        raise ConfigError(str(error)) from error
    unusable = [(reply.round, reply.node, reply.unusable) for reply in replies if reply.unusable] + faulty
    rates = tuple(dict.fromkeys(one.request.learning_rate for one in found))
    assumed = assumptions(request, usable[0], renamed=renamed, rates=rates)
    return Replay(found, unusable, nodes, assumed, _claims(request.options.update, replies))


def fitted(arrays: dict[str, np.ndarray], model: nn.Module, where: str) -> dict[str, Tensor]:
    """Arrays as tensors by the model's names: theirs or, where they are others and every shape agrees, in the model's order.

    Raises:
        ConfigError: When neither names nor order fit.
    """
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    if not _names_fit(arrays, model):
        own = model.state_dict()
        if [tuple(t.shape) for t in tensors.values()] == [tuple(t.shape) for t in own.values()]:
            tensors = dict(zip(own, tensors.values(), strict=True))
    return model_tensors(where, tensors, model)


def assumptions(
    request: RecordingRequest, reply: RecordedReply, *, renamed: bool, rates: Sequence[float] = ()
) -> list[str]:
    """What an observer of the wire cannot know, each with what was taken instead.

    ``reply`` is the first one, ``rates`` are the learning rates of all; ``renamed``: names of arrays are not those of the model.
    """
    options = request.options
    found = [
        f"Whether a defence acted on the replies before they were sent: {options.defense or 'none'} was assumed.",
        "Which classes the examples have: attacks inferred them where they need them.",
        "Which optimizer the clients ran, and that its state starts anew each round: SGD with momentum "
        f"{options.momentum:g}{' (Nesterov)' if options.nesterov else ''} and weight decay {options.weight_decay:g} was assumed.",
        "Whether images were augmented, or the last, smaller batch of an epoch left out: neither was assumed.",
        f"Whether gradients were computed in train mode: {'eval' if options.eval_mode else 'train'} mode was assumed; nor whether "
        "dropout acted, or some layers were frozen: neither was assumed.",
        "Which loss the clients used: cross entropy, without label smoothing or weights, was assumed.",
        f"Whether {options.model} computes what the clients' model does: names and shapes agree, and no more was compared.",
        "Whether replies hold weights: weights were assumed; a reply that looks like a difference of weights is not attacked.",
    ]
    found += _ignored(strategy_of(options.update), reply)
    if not options.local_steps:
        found.append("How many local steps there were: counted from the local epochs, the batch size and the examples.")
    if not options.batch_size and not reply.number(*BATCHES):
        found.append(
            f"How many examples a step saw: all of them in each of the {options.local_steps} local steps, for want of --batch-size."
        )
    if not options.learning_rate:
        read = ", ".join(f"{rate:g}" for rate in rates) or reply.number(*RATES)
        found.append(f"The learning rate: {read} was read from what the server sent or the app was set to.")
    if not options.num_examples:
        found.append("How many examples there were: the clients' own counts were believed.")
    if not options.mean or not options.std:
        found.append("How images are normalised: mean 0 and std 1 were assumed, for want of --mean and --std.")
    if renamed:
        found.append(
            f"Which array is which: their names are not those of {options.model}, so they were taken in order."
        )
    if request.originals is None and options.auxiliary:
        found.append(
            f"Whether {options.auxiliary} holds the clients' own images: attacks that learn from it would know what they guess."
        )
    if request.originals is None:
        found.append(
            "What the images were: without --originals nothing is scored, and no attack is validated or refuted."
        )
    return found


def _claims(folder: Path, replies: Sequence[RecordedReply]) -> list[Claim]:
    """Of a recording: metrics of replies and names of strategies; which mods the clients have is not in it."""
    claims = PrivacyClaims(wrappers_named(strategy_of(folder)))
    for reply in replies:
        claims.read(reply.round, reply.node, (reply.values.get("metrics") or {}).values())
    return claims.found()


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
    usable: Sequence[RecordedReply], nodes: Sequence[int], request: RecordingRequest
) -> tuple[list[Attackable], list[tuple[int, int, str]]]:
    """The replies that make an observation, and (round, node, why) of those that do not, such as one with NaN.

    Raises:
        ConfigError: When none does: then it is the options that do not fit.
    """
    found, faulty, errors = list[Attackable](), list[tuple[int, int, str]](), list[Exception]()
    for reply in usable:
        try:
            one = _attackable(reply, nodes.index(reply.node), request)
            one.observe()
            found.append(one)
        except (ConfigError, RecordingError) as error:
            faulty.append((reply.round, reply.node, str(error)))
            errors.append(error)
    if not found:
        raise errors[0]
    return found, faulty


def _attackable(reply: RecordedReply, client: int, request: RecordingRequest) -> Attackable:
    """The reply with its numbers; an error where neither the command line nor the recording has one of them."""
    options, read = request.options, orders_in(reply.reported, reply.settings)
    examples = int(_known("--num-examples", options.num_examples, reply, EXAMPLES))
    rate = float(_known("--learning-rate", options.learning_rate, reply, RATES))
    orders = Orders(
        rate,
        "as --learning-rate says, the same in every round" if options.learning_rate else read.rate_source,
        request.local_epochs or read.local_epochs,
        options.batch_size or read.batch_size,
    )
    if not (steps := options.local_steps or orders.steps(examples)):
        raise ConfigError(
            f"{reply.path} does not tell how often a client stepped; name --local-steps, or --local-epochs and --batch-size"
        )
    batch = min(orders.batch_size or examples, examples)
    own = replace(options, num_examples=examples, learning_rate=rate, local_steps=steps, batch_size=batch)
    return Attackable(reply, client, own, parse_request(own), orders.rate_source)


def _known(option: str, value: float, reply: RecordedReply, names: Sequence[str]) -> float:
    found = value or reply.number(*names)
    if found is None or not 0 < found < math.inf:
        shown, what = "" if found is None else f" ({found:g})", " or ".join(map(repr, names))
        raise ConfigError(f"{reply.path} tells no {what} above 0{shown}; name {option}")
    return found


def _chosen(replies: list[RecordedReply], rounds: str) -> list[RecordedReply]:
    if not rounds:
        return replies
    there = {reply.round for reply in replies}
    wanted = {int(part) if part.strip().isdecimal() else 0 for part in rounds.split(",")}
    if not wanted <= there:
        raise ConfigError(
            f"--rounds is {rounds!r}; allowed: of {', '.join(map(str, sorted(there))) or 'none'}, such as 1,3"
        )
    return [reply for reply in replies if reply.round in wanted]


def _names_fit(arrays: dict[str, Any], model: nn.Module) -> bool:
    return all(name in arrays for name, _ in model.named_parameters())


def _refuse_options_of_files(request: Request) -> None:
    for option, value in (
        ("--weights", request.weights), ("--local", request.local), ("--labels", request.labels), ("--truth", request.truth)
    ):  # fmt: skip
        if value:
            raise ConfigError(
                f"{option} is for a single update, and {request.update} is a recording, which holds its weights; "
                "true images go by --originals"
            )
