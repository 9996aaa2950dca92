"""Bytecode for the processes of a run, where Python may not write it beside the sources."""

import json
import os
import py_compile
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.runtime.launch import ROOT
from simulations.runtime.user_cache import LARGE, PREFIX, VARIABLE

NOBODY = 65534
BYTECODE = f"__pycache__/__init__.{sys.implementation.cache_tag}.pyc"
ASKS = """
import json, os, subprocess, sys
sys.path[:0] = sys.argv[2:]
from simulations.runtime.user_cache import keep_bytecode
if os.geteuid() == 0 and sys.argv[1] == "as another":
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
kept = keep_bytecode()
print(json.dumps([str(kept), sys.pycache_prefix, os.environ.get("PYTHONPYCACHEPREFIX"),
    sys.dont_write_bytecode, os.environ.get("PYTHONDONTWRITEBYTECODE")]))
"""


def asked(*arguments: str, **environment: str) -> list[object]:
    """What a process finds, and is left with, that starts as the command does."""
    env = {key: value for key, value in os.environ.items() if key not in (VARIABLE, PREFIX)} | environment
    done = subprocess.run(
        [sys.executable, "-c", ASKS, *(arguments or ("as it is",))], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.fixture
def packages() -> Iterator[Path]:
    """Sources of the large packages alone, where every user may read them, and only their owner may write."""
    with tempfile.TemporaryDirectory() as folder:
        for name in LARGE:
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "__init__.py").write_text("")
            (Path(folder) / name).chmod(0o555)
        Path(folder).chmod(0o755)
        yield Path(folder)
        for name in LARGE:
            (Path(folder) / name).chmod(0o755)


def test_the_users_cache_gets_bytecode_only_where_no_other_place_may(tmp_path: Path, packages: Path) -> None:
    none, cache = str(tmp_path / "none"), tmp_path / "cache"
    assert asked(**{PREFIX: none, "XDG_CACHE_HOME": str(cache)}) == ["None", none, none, False, None], "may be written"
    for name in LARGE:
        (packages / name).chmod(0o755)
        py_compile.compile(str(packages / name / "__init__.py"), str(packages / name / BYTECODE), doraise=True)
    found = asked("as it is", str(packages), **{VARIABLE: "1", "XDG_CACHE_HOME": str(cache)})
    assert found == ["None", None, None, True, "1"], "it is there"
    assert not cache.exists()
    mine = str(cache / "fedveil" / "bytecode")
    assert asked(**{VARIABLE: "1", PREFIX: none, "XDG_CACHE_HOME": str(cache)}) == [mine, mine, mine, False, None]
    assert stat.S_IMODE(Path(mine).stat().st_mode) == 0o700


def test_where_the_packages_are_anothers_the_users_cache_gets_it(packages: Path) -> None:
    """As in an image whose packages root installed, without bytecode, and whose user is not root."""
    with tempfile.TemporaryDirectory() as cache:
        if os.geteuid() == 0:
            os.chown(cache, NOBODY, NOBODY)
        mine = str(Path(cache).resolve() / "fedveil" / "bytecode")
        found = asked("as another", str(packages), XDG_CACHE_HOME=cache)
        assert found == [mine, mine, mine, False, None]


def test_a_folder_that_another_user_can_change_is_not_used(tmp_path: Path, packages: Path) -> None:
    for unsafe in ("others write in it", "a file", "another's"):
        if unsafe == "another's" and os.geteuid() != 0:
            continue  # only root gives files away
        place = tmp_path / unsafe / "fedveil" / "bytecode"
        place.mkdir(parents=True)
        if unsafe == "others write in it":
            place.chmod(0o770)
        elif unsafe == "another's":
            os.chown(place, NOBODY, NOBODY)
        else:
            place.rmdir()
            place.write_text("")
        found = asked("as it is", str(packages), **{VARIABLE: "1", "XDG_CACHE_HOME": str(tmp_path / unsafe)})
        assert found == ["None", None, None, True, "1"], unsafe
