"""The start of a client's random draws: a secret of its node, or the seed in a simulation; no Flower here.

A draw is named by a *key* (what it is for), and its stream follows from the secret and the key. Without the secret, nothing
is known of a stream. But the server chooses what a message asks for: were the key all, it could ask for a round twice, with
other weights, and subtract the two replies to be rid of the noise. So a node with a secret of its own draws a *nonce* for
every message whose reply is protected, puts it into the keys, and keeps it for what comes later: the gradients that answer a
batch, the audit of a round. It never uses a nonce for a second reply, nor one that came from outside.

In a simulation there are no nonces: everything follows from the seed, so that runs repeat and a killed run goes on. A
simulation has no person to protect.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from defenses.base import Batch
from defenses.random_draws import Key

CHOICES = frozenset({"probed", "audited", "order", "line-up"})
"""Kinds of draws that choose among images, always in the same way, so that pipelines and rounds compare the same people."""
PROTECTED = frozenset({"once", "test", "membership"})
"""Kinds of draws that protect an image once and for all. They name what they hide by its digest (``digest_of``): at a node with a
secret that of the image alone, whatever its company, except where a defence mixes images."""
OWN = frozenset({"network", "calibrate", "canaries", "counts", "mean-transformed"})
"""Kinds of draws behind what the client keeps to itself or sums over many images: the same whenever a pipeline asks for them."""
RENEWED = frozenset({"train", "probe", "batches", "collect", "smash", "edge-step", "audit-step", "test-tokens"})
"""Kinds of draws that are new for every message: its reply depends on them."""
MESSAGE = "message:"
"""How the kinds of draws begin that the messages of further scenarios renew, as "message:upload"."""
MOST_NOTES = 128
"""Nonces of a kind that a node remembers; older messages can no longer be audited."""


class ForgottenError(RuntimeError):
    """A request about an earlier message whose draws this node does not know."""


@dataclass(frozen=True)
class Note:
    """A nonce of 64 hexadecimal digits and its purpose: ``count`` batches or audit targets from ``first`` on.

    ``kind`` is one of ``RENEWED``, ``about`` the digest of the pipeline's text, ``round`` the server's.
    """

    kind: str
    about: str
    round: int
    first: int
    count: int
    nonce: str


@dataclass
class Notebook:
    """The nonces of one node in one run, newest last; each draw passes all of them as text to ``keep``."""

    text: str = field(repr=False)
    keep: Callable[[str], None] = field(repr=False)

    def __post_init__(self) -> None:
        self._notes = [Note(*entry) for entry in json.loads(self.text or "[]")]

    def renew(self, kind: str, pipeline: str, server_round: int, first: int, count: int) -> None:
        """Draws a nonce for a message that is about to be answered."""
        note = Note(kind, _name(pipeline), server_round, first, count, secrets.token_hex(32))
        alike = [old for old in self._notes if old.kind == kind]
        dropped = set(alike[: max(len(alike) + 1 - MOST_NOTES, 0)])
        self._notes = [*(old for old in self._notes if old not in dropped), note]
        self.text = json.dumps([list(vars(entry).values()) for entry in self._notes])
        self.keep(self.text)

    def nonce(self, kind: str, pipeline: str, server_round: int, number: int) -> str | None:
        """The latest nonce for this purpose, or None."""
        same = (old for old in self._notes if (old.kind, old.about, old.round) == (kind, _name(pipeline), server_round))
        nonces = [note.nonce for note in same if note.first <= number < note.first + note.count]
        return nonces[-1] if nonces else None


@dataclass(frozen=True)
class Draws:
    """The start of all random streams of one client: a secret, and a real node's nonces; in a simulation draws repeat."""

    secret: bytes = field(repr=False)
    notebook: Notebook | None = field(default=None, repr=False)

    @classmethod
    def simulated(cls, seed: int, partition: int) -> Draws:
        """Draws of a simulated client: they follow from two numbers that the server knows."""
        return cls(hashlib.blake2b(repr(("simulated client", seed, partition)).encode(), digest_size=32).digest())

    def renew(self, kind: str, pipeline: str, server_round: int, first: int = 0, count: int = 1) -> None:
        """Begin a message whose reply depends on ``count`` new draws from ``first`` on; see ``key`` for the kinds."""
        if not _renewed(kind):
            raise ValueError(f"draws of {kind!r} are not renewed; known: {sorted(RENEWED)}")
        if self.notebook:
            self.notebook.renew(kind, pipeline, server_round, first, count)

    def key(self, kind: str, *what: int | str | bytes, pipeline: str, server_round: int, number: int = 0) -> Key:
        """The name of a stream of a kind, within which ``what`` separates streams.

        ``number`` is that of the batch or target, where one round has several messages of the kind.

        Raises:
            ForgottenError: When this node never answered the message that the draws belong to, or no longer knows.
            ValueError: When the kind is in none of ``CHOICES``, ``PROTECTED``, ``OWN`` and ``RENEWED``, and does not begin
                with ``MESSAGE``.
        """
        if kind in CHOICES | PROTECTED:
            return (self.secret, "kept", kind, *what)
        if kind in OWN:
            return (self.secret, "own", kind, pipeline, *what)
        if not _renewed(kind):
            raise ValueError(f"draws of {kind!r} are neither kept nor renewed: enter them in clients/secrets/draws.py")
        if self.notebook is None:
            return (self.secret, kind, *what)
        nonce = self.notebook.nonce(kind, pipeline, server_round, number)
        if nonce is None:
            raise ForgottenError(
                f"this node does not know its draws of {kind!r} in round {server_round}: it did not take part, was started anew, "
                f"or has answered {MOST_NOTES} such messages since"
            )
        return (self.secret, nonce, kind, *what)


