"""A node's test whether a model that the server sends, to be trained or evaluated, can be the agreed one of its round."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from torch.nn import functional as F

from attacks.exact.linear_layer import called, linear_layers
from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.messages.account import require_same
from clients.messages.model_check import Remembered, Tried, Weights, fault
from clients.messages.node import draws_from_seed
from clients.secrets.policy import RefusedModelError, refusal
from clients.task.local_data import Client
from clients.task.task import load_weights
from clients.wire.records import digest_of, to_record, to_tensors
from defenses.tensors import NamedTensors

MOST_JUDGED = 64
"""Own examples on which a model is tried."""
KEY = "model-check"
"""Of the node's configuration, and the beginning of the names under which the node remembers."""


def checks_models(context: Context, client: Client) -> bool:
    """Whether this node refuses models that are not the agreed one.

    The node's own key (true or false) decides. Without the key a deployed node refuses them, and a simulated node follows the
    setting ``model-check``.
    """
    chosen: Any = context.node_config.get(KEY)
    if chosen is None:
        return getattr(client.task.plan, "model_check", False) if draws_from_seed(context) else True
    if not isinstance(chosen, bool):
        raise ValueError(f"{KEY} is {chosen!r} in the node's configuration; allowed: true or false")
    return chosen


def require_agreed(context: Context, client: Client, sent: Weights, at: int) -> None:
    """Remember a whole model that can be that of round ``at``, with which the round begins; the last one is behind training.

    A model is tried on own examples once per round, and under a defence with a bound never: a refusal would be a message about
    examples that the bound does not cover.

    Raises:
        RefusedModelError: When it cannot be the agreed one; the node then remembers nothing of it.
    """
    if not checks_models(context, client):
        return
    initial, rounds = shared_tensors(client.task.plan.build_model()), client.task.plan.rounds
    if at > rounds + 1:
        raise _refused(f"round {at} of a run of {rounds} rounds")
    known = _remembered(context, client, initial)
    # A pipeline that was never trained may be a name that was made up to be judged by nothing.
    last = known.measured_by(
        _read(about)
        for key, about in context.state.items()
        if key.startswith(f"{KEY} ") and not key.endswith(" weights")
    )

    def tried(weights: Weights) -> Tried:
        if weights is sent:
            require_same(context, client, "model to try on own examples", digest_of([to_record(sent)]), at)
        return tried_on_own(client, weights)

    if why := fault(sent, initial, last, at, None if client.pipeline.bounded else tried, client.data.card.num_classes):
        raise _refused(why)
    if at > known.round:
        _remember(context, client, replace(known, round=at, weights=sent))


def note_update(context: Context, client: Client, update: NamedTensors) -> None:
    """Remembers how far this node's own training moves a model."""
    if checks_models(context, client):
        _remember(context, client, _remembered(context, client, {}).after(update))


def tried_on_own(client: Client, weights: Weights) -> Tried:
    """Behaviour of a model in eval mode on up to ``MOST_JUDGED`` unprotected own examples; none of it is sent."""
    batch = client.data.plain(torch.arange(min(client.data.num_train, MOST_JUDGED)))
    model = load_weights(client.task.plan.build_model(), weights).eval()
    rectified = [
        layer.name for layer in linear_layers(model, client.data.card.input_shape, batch.images) if layer.rectified
    ]
    with torch.no_grad():
        logits, calls = called(model, normalise(batch.images, client.data.card))
        one_class = client.task.plan.objective.one_class
        loss = (F.cross_entropy if one_class else F.binary_cross_entropy_with_logits)(logits, batch.targets)
    on = [float((calls[name][0][2] > 0).double().mean()) for name in rectified]
    return Tried(float(loss), min(on, default=1.0))


def _refused(why: str) -> RefusedModelError:
    return RefusedModelError(refusal("model_check", f"anything of a model that is not the agreed one ({why})"))


def _place(client: Client) -> str:
    return f"{KEY} {hashlib.blake2b(client.task.plan.pipeline.encode(), digest_size=8).hexdigest()}"


def _remembered(context: Context, client: Client, initial: Weights) -> Remembered:
    place = _place(client)
    if f"{place} weights" not in context.state:
        return Remembered(0, initial)
    record = context.state[f"{place} weights"]
    assert isinstance(record, ArrayRecord)
    return _read(context.state[place], to_tensors(record))


def _read(about: Any, weights: Weights | None = None) -> Remembered:
    values = json.loads(str(about["about"]))
    return Remembered(int(values["round"]), weights or {}, values["moved"], values["turned"])


def _remember(context: Context, client: Client, last: Remembered) -> None:
    place = _place(client)
    context.state[f"{place} weights"] = to_record(last.weights)
    about = {"round": last.round, "moved": dict(last.moved), "turned": dict(last.turned)}
    context.state[place] = ConfigRecord({"about": json.dumps(about)})
