"""Code that ends, crashes, floods or never returns, in a real child process: this process learns it in one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from clients.process.own_code import OwnCodeError
from clients.process.trial_process import AbruptError, tried
from simulations.runtime.launch import ROOT

PATIENCE = 300.0


def outcome(tmp_path: Path, code: str, seconds: float = PATIENCE) -> str:
    """What is told of a file whose function ``work`` has this body."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import ctypes, os, signal, subprocess, sys, time\n\n\ndef work():\n    " + code.replace("\n", "\n    ")
    )
    with pytest.raises(AbruptError) as told:
        tried("tests.clients.process.trial_works:call", {"name": f"{file}:work"}, seconds)
    return str(told.value)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("os._exit(0)", "ends its process with exit code 0, as os._exit(0) does"),
        ("os._exit(7)", "ends its process with exit code 7, as os._exit(7) does"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "is killed by SIGKILL, as the system does where memory runs out"),
        ("ctypes.string_at(0)", "crashes its process (SIGSEGV)"),
        ("os.abort()", "crashes its process (SIGABRT)"),
        ("raise KeyboardInterrupt", "raises KeyboardInterrupt"),
        ("os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)", "raises KeyboardInterrupt"),
        ("sys.exit('\\x1b[2J gone')", "raises SystemExit: \\x1b[2J gone"),
        ("raise GeneratorExit", "raises GeneratorExit"),
        ("raise type('Mute', (Exception,), {'__str__': lambda _: 1 / 0})", "raises Mute"),
        ("return open('/dev/null')", "raises TypeError: Object of type TextIOWrapper is not JSON serializable"),
        ("input()", "raises EOFError: EOF when reading a line"),
        ("print('\\x1b[31m last words', flush=True)\nos._exit(1)",
         "ends its process with exit code 1, as os._exit(1) does; it printed last: '\\x1b[31m last words'"),
    ],
)  # fmt: skip
def test_whatever_code_does_is_told_in_one_sentence(tmp_path: Path, code: str, told: str) -> None:
    assert outcome(tmp_path, code) == told


@pytest.mark.long
def test_an_endless_loop_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """A loop in C, too, which no signal handler of Python interrupts; and a process that holds the child's output open."""
    marker = tmp_path / "pid"
    code = (
        f"one = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(marker)!r}, 'w').write(str(one.pid))\nsum(iter(int, 1))"
    )
    began = time.monotonic()
    assert outcome(tmp_path, code, 30.0) == "is not done after 30 s"
    assert time.monotonic() - began < 120
    if marker.exists():  # the machine may be too busy to come that far
        assert not psutil.pid_exists(int(marker.read_text())) or (
            psutil.Process(int(marker.read_text())).status() == psutil.STATUS_ZOMBIE
        )


def test_a_flood_of_output_is_neither_kept_nor_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = outcome(tmp_path, "for _ in range(20_000): print('x' * 1000)\nprint('end', flush=True)\nos._exit(3)")
    assert told == "ends its process with exit code 3, as os._exit(3) does; it printed last: 'end'"
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_what_it_returns_comes_back_and_it_sees_what_this_process_sees(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def work():\n    return {'found': [1, None, 'é']}\n")
    assert tried("tests.clients.process.trial_works:call", {"name": f"{tmp_path / 'mine.py'}:work"}, PATIENCE) == {
        "found": [1, None, "é"]
    }
    assert tried("tests.clients.process.trial_works:arguments", {}, PATIENCE) == sys.argv


def test_a_refusal_of_ours_is_handed_on_as_it_is() -> None:
    with pytest.raises(OwnCodeError, match=r"^model is bad: \\x1b\[31m$") as told:
        tried("tests.clients.process.trial_works:refuse", {"text": "model is bad: \x1b[31m"}, PATIENCE)
    assert not isinstance(told.value, AbruptError)


PARENT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # of a shell in the background it would be ignored
from clients.process.trial_process import tried
tried("tests.clients.process.trial_works:call", {"name": sys.argv[1]}, 600)
"""


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_trial_ends_with_the_process_that_waits_for_it(tmp_path: Path, end: int) -> None:
    file, marker = tmp_path / "mine.py", tmp_path / "pid"
    file.write_text(
        "import os, time\ndef work():\n"
        f"    with open({str(marker)!r} + '.part', 'w') as one: one.write(str(os.getpid()))\n"
        f"    os.rename({str(marker)!r} + '.part', {str(marker)!r})\n    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", PARENT, f"{file}:work"], cwd=ROOT, stderr=subprocess.DEVNULL)
    until = time.monotonic() + PATIENCE
    while not marker.exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    child = psutil.Process(int(marker.read_text()))
    os.kill(parent.pid, end)
    parent.wait(PATIENCE)
    child.wait(PATIENCE)


def test_the_system_would_take_the_trial_first(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def work():\n    return open('/proc/self/oom_score_adj').read().strip()\n")
    assert tried("tests.clients.process.trial_works:call", {"name": f"{tmp_path / 'mine.py'}:work"}, PATIENCE) == "1000"