def digest_of(batch: Batch, text: str) -> bytes:
    """Digest of examples and of the defences ``text`` for a key that is kept: other images get other draws.

    Else a server that deals the examples out could have two images protected by the same draws, one after the other.
    """
    digest = hashlib.blake2b(text.encode(), digest_size=32)
    for tensor in (batch.images, batch.targets):
        digest.update(repr(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.digest()


def _renewed(kind: str) -> bool:
    return kind in RENEWED or kind.startswith(MESSAGE)


def _name(pipeline: str) -> str:
    return hashlib.blake2b(pipeline.encode(), digest_size=8).hexdigest()


BYTES = 32


class SecretError(RuntimeError):
    """A file that cannot hold a secret."""


def default_folder() -> Path:
    """Default folder of secrets, which the node's configuration may change."""
    return Path.home() / ".fedveil" / "secrets"


def kept_secret(path: Path) -> bytes:
    """The secret in a file, which is made when it is missing: readable by its owner alone, and whole or not there at all.

    Concurrent processes get the same secret: the first to put its file in place wins.

    Raises:
        SecretError: When the file cannot be made or read, has another owner, can be read by others or is damaged, or others
            may take it out of its folder. A node that went on with a new secret would protect its images anew, and so reveal
            more of them.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = path.parent.stat().st_mode
        # In a sticky folder, such as /tmp, only the owner of a file moves it.
        if os.name == "posix" and mode & 0o022 and not mode & stat.S_ISVTX:
            raise SecretError(
                f"others may move files of the folder {path.parent} (mode {stat.S_IMODE(mode):o}); chmod 700 it"
            )
        if not os.path.lexists(path):
            _create(path)
        return _read(path)
    except OSError as error:
        raise SecretError(
            f"no secret can be kept at {path}: {error}; set secret-dir in the node's configuration"
        ) from error


def _create(path: Path) -> None:
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link never replaces what another process has put there meanwhile.
        os.link(partial, path)
    except FileExistsError:
        pass
    finally:
        partial.unlink()


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        about = os.fstat(file.fileno())
        if os.name == "posix" and about.st_uid != os.geteuid():
            raise SecretError(f"{path} belongs to user {about.st_uid}, this process runs as {os.geteuid()}")
        if os.name == "posix" and stat.S_IMODE(about.st_mode) & 0o077:
            raise SecretError(f"{path} can be read by others (mode {stat.S_IMODE(about.st_mode):o}); chmod 600 it")
        text = file.read(4 * BYTES).strip()
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != BYTES:
        raise SecretError(
            f"{path} is damaged: expected {2 * BYTES} hexadecimal digits; restore it, or remove it knowingly"
        )
    return secret
