"""Updates computed from the weights in an app's replies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, Message
from torch import Tensor

from clients.external_app.mods import Budget
from clients.external_app.partial import AppModel
from clients.wire.records import reason_of, to_tensors, values_of
from clients.wire.texts import one_line, read_json, shortened
from strategies.recording.usual_names import EXAMPLES, RATES, first_number

JSON = ("card", "budgets")
"""Texts of a node that are JSON, of which no more than ``read_json`` allows is read."""
LONGEST_NAME = 2000
"""Characters of what a node calls its mods, its loss or its randomness."""


class UnusableReplyError(ValueError):
    """A reply without an update of the model that was sent."""


def weights_of(message: Message, model: AppModel) -> dict[str, Tensor]:
    """The tensors of a message by the names of the model's ``state_dict``, with the frozen ones that the message leaves out.

    Raises:
        UnusableReplyError: When they are not in one ArrayRecord.
    """
    records: list[ArrayRecord] = list(message.content.array_records.values())
    if len(records) != 1:
        raise UnusableReplyError(f"{len(records)} ArrayRecords; expected one, with the weights")
    return model.whole(model.named(to_tensors(records[0])))


def weights_sent(
    messages: Sequence[Message], model: AppModel, names: Mapping[str, Tensor]
) -> dict[int, dict[str, Tensor]]:
    """Node id -> weights sent to it; weights that several nodes get are read once. ``UnusableReplyError`` for another model's."""
    read, found = dict[int, dict[str, Tensor]](), dict[int, dict[str, Tensor]]()
    for message in messages:
        key = id(next(iter(message.content.array_records.values()), None))
        if key not in read:
            read[key] = weights_of(message, model)
            if wrong := unfit(read[key], names):
                raise UnusableReplyError(
                    f"the strategy sends other weights than those of the audit's model: they have {wrong}"
                )
        found[message.metadata.dst_node_id] = read[key]
    return found


def unfit(weights: Mapping[str, Tensor], names: Mapping[str, Tensor]) -> str:
    """The difference between weights and the tensors that count; "" for none."""
    for name, tensor in names.items():
        if name not in weights:
            return f"no {name!r}: they begin {', '.join(map(repr, list(weights)[:3])) or 'with nothing'}"
        if weights[name].shape != tensor.shape:
            return f"{name!r} of shape {tuple(weights[name].shape)}, and the model {tuple(tensor.shape)}"
    return ""


def update_of(
    reply: Message, sent: Mapping[str, Tensor], names: Mapping[str, Tensor], model: AppModel
) -> dict[str, Tensor]:
    """Received minus sent weights, of the model's tensors that count; ``UnusableReplyError`` with the reason where unusable."""
    if reply.has_error():
        raise UnusableReplyError(reason_of(reply))
    came = weights_of(reply, model)
    if wrong := unfit(came, names):
        raise UnusableReplyError(f"the reply's weights have {wrong}")
    for name in names:
        if not torch.isfinite(came[name]).all():
            raise UnusableReplyError(f"{name!r} holds NaN or infinite values")
    return {name: came[name].float() - sent[name].float() for name in names}


def examples_behind(reply: Message) -> int:
    """The number of examples that the client reports; ``UnusableReplyError`` when it reports none."""
    counts: list[Any] = [record.get(name) for record in reply.content.metric_records.values() for name in EXAMPLES]
    if count := next((one for one in counts if isinstance(one, int) and one > 0), None):
        return count
    raise UnusableReplyError(f"its metrics have no {EXAMPLES[0]}, a positive whole number")


def reported_rate(reply: Message) -> float | None:
    """The learning rate that a client reports in its metrics or settings; None where it reports none."""
    if reply.has_error():
        return None
    rate = first_number([*reply.content.metric_records.values(), *reply.content.config_records.values()], RATES)
    return None if rate is None else float(rate)


def mismatch(reply: Message, examples: int) -> str:
    """Reason why a client's ``data``, of so many examples, is not its training set; "" where its reply counts as many."""
    try:
        count = examples if reply.has_error() else examples_behind(reply)
    except UnusableReplyError:
        return ""
    if count == examples:
        return ""
    return (
        f"data gives {examples} examples, and the reply to training counts {count}: guesses would be scored against other images "
        "than it trained on, so its updates are left out"
    )


def reported_budgets(text: str) -> list[Budget]:
    """The privacy budgets of a node's mods from its JSON; none where the text is no such list."""
    try:
        found = [Budget(*map(float, numbers)) for numbers in read_json(text)]
    except (ValueError, TypeError, RecursionError):
        return []
    return found if all(math.isfinite(number) and number >= 0 for one in found for number in one) else []


def card_text(reply: Message, name: str) -> str:
    """A text of the reply to ``query.setup``: JSON, or a line for threat cards."""
    value = values_of(reply, "card").get(name, "")
    text = value if isinstance(value, str) else shortened(value)
    return text if name in JSON else one_line(text, LONGEST_NAME)
