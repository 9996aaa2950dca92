"""RecordingStrategy: a wrapper of any Flower strategy that keeps all messages of the training on disk."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from clients.wire.records import view_of
from strategies.exchange.faults import oversized
from strategies.recording.files import RecordingWriter
from strategies.recording.wrapper import WrappingStrategy, chain_of

DEFAULT_MAX_BYTES = 10 * 2**30


class RecordingStrategy(WrappingStrategy):
    """Run a wrapped strategy and keep each round's sent weights, and every reply with its metadata.

    Wrap the outermost strategy: Flower's wrappers for differential privacy clip replies in place, so that a recording inside such a
    wrapper would hold the clipped replies. ``strategies.recording.files`` describes the files, and ``fedveil attack FOLDER`` reads
    them. Training data may be recovered from the files: protect them like the data.

    Recording never ends a run: content that cannot be written (a full disk, a reply that is no array) is logged and omitted.

    Args:
        strategy: Any strategy of Flower's message API; unknown attributes of this class are those of ``strategy``.
        folder: Absolute path of a new folder.
        max_bytes: Largest size of the recording on disk, 10 GiB by default. Arrays that would exceed it are omitted, and smaller
            ones that still fit are kept; the JSON of a reply gives the reason.
        rounds: Server rounds to record; None: all.
        settings: Further settings of the training, such as ``context.run_config``, in which attacks look for the learning rate, the
            local epochs and the batch size.

    Raises:
        RecordingError: When the folder is relative or already contains a recording.
        TypeError: When ``strategy`` is no strategy, such as a class in place of an object.
        ValueError: When ``max_bytes``, ``rounds`` or ``settings`` have a wrong value.
    """

    def __init__(
        self,
        strategy: Strategy,
        folder: str | Path,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        rounds: Collection[int] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes <= 0:
            raise ValueError(f"max_bytes is {max_bytes!r}; allowed: a positive whole number of bytes")
        if not isinstance(settings or {}, Mapping):
            raise ValueError(f"settings is {settings!r}; allowed: a mapping, such as context.run_config")
        super().__init__(strategy, rounds)
        about = {"settings": settings or {}, "strategy": [type(layer).__name__ for layer in chain_of(strategy)]}
        self._writer = RecordingWriter(Path(folder), max_bytes, about)
        self._contents: dict[str, int] = {}
        """Node -> the number of the content that it was sent in this round."""

    def _said(self) -> str:
        return f"Recording: {self._writer.folder}"

    def _sending(self, server_round: int, messages: list[Message], grid: Grid) -> None:
        if self._looks_at(server_round):
            with _tolerant(server_round):
                self._keep_sent(server_round, messages)

    def _received(self, server_round: int, kind: str, replies: list[Message]) -> None:
        for at, reply in enumerate(replies if self._looks_at(server_round) else ()):
            with _tolerant(server_round):
                self._keep_reply(server_round, f"{kind}-{at:04d}", reply)

    def _keep_sent(self, server_round: int, messages: list[Message]) -> None:
        """The different contents, each once: most strategies send all nodes the same objects."""
        different: dict[tuple[int, ...], int] = {}
        contents: list[dict[str, Any]] = []
        nodes: dict[str, int] = {}
        known: dict[int, str] = {}
        for message in messages:
            key = tuple(id(record) for record in message.content.values())
            if key not in different:
                different[key] = len(contents)
                contents.append(self._values(server_round, f"sent-{len(contents)}", message.content, known))
            nodes[str(message.metadata.dst_node_id)] = different[key]
        self._contents = nodes
        values = {"round": server_round, "nodes": nodes, "contents": contents}
        self._writer.keep_json(f"{_folder(server_round)}/sent.json", values)

    def _keep_reply(self, server_round: int, name: str, reply: Message) -> None:
        about = reply.metadata
        metadata = {
            "message-id": about.message_id, "reply-to": about.reply_to_message_id, "run-id": about.run_id,
            "message-type": about.message_type, "created-at": about.created_at, "ttl": about.ttl,
        }  # fmt: skip
        sent = self._contents.get(str(about.src_node_id))
        values: dict[str, Any] = {"round": server_round, "node": about.src_node_id, "sent": sent, "metadata": metadata}
        if reply.has_error():
            values["error"] = {"code": reply.error.code, "reason": (reply.error.reason or "")[:1000]}
        else:
            values |= self._values(server_round, name, reply.content, {})
        self._writer.keep_json(f"{_folder(server_round)}/{name}.json", values)

    def _values(self, server_round: int, name: str, content: RecordDict, known: dict[int, str]) -> dict[str, Any]:
        """The plain values of a content, once its arrays are on disk; ``known``, files of records by their id, grows."""
        files, dropped = dict[str, str](), []
        for at, (record, arrays) in enumerate(content.array_records.items()):
            file = known.get(id(arrays), f"{name}-{at}.safetensors")
            if id(arrays) not in known and (why := self._keep_arrays(f"{_folder(server_round)}/{file}", arrays)):
                dropped.append(f"{record}: {why}")
                continue
            files[record] = known[id(arrays)] = file
        entry: dict[str, Any] = {"arrays": files, "metrics": {}, "config": {}}
        if why := oversized(content):
            log(WARNING, "Recording: round %s, the values of %s are left out: %s", server_round, name, why)
            entry["values-dropped"] = why
        else:
            entry["metrics"] = {key: dict(record) for key, record in content.metric_records.items()}
            entry["config"] = {key: dict(record) for key, record in content.config_records.items()}
        if dropped:
            log(WARNING, "Recording: round %s, %s is left out: %s", server_round, name, "; ".join(dropped))
            entry["dropped"] = "; ".join(dropped)
        return entry

    def _keep_arrays(self, name: str, arrays: ArrayRecord) -> str:
        try:
            return self._writer.keep_arrays(name, {key: view_of(key, array) for key, array in arrays.items()})
        except Exception as error:  # an unreadable record or a full disk, which the reply's JSON reports
            return f"{type(error).__name__}: {error}"


def _folder(server_round: int) -> str:
    return f"round-{server_round:04d}"


@contextmanager
def _tolerant(server_round: int) -> Iterator[None]:
    """A recording that cannot be written costs a log line and nothing else."""
    try:
        yield
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        log(WARNING, "Recording: part of round %s could not be written: %s", server_round, why)
