"""The app that a run is started from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from simulations.experiment.experiment import Experiment
from simulations.runtime.launch import PACKAGES, ROOT, LocalRuntime, app_folder


def test_the_checkout_is_the_app_as_it_stands(tmp_path: Path) -> None:
    assert app_folder(tmp_path, Experiment.of().to_mapping()) == ROOT
    assert not list(tmp_path.iterdir())


def test_settings_of_another_package_are_named_in_a_copy_because_flower_refuses_others(tmp_path: Path) -> None:
    app = app_folder(tmp_path, {"seed": 4, "their-share": 0.5, "their-word": "a 'b'"})
    assert app.parent == tmp_path
    assert all((app / package / "__init__.py").is_file() for package in PACKAGES)
    shipped, copied = (tomllib.loads((one / "pyproject.toml").read_text()) for one in (ROOT, app))
    ours, theirs = (one["tool"]["flwr"]["app"].pop("config") for one in (shipped, copied))
    assert theirs == ours | {"their-share": 0.5, "their-word": "a 'b'"}
    assert copied == shipped


def test_rays_workers_are_not_started_by_uv_anew_unless_somebody_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asked, got in ((None, "0"), ("1", "1")):
        monkeypatch.delenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", raising=False)
        if asked:
            monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", asked)
        with LocalRuntime(tmp_path / "log") as runtime:
            assert runtime.env["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == got


def test_nobody_is_told_of_a_run_unless_somebody_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._common.usage.usage_lib import usage_stats_enabled

    for asked, told in ((None, False), ("1", True)):
        monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
        if asked:
            monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", asked)
        with LocalRuntime(tmp_path / "log") as runtime:
            assert runtime.env["FLWR_TELEMETRY_ENABLED"] == "0"
            monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", runtime.env["RAY_USAGE_STATS_ENABLED"])
            assert usage_stats_enabled() is told  # as Ray itself reads it


STUBBORN = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1]).touch()
time.sleep(120)
"""
RUNS = """
import subprocess, sys, time
from pathlib import Path
from simulations.runtime.launch import LocalRuntime, end_politely
end_politely()
with LocalRuntime(Path(sys.argv[1])) as runtime:
    subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[3]], env=runtime.env)
    print(runtime.home, flush=True)
    time.sleep(120)
"""


@pytest.mark.long
@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_leave_behind_what_the_first_was_to_end(tmp_path: Path, again: int) -> None:
    """`uv run` sends a signal on that the command itself got, too; and people press Ctrl-C twice."""
    ready = tmp_path / "ready"
    command = subprocess.Popen(
        [sys.executable, "-c", RUNS, str(tmp_path / "log"), STUBBORN, str(ready)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert command.stdout is not None
    home = command.stdout.readline().strip()
    assert wait_until(ready.exists)
    command.send_signal(signal.SIGTERM)
    time.sleep(1.5)  # It waits for its child, which does not listen, and then kills it.
    assert command.poll() is None
    command.send_signal(again)
    assert command.wait(60) == 128 + signal.SIGTERM
    assert not Path(home).exists()
    assert not [p for p in psutil.process_iter() if environment(p).get("FLWR_HOME") == home]


def test_a_killed_command_leaves_nothing_behind(tmp_path: Path) -> None:
    """Nothing in the command can run any more: its guardian ends what it started, even what does not listen, and the home."""
    ready = tmp_path / "ready"
    command = subprocess.Popen(
        [sys.executable, "-c", RUNS, str(tmp_path / "log"), STUBBORN, str(ready)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    assert command.stdout is not None
    home = command.stdout.readline().strip()
    assert wait_until(ready.exists)
    os.killpg(command.pid, signal.SIGKILL)
    command.wait(60)
    assert wait_until(lambda: not Path(home).exists())
    assert not [p for p in psutil.process_iter() if environment(p).get("FLWR_HOME") == home]
    assert wait_until(lambda: not [p for p in psutil.process_iter() if home in " ".join(arguments(p))])


def arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def wait_until(happened: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not happened() and time.monotonic() < end:
        time.sleep(0.05)
    return happened()


def environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


@pytest.mark.parametrize(
    "command", [[], ["run"], ["attack"], ["search"], ["protect"], ["compare"], ["report"], ["list"]]
)
def test_help_needs_no_torch(command: list[str]) -> None:
    """Importing it takes seconds, and whoever asks what a command can do should not wait for it."""
    code = (
        "import sys; from typer.testing import CliRunner; from simulations.cli import app; "
        f"told = CliRunner().invoke(app, {[*command, '--help']!r}); "
        "print(told.exit_code, 'Usage' in told.output, sorted({'torch', 'flwr', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "0 True []"
