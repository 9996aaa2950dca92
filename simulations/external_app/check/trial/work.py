"""The work of the child process: import the app, look at its ClientApp, start its ServerApp, and have a client train once."""

from __future__ import annotations

import ast
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clients.process.own_code import OwnCodeError
from clients.process.trial_process import tried

if TYPE_CHECKING:  # this process loads neither Flower nor PyTorch
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    from simulations.external_app.check.trial.stand_ins import Pictures

SPARE = 30.0
"""Seconds for fedveil's own imports."""
TRAINING = 60
"""Seconds that the training of a client may take."""
DATA_SETS = ("datasets", "flwr_datasets", "torchvision")
SECURE = re.compile(r"(secagg(plus)?_mod|SecAgg(Plus)?Workflow)$")
OTHERS = ("tensorflow", "keras", "sklearn", "jax", "xgboost", "mlx")
TORCH = {"torch", "torchvision", "pytorch_lightning", "lightning", "timm"}
AUDITED = "simulations.external_app.study:audited"


def try_app(arguments: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Have a child process import and start an app; its result, as ``look`` gives it for these arguments."""
    try:
        found: dict[str, Any] = tried(f"{__name__}:look", arguments, seconds + TRAINING + SPARE, offline=True)
    except OwnCodeError as error:
        return {"refused": [f"the process that tried the app {error}"]}
    return found


def look(
    folder: str, server_app: str, client_app: str, run_config: dict[str, Any], nodes: int, isolated: bool
) -> dict[str, Any]:
    """Describe an app: ``client``, ``server``, ``model``, a client's ``training``, and ``refused``: reasons against an audit.

    Changes this process for good. ``isolated``: the system gives it no network; else Python's sockets are patched.
    """
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from simulations.external_app.check.trial.models import find_model, watched_models
    from simulations.external_app.check.trial.server import run_server
    from simulations.external_app.check.trial.stand_ins import Pictures, without_data_sets, work_offline, write_nothing

    place, refused, pictures = Path(folder), list[str](), Pictures()
    found: dict[str, Any] = {one: {} for one in ("client", "server", "model", "training")}
    os.chdir(place)
    sys.path.insert(0, folder)
    work_offline(isolated=isolated)
    audits = write_nothing()
    without_data_sets(_data_sets(place, (client_app, server_app)), pictures)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    before = _before_answers()
    server = _loaded(server_app, ServerApp, "ServerApp", place, refused)
    client = _loaded(client_app, ClientApp, "ClientApp", place, refused)
    names = {name: _names(one) for name, one in list(sys.modules.items()) if _is_in(one, place)}
    if client is not None:
        found["client"] = _client(client, refused) | (before[-1] if before else {}) | {"answers": bool(before)}
    refused += _against(names, built=True)
    if server is not None and not refused:
        with watched_models() as models:
            found["server"], message = run_server(server, run_config, nodes, refused)
        if arrays := found["server"].pop("arrays", None):
            found["model"] = find_model(arrays, models, refused)
        refused[:] = [*_against(names, built=bool(models))] or refused
        if message is not None and client is not None:
            found["training"] = _trained(client, message, run_config, nodes, pictures, found["model"].get("images"))
    of_client, of_server = (names.get(one.partition(":")[0], {}) for one in (client_app, server_app))
    _add_names(found, of_client, of_server, audits)
    return {**found, "refused": refused, "isolated": isolated}


def _add_names(
    found: dict[str, Any], client: Mapping[str, str], server: Mapping[str, str], audits: Sequence[Mapping[str, Any]]
) -> None:
    """What both files call that which the lines to add need, and what the server's gives to ``audited``."""
    wanted = {found["model"].get("factory"), found["training"].get("loading", {}).get("function"), "torch"}
    for one, known in (("client", client), ("server", server)):
        found[one]["names"] = {full: name for full, name in known.items() if full in wanted}
    declared = {name: value for one in audits[-1:] for name, value in one.items() if isinstance(value, int | float)}
    found["server"] |= {"audited": bool(audits) or AUDITED in server, "declared": declared}


def _data_sets(folder: Path, entries: Collection[str]) -> set[str]:
    """Packages of data sets whose names stand anywhere in the app's files: these are imported before the app, and replaced."""
    tops = {entry.partition(":")[0].partition(".")[0] for entry in entries}
    files = (file for top in tops for file in (folder / f"{top}.py", *(folder / top).rglob("*.py")) if file.is_file())
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    return {name for name in DATA_SETS if any(re.search(rf"\b{name}\b", text) for text in texts)}


def _is_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(folder)


def _names(module: ModuleType) -> dict[str, str]:
    """What a file of the app calls the modules, classes and functions that it knows: by ``module`` or ``module:name``."""
    found = {}
    for name, value in vars(module).items():
        if isinstance(value, ModuleType):
            found[value.__name__] = name
        elif isinstance(getattr(value, "__qualname__", None), str):
            found[f"{value.__module__}:{value.__qualname__}"] = name
    return found


def _against(names: Mapping[str, Mapping[str, str]], *, built: bool) -> Iterator[str]:
    """Reasons against an audit that what the app's files know shows; ``built``: whether the app made a torch.nn.Module."""
    known = {full for own in names.values() for full in own}
    for name in sorted({full.rpartition(":")[2] for full in known if SECURE.search(full)}):
        yield f"the app uses secure aggregation ({name}): no server sees a single reply"
    packages = {re.split("[.:]", full)[0] for full in known}
    if not built and not packages & TORCH:
        others = [one for one in OTHERS if one in packages]
        kind = f" (it imports {', '.join(others)})" if others else ""
        yield f"the app does not use PyTorch{kind}: probes and attacks differentiate a torch.nn.Module"


def _trained(
    app: ClientApp, message: Message, run_config: dict[str, Any], nodes: int, pictures: Pictures, images: str | None
) -> dict[str, Any]:
    """A client's training; where it fails, and fetches data, with another name of the images, which have the model's size."""
    from simulations.external_app.check.trial.stand_ins import IMAGE_KEYS
    from simulations.external_app.check.trial.training import train_once

    pictures.shape = ast.literal_eval(images) if images else pictures.shape
    for pictures.image_key in IMAGE_KEYS:
        found = train_once(app, message, run_config, nodes, TRAINING)
        if not found["failed"] or not pictures.taken:
            break
    return found


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
