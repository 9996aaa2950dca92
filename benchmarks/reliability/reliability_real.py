"""What pieces of benchmarks/reliability/reliability.py run on Flower's simulation runtime: copies of an app with a few lines
more.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from reliability_failing import SEED
from reliability_marks import FILE
from reliability_plain import settings
from reliability_runs import ENDLESS, HERE, columns, last_accuracy, require, rows_of

COMPLETE = "        behind = server_round - experiment.rounds\n"
"""Of simulations/server_app.py: a round has ended."""
ANSWER = "    return handlers[message_type](message, context)\n"
"""Of clients/app.py."""


def copy_of_the_app(place: Path, *modules: str) -> Path:
    """The app with scripts of this folder beside it."""
    from simulations.runtime.launch import BESIDE, PACKAGES, ROOT

    for package in PACKAGES:
        shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE:
        shutil.copy(ROOT / name, place / name)
    for module in modules:
        shutil.copy(HERE / f"{module}.py", place / f"{module}.py")
    text = (ROOT / "pyproject.toml").read_text()
    (place / "pyproject.toml").write_text(
        changed(text, "fab-include = [\n", 'fab-include = [\n    "/reliability_*.py",\n')
    )
    return place


def changed(text: str, old: str, new: str) -> str:
    """A text with its only such place changed."""
    require(text.count(old) == 1, f"{old!r} is {text.count(old)} times in what was to be changed")
    return text.replace(old, new)


def change(file: Path, old: str, new: str) -> None:
    """The same of a file."""
    file.write_text(changed(file.read_text(), old, new))


def run_on_flower(app: Path, values: dict[str, Any], clients: int, log: Path, **variables: str) -> None:
    """Runs an app on a runtime of its own to its good end; nothing of it is left behind then."""
    from simulations.runtime.guardian import processes_of
    from simulations.runtime.launch import LocalRuntime, Resources

    with LocalRuntime(log) as runtime:
        runtime.env |= variables
        process = runtime.start(values, Resources(clients), app)
        process.wait(ENDLESS)
        status = runtime.status()
        require(status == "finished:completed", f"{app.name} ended with {status!r}: {log.read_text()[-3000:]}")
    require(
        not runtime.home.exists() and not processes_of(runtime.home), f"{app.name} left {processes_of(runtime.home)}"
    )


def load_on_flowers_runtime(clients: int, rounds: int) -> dict[str, dict[str, Any]]:
    """What ``load`` measures in one process, of two apps that Flower runs."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            "flower": _plain(Path(folder), clients, rounds),
            "fedveil": _fedveil(Path(folder), clients, rounds),
        }


def _plain(folder: Path, clients: int, rounds: int) -> dict[str, Any]:
    app = copy_of_the_app(folder / "plain", "reliability_marks", "reliability_plain")
    text = (app / "pyproject.toml").read_text()
    text = changed(text, '"simulations.server_app:app"', '"reliability_plain:server"')
    text = changed(text, '"clients.app:app"', '"reliability_plain:client"')
    values = {"num-clients": clients, "rounds": rounds}
    named = "".join(f"{name} = {value}\n" for name, value in values.items())
    start = text.index("[tool.flwr.app.config]\n")
    end = text.index("[tool.ruff]", start)
    (app / "pyproject.toml").write_text(f"{text[:start]}[tool.flwr.app.config]\n{named}\n{text[end:]}")
    marks, log = folder / "plain-marks", folder / "plain-log"
    run_on_flower(app, values, clients, log, **{FILE: str(marks)})
    found = re.search(r"accuracy (\S+)", log.read_text())
    return columns(_read(marks), rounds, float(found[1]) if found else float("nan"))


def _fedveil(folder: Path, clients: int, rounds: int) -> dict[str, Any]:
    app = copy_of_the_app(folder / "fedveil", "reliability_marks")
    change(
        app / "simulations" / "server_app.py", COMPLETE, f"        __import__('reliability_marks').mark()\n{COMPLETE}"
    )
    marks, out = folder / "fedveil-marks", folder / "run"
    run_on_flower(app, _config(settings(clients, rounds), out), clients, folder / "fedveil-log", **{FILE: str(marks)})
    return columns(_read(marks), rounds, last_accuracy(out))


def run_failing(folder: Path, chosen: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    """The rows of a run whose clients fail as ``reliability_failing`` draws."""
    app = copy_of_the_app(folder / "failing", "reliability_failing")
    call = "    return __import__('reliability_failing').answered(handlers[message_type], message, context)\n"
    change(app / "clients" / "app.py", ANSWER, call)
    values = _config(chosen, folder / "run")
    run_on_flower(app, values, chosen["num_clients"], folder / "log", **{SEED: str(seed)})
    return rows_of(folder / "run")


def _config(chosen: dict[str, Any], out: Path) -> dict[str, Any]:
    from simulations.experiment.experiment import Experiment

    out.mkdir()
    return dict(Experiment.of(**chosen, output_dir=str(out)).to_mapping())


def _read(marks: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in marks.read_text().split("\n")[:-1]]
