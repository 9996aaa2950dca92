"""Updates computed from the weights in an app's replies."""

import math
from collections.abc import Sequence

from flwr.app import ArrayRecord, Message

from clients.external_app.mods import ModBudget
from clients.external_app.partial import AppModel, ModelMismatchError
from clients.wire.records import reason_of, to_tensors, values_of
from clients.wire.texts import one_line, read_json, shortened
from defenses.tensors import Tensors
from strategies.recording.files import EXAMPLES, counted_examples

JSON = ("card", "budgets")
"""Texts of a node that are JSON, of which no more than ``read_json`` allows is read."""
LONGEST_NAME = 2000
"""Characters of what a node calls its mods, its loss or its randomness."""
ANOTHER_MODEL = "Name the class or function that builds the app's own model"
NOT_ALL_TRAINED = (
    "Send every parameter that the model trains; requires_grad of those that clients do not train must be False"
)
NO_BUFFERS = (
    "Send the buffers with the trained parameters (BatchNorm keeps running averages and a counter in buffers), or train a model "
    "without buffers"
)


class UnusableReplyError(ValueError):
    """A reply without an update of the model that was sent."""


def tensors_of(message: Message, model: AppModel) -> Tensors:
    """The tensors that a message holds, by the names of the model's ``state_dict``.

    Raises:
        UnusableReplyError: When they are not in one ArrayRecord, or fit several modules of the model.
    """
    records: list[ArrayRecord] = list(message.content.array_records.values())
    if len(records) != 1:
        raise UnusableReplyError(f"{len(records)} ArrayRecords; expected one, with the weights")
    try:
        return model.named(to_tensors(records[0]))
    except ModelMismatchError as error:
        raise UnusableReplyError(str(error)) from error


def weights_sent(messages: Sequence[Message], model: AppModel, names: Tensors) -> dict[int, Tensors]:
    """Node id -> weights sent to it; weights that several nodes get are read once. ``UnusableReplyError`` for another model's."""
    read, sent = dict[int, Tensors](), dict[int, Tensors]()
    for message in messages:
        key = id(next(iter(message.content.array_records.values()), None))
        if key not in read:
            held = tensors_of(message, model)
            if wrong := unfit(held, names, model):
                difference, remedy = wrong
                raise UnusableReplyError(
                    f"the strategy sends other weights than those of the audit's model: they have {difference}. {remedy}"
                )
            read[key] = model.whole(held)
        sent[message.metadata.dst_node_id] = read[key]
    return sent


def unfit(held: Tensors, names: Tensors, model: AppModel) -> tuple[str, str] | None:
    """The difference between a message's tensors and those that count, and what to do about it; None where they fit.

    Args:
        held: The message's tensors, by the names of the model.
        names: The tensors that count, by name; frozen parameters may be missing in ``held``.
        model: The audit's model.
    """
    for name, value in held.items():
        if name in names and value.shape != names[name].shape:
            return f"{name!r} of shape {tuple(value.shape)}, and the model {tuple(names[name].shape)}", ANOTHER_MODEL
    whole = model.whole(held)
    missing = [name for name in names if name not in whole]
    if not missing:
        return None
    begin = f"they begin {', '.join(map(repr, list(held)[:3])) or 'with nothing'}"
    if not held or not held.keys() <= model.state.keys():
        return f"no {missing[0]!r}: {begin}", ANOTHER_MODEL
    if trained := [name for name in missing if name in model.trained]:
        return f"no {trained[0]!r}, a parameter that the model trains: {begin}", NOT_ALL_TRAINED
    return f"no {missing[0]!r}, a buffer of the model: {begin}", NO_BUFFERS


def update_of(reply: Message, sent: Tensors, names: Tensors, model: AppModel) -> Tensors:
    """Received minus sent weights, of the model's tensors that count; ``UnusableReplyError`` with the reason where unusable."""
    if reply.has_error():
        raise UnusableReplyError(reason_of(reply))
    held = tensors_of(reply, model)
    if wrong := unfit(held, names, model):
        raise UnusableReplyError(f"the reply's weights have {wrong[0]}")
    # What a client leaves out it kept as it was sent, which may be other values than the model's own.
    came = {**{name: sent[name] for name in model.unsent(held)}, **held}
    update = {name: came[name].float() - sent[name].float() for name in names}
    for name, value in update.items():
        if not value.isfinite().all():
            raise UnusableReplyError(f"{name!r} holds NaN or infinite values")
    return update


def examples_behind(reply: Message, most: float = math.inf) -> int:
    """The number of examples that the client reports; ``UnusableReplyError`` when it reports none, or more than ``most``."""
    if count := counted_examples(reply.content.metric_records.values()):
        if count <= most:
            return count
        raise UnusableReplyError(f"it counts {count} examples, expected at most {most}")
    raise UnusableReplyError(f"its metrics have no {EXAMPLES[0]}, a positive whole number")


def mismatch(reply: Message, examples: int) -> str:
    """Reason why a client's ``data``, of so many examples, is not its training set; "" where its reply counts as many."""
    count = 0 if reply.has_error() else counted_examples(reply.content.metric_records.values())
    if count in (0, examples):
        return ""
    return (
        f"data gives {examples} examples, and the reply to training counts {count}: guesses would be scored against other images "
        "than it trained on, so its updates are left out"
    )


def reported_budgets(text: str) -> list[ModBudget]:
    """The privacy budgets of a node's mods from its JSON; none where the text is no such list."""
    try:
        budgets = [ModBudget(*map(float, numbers)) for numbers in read_json(text)]
    except (ValueError, TypeError, RecursionError):
        return []
    return budgets if all(math.isfinite(number) and number >= 0 for budget in budgets for number in budget) else []


def card_text(reply: Message, name: str) -> str:
    """A text of the reply to ``query.setup``: JSON, or a line for threat cards."""
    value = values_of(reply, "card").get(name, "")
    text = value if isinstance(value, str) else shortened(value)
    return text if name in JSON else one_line(text, LONGEST_NAME)
