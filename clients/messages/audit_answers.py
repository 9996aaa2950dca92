"""The answer to ``query.audit`` in every scenario: scores of guesses, and pictures where the node shares them."""

from collections.abc import Callable

import numpy as np
from flwr.app import Context, Message
from torch import nn

from attacks.metrics.guesses import MEMBER_SCORE, OTHER_SCORE
from attacks.metrics.names import scores_to_texts
from attacks.scoring.oracle import Oracle
from clients.messages.node import Records, answers_of, reply_to
from clients.scoring.audit import ALONE, NO_IMAGES, audit_baselines, audit_guesses
from clients.scoring.guesses import read_guesses
from clients.secrets.policy import refusal
from clients.task.local_data import Client
from clients.wire.records import metrics, tensors_of, to_record, values_of, withheld

_OF_RECORDS = {MEMBER_SCORE.of(), OTHER_SCORE.of()}


def answer_audit(
    message: Message, context: Context, client: Client, build_model: Callable[[], nn.Module] | None = None
) -> Message:
    """Score the server's guesses against a client's images; only numbers leave, unless pictures are shared.

    The caller must call ``answers_of(context).require("audits", ...)`` first. ``build_model`` builds the model of a membership
    test; default: the model of the task.
    """
    config, answers = values_of(message, "config"), answers_of(context)
    observation, kind = str(config["observation"]), str(config["kind"])
    left_out = {}
    if kind == "baselines":
        wanted = bool(config["share-images"])
        if wanted and not answers.share_images:
            left_out["share-images"] = refusal("share_images", "pictures")
        audited = audit_baselines(
            client, observation, pictures=wanted and answers.share_images, totals=bool(config.get("totals", True)),
            images=max(NO_IMAGES, int(config.get("guesses", 0))),
        )  # fmt: skip
    else:
        model = (build_model or client.task.plan.build_model)() if kind == "membership" else None
        guesses = read_guesses(kind, tensors_of(message, "guesses"), int(config["guesses"]), model)
        sent = tensors_of(message, "oracle")
        oracle = Oracle.from_tensors(sent, client.data.card.input_shape) if sent else None
        audited = audit_guesses(client, observation, guesses, oracle)
        if kind == "membership":  # in the order of the data, the places of scores would name the examples
            scores = audited.scores[ALONE]
            scores |= {name: np.sort(scores[name]).tolist() for name in _OF_RECORDS & scores.keys()}
    records: Records = {"metrics": metrics(scores_to_texts(audited.scores)), **withheld(left_out)}
    if audited.pictures:
        records["pictures"] = to_record(audited.pictures)
    return reply_to(message, records)
