"""A node's account of a run: what it sends once per round and pipeline, and what all messages of a round have in common."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Context, Message

from clients.messages.node import Call, answers_of, draws_from_seed, partition_of, reply_to, secret_folder
from clients.secrets.draws import SecretError
from clients.secrets.policy import not_again
from clients.task.local_data import Client
from clients.wire.records import digest_of, metrics

SENT, COMMON, EVALUATED = "sent", "common", "evaluated"
"""Records of a context's state: counts of what was sent; what all messages of a round have; the kept answers to evaluations."""
ACCOUNT = (SENT, COMMON, EVALUATED, "transmissions", "plan", "share")
"""Records of the account, those of ``clients.messages.node`` and of split learning among them."""


def kept_over_restarts(message: Message, context: Context, call_next: Call) -> Message:
    """Keep the account of a run in a file beside the node's secret: the state of a run is lost with the SuperNode's process."""
    if draws_from_seed(context) or not answers_of(context).has_account:
        return call_next(message, context)
    path = secret_folder(context) / f"partition-{partition_of(context)}.run-{context.run_id}.json"
    if path.is_file() and not any(name in context.state for name in ACCOUNT):
        for name, values in json.loads(path.read_text(encoding="utf-8")).items():
            context.state[name] = ConfigRecord(values)
    try:
        return call_next(message, context)
    finally:
        state: Any = context.state
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial = path.with_suffix(".partial")
            partial.write_text(
                json.dumps({name: {**state[name]} for name in ACCOUNT if name in state}), encoding="utf-8"
            )
            partial.replace(path)
        except OSError as error:
            raise SecretError(
                f"no account can be kept at {path}: {error}; set secret-dir in the node's configuration"
            ) from error


def book(
    context: Context, client: Client, kind: str, first: int = 0, count: int = 1, *, over_rounds: bool = False
) -> None:
    """Record that ``count`` batches or images of a ``kind`` from ``first`` on are about to be sent under new draws.

    Rounds only go forward, so that only the counts of the latest one are kept in ``context``. With ``over_rounds`` a run
    needs each once, so that sending it in another round is sending it again.

    Raises:
        RefusedError: When it was sent before, more often than the node's operator allows (``repeats``).
        ValueError: When ``first`` is negative: such numbers would name what earlier rounds sent.
    """
    answers, at = answers_of(context), client.task.round
    if first < 0:
        raise ValueError(f"{kind} number {first} was requested; allowed: 0 or more")
    if not answers.has_account:
        return
    name = f"{kind}; {client.pipeline}"  # as read, so that another spelling is no other pipeline
    latest, counts = _kept(context, SENT, name) or (at, dict[str, int]())
    latest = at if over_rounds else latest
    _require_forward(kind, at, latest)
    counts = counts if at == latest else {}
    numbers = [str(number) for number in range(first, first + count)]
    sent = max((counts.get(n, 0) for n in numbers), default=0)
    answers.require_times("repeats", f"{kind} of round {at} again", sent, f"; sent {sent} times")
    _keep(context, SENT, name, [at, counts | {number: counts.get(number, 0) + 1 for number in numbers}])


def require_same(context: Context, client: Client, what: str, value: str, at: int | None = None) -> None:
    """Record the ``value`` that all messages of round ``at`` (default: the task's) have; the latest of each pipeline is kept.

    Raises:
        RefusedError: When messages of the round had another value, or came from a later round.
    """
    if not answers_of(context).has_account:
        return
    at = client.task.round if at is None else at
    name = f"{what}; {client.pipeline}"
    latest, known = _kept(context, COMMON, name) or (at, value)
    _require_forward(what, at, latest)
    if at == latest and value != known:
        raise not_again(f"anything for another {what} in round {at}")
    _keep(context, COMMON, name, [at, value])


def require_update(context: Context, client: Client) -> None:
    """Refuse what follows on an update of this round that the node has not sent: a round that nobody trained has no model.

    Raises:
        RefusedError: Where the run's account holds none of this round.
    """
    at, answers = client.task.round, answers_of(context)
    latest = (_kept(context, SENT, f"an update; {client.pipeline}") or [0])[0]
    if answers.has_account and answers.repeats >= 0 and 0 < at != latest:
        raise not_again(f"an evaluation of round {at}, to which it sent no update")


def answer_once(
    message: Message,
    context: Context,
    client: Client,
    judge: Callable[[], Mapping[str, Any]],
    require: Callable[[], None] = lambda: None,
) -> Message:
    """Answer an evaluation once per round and pipeline, after ``require``; the same message again gets the kept answer.

    An answer is a function of what the server sends. Without an account, a server could read a test image from many of them.

    Raises:
        RefusedError: When the round was evaluated with other tensors, more often than the operator allows (``repeats``).
    """
    has_account, pipeline = answers_of(context).has_account, str(client.pipeline)
    asked = [client.task.round, digest_of(message.content.array_records.values())] if has_account else []
    kept = _kept(context, EVALUATED, pipeline) or [0, "", {}]
    if kept[:2] == asked:
        return reply_to(message, {"metrics": metrics(kept[2])})
    require()
    book(context, client, "an evaluation")
    measured = judge()
    if has_account:
        _keep(context, EVALUATED, pipeline, [*asked, measured])
    return reply_to(message, {"metrics": metrics(measured)})


def _require_forward(what: str, at: int, latest: int) -> None:
    if at < latest:
        raise not_again(f"{what} of a round before {latest}")


def _kept(context: Context, record: str, name: str) -> Any:
    kept: Any = context.state.get(record) or {}
    return json.loads(kept[name]) if name in kept else None


def _keep(context: Context, record: str, name: str, value: object) -> None:
    kept: Any = context.state.get(record) or {}
    context.state[record] = ConfigRecord({**kept, name: json.dumps(value)})
