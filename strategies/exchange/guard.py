"""The guarded exchange: an unusable reply is refused with a reason and a row, never averaged or trained on."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Unpack

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from attacks.metrics.training import CLIENT
from clients.task.task import Task
from clients.wire.records import MAX_REASON, MODEL_REFUSED, REFUSALS, WITHHELD, reason_of, values_of, view_of
from clients.wire.texts import one_line, shortened
from defenses.tensors import Tensors
from strategies.exchange.columns import Columns
from strategies.exchange.exchange import Exchange, Posted
from strategies.exchange.faults import oversized, unreadable

MOST_WITHHELD = 16
"""Parts that an answer may leave out, each with a row: there are fewer questions that a node may refuse."""

FAR = 30.0
"""Times the size of the other clients' replies (their upper median) from which on a reply is refused. Shares of data of very
unequal size, pruning and compression differ by less, and noise of a defence is in all replies of a round."""


@dataclass(frozen=True)
class Bound:
    """How large a record may be, as the root mean square of its values: one finite number may be as bad as an infinite one.

    Attributes:
        usual: What is never refused, beside ``FAR`` times the size of the others' replies.
        alone: Most where no other client has sent such a record.
        fixed: Most in any case; 0 for the automatic bound.
    """

    usual: float
    alone: float
    fixed: float = 0.0

    def most(self, others: Sequence[float]) -> float:
        """Largest size beside those of the other clients; a single one of three cannot move their upper median far."""
        # Of two clients nobody can tell which one lies.
        automatic = max(FAR * sorted(others)[len(others) // 2], self.usual) if len(others) > 1 else self.alone
        return self.fixed or automatic


def update_bound(weights: Tensors) -> Bound:
    """The bound on updates of a model with these weights.

    Three times the norm of the weights is more than a round moves them, unless noise does so at all clients. Of a single client
    nobody can tell noise from a lie, so that only what would overflow is refused.
    """
    values = [tensor.double().flatten() for tensor in weights.values()]
    count = max(1, sum(map(len, values))) ** 0.5
    size = (1.0 + math.hypot(*(float(vector.norm()) for vector in values))) / count
    return Bound(usual=3 * size, alone=1e6 * size)


FaultIn = Callable[[int, Message], str]
"""(partition, reply that is no error) -> why it cannot be used, or ""."""


class TooFewReplies(RuntimeError):  # noqa: N818 (the field's word for it)
    """A round in which too few clients sent a usable reply."""


class Rows(Protocol):
    """Receiver of rows."""

    def row(self, task: Task, *, metric: str, value: float | None, **columns: Unpack[Columns]) -> None:
        """Add one number."""


class Answers(dict[int, Message]):
    """Partition -> usable reply, in the order of the requests.

    Attributes:
        refused: Partition whose node's configuration does not allow the request -> the node's reason.
        models_refused: How many of these do not believe the sent model.
        failed: Partition whose reply cannot be used -> the reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[int, str] = {}
        self.models_refused = 0
        self.failed: dict[int, str] = {}


