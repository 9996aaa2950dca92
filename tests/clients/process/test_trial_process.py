"""Code that ends, crashes, floods or never returns, in real child processes."""

import os
import signal
import socket
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


def works(tmp_path: Path, code: str, seconds: float = PATIENCE) -> object:
    file, body = tmp_path / "mine.py", code.replace("\n", "\n    ")
    file.write_text(f"import ctypes, os, signal, subprocess, sys, time\n\n\ndef work():\n    {body}", encoding="utf-8")
    return tried("tests.clients.process.trial_works:call", {"name": f"{file}:work"}, seconds)


def outcome(tmp_path: Path, code: str, seconds: float = PATIENCE) -> str:
    with pytest.raises(AbruptError) as told:
        works(tmp_path, code, seconds)
    return str(told.value)


def test_a_flood_of_output_is_neither_kept_nor_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flood = "for _ in range(20_000): print('x' * 1000)"
    told = outcome(tmp_path, f"{flood}\nprint('\\x1b[31m end', flush=True)\nos._exit(3)")
    assert told == r"ends its process with exit code 3, as os._exit(3) does; it printed last: '\x1b[31m end'"
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_whatever_code_does_is_told_in_one_sentence(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for code, told in {
        "os._exit(0)": "ends its process with exit code 0, as os._exit(0) does",
        "os.kill(os.getpid(), signal.SIGKILL)": "is killed by SIGKILL, as the system does where memory runs out",
        "ctypes.string_at(0)": "crashes its process (SIGSEGV)",
        "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)": "raises KeyboardInterrupt",
        "sys.exit('\\x1b[2J gone')": "raises SystemExit: \\x1b[2J gone",
        "raise type('Mute', (Exception,), {'__str__': lambda _: 1 / 0})": "raises Mute",
        "return open('/dev/null')": "raises TypeError: Object of type TextIOWrapper is not JSON serializable",
        "input()": "raises EOFError: EOF when reading a line",
    }.items():
        with subtests.test(code):
            assert outcome(tmp_path, code) == told
    assert works(tmp_path, "return {'found': [1, None, 'é']}") == {"found": [1, None, "é"]}
    assert tried("tests.clients.process.trial_works:arguments", {}, PATIENCE) == sys.argv
    with pytest.raises(OwnCodeError, match=r"^model is bad: \\x1b\[31m$") as refused:
        tried("tests.clients.process.trial_works:refuse", {"text": "model is bad: \x1b[31m"}, PATIENCE)
    assert not isinstance(refused.value, AbruptError), "a refusal of ours is handed on as it is"
    # The system would take the trial first.
    assert works(tmp_path, "return open('/proc/self/oom_score_adj').read().strip()") == "1000"


DETACHED = """
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            open({marker!r} + str(os.getpid()), "w").close()
            time.sleep(600)
        os._exit(0)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
while len([one for one in os.listdir({folder!r}) if one.isdigit()]) < 2: time.sleep(0.1)
"""


@pytest.mark.slow
def test_all_that_code_started_ends_with_it_detached_processes_too(tmp_path: Path) -> None:
    """A loop in C, which no signal handler of Python interrupts, is ended by its time limit."""
    for name, rest, told in (
        ("ends", "os._exit(3)", "ends its process"),
        ("loops", "sum(iter(int, 1))", "is not done after"),
    ):
        (folder := tmp_path / name).mkdir()
        code = DETACHED.format(marker=f"{folder}/", folder=str(folder)).strip() + f"\n{rest}"
        assert outcome(tmp_path, code, 60.0).startswith(told)
        started = [int(one.name) for one in folder.iterdir()]
        assert started, "the machine was too busy to come that far"
        assert not [pid for pid in started if psutil.pid_exists(pid)]


@pytest.mark.slow
def test_a_trial_without_network_has_none_for_any_code_or_says_so() -> None:
    """Not for Python's socket alone: below it stand ``_socket`` and child processes."""
    server = socket.create_server(("127.0.0.1", 0))
    with server:
        arguments = {"port": server.getsockname()[1]}
        offline = tried("tests.clients.process.trial_works:reach", arguments, PATIENCE, offline=True)
        assert offline == {"isolated": offline["isolated"], "reached": [not offline["isolated"]] * 2}
        if psutil.LINUX and not os.geteuid():
            assert offline["isolated"]


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
    while not marker.exists():
        assert parent.poll() is None, "the trial never began"
        time.sleep(0.1)
    child = psutil.Process(int(marker.read_text()))
    os.kill(parent.pid, end)
    parent.wait(PATIENCE)
    child.wait(PATIENCE)
