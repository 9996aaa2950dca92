"""The lock of a folder: one holder at a time, in this process or another."""

import os
import resource
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import IO

import pytest

from simulations.experiment.experiment import Experiment
from simulations.run_folder.folder_lock import COMMAND_LOCK, LOCK, require_free, take_lock
from simulations.run_folder.run_directory import RunDirectory
from simulations.search.algorithm import PolicySearch
from simulations.search.settings import Search
from simulations.settings.errors import ConfigError
from tests.simulations.commands import fedveil, refused


def test_the_second_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first = take_lock(tmp_path / "new", "busy")
    with pytest.raises(ConfigError, match="busy"):
        take_lock(tmp_path / "new", "busy")
    first.close()
    take_lock(tmp_path / "new", "busy").close()
    assert [path.name for path in (tmp_path / "new").iterdir()] == [LOCK]


def test_a_disk_that_takes_no_byte_is_an_error_in_one_line(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(ConfigError, match=r"cannot write into .*: File too large"):
            take_lock(tmp_path, "busy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from simulations.run_folder.folder_lock import take_lock\n"
    program += "held = take_lock(Path(sys.argv[1]), 'busy'); print('held', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=rf"^busy \(process {process.pid}\)$"):
            take_lock(tmp_path, "busy")
        with pytest.raises(ConfigError, match=rf"^busy \(process {process.pid}\)$"):
            require_free(tmp_path, "busy")
        process.kill()
    require_free(tmp_path, "busy")
    take_lock(tmp_path, "busy").close()


def test_a_second_search_or_run_in_a_folder_that_lives_is_refused_at_once(tmp_path: Path) -> None:
    search = PolicySearch.create(tmp_path / "search", Search())
    with pytest.raises(ConfigError, match="another search is still writing to"):
        PolicySearch.resume(tmp_path / "search", {})
    search.close()
    PolicySearch.resume(tmp_path / "search", {}).close()
    run = RunDirectory.open(tmp_path / "run", Experiment.of(output_dir=str(tmp_path / "run"), rounds=1, num_clients=2))
    run.write_progress({})
    told = f"another run is still writing to {tmp_path / 'run'}; wait for it, or end it (process {os.getpid()})"
    assert told in refused("run", "--resume", tmp_path / "run")
    run.close()


TINY = ("-s", "dataset=mnist-5k", "-s", "model=lenet", "-s", "train-limit=200", "-s", "test-limit=60", "--clients", "2")


def test_a_second_command_in_a_folder_is_refused_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first may be about to start, so that nothing of a run is there; or come while the second makes its checks."""
    started, first = list[str](), list[IO[str]]()

    def run(*_: object) -> int:
        started.append("second")
        return 0

    monkeypatch.setattr("simulations.run.seeds.run_locally", run)
    for since, seeds in product(("before", "meanwhile"), ((), ("--seeds", "0..1", "--jobs", "1"))):
        out = tmp_path / f"{since}{len(seeds)}"

        def begin_first(*_: object, out: Path = out) -> float:
            first.append(take_lock(out, "busy", COMMAND_LOCK))
            return 0.0

        with monkeypatch.context() as patch:
            if since == "before":
                begin_first()
            else:
                patch.setattr("simulations.run.command.check_run", begin_first)
            told = refused("run", "--out", out, *TINY, *seeds)
        assert started == []
        assert f"another run is still writing to {out}; wait for it, or end it (process {os.getpid()})" in told
        assert not any(word in told for word in ("ConfigError", "output-dir", "--resume"))
        first.pop().close()


def test_a_command_keeps_its_folder_just_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> int:
        with pytest.raises(ConfigError, match="busy"):
            take_lock(tmp_path / "run", "busy", COMMAND_LOCK)
        take_lock(tmp_path / "run", "the run itself locks this one").close()
        return 1

    monkeypatch.setattr("simulations.run.seeds.run_locally", run)
    assert fedveil("run", "--out", tmp_path / "run", *TINY)[0] == 1
    take_lock(tmp_path / "run", "busy", COMMAND_LOCK).close()
