"""The Flower ClientApp: reads messages, calls ``clients.training`` and ``clients.audit``, writes replies. Nothing else.

The messages of split learning are in ``clients.split.messages``.

Messages, all carrying a ``config`` record with the task as JSON and a watchdog's ``timeout`` in seconds:

=================  ==================================================  ==================================================
type               content                                             reply
=================  ==================================================  ==================================================
``query.setup``    ``indices``: train and test indices                 ``metrics``: partition, sizes; ``card``: of the
                                                                       data, and where random draws start
``train``          ``arrays``: global weights; ``ledger`` on resume    ``arrays``: update; ``metrics``; ``ledger``
``train.probe``    ``arrays``: global weights                          ``target-0``, ...: updates; ``metrics``; ``ledger``
``evaluate``       ``arrays``: global weights                          ``metrics``
``query.audit``    ``guesses``: see ``clients.guesses``               ``metrics``: scores; ``pictures`` when shared
=================  ==================================================  ==================================================

Probes and audits are answered as the node's own configuration allows (``clients.questions``). A refused question gets an error of
the code ``REFUSED``; an answer that leaves out a part carries ``withheld``: key of the configuration -> reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from attacks.scoring.oracle import Oracle
from clients.audit import Audited, audit_baselines, audit_guesses
from clients.guesses import read_guesses
from clients.node import (
    MODS,
    answers_of,
    book,
    check_bundle,
    client_as,
    client_of,
    draws_from_seed,
    partition_of,
    reply_to,
)
from clients.questions import allowed_pipelines, refusal
from clients.records import metrics, tensors_of, to_record, values_of, withheld
from clients.split.messages import EVALUATE, TRAIN, judge
from clients.split.training import SplitClient
from clients.training import Ledger, LocalClient, LocalResult

app = ClientApp()
for name, handler in TRAIN.items():
    app.train(name, mods=MODS)(handler)
for name, handler in EVALUATE.items():
    app.evaluate(name, mods=MODS)(handler)


@app.query("setup", mods=MODS)
def setup(message: Message, context: Context) -> Message:
    """Keeps this node's indices for the run and checks that its data can be read.

    Without indices (``partition = "node"``) everything in the node's own data directory is its own.
    """
    config = values_of(message, "config")
    partition = partition_of(context)
    check_bundle(str(config.get("app-dir", "")))
    if "indices" in message.content:
        context.state["indices"] = message.content["indices"]
    client = client_of(message, context)
    sizes = {"partition": partition, "train-examples": client.data.num_train, "test-examples": client.data.num_test}
    if empty := [name for name, size in sizes.items() if name != "partition" and not size]:
        raise RuntimeError(f"partition {partition} has no {empty[0]}; use fewer clients or another partition")
    (
        answers_of(context),
        allowed_pipelines(context.node_config),
    )  # a wrong value is told before the run, not in its middle
    randomness = "seed" if draws_from_seed(context) else "secret"
    card = ConfigRecord({"card": json.dumps(asdict(client.data.card)), "randomness": randomness})
    return reply_to(message, {"metrics": metrics(sizes), "card": card})


@app.query("partition")
def partition(message: Message, context: Context) -> Message:
    """Says which partition this node holds: node ids are random, partitions are not."""
    return reply_to(message, {"metrics": metrics({"partition": partition_of(context)})})


@app.train(mods=MODS)
def train(message: Message, context: Context) -> Message:
    """One local round."""
    client = client_as(LocalClient, message, context)
    book(context, client, "an update")
    result = client.train(tensors_of(message, "arrays"), _ledger(message, context, client.task.pipeline))
    return reply_to(message, {"arrays": to_record(result.updates[0]), **_account(context, client, result)})


@app.train("probe", mods=MODS)
def probe(message: Message, context: Context) -> Message:
    """One-step updates for the attacks of the papers' strongest setting."""
    answers = answers_of(context)
    answers.require("probes", "updates of single steps")
    client, left_out = client_as(LocalClient, message, context), {}
    result = client.probe(tensors_of(message, "arrays"), _ledger(message, context, client.task.pipeline))
    records: dict[str, Any] = {f"target-{at}": to_record(update) for at, update in enumerate(result.updates)}
    if values_of(message, "config").get("publish-labels") and not answers.publish_labels:
        left_out["publish-labels"] = refusal("publish_labels", "labels of probed images")
    elif values_of(message, "config").get("publish-labels"):
        labels = {f"target-{at}": client.probed(at).original.targets.argmax(1) for at in range(len(result.updates))}
        records["labels"] = to_record(labels)
    if values_of(message, "config").get("reveal-windows") and not answers.reveal_windows:
        left_out["reveal-windows"] = refusal("reveal_windows", "the true windows of probed images")
    elif values_of(message, "config").get("reveal-windows"):
        sides = {f"target-{at}": client.probed_windows(at) for at in range(len(result.updates))}
        records["windows"] = to_record({name: found for name, found in sides.items() if found is not None})
    return reply_to(message, {**records, **_account(context, client, result), **withheld(left_out)})


