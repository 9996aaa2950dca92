"""A node's memory of accepted models, and its refusal of other models, by its configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from torch import Tensor
from torch.nn import functional as F

from attacks.exact.linear_layer import called, linear_layers
from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.federated.client import LocalClient
from clients.federated.model_check import ModelCheck, Remembered, Tried, Weights
from clients.federated.plan import FederatedPlan
from clients.messages.node import draws_from_seed
from clients.secrets.policy import RefusedError, refusal
from clients.task.task import load_weights
from clients.wire.records import to_record, to_tensors

MOST_JUDGED = 64
"""Own examples on which a model is tried."""
KEY = "model-check"
"""Of the node's configuration, and the beginning of the names under which the node remembers."""
ROUNDS = f"{KEY} rounds"
"""Under which it remembers how many a run has."""


def checks_models(context: Context, client: LocalClient) -> bool:
    """Whether this node refuses models that are not the agreed one.

    The node's own key (true or false) decides. Without the key a deployed node refuses them, and a simulated node follows the
    setting ``model-check``.
    """
    chosen: Any = context.node_config.get(KEY)
    if chosen is None:
        return FederatedPlan.narrow(client.task.plan).model_check if draws_from_seed(context) else True
    if not isinstance(chosen, bool):
        raise ValueError(f"{KEY} is {chosen!r} in the node's configuration; allowed: true or false")
    return chosen


def require_agreed(context: Context, client: LocalClient, sent: Weights) -> None:
    """Remember a model that can be the agreed one; raise ``RefusedError``, and remember nothing of it, when it cannot."""
    if not checks_models(context, client):
        return
    initial = shared_tensors(client.task.plan.build_model())
    at, rounds = client.task.round, _rounds(context, client)
    if at > rounds + 1:
        raise RefusedError(_refused(f"round {at} of a run that was to have {rounds} rounds"))
    known = _remembered(context, client, initial)
    # A pipeline that was never trained may be a name that was made up to be judged by nothing.
    last = known.measured_by(_read(about) for key, about in context.state.items() if _is_memory(key))
    classes = client.data.card.num_classes
    if why := ModelCheck().fault(sent, initial, last, at, lambda weights: tried_on_own(client, weights), classes):
        raise RefusedError(_refused(why))
    _remember(context, client, replace(known, round=at, weights=sent))


def note_update(context: Context, client: LocalClient, update: Mapping[str, Tensor]) -> None:
    """Remembers how far this node's own training moves a model."""
    if checks_models(context, client):
        _remember(context, client, _remembered(context, client, {}).after(update))


def tried_on_own(client: LocalClient, weights: Weights) -> Tried:
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


def _refused(why: str) -> str:
    return refusal("model_check", f"updates of a model that is not the agreed one ({why})")


def _rounds(context: Context, client: LocalClient) -> int:
    """Of the run, as the first order said; 1 beyond them is the final model."""
    if ROUNDS not in context.state:
        context.state[ROUNDS] = ConfigRecord({"rounds": client.task.plan.rounds})
    kept: Any = context.state[ROUNDS]
    return int(kept["rounds"])


def _place(client: LocalClient) -> str:
    return f"{KEY} {hashlib.blake2b(client.task.plan.pipeline.encode(), digest_size=8).hexdigest()}"


def _remembered(context: Context, client: LocalClient, initial: Weights) -> Remembered:
    place = _place(client)
    if f"{place} weights" not in context.state:
        return Remembered(0, initial)
    record = context.state[f"{place} weights"]
    assert isinstance(record, ArrayRecord)
    return _read(context.state[place], to_tensors(record))


def _is_memory(key: str) -> bool:
    return key.startswith(f"{KEY} ") and not key.endswith(" weights") and key != ROUNDS


def _read(about: Any, weights: Weights | None = None) -> Remembered:
    values = json.loads(str(about["about"]))
    return Remembered(int(values["round"]), weights or {}, values["moved"], values["turned"])


def _remember(context: Context, client: LocalClient, last: Remembered) -> None:
    place = _place(client)
    context.state[f"{place} weights"] = to_record(last.weights)
    about = {"round": last.round, "moved": dict(last.moved), "turned": dict(last.turned)}
    context.state[place] = ConfigRecord({"about": json.dumps(about)})
