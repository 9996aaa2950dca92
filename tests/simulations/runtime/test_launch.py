"""The app that a run is started from, its environment, and what a command that ends leaves behind."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flwr.app import Message
from ray._common.usage.usage_lib import usage_stats_enabled

from clients.wire.records import values_of
from simulations.experiment.experiment import Experiment
from simulations.runtime import nodes
from simulations.runtime.guardian import processes_of
from simulations.runtime.launch import BESIDE, PACKAGES, ROOT, LocalRuntime, app_folder
from strategies.exchange.exchange import Exchange
from tests.local_grid import LocalGrid
from tests.simulations.federated.test_federation import experiment
from tests.simulations.runtime.runtimes import leftovers, marked, wait_until


def test_the_app_is_a_copy_that_names_the_settings_of_other_packages(tmp_path: Path) -> None:
    """Flower refuses names that the app does not list; and a checkout has environments, of which Flower would read every file."""
    for own, more in (("plain", {}), ("more", {"their-share": 0.5, "their-word": "a 'b'"})):
        app = app_folder(tmp_path / own, Experiment.of().to_mapping() | more)
        assert {path.name for path in app.iterdir()} == {*PACKAGES, *BESIDE, "pyproject.toml"}
        assert all((app / package / "__init__.py").is_file() for package in PACKAGES)
        shipped, copied = (tomllib.loads((one / "pyproject.toml").read_text()) for one in (ROOT, app))
        ours, theirs = (one["tool"]["flwr"]["app"].pop("config") for one in (shipped, copied))
        assert theirs == ours | more
        assert copied == shipped


def test_rays_workers_start_without_uv_and_no_run_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, got in ((None, "0"), ("1", "1")):
        for name in ("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "RAY_USAGE_STATS_ENABLED"):
            monkeypatch.setenv(name, asked) if asked else monkeypatch.delenv(name, raising=False)
        with LocalRuntime(tmp_path / "log") as runtime:
            assert runtime.env["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == got
            assert runtime.env["FLWR_TELEMETRY_ENABLED"] == "0"
            monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", runtime.env["RAY_USAGE_STATS_ENABLED"])
            assert usage_stats_enabled() is bool(asked)  # as Ray itself reads it


STUBBORN = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1]).touch()
time.sleep(600)
"""
RUNS = """
import subprocess, sys, time
from pathlib import Path
from simulations.runtime.launch import LocalRuntime, end_politely
end_politely()
with LocalRuntime(Path(sys.argv[1])) as runtime:
    subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[3]], env=runtime.env)
    print(runtime.home, flush=True)
    time.sleep(600)
"""


@contextmanager
def working(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A command that has started a process that does not listen; and the home of its runtime."""
    ready = tmp_path / "ready"
    command = subprocess.Popen(
        [sys.executable, "-c", RUNS, str(tmp_path / "log"), STUBBORN, str(ready)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, env=marked(tmp_path), start_new_session=True,
    )  # fmt: skip
    with command:
        try:
            assert command.stdout is not None
            home = Path(command.stdout.readline().strip())
            wait_until(ready.exists)
            yield command, home
        finally:
            command.kill()
    assert not processes_of(home)
    ready.unlink()


@pytest.mark.long
def test_a_second_signal_does_not_leave_behind_what_the_first_was_to_end(tmp_path: Path) -> None:
    """`uv run` sends a signal on that the command itself got, too; and people press Ctrl-C twice."""
    for again in (signal.SIGTERM, signal.SIGINT):
        with working(tmp_path) as (command, home):
            command.send_signal(signal.SIGTERM)
            time.sleep(1.5)  # It waits for its child, which does not listen, and then kills it.
            assert command.poll() is None
            command.send_signal(again)
            assert command.wait(60) == 128 + signal.SIGTERM
            assert not home.exists()


def test_a_killed_command_leaves_nothing_behind(tmp_path: Path) -> None:
    """Nothing in the command can run any more: its guardian ends what it started, even what does not listen, and the home."""
    with working(tmp_path) as (command, home):
        os.killpg(command.pid, signal.SIGKILL)
        command.wait(60)
        wait_until(lambda: not home.exists())
        wait_until(lambda: not leftovers(tmp_path))


def test_help_needs_no_torch() -> None:
    """Importing it takes seconds, and the help on a command should not wait for it."""
    code = (
        "import sys; from typer.testing import CliRunner; from simulations.cli import app\n"
        "for command in ([], ['run'], ['attack'], ['search'], ['compare'], ['report'], ['list']):\n"
        "    told = CliRunner().invoke(app, [*command, '--help'])\n"
        "    assert told.exit_code == 0 and 'Usage' in told.output, command\n"
        "    assert not {'torch', 'flwr', 'ray'} & set(sys.modules), command"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_workers_of_a_simulation_run_the_servers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent would not do: another checkout may lie in it. A deployed node has a copy of its own."""
    told = []

    def listen(partition: int, request: Message, reply: Message) -> Message:
        told.append(values_of(request, "config")["app-dir"])
        return reply

    plan = experiment(tmp_path / "run").plan()
    for in_simulation in (True, False):
        monkeypatch.setattr(nodes, "_in_simulation", lambda simulated=in_simulation: simulated)
        nodes.set_up(Exchange(LocalGrid(2, listen), {0: 100, 1: 101}, 60.0), plan, "iid")
    assert told == [str(ROOT)] * 2 + [""] * 2
