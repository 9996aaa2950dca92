"""The Flower ClientApp: messages that every scenario has, and those of each scenario. Nothing else.

Messages, all carrying a ``config`` record with the task as JSON and a watchdog's ``timeout`` in seconds; those of training and
evaluation are in the folders of the scenarios, as ``clients.federated.messages``:

=================  ==================================================  ==================================================
type               content                                             reply
=================  ==================================================  ==================================================
``query.setup``    ``indices``: train and test indices                 ``metrics``: partition, sizes; ``card``: of the
                                                                       data, and where random draws start
``query.audit``    ``guesses``: see ``clients.scoring.guesses``               ``metrics``: scores; ``pictures`` when shared
=================  ==================================================  ==================================================

Probes and audits are answered as the node's own configuration allows (``clients.secrets.policy``). A refused question gets an error
of the code ``REFUSED``, or ``MODEL_REFUSED``; an answer that leaves out a part carries ``withheld``: key of the configuration ->
reason.
"""

import json
from dataclasses import asdict

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from clients.data.images import fingerprint
from clients.messages.account import kept_over_restarts
from clients.messages.audit_answers import answer_audit
from clients.messages.node import (
    MODS,
    answers_of,
    check_bundle,
    client_of,
    draws_from_seed,
    keep_share,
    partition_of,
    reply_to,
)
from clients.secrets.policy import allowed_pipelines
from clients.task.local_data import Client
from clients.task.scenarios import client_side, client_sides, read_task
from clients.wire.records import metrics, values_of
from defenses.pipeline import Pipeline

app = ClientApp()

ACCOUNTED = [*MODS, kept_over_restarts]


def _of_its_scenario(message: Message, context: Context) -> Message:
    name = read_task(values_of(message, "config").get("task")).plan.scenario
    handlers, message_type = client_side(name).handlers, message.metadata.message_type
    if message_type not in handlers:
        raise RuntimeError(f"{message_type} is no message of the scenario {name}; known: {', '.join(handlers)}")
    return handlers[message_type](message, context)


for message_type in sorted({name for side in client_sides().values() for name in side.handlers}):
    category, _, action = message_type.partition(".")
    register = {"train": app.train, "evaluate": app.evaluate, "query": app.query}[category]
    (register(action, mods=ACCOUNTED) if action else register(mods=ACCOUNTED))(_of_its_scenario)


@app.query("setup", mods=ACCOUNTED)
def setup(message: Message, context: Context) -> Message:
    """Keep this node's indices for the run and check that its data can be read.

    Without indices (``partition = "node"``) everything in the node's own data directory is its own.
    """
    config = values_of(message, "config")
    partition = partition_of(context)
    check_bundle(str(config.get("app-dir", "")))
    if "indices" in message.content:
        keep_share(message, context)
    client = client_of(message, context)
    sizes = {"partition": partition, "train-examples": client.data.num_train, "test-examples": client.data.num_test}
    if empty := [name for name, size in sizes.items() if name != "partition" and not size]:
        raise RuntimeError(f"partition {partition} has no {empty[0]}; use fewer clients or another partition")
    # A wrong value ends the set-up, not the middle of the run.
    answers_of(context)
    reported = _reported(context, client)
    if "indices" not in message.content:  # else the server dealt the examples out, and counted them
        sizes["train-examples"] = reported
    randomness = "seed" if draws_from_seed(context) else "secret"
    card = ConfigRecord({"card": json.dumps(asdict(client.data.card)), "randomness": randomness})
    if "indices" in message.content:  # positions in data that the server reads, too
        card["data"] = fingerprint(client.data.dataset)
    return reply_to(message, {"metrics": metrics(sizes), "card": card})


def _reported(context: Context, client: Client) -> int:
    """The number of training examples, or the public one in its place where every pipeline that the node takes part in hides it."""
    batch_size = client.task.plan.batch_size
    public = [each.reported_examples(batch_size) for each in allowed_pipelines(context.node_config) or [Pipeline()]]
    return client.data.num_train if None in public else max(number or 0 for number in public)


@app.query("partition")
def partition(message: Message, context: Context) -> Message:
    """Report which partition this node holds: node ids are random, partitions are not."""
    return reply_to(message, {"metrics": metrics({"partition": partition_of(context)})})


@app.query("audit", mods=ACCOUNTED)
def audit(message: Message, context: Context) -> Message:
    """Scores the server's guesses against this client's images; only numbers leave, unless pictures are shared."""
    answers_of(context).require("audits", "scores of guesses")
    return answer_audit(message, context, client_of(message, context))
