"""One audited app: copied, edited, run in a Flower runtime of its own, and stopped after a time limit."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from apps import App
from edits import apply_all, redirect_data

from simulations.runtime.launch import PACKAGES, ROOT, LocalRuntime, Resources

CLIENTS = 2
HERE = Path(__file__).parent
QUIET = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
"""Environment of the apps: nothing is looked for in a network."""
PATH = os.environ.get("PYTHONPATH", "")
REASON = re.compile(r"(Audit: .*|\w*(?:Error|Exception|Mistake): .+)")

HARMLESS = ("report written", "waiting for", "exit_actor() is called", "a verdict needs")


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        lines: Lines that the audit added.
        status: Flower's, such as "finished:completed"; or why there was no run.
        seconds: From the start to the page; None without one.
        audit: The audit's folder.
        said: What the log says of failures, each once.
    """

    lines: int
    status: str
    seconds: float | None
    audit: Path
    said: tuple[str, ...] = ()


def prepared(app: App, checkout: Path, scratch: Path) -> tuple[Path, int]:
    """The edited copy of an app, and the lines that its audit added."""
    copy = scratch / "app"
    shutil.copytree(checkout / app.folder, copy, ignore=shutil.ignore_patterns("_static", "__pycache__"))
    shutil.copy(HERE / "offline_data.py", copy / app.package)
    names = {"OUT": str(scratch / "audit"), "PACKAGE": app.package}
    redirect_data(copy, app.package)
    apply_all(copy, (*app.data, *app.repair, *app.variant), names)
    return copy, apply_all(copy, app.audit, names)


def own_copy(out: Path) -> Path:
    """A copy of fedveil's packages for the apps: what imports them works in their folder, where the apps write their files."""
    copy = out / "fedveil"
    if not copy.exists():
        for package in PACKAGES:
            shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def run(app: App, checkout: Path, out: Path, scratch: Path, limit: float, clients: int = CLIENTS) -> Outcome:
    """Run an audited app, for one round unless its configuration says more; it is stopped after ``limit`` seconds."""
    audit = scratch / "audit"
    copy, lines = prepared(app, checkout, scratch)
    if missing := [name for name in app.needs if importlib.util.find_spec(name) is None]:
        return Outcome(lines, f"not run: {', '.join(missing)} is not installed", None, audit)
    os.environ.update(QUIET, PYTHONPATH=os.pathsep.join([str(own_copy(out)), PATH]))
    log = scratch / "log.txt"
    with LocalRuntime(log) as runtime:
        begin = time.monotonic()
        process = runtime.start({"num-server-rounds": 1, **app.config}, Resources(clients), copy)
        seconds = None
        while process.poll() is None and time.monotonic() - begin < limit:
            time.sleep(0.25)
            if seconds is None and (audit / "report.html").is_file():
                seconds = time.monotonic() - begin
        ended = process.poll() is not None
        status = runtime.status() if ended else f"stopped after {limit:g} s"
        if not ended:
            process.kill()
    return Outcome(lines, status, seconds, audit, reasons(log.read_text(encoding="utf-8", errors="replace")))


def reasons(log: str) -> tuple[str, ...]:
    """The failures that a log names, each once; neither the audit's success nor Ray's words on its end."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
    found = [one.strip() for one in REASON.findall(plain)]
    return tuple(dict.fromkeys(one for one in found if not any(word in one for word in HARMLESS)))