class GuardedExchange:
    """Send requests, return usable replies, and write a row for every unusable reply and for omitted content.

    ``min_usable`` is the least share of requested clients with a usable reply, at least one client; 0 allows all to fail.

    Attributes:
        bounds: Message type -> record of its replies -> how large that may be.
    """

    def __init__(self, exchange: Exchange, rows: Rows, min_usable: float = 0.0) -> None:
        self.exchange = exchange
        self.rows = rows
        self.min_usable = min_usable
        self.bounds: dict[str, Mapping[str, Bound]] = {}
        self._sizes: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        """(Message type, record) -> partition -> size of the last record that was used."""

    def config(self, task: Task, **values: str | int | float | bool) -> ConfigRecord:
        """The ``config`` record that every message carries."""
        return self.exchange.config(task, **values)

    def ask(
        self,
        task: Task,
        message_type: str,
        contents: Mapping[int, RecordDict],
        fault_in: FaultIn | None = None,
        *,
        at_least: float | None = None,
    ) -> Answers:
        """Send one message to each partition and return the replies that can be used; ``TooFewReplies`` below ``min_usable``."""
        return self.receive(task, self.post(message_type, contents), fault_in, at_least=at_least)

    def post(self, message_type: str, contents: Mapping[int, RecordDict]) -> Posted:
        """Send without waiting; ``receive`` waits."""
        return self.exchange.post(message_type, contents)

    def receive(
        self, task: Task, posted: Posted, fault_in: FaultIn | None = None, *, at_least: float | None = None
    ) -> Answers:
        """The usable replies to ``post``; see ``check``."""
        replies = self.exchange.wait(posted)
        return self.check(task, posted.message_type, list(posted.contents), replies, fault_in, at_least=at_least)

    def check(
        self,
        task: Task,
        message_type: str,
        requested: Sequence[int],
        replies: Mapping[int, Message],
        fault_in: FaultIn | None = None,
        *,
        at_least: float | None = None,
    ) -> Answers:
        """Return the usable replies; write a row for each other reply, and for omitted content.

        A client that refuses the request has not failed: the share ``at_least`` (else ``min_usable``) is of the others.
        ``fault_in`` returns further reasons, besides an error, why a reply is unusable.

        Raises:
            TooFewReplies: When too few can be used.
        """
        good, reasons, standing = Answers(), [], []
        faults = {partition: self._reason(partition, replies.get(partition), fault_in) for partition in requested}
        faults |= self._too_large(message_type, {client: replies[client] for client, why in faults.items() if not why})
        for partition in requested:
            reply, reason = replies.get(partition), faults[partition]
            if reply is not None and reply.has_error() and reply.error.code in REFUSALS:
                good.refused[partition] = reason_of(reply)
                good.models_refused += reply.error.code == MODEL_REFUSED
                self._row(task, "refused", partition, f"{message_type}: {good.refused[partition]}")
                continue
            standing.append(partition)
            if reply is not None and not reason:
                self._record_withheld(task, message_type, partition, reply)
                good[partition] = reply
                continue
            good.failed[partition] = reason
            reasons.append(f"client {partition}: {reason}")
            self._row(task, "failed", partition, f"{message_type}: {reason}")
        if share := self.min_usable if at_least is None else at_least:
            require_enough(task, message_type, standing, list(good), share, reasons[:1])
        return good

    def _reason(self, partition: int, reply: Message | None, fault_in: FaultIn | None) -> str:
        if reply is None:
            return f"no reply within {self.exchange.timeout:g} s"
        if reply.has_error():
            return reason_of(reply)
        return oversized(reply.content) or unreadable(reply) or (fault_in(partition, reply) if fault_in else "")

    def _too_large(self, message_type: str, replies: Mapping[int, Message]) -> dict[int, str]:
        """Partition -> why its reply is too large, compared with the last ones of all other clients."""
        faults: dict[int, str] = {}
        for record, bound in self.bounds.get(message_type, {}).items():
            known = self._sizes[message_type, record]
            known |= (sizes := {client: _size_of(reply, record) for client, reply in replies.items()})
            for partition, size in sizes.items():
                most = bound.most([other for client, other in known.items() if client != partition])
                if size > most:
                    count = math.sqrt(sum(view_of(*entry).size for entry in replies[partition].content[record].items()))
                    faults[partition] = (
                        f"{record}: their norm is {size * count:.3g}, expected at most {most * count:.3g}"
                    )
            for partition in faults.keys() & known.keys():
                del known[partition]
        return faults

    def _record_withheld(self, task: Task, message_type: str, partition: int, reply: Message) -> None:
        """Write a row for each part that an answer leaves out, up to ``MOST_WITHHELD``, and one for the others."""
        reasons = list(values_of(reply, WITHHELD).values())
        for reason in reasons[:MOST_WITHHELD]:
            text = reason if isinstance(reason, str) else shortened(reason)
            self._row(task, "refused", partition, f"{message_type}: {text[:MAX_REASON]}")
        if (more := len(reasons) - MOST_WITHHELD) > 0:
            message = f"{message_type}: {more} more parts were withheld; at most {MOST_WITHHELD} are recorded"
            self._row(task, "refused", partition, message)

    def _row(self, task: Task, status: str, partition: int, message: str) -> None:
        text = one_line(message, MAX_REASON)  # it may quote what a client sent
        self.rows.row(task, metric=CLIENT.name, value=None, status=status, client=partition, message=text)


def _size_of(reply: Message, record: str) -> float:
    """The root mean square of all values of a record; double precision, in which no sum of their squares overflows."""
    arrays = [view_of(name, array) for name, array in reply.content.array_records.get(record, {}).items()]
    return math.sqrt(
        sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays) / max(1, sum(a.size for a in arrays))
    )


def require_enough(
    task: Task, what: str, requested: Sequence[int], good: Sequence[int], min_usable: float, reasons: Sequence[str] = ()
) -> None:
    """Raise ``TooFewReplies`` if no requested partition, or a share below ``min_usable``, sent a usable reply."""
    if requested and len(good) < max(1, min_usable * len(requested)):
        why = f"; first reason: {reasons[0]}" if reasons else ""
        raise TooFewReplies(
            f"round {task.round}, {task.plan.pipeline or 'no defence'}: {len(good)} of {len(requested)} {what} replies are usable, "
            f"min-usable = {min_usable} asks for more{why}"
        )
