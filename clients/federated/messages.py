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

import functools
import json
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message

from clients.federated.client import Ledger, LocalClient, LocalResult
from clients.federated.plan import FederatedPlan
from clients.messages.account import answer_once, book, require_update
from clients.messages.agreed_model import note_update, require_agreed
from clients.messages.node import Records, answers_of, client_as, draws_from_seed, reply_to
from clients.secrets.policy import refusal
from clients.task.scenarios import ClientSide
from clients.task.task import Plan
from clients.wire.records import metrics, tensors_of, to_record, values_of, withheld
from clients.wire.texts import read_json
from defenses.tensors import Shape


@functools.lru_cache(maxsize=16)
def _check_model(plan: Plan, input_shape: Shape) -> None:
    """Refuse a model on which a bound would be false; the reason follows from no example."""
    if plan.defenses.bounded:
        plan.defenses.check_model(plan.build_model(), input_shape)


def _checked(message: Message, context: Context) -> LocalClient:
    client = client_as(LocalClient, message, context)
    _check_model(client.task.plan.of_training, tuple(client.data.card.input_shape))
    return client


def train(message: Message, context: Context) -> Message:
    """One local round."""
    client = _checked(message, context)
    if client.canaries or client.canary:
        answers_of(context).require("canaries", "training with an auditor's canaries")
    sent = tensors_of(message, "arrays")
    require_agreed(context, client, sent, client.task.round)
    book(context, client, "an update")
    result = client.train(sent, _ledger(message, context, client.task.plan.pipeline))
    note_update(context, client, result.updates[0])
    return reply_to(message, {"arrays": to_record(result.updates[0]), **_account(context, client, result)})


def probe(message: Message, context: Context) -> Message:
    """Updates of one step or of few steps on few images."""
    answers = answers_of(context)
    answers.require("probes", "updates of single steps")
    client, left_out, config = _checked(message, context), {}, values_of(message, "config")
    ledger = _ledger(message, context, client.task.plan.pipeline)
    sent = tensors_of(message, "arrays")
    require_agreed(context, client, sent, client.task.round)
    result = client.probe(sent, ledger, int(config.get("question", 0)))
    records: Records = {f"target-{at}": to_record(update) for at, update in enumerate(result.updates)}
    if config.get("publish-labels") and not answers.publish_labels:
        left_out["publish-labels"] = refusal("publish_labels", "labels of probed images")
    elif config.get("publish-labels"):
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
    lone = {} if canaries.lone is None else {"lone": torch.tensor([canaries.lone])}
    return reply_to(message, {"coins": to_record({"coins": canaries.coins, **lone})})


def evaluate(message: Message, context: Context) -> Message:
    """Accuracy of the global model on this client's share of the test data."""
    client, sent = client_as(LocalClient, message, context), tensors_of(message, "arrays")

    def require() -> None:
        require_agreed(context, client, sent, client.task.round + 1)
        require_update(context, client)

    return answer_once(message, context, client, lambda: client.evaluate(sent), require)


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
    numbers = {**result.metrics, "num-examples": result.num_examples, "local-steps": result.local_steps}
    records: Records = {"metrics": metrics(numbers)}
    if result.ledger:
        kept: Any = context.state.get("ledger") or {}
        text = json.dumps(result.ledger)
        context.state["ledger"] = ConfigRecord({**kept, client.task.plan.pipeline: text})
        records["ledger"] = ConfigRecord({client.task.plan.pipeline: text})
    return records


HANDLERS = {"train": train, "train.probe": probe, "query.coins": coins, "evaluate": evaluate}
SIDE = ClientSide("federated", LocalClient, FederatedPlan, HANDLERS)
