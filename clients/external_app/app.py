"""Replies of an external ClientApp to a curious server: probes, and scores of guesses. The original data stay with the client.

=================  ==================================================  ==================================================
type               content                                             reply
=================  ==================================================  ==================================================
``query.setup``    ``config``                                          ``metrics``: partition, examples; ``card``: of the
                                                                       data, randomness, and what protects the replies
``train.probe``    as the app's ``train``, with ``task`` and           as the app's ``train``: ``arrays``: weights after
                   ``target`` in ``config``                            one step; ``metrics``
``query.audit``    as of fedveil's own clients (``clients.app``)       likewise
``query.coins``    ``config``                                          ``coins``: of the canaries in the last training, where
                                                                       the app adds any; ``canaries``: their places
``query.training`` ``config``                                          ``training``: what the last training did (JSON);
                                                                       ``metrics``: how many of how many images that it saw
                                                                       are those of ``data``
=================  ==================================================  ==================================================

Flower's mods change the weights that a reply holds, so a probe is answered with weights too, one for each message.
"""

import hashlib
import json
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from torch.nn import functional as F

from attacks.normalisation import normalise
from clients.data.card import DataCard
from clients.external_app.app_checks import PerChannel, check_arguments, numbers
from clients.external_app.canaries import last_coins
from clients.external_app.client import (
    AppClient,
    DataMistake,
    Examples,
    Loss,
    OwnExamples,
    card_of,
    examples_of,
    name_of_loss,
    read_data,
)
from clients.external_app.mods import ModBudget, budgets, inner_mods, mods_of, named, training_names
from clients.external_app.own_images import recognised
from clients.external_app.partial import FROZEN_DIGEST, UNSENT, AppModel, ModelMismatchError
from clients.external_app.plan import AppPlan, ModelFactory, built
from clients.external_app.training import TrainingWatch, last_training
from clients.flower_private import functions_of, mods_around
from clients.messages.audit_answers import answer_audit
from clients.messages.node import MODS, Call, Mod, answers_of, draws_from_seed, draws_of, partition_of, reply_to
from clients.task.scenarios import read_task
from clients.wire.records import metrics, to_record, values_of
from defenses.base import Batch


def watching(answer: Call) -> Call:
    """Wrap a function of an app to keep what its training did (``clients.external_app.training``)."""

    def answered(message: Message, context: Context) -> Message:
        with TrainingWatch() as watch:
            reply = answer(message, context)
        watch.keep(context, [] if reply.has_error() else reply.content.array_records.values())
        return reply

    return answered


def in_own_streams(answer: Call) -> Call:
    """Wrap a function of an app so that it, and every mod around it, draws from streams of its own; the app's resume after it.

    These are torch's (on the processor), numpy's and Python's. Were the app's only kept, a mod would add the same noise to every
    probe and to the app's own update: the server could subtract it.
    """

    def answered(message: Message, context: Context) -> Message:
        before: Any = random.getstate(), np.random.get_state()
        seeds = np.frombuffer(hashlib.blake2b(_start(message, context), digest_size=24).digest(), np.uint64)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(int(seeds[0] >> np.uint64(1)))
                np.random.seed(seeds[1:2].view(np.uint32))
                random.seed(int(seeds[2]))
                return answer(message, context)
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])

    return answered


def _start(message: Message, context: Context) -> bytes:
    """Start of a random stream: the request's content in a simulation, so that runs repeat; otherwise a secret."""
    if not draws_from_seed(context):
        return secrets.token_bytes(32)
    content = [sorted(record.items()) for record in message.content.config_records.values()]
    return repr((message.metadata.message_type, partition_of(context), content)).encode()


DataOf = Callable[[Context], Examples | tuple[Examples, Examples]]
"""Context of a node -> its training examples; or a tuple of these and of examples of its own that it does not train on."""


