"""The lock of a folder: one holder at a time, in this process or another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from simulations.errors import ConfigError
from simulations.folder_lock import LOCK, take_lock
from simulations.search.folder import SearchFolder
from simulations.search.settings import Search


def test_the_second_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first = take_lock(tmp_path / "new", "busy")
    with pytest.raises(ConfigError, match="busy"):
        take_lock(tmp_path / "new", "busy")
    first.close()
    take_lock(tmp_path / "new", "busy").close()
    assert [path.name for path in (tmp_path / "new").iterdir()] == [LOCK]


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from simulations.folder_lock import take_lock\n"
    program += "held = take_lock(Path(sys.argv[1]), 'busy'); print('held', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="busy"):
            take_lock(tmp_path, "busy")
        process.kill()
    take_lock(tmp_path, "busy").close()


def test_a_second_search_in_a_folder_is_refused(tmp_path: Path) -> None:
    first = SearchFolder.create(tmp_path / "search", Search())
    with pytest.raises(ConfigError, match="another search is still writing to"):
        SearchFolder.resume(tmp_path / "search")
    first.close()
    SearchFolder.resume(tmp_path / "search").close()
