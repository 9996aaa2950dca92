"""The work of the child process: import the app, look at its ClientApp, and run its ServerApp up to its first round."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clients.process.trial_process import tried
from simulations.external_app.check.trial.surroundings import (
    OutOfTimeError,
    at_most,
    files_of,
    without_data_sets,
    work_offline,
)

SPARE = 30.0
"""Seconds beyond the app's own limits after which the child process is killed."""


def try_app(
    folder: Path, server_app: str, client_app: str, run_config: Mapping[str, Any], packages: Sequence[str],
    builders: Sequence[dict[str, Any]], nodes: int, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Have a child process import and start the app; its result, as ``look`` gives it.

    Raises:
        OwnCodeError: When the process ended or hung.
    """
    arguments = {
        "folder": str(folder), "server_app": server_app, "client_app": client_app, "run_config": dict(run_config),
        "packages": list(packages), "builders": list(builders), "nodes": nodes, "seconds": seconds,
    }  # fmt: skip
    found: dict[str, Any] = tried(f"{__name__}:look", arguments, 3 * seconds + SPARE)
    return found


def look(
    folder: str, server_app: str, client_app: str, run_config: dict[str, Any], packages: list[str],
    builders: list[dict[str, Any]], nodes: int, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Import both apps, and describe them; each of the three parts may take ``seconds``. Changes this process for good."""
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from simulations.external_app.check.trial.client import look_at_client, watch_answers
    from simulations.external_app.check.trial.models import find_models
    from simulations.external_app.check.trial.own_lines import write_nothing
    from simulations.external_app.check.trial.server import run_server

    place = Path(folder)
    os.chdir(place)
    sys.path.insert(0, folder)
    work_offline()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    before, answering = files_of(place), watch_answers()
    found: dict[str, Any] = {"errors": {}, "client": {}, "server": {}, "model": {}, "wrote": []}
    write_nothing()
    without_data_sets(packages)
    server = _loaded(server_app, ServerApp, "ServerApp", place, seconds, found["errors"])
    client = _loaded(client_app, ClientApp, "ClientApp", place, seconds, found["errors"])
    if client is not None:
        found["client"] = look_at_client(client)
        if found["client"]["answers"] and answering:
            found["client"] |= {key: answering[-1][key] for key in ("train_mods", "budgets", "differ")}
    if server is not None:
        found["server"] = {"server_fn": getattr(server, "_main", None) is None}
        if not found["server"]["server_fn"] and not found["client"].get("client_fn"):
            found["server"] |= run_server(server, run_config, nodes, seconds)
    try:
        with at_most(seconds):
            found["model"] = find_models(place, found["server"].get("arrays"), builders)
    except OutOfTimeError:
        found["model"] = {"failed": {"": f"building the app's models took longer than {seconds:g} s"}}
    after = files_of(place)
    if before is not None and after is not None:
        new = sorted(after - before)
        found["wrote"] = [one for one in new if str(Path(one).parent) not in new and Path(one).name != "__pycache__"]
    return found


def _loaded(name: str, kind: type, what: str, folder: Path, seconds: float, errors: dict[str, str]) -> Any:
    """The object of an entry point; None, and an error by the name of its kind, when it cannot be loaded."""
    module, _, attribute = name.partition(":")
    try:
        with at_most(seconds):
            loaded = getattr(importlib.import_module(module), attribute)
    except OutOfTimeError:
        errors[what] = f"importing {module} took longer than {seconds:g} s"
    except BaseException as error:
        errors[what] = f"{type(error).__name__}: {str(error)[:500]}{_line_of(error, folder)}"
    else:
        if isinstance(loaded, kind):
            return loaded
        errors[what] = f"{name} is {type(loaded).__name__}, no {what}"
    return None


def _line_of(error: BaseException, folder: Path) -> str:
    """The last line of the app itself in a traceback."""
    own = [one for one in traceback.extract_tb(error.__traceback__) if Path(one.filename).is_relative_to(folder)]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
