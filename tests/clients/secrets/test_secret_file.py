"""A node's secret: one for all processes, whole, readable by its owner alone, the same after a restart."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clients.secrets.secret_file import SecretError, kept_secret


def test_it_is_made_once_with_256_bits_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "partition-0.secret"
    before = os.umask(0)  # the mode must not depend on it
    try:
        first = kept_secret(path)
    finally:
        os.umask(before)
    assert len(first) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert kept_secret(path) == first
    assert kept_secret(path.with_name("partition-1.secret")) != first
    assert sorted(file.name for file in path.parent.iterdir()) == ["partition-0.secret", "partition-1.secret"]


def test_processes_that_start_together_share_one(tmp_path: Path) -> None:
    """As a fresh process for each message does, or several nodes of one user."""
    path = tmp_path / "partition-0.secret"
    go = tmp_path / "go"
    code = (
        "import sys, time; from pathlib import Path; from clients.secrets.secret_file import kept_secret\n"
        f"while not Path({str(go)!r}).exists(): time.sleep(0.001)\n"
        f"print(kept_secret(Path({str(path)!r})).hex())"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    go.touch()
    found = {process.communicate(timeout=120)[0].strip() for process in started}
    assert found == {path.read_text().strip()}
    assert re.fullmatch("[0-9a-f]{64}", found.pop())
    assert {file.name for file in tmp_path.iterdir()} == {"go", "partition-0.secret"}


def test_one_process_loses_the_race_and_takes_the_winners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "partition-0.secret"
    link = os.link

    def late(source: object, target: object) -> None:
        monkeypatch.setattr(os, "link", link)
        winner.append(kept_secret(path))
        link(source, target)  # type: ignore[arg-type]

    winner: list[bytes] = []
    monkeypatch.setattr(os, "link", late)
    assert kept_secret(path) == winner[0]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.chmod(0o640), "can be read by others"),
        (lambda path: path.write_text("abc"), "is damaged"),
        (lambda path: path.write_text("zz" * 32), "is damaged"),
        (lambda path: path.write_text(""), "is damaged"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused_not_replaced(tmp_path: Path, spoil, reason: str) -> None:
    path = tmp_path / "partition-0.secret"
    kept_secret(path)
    spoil(path)
    left = path.read_text()
    with pytest.raises(SecretError, match=reason):
        kept_secret(path)
    assert path.read_text() == left


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_out_of_which_others_may_take_it_is_refused(tmp_path: Path, mode: int) -> None:
    """A node whose secret was removed would make another, and send its images under new draws."""
    path = tmp_path / "secrets" / "partition-0.secret"
    first = kept_secret(path)
    path.parent.chmod(mode)
    with pytest.raises(SecretError, match=r"others may move files .*chmod 700"):
        kept_secret(path)
    path.unlink()
    with pytest.raises(SecretError, match="others may move files"):
        kept_secret(path)
    assert not path.exists()
    path.parent.chmod(0o1777)
    assert kept_secret(path) != first


def test_a_link_is_not_followed_and_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    kept_secret(elsewhere)
    (tmp_path / "partition-0.secret").symlink_to(elsewhere)
    with pytest.raises(SecretError, match="secret-dir"):
        kept_secret(tmp_path / "partition-0.secret")
    (tmp_path / "file").touch()
    with pytest.raises(SecretError, match="secret-dir"):
        kept_secret(tmp_path / "file" / "partition-0.secret")
