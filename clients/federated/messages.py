"""The messages of federated learning; as all others they carry a ``config`` record with the task and the watchdog's ``timeout``.

=================  ==================================================  ==================================================
type               content                                             reply
=================  ==================================================  ==================================================
``train``          ``arrays``: global weights; ``ledger`` on resume    ``arrays``: update; ``metrics``; ``ledger``
``train.probe``    ``arrays``: global weights                          ``target-0``, ...: updates; ``metrics``; ``ledger``
``query.coins``    nothing                                             ``coins``: of the client's canaries
``evaluate``       ``arrays``: global weights                          ``metrics``
=================  ==================================================  ==================================================
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from torch.nn import functional as F

from attacks.exact.linear_layer import called, linear_layers
from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.federated.client import Ledger, LocalClient, LocalResult
from clients.federated.local_training import train_alone
from clients.federated.model_check import ModelCheck, Remembered, Tried, Weights
from clients.federated.plan import FederatedPlan
from clients.messages.node import Records, answers_of, book, client_as, draws_from_seed, reply_to
from clients.secrets.policy import RefusedError, refusal
from clients.task.scenarios import ClientSide
from clients.task.task import load_weights
from clients.wire.records import metrics, tensors_of, to_record, to_tensors, values_of, withheld
from clients.wire.texts import read_json
from defenses.base import NamedTensors

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


def note_update(context: Context, client: LocalClient, update: NamedTensors) -> None:
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


def train(message: Message, context: Context) -> Message:
    """One local round."""
    client = client_as(LocalClient, message, context)
    if client.canaries or client.canary:
        answers_of(context).require("canaries", "training with an auditor's canaries")
    sent = tensors_of(message, "arrays")
    require_agreed(context, client, sent)
    book(context, client, "an update")
    result = client.train(sent, _ledger(message, context, client.task.plan.pipeline))
    note_update(context, client, result.updates[0])
    return reply_to(message, {"arrays": to_record(result.updates[0]), **_account(context, client, result)})


def probe(message: Message, context: Context) -> Message:
    """One-step updates for the attacks of the papers' strongest setting."""
    answers = answers_of(context)
    answers.require("probes", "updates of single steps")
    client, left_out = client_as(LocalClient, message, context), {}
    question = int(values_of(message, "config").get("question", 0))
    ledger = _ledger(message, context, client.task.plan.pipeline)
    sent = tensors_of(message, "arrays")
    require_agreed(context, client, sent)
    result = client.probe(sent, ledger, question)
    records: Records = {f"target-{at}": to_record(update) for at, update in enumerate(result.updates)}
    if values_of(message, "config").get("publish-labels") and not answers.publish_labels:
        left_out["publish-labels"] = refusal("publish_labels", "labels of probed images")
    elif values_of(message, "config").get("publish-labels"):
        labels = {f"target-{at}": client.probed(at).original.targets.argmax(1) for at in range(len(result.updates))}
        records["labels"] = to_record(labels)
    return reply_to(message, {**records, **_account(context, client, result), **withheld(left_out)})


def coins(message: Message, context: Context) -> Message:
    """The coins of the client's canaries, for the auditor that placed them; they say nothing about the client's own examples."""
    answers_of(context).require("canaries", "coins of an auditor's canaries")
    client = client_as(LocalClient, message, context)
    canaries = client.canaries or client.canary
    if canaries is None:
        raise RuntimeError("this task has no canaries")
    found = {"coins": canaries.coins}
    found |= {} if canaries.lone is None else {"lone": torch.tensor([canaries.lone])}
    return reply_to(message, {"coins": to_record(found)})


def evaluate(message: Message, context: Context) -> Message:
    """Accuracy of the global model on this client's share of the test data."""
    client = client_as(LocalClient, message, context)
    return reply_to(message, {"metrics": metrics(client.evaluate(tensors_of(message, "arrays")))})


def _ledger(message: Message, context: Context, pipeline: str) -> Ledger:
    """The node's own ledger, else what the server kept of it; in a deployment only what was spent, as more of that does no harm."""
    own: Any = context.state.get("ledger") or {}
    text = own.get(pipeline) or values_of(message, "ledger").get(pipeline)
    ledger: Ledger = read_json(text) if text else {}
    if pipeline in own or draws_from_seed(context):
        return ledger
    spent = {stage: {k: v for k, v in state.items() if k == "accountant"} for stage, state in ledger.items()}
    return {stage: state for stage, state in spent.items() if state}


def _account(context: Context, client: LocalClient, result: LocalResult) -> Records:
    """Keeps the ledger in the node's state, and gives the records that every training reply carries."""
    numbers = {**result.metrics, "num-examples": result.num_examples, "local-steps": result.local_steps}
    records: Records = {"metrics": metrics(numbers)}
    if result.ledger:
        kept: Any = context.state.get("ledger") or {}
        text = json.dumps(result.ledger)
        context.state["ledger"] = ConfigRecord({**kept, client.task.plan.pipeline: text})
        records["ledger"] = ConfigRecord({client.task.plan.pipeline: text})
    return records


HANDLERS = {"train": train, "train.probe": probe, "query.coins": coins, "evaluate": evaluate}
SIDE = ClientSide("federated", LocalClient, FederatedPlan, HANDLERS, train_alone)
