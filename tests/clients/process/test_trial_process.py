"""Code that ends, crashes, floods or never returns, in real child processes, and where workers start."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from clients.process.own_code import OwnCodeError
from clients.process.ray_cluster import NEXT_TO_NOTHING, NodeWorkers, in_turn, places, reserved
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


def node(name: str, cores: float, cards: float = 0.0) -> dict[str, Any]:
    held = {"CPU": cores, "GPU": cards, "memory": 1e9}
    return {"NodeID": name * 56, "Alive": True, "Resources": {key: value for key, value in held.items() if value}}


def letters(found: list[str]) -> str:
    return "".join(one[:1] for one in found)


def test_places_are_as_many_as_flower_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.flower_private import ray_actor

    for nodes, cpus, gpus, expected in (
        ([node("a", 2), node("b", 2)], 1, 0.0, "abab"), ([node("a", 1), node("b", 4)], 1, 0.0, "abbbb"),
        ([node("a", 3), node("b", 4)], 2, 0.0, "abb"), ([node("a", 8), node("b", 8, 1)], 1, 0.5, "bb"),
        ([node("a", 8, 2), node("b", 1, 1)], 1, 0.5, "abaaa"), ([node("a", 9, 2), node("b", 9, 1)], 3, 0.3, "ababab"),
        ([node("a", 0), node("b", 1)], 1, 0.0, "b"),
    ):  # fmt: skip
        assert letters(places(nodes, cpus, gpus)) == expected
        monkeypatch.setattr(ray_actor.ray, "nodes", lambda nodes=nodes: nodes)
        assert ray_actor.pool_size_from_resources({"num_cpus": cpus, "num_gpus": gpus}) == len(expected)
    assert places([], 1, 0.0) == []


def test_attack_workers_take_turns_and_one_living_node_has_room_for_all() -> None:
    nodes = [node("a", 2), node("b", 2, 1), node("c", 0, 1)]
    assert letters(in_turn(nodes, 3, 0.0)) == "aba"
    assert letters(in_turn(nodes, 3, 0.5)) == "bcb"
    assert in_turn([node("a", 2)], 2, 0.5) == ["", ""]
    nodes, share = [node("a", 4, 1), node("b", 4, 1), node("c", 4, 1)], 0.25
    assert len(places(nodes, 1, share)) == 12
    assert 0 < 12 * reserved(share, nodes) <= 1
    assert reserved(share, nodes[:1]) == share
    assert reserved(share, [node("a", 4, 2), node("b", 4, 1)]) == share, "Ray would put all of them on one card"


def test_workers_reserve_next_to_no_processor_and_go_where_they_were_counted() -> None:
    started: list[dict[str, Any]] = []
    actors = SimpleNamespace(options=lambda **options: started.append(options))
    workers = NodeWorkers(actors, [node("a", 2), node("b", 4)])
    for _ in range(4):
        workers.options(num_cpus=2, num_gpus=0.0)
    assert {one["num_cpus"] for one in started} == {NEXT_TO_NOTHING}
    homes = [one["scheduling_strategy"] for one in started]
    # One more than was counted goes anywhere.
    assert letters([getattr(home, "node_id", home) for home in homes]) == "abbD"
    assert all(home.soft for home in homes[:3])
    assert {one["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] for one in started} == {"2"}
