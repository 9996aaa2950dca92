"""The secret of a deployed node: 256 bits that never leave it, made at first use and kept across restarts; no Flower here."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

BYTES = 32


class SecretError(RuntimeError):
    """A file that cannot hold a secret."""


def default_folder() -> Path:
    """Default folder of secrets, which the node's configuration may change."""
    return Path.home() / ".fedveil" / "secrets"


def kept_secret(path: Path, elsewhere: str = "set secret-dir in the node's configuration") -> bytes:
    """The secret in a file, which is made when it is missing: readable by its owner alone, and whole or not there at all.

    Concurrent processes get the same secret: the first to put its file in place wins. Errors show ``elsewhere``, which describes
    how to set another folder.

    Raises:
        SecretError: When the file cannot be made or read, has another owner, can be read by others or is damaged, or others
            may take it out of its folder. A node that went on with a new secret would protect its images anew, and so reveal
            more of them.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_folder(path.parent)
        if not os.path.lexists(path):
            _create(path)
        return _read(path)
    except OSError as error:
        raise SecretError(f"no secret can be kept at {path}: {error}; {elsewhere}") from error


def _check_folder(folder: Path) -> None:
    about = folder.stat()
    # In a sticky folder, such as /tmp, only the owner of a file moves it.
    if os.name == "posix" and about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX:
        raise SecretError(
            f"others may move files of the folder {folder} (mode {stat.S_IMODE(about.st_mode):o}); chmod 700 it"
        )


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
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != BYTES:
        raise SecretError(
            f"{path} is damaged: expected {2 * BYTES} hexadecimal digits; restore it, or remove it knowingly"
        )
    return found