@app.evaluate(mods=MODS)
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy of the global model on this client's share of the test data; of a split model, of the server's logits."""
    client = client_of(message, context)
    if isinstance(client, SplitClient):
        return judge(client, message)
    assert isinstance(client, LocalClient)
    numbers = client.evaluate(tensors_of(message, "arrays"))
    return reply_to(message, {"metrics": metrics({**numbers, "num-examples": int(numbers["num-examples"])})})


@app.query("audit", mods=MODS)
def audit(message: Message, context: Context) -> Message:
    """Scores the server's guesses against this client's images; only numbers leave, unless pictures are shared."""
    config, answers = values_of(message, "config"), answers_of(context)
    answers.require("audits", "scores of guesses")
    client, observation = client_of(message, context), str(config["observation"])
    kind = str(config["kind"])
    if kind == "baselines":
        wanted, left_out = bool(config["share-images"]), {}
        if wanted and not answers.share_images:
            left_out["share-images"] = refusal("share_images", "pictures")
        found = audit_baselines(client, observation, pictures=wanted and answers.share_images)
        return _audit_reply(message, found, left_out)
    arrays = tensors_of(message, "guesses")
    model = client.task.build_model() if kind == "membership" else None
    guesses = read_guesses(kind, arrays, int(config["guesses"]), model)
    sent = tensors_of(message, "oracle")
    oracle = Oracle.from_tensors(sent, client.data.card.input_shape) if sent else None
    return _audit_reply(message, audit_guesses(client, observation, guesses, oracle))


def _ledger(message: Message, context: Context, pipeline: str) -> Ledger:
    """The node's own ledger, else what the server kept of it when it resumes a run.

    In a deployment only what was spent is taken from the server: more of it can do no harm, while a noise multiplier could.
    """
    own: Any = context.state.get("ledger") or {}
    text = own.get(pipeline) or values_of(message, "ledger").get(pipeline)
    ledger: Ledger = json.loads(text) if text else {}
    if pipeline in own or draws_from_seed(context):
        return ledger
    spent = {stage: {k: v for k, v in state.items() if k == "accountant"} for stage, state in ledger.items()}
    return {stage: state for stage, state in spent.items() if state}


def _account(context: Context, client: LocalClient, result: LocalResult) -> dict[str, Any]:
    """Keeps the ledger in the node's state, and gives the records that every training reply carries."""
    numbers = {**result.metrics, "num-examples": result.num_examples, "local-steps": result.local_steps}
    records: dict[str, Any] = {"metrics": metrics(numbers)}
    if result.ledger:
        kept: Any = context.state.get("ledger") or {}
        text = json.dumps(result.ledger)
        context.state["ledger"] = ConfigRecord({**kept, client.task.pipeline: text})
        records["ledger"] = ConfigRecord({client.task.pipeline: text})
    return records


def _audit_reply(message: Message, audited: Audited, left_out: Mapping[str, str] = MappingProxyType({})) -> Message:
    records: dict[str, Any] = {"metrics": metrics(audited.scores), **withheld(left_out)}
    if audited.pictures:
        records["pictures"] = to_record(audited.pictures)
    return reply_to(message, records)