@dataclass
class _Answers:
    """Handlers of audit messages, with the arguments of ``answer_audits`` and the examples of the last node served."""

    model: ModelFactory
    data: DataOf
    loss: Loss
    mean: PerChannel
    std: PerChannel
    protection: str
    loss_name: str
    budgets: list[ModBudget]
    _held: tuple[tuple[int, int], Batch, DataCard, int] | None = None

    def client(self, message: Message, context: Context) -> AppClient:
        """The client that a message addresses; the server chooses neither model, loss nor data."""
        task = read_task(str(values_of(message, "config")["task"]))
        AppPlan.narrow(task.plan)  # refuses plans of other scenarios, which the app has not agreed to
        whose = (context.run_id, context.node_id)
        if self._held is None or self._held[0] != whose:
            images, labels, held_out = read_data(self.data(context))
            card = card_of(images, built(self.model), self.mean, self.std)
            self._held = (whose, examples_of(images, labels, card), card, held_out)
        _, batch, card, held_out = self._held
        partition = partition_of(context)
        return AppClient(OwnExamples(task, partition, batch, card, draws_of(context, task.plan.seed), held_out))

    def _built(self) -> AppModel:
        return AppModel.of(built(self.model))

    def setup(self, message: Message, context: Context) -> Message:
        answers_of(context)  # refuses a wrong value before the run starts
        client, config = self.client(message, context), values_of(message, "config")
        unsent: Any = config.get(UNSENT)
        if unsent and self._built().digest(map(str, unsent)) != config[FROZEN_DIGEST]:
            raise ModelMismatchError(
                f"messages leave out {len(unsent)} frozen parameters, such as {unsent[0]!r}, and model builds others at this node "
                "than at the server; build them from the same file or the same seed"
            )
        if client.data.num_train < (wanted := client.task.plan.probe_images):
            raise DataMistake(f"probe_images is {wanted}; data gives {client.data.num_train} examples at this node")
        sizes = {"partition": client.data.partition, "train-examples": client.data.num_train}
        randomness = "seed" if draws_from_seed(context) else "secret"
        card = {
            "card": json.dumps(asdict(client.data.card)), "randomness": randomness, "protection": self.protection,
            "loss": self.loss_name, "budgets": json.dumps(self.budgets),
        }  # fmt: skip
        return reply_to(message, {"metrics": metrics(sizes), "card": ConfigRecord({**card})})

    def probe(self, message: Message, context: Context) -> Message:
        answers_of(context).require("probes", "updates of single steps")
        client, config = self.client(message, context), values_of(message, "config")
        sent: Any = message.content["arrays"]
        assert isinstance(sent, ArrayRecord)
        model, batch = self._built(), client.probed(int(config["target"])).original
        weights = model.named(sent.to_torch_state_dict())
        moved = client.one_step(self.model, model.whole(weights), batch, self.loss)
        numbers = metrics({"num-examples": len(batch), "local-steps": 1})
        answer = {theirs: moved[ours] for theirs, ours in zip(sent, weights, strict=True)}
        return reply_to(message, {"arrays": to_record(answer), "metrics": numbers})

    def audit(self, message: Message, context: Context) -> Message:
        answers_of(context).require("audits", "scores of guesses")
        return answer_audit(message, context, self.client(message, context), self.model)

    def coins(self, message: Message, context: Context) -> Message:
        answers_of(context).require("canaries", "coins of an auditor's canaries")
        canaries, coins = last_coins(context)
        about = ConfigRecord(
            {
                "seed": canaries.seed,
                "training": canaries.training,
                "met": canaries.met,
                "sizes": json.dumps(canaries.sizes),
            }
        )
        return reply_to(message, {"coins": to_record({"coins": coins}), "canaries": about})

    def training(self, message: Message, context: Context) -> Message:
        answers_of(context).require("audits", "what its training did")
        batch, card = self.client(message, context).data.originals(), self.client(message, context).data.card
        same, of = recognised(context, normalise(batch.images, card))
        return reply_to(message, {"training": last_training(context), "metrics": metrics({"own": same, "images": of})})


def answer_audits(
    app: ClientApp,
    *,
    model: ModelFactory,
    data: DataOf,
    loss: Loss = F.cross_entropy,
    mean: PerChannel = 0.0,
    std: PerChannel = 1.0,
    mods: Sequence[Mod] | None = None,
) -> None:
    """Register handlers of probes and audits with a ClientApp; the app's own functions stay the same, and are watched.

    Flower runs mods only for messages that have a function in the app, so that a mod could not answer audit messages.
    In a simulation the app answers all of them; a deployed node answers what its operator allows (``clients.secrets.policy``).

    Args:
        app: The app.
        model: Function without arguments that builds the model; received weights are loaded into this model. Messages may leave
            out its frozen parameters (``requires_grad`` is False), which it must build alike at each node and at the server.
        data: Function from a node's context to its training examples, without the app's random transforms. A tuple of two data sets
            is better: the training examples, and 100 or more images of the same kind that are not trained on. Comparison with
            these shows whether a guess from an update of all trained images is better than chance.
        loss: The app's training loss, of logits and classes.
        mean: Mean in the app's normalisation (x - mean) / std, for all channels or for each.
        std: Standard deviation in the app's normalisation, for all channels or for each.
        mods: Mods that act on probes, named in the report with their settings (``described`` in mods.py). Default: the mods of the
            app and of its ``@app.train``, in Flower's order. The app's own mods always act on probes.

    Raises:
        TypeError: When an argument has a wrong type, such as a model in place of a function that builds it.
        ValueError: When the app answers such messages already, or has no training function yet, or when mean and std do not fit
            images in [0, 1].
    """
    check_arguments(app, model, data, loss, mods)
    mean, std = numbers("mean", mean), numbers("std", std)
    trained_by = training_names(app)
    inner_of_probe = inner_mods(app, mods_of(app) if mods is None else mods)
    acting = [*mods_around(app), *inner_of_probe]
    answers = _Answers(model, data, loss, mean, std, named(acting), name_of_loss(loss), budgets(acting))
    registered = functions_of(app)
    app.train("probe", mods=[*MODS, *inner_of_probe])(answers.probe)
    for name in ("setup", "audit", "coins", "training"):
        app.query(name, mods=[*MODS])(getattr(answers, name))
    for name in ("query.setup", "train.probe", "query.audit", "query.coins", "query.training"):
        registered[name] = in_own_streams(registered[name])
    for name in trained_by:
        registered[name] = watching(registered[name])
