"""What a process leaves when it is killed: nothing that was its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from simulations.runtime.guardian import HOME_VARIABLE, Guardian, end_runtime, processes_of
from simulations.runtime.launch import ROOT
from tests.simulations.runtime.runtimes import leftovers, marked, wait_until

SLEEPS = "import time; time.sleep(600)"


def with_home(home: Path, code: str) -> subprocess.Popen[str]:
    env = {**os.environ, HOME_VARIABLE: str(home)}
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)


def test_processes_of_another_home_are_left_alone(tmp_path: Path) -> None:
    mine, theirs = with_home(tmp_path / "mine", SLEEPS), with_home(tmp_path / "mine2", SLEEPS)
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    try:
        wait_until(lambda: [one.pid for one in processes_of(tmp_path / "mine")] == [mine.pid])
        wait_until(lambda: len(processes_of(tmp_path / "mine2")) == 1)
        end_runtime(tmp_path / "mine")
        assert not psutil.pid_exists(mine.pid)
        assert theirs.poll() is None
        assert not (tmp_path / "mine").exists()
    finally:
        for process in (mine, theirs):
            process.kill()
            process.communicate()


@pytest.mark.long
def test_a_dismissed_guardian_ends_what_is_still_there(tmp_path: Path) -> None:
    guardian, left = Guardian(tmp_path / "home"), with_home(tmp_path / "home", SLEEPS)
    with left:
        wait_until(lambda: len(processes_of(tmp_path / "home")) == 1)
        guardian.dismiss()
        assert left.wait(60) == -signal.SIGTERM
    guardian.dismiss()  # once more does nothing


SCRATCH = """
import os, sys, tempfile, time
from simulations.runtime.guardian import scratch_folder
before = os.environ["TMPDIR"], tempfile.gettempdir()
with scratch_folder() as folder:
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(folder)
    tempfile.mkdtemp()
assert (os.environ["TMPDIR"], tempfile.gettempdir()) == before
assert len(list(folder.iterdir())) == 1
with scratch_folder() as again:
    assert again == folder
    print(folder, flush=True)
    time.sleep(float(sys.argv[1]))
"""


def test_temporary_files_go_with_the_process(tmp_path: Path) -> None:
    env = {**marked(tmp_path), "TMPDIR": str(tmp_path)}
    for killed in (True, False):
        command = [sys.executable, "-c", SCRATCH, "600" if killed else "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT) as process:
            assert process.stdout is not None
            folder = Path(process.stdout.readline().strip())
            assert folder.parent == tmp_path
            if killed:
                assert len(list(folder.iterdir())) == 1
                process.kill()
        wait_until(lambda folder=folder: not folder.exists(), "temporary files were left over")
    wait_until(lambda: not leftovers(tmp_path), "the guardian stayed")


POOL = """
import sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from clients.process.worker_processes import end_with_parent

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, get_context("spawn"), end_with_parent)
    pool.submit(time.sleep, 10**6)
    pool.submit(print, "never")
    while not pool._processes:
        time.sleep(0.1)
    time.sleep(2)
    print("working", flush=True)
    time.sleep(600)
"""


@pytest.mark.long
def test_a_worker_in_the_middle_of_its_work_ends_with_a_killed_parent(tmp_path: Path) -> None:
    """Left to themselves, workers of a killed process finish what they have, hours later perhaps."""
    (tmp_path / "pool.py").write_text(POOL)
    env = {**marked(tmp_path), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, str(tmp_path / "pool.py")], stdout=subprocess.PIPE, text=True, env=env)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        worker = next(one for one in psutil.Process(process.pid).children() if "spawn_main" in " ".join(one.cmdline()))
        assert worker.is_running()
        process.kill()
    wait_until(lambda: not leftovers(tmp_path), "a worker outlived its parent")
