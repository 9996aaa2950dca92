"""The work of the child process: import the app, look at its ClientApp, and run its ServerApp up to its first round."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from clients.process.own_code import OwnCodeError
from clients.process.trial_process import tried
from simulations.external_app.check.source.project import Project
from simulations.external_app.check.trial.surroundings import without_data_sets, work_offline, write_nothing

SPARE = 30.0
"""Seconds for fedveil's own imports."""


def try_app(project: Project, nodes: int, seconds: float) -> dict[str, Any]:
    """Have a child process import and start the app; its result, as ``look`` gives it."""
    arguments = {
        "folder": str(project.folder), "server_app": project.server_app, "client_app": project.client_app,
        "run_config": dict(project.run_config), "packages": sorted(project.packages()), "nodes": nodes,
    }  # fmt: skip
    try:
        found: dict[str, Any] = tried(f"{__name__}:look", arguments, seconds + SPARE)
    except OwnCodeError as error:
        return {"refused": [f"the process that tried the app {error}"]}
    return found


def look(
    folder: str, server_app: str, client_app: str, run_config: dict[str, Any], packages: list[str], nodes: int
) -> dict[str, Any]:
    """Import both apps, and describe them: ``client``, ``server``, ``model``, and ``refused``, the reasons against an audit.

    Changes this process for good.
    """
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from simulations.external_app.check.trial.models import find_model, watched_models
    from simulations.external_app.check.trial.server import run_server

    place, refused = Path(folder), list[str]()
    found: dict[str, Any] = {"refused": refused, "client": {}, "server": {}, "model": {}}
    os.chdir(place)
    sys.path.insert(0, folder)
    work_offline()
    write_nothing()
    without_data_sets(packages)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    server = _loaded(server_app, ServerApp, "ServerApp", place, refused)
    client = _loaded(client_app, ClientApp, "ClientApp", place, refused)
    if client is not None:
        found["client"] = _client(client, refused)
    if server is not None and not refused:
        with watched_models() as models:
            found["server"] = run_server(server, run_config, nodes, refused)
        if "arrays" in found["server"]:
            found["model"] = find_model(found["server"]["arrays"], models, refused)
    return found


def _client(app: Any, refused: list[str]) -> dict[str, Any]:
    """Functions by Flower's names, and the mods with their settings, the outermost first; reasons against an audit are added."""
    from clients.external_app.mods import app_mods, described, inner_mods, mods_of
    from clients.flower_private import functions_of, has_client_fn

    functions, inner = sorted(functions_of(app)), []
    if has_client_fn(app):
        refused.append(
            "the ClientApp is of the older interface, client_fn: an audit needs @app.train() of the message API"
        )
    elif not any(name.startswith("train.") for name in functions):
        refused.append("the ClientApp has no function for training (@app.train())")
    elif "query.setup" not in functions:  # else they are wrapped, and hide their mods
        with suppress(ValueError):  # which answer_audits raises, too
            inner = inner_mods(app, mods_of(app))
    return {
        "functions": functions, "app_mods": list(map(described, app_mods(app))), "train_mods": list(map(described, inner)),
    }  # fmt: skip


def _loaded(name: str, kind: type, what: str, folder: Path, refused: list[str]) -> Any:
    """The object of an entry point; None, and a reason, when it cannot be loaded."""
    module, _, attribute = name.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), attribute)
    except BaseException as error:
        own = [one for one in traceback.extract_tb(error.__traceback__) if Path(one.filename).is_relative_to(folder)]
        where = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
        text = f"{type(error).__name__}: {str(error)[:500]}{where}"
        if "'flwr." in text:
            text += f"; the app is written for another Flower than the installed {version('flwr')}"
        refused.append(f"the {what} cannot be imported: {text}")
        return None
    if not isinstance(loaded, kind):
        refused.append(f"{name} is {type(loaded).__name__}, no {what}")
        return None
    return loaded
