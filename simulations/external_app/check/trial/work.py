"""The work of the child process: import the app, look at its ClientApp, and run its ServerApp up to its first round.

The app has no data, and fedveil's own lines in it write nothing.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from clients.process.own_code import OwnCodeError
from clients.process.trial_process import tried
from simulations.external_app.check.project import Project

SPARE = 30.0
"""Seconds for fedveil's own imports."""


def try_app(project: Project, nodes: int, seconds: float) -> dict[str, Any]:
    """Have a child process import and start the app; its result, as ``look`` gives it."""
    arguments = {
        "folder": str(project.folder), "server_app": project.server_app, "client_app": project.client_app,
        "run_config": dict(project.run_config), "packages": sorted(project.packages()), "nodes": nodes,
    }  # fmt: skip
    try:
        facts: dict[str, Any] = tried(f"{__name__}:look", arguments, seconds + SPARE, offline=True)
    except OwnCodeError as error:
        return {"refused": [f"the process that tried the app {error}"]}
    return facts


def look(
    folder: str,
    server_app: str,
    client_app: str,
    run_config: dict[str, Any],
    packages: list[str],
    nodes: int,
    isolated: bool,
) -> dict[str, Any]:
    """Import both apps, and describe them: ``client``, ``server``, ``model``, and ``refused``, the reasons against an audit.

    Changes this process for good. ``isolated``: the system gives it no network; else Python's sockets are patched.
    """  # fmt: skip
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from simulations.external_app.check.trial.models import find_model, run_server, watched_models

    place, refused = Path(folder), list[str]()
    facts: dict[str, Any] = {"isolated": isolated, "refused": refused, "client": {}, "server": {}, "model": {}}
    os.chdir(place)
    sys.path.insert(0, folder)
    work_offline(isolated=isolated)
    write_nothing()
    without_data_sets(packages)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    before = _before_answers()
    server = _loaded(server_app, ServerApp, "ServerApp", place, refused)
    client = _loaded(client_app, ClientApp, "ClientApp", place, refused)
    if client is not None:
        facts["client"] = _client(client, refused) | (before[-1] if before else {})
    if server is not None and not refused:
        with watched_models() as models:
            facts["server"] = run_server(server, run_config, nodes, refused)
        if arrays := facts["server"].pop("arrays", None):
            facts["model"] = find_model(arrays, models, refused)
    return facts


def _before_answers() -> list[dict[str, Any]]:
    """The mods of each app that calls ``answer_audits``, as they are before it wraps them."""
    import clients.external_app.app as answers

    original, seen = answers.answer_audits, list[dict[str, Any]]()

    def answer_audits(app: Any, **given: Any) -> None:
        seen.append(_client(app, []))
        original(app, **given)

    answers.answer_audits = answer_audits
    return seen


def _client(app: Any, refused: list[str]) -> dict[str, Any]:
    """The mods with their settings, the outermost first; reasons against an audit are added."""
    from clients.external_app.mods import described, inner_mods, mods_of
    from clients.flower_private import functions_of, has_client_fn, mods_around

    functions, inner = functions_of(app), []
    if has_client_fn(app):
        refused.append(
            "the ClientApp is of the older interface, client_fn: an audit needs @app.train() of the message API"
        )
    elif not any(name.startswith("train.") for name in functions):
        refused.append("the ClientApp has no function for training (@app.train())")
    elif "query.setup" not in functions:  # else they are wrapped, and hide their mods
        with suppress(ValueError):  # which answer_audits raises, too
            inner = inner_mods(app, mods_of(app))
    return {"app_mods": list(map(described, mods_around(app))), "train_mods": list(map(described, inner))}


def _loaded(name: str, kind: type, what: str, folder: Path, refused: list[str]) -> Any:
    """The object of an entry point; None, and a reason, when it cannot be loaded."""
    module, _, attribute = name.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), attribute)
    except BaseException as error:
        own = [call for call in traceback.extract_tb(error.__traceback__) if Path(call.filename).is_relative_to(folder)]
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


OFFLINE = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "disabled",
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
}  # fmt: skip
OFFLINE_ERROR = "fedveil check-app runs the app without network"
LENGTH = 64
"""Of a data set that stands in for one that is not loaded."""


class StandInData:
    """Stands for a data set that is not loaded: each attribute, item and call of it is such a data set again."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> StandInData:
        """Another such data set, whatever a method was called for."""
        return self

    def __getitem__(self, item: Any) -> StandInData:
        return self

    def __iter__(self) -> Iterator[StandInData]:
        return iter([self] * LENGTH)

    def __len__(self) -> int:
        return LENGTH


def work_offline(*, isolated: bool) -> None:
    """Tell libraries that there is no network, and refuse connections where the system does not."""
    os.environ.update(OFFLINE)
    sys.dont_write_bytecode = True
    if isolated:
        return

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise socket.gaierror(socket.EAI_AGAIN, OFFLINE_ERROR)

    socket.socket.connect = refuse  # type: ignore[method-assign]
    socket.socket.connect_ex = refuse  # type: ignore[method-assign]
    socket.getaddrinfo = refuse


def without_data_sets(packages: Collection[str]) -> None:
    """Put stand-ins in the place of what loads data sets of Hugging Face, Flower and torchvision, if the app imports these."""
    if "datasets" in packages or "flwr_datasets" in packages:
        with suppress(ImportError):
            hugging_face: Any = importlib.import_module("datasets")
            hugging_face.load_dataset = _stand_in
    if "flwr_datasets" in packages:
        with suppress(ImportError):
            federated = importlib.import_module("flwr_datasets").FederatedDataset
            federated.load_partition = federated.load_split = _stand_in
    if "torchvision" in packages:
        with suppress(ImportError):
            sets = importlib.import_module("torchvision.datasets")
            for kind in vars(sets).values():
                if isinstance(kind, type) and issubclass(kind, sets.VisionDataset):
                    _leave_empty(kind)


def _stand_in(*_: Any, **__: Any) -> StandInData:
    return StandInData()


def _leave_empty(kind: Any) -> None:
    """Has a class of data sets load nothing when it is built."""

    def build(data_set: Any, *_: Any, **__: Any) -> None:
        for name in ("data", "targets", "classes", "transform", "target_transform"):
            with suppress(AttributeError):
                setattr(data_set, name, StandInData())

    kind.__init__, kind.__len__, kind.__getitem__ = build, lambda _: LENGTH, _stand_in


def write_nothing() -> None:
    """Have ``audited`` check its settings and return the strategy, and ``RecordingStrategy`` keep nothing: no folder is made."""
    names = ("simulations.external_app.study", "simulations.audited", "strategies.recording.strategy")
    study, door, recording = map(importlib.import_module, names)
    original: Callable[..., Any] = study.audited

    def audited(strategy: Any, folder: Any, model: Any, **settings: Any) -> Any:
        del folder
        return original(strategy, "", model, **settings)

    study.audited = door.audited = audited  # type: ignore[attr-defined]
    recording.RecordingWriter = _stand_in  # type: ignore[attr-defined]
