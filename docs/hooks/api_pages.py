"""Pages of the API reference: which interface and which algorithm stands where. Their texts are the docstrings.

Griffe reads the source; nothing of it is imported. An algorithm that a package exports is found by its base class and its room, so
that adding one needs nothing here.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PLACE = "reference/api/index.md"
"""The entry of the navigation that becomes all pages."""
INTRODUCTION = """# API

Five packages; each imports only from those before it. Shapes are those of tensors, images are floats in [0, 1] unless a text says
otherwise, and what can go wrong stands under *Raises*. The configuration language knows every defence and attack by its name here.

| package | what is in it |
| --- | --- |
"""
INTERFACES = {
    "defenses": {
        "defenses/index": (
            "Interfaces of defences",
            ["defenses.base", "defenses.tensors", "defenses.fitting", "defenses.pipeline", "defenses.spec"],
        ),
        "defenses/authoring": (
            "For authors of defences",
            ["defenses.checks", "defenses.functional"],
        ),
    },
    "attacks": {
        "attacks/index": ("Interfaces of attacks", ["attacks.base", "attacks.observations", "attacks.guesses"]),
        "attacks/scoring": (
            "Scores",
            ["attacks.scoring.metrics", "attacks.scoring.intervals", "attacks.scoring.roc"],
        ),
    },
    "clients": {
        "clients/index": ("Clients of any Flower app", ["clients.external_app.app", "clients.external_app.protect"]),
        "clients/scenario": (
            "A scenario's clients",
            ["clients.task.scenarios", "clients.task.task", "clients.task.local_data", "clients.wire.schema"],
        ),
        "clients/training": ("Local training", ["clients.federated.client"]),
        "clients/data": ("Data and models", ["clients.data.datasets", "clients.data.card", "clients.process.own_code"]),
    },
    "strategies": {
        "strategies/index": (
            "Strategies",
            ["strategies.federated.curious", "strategies.recording.strategy", "strategies.external_app.strategy"],
        ),
        "strategies/exchange": (
            "The guarded exchange",
            ["strategies.exchange.guard", "strategies.exchange.faults", "strategies.exchange.exchange"],
        ),
        "strategies/audit": (
            "The audit",
            [
                "strategies.audit.auditor",
                "strategies.audit.kinds",
                "strategies.audit.jobs",
                "strategies.audit.threat_card",
            ],
        ),
        "strategies/recordings": ("Recordings", ["strategies.recording.files"]),
    },
    "simulations": {
        "simulations/index": (
            "Audits from Python",
            [
                "simulations.run.in_process",
                "simulations.compare.compared",
                "simulations.external_app.study",
            ],
        ),
        "simulations/experiment": (
            "Experiments",
            [
                "simulations.experiment.experiment",
                "simulations.server_app",
                "simulations.run_folder.run_directory",
            ],
        ),
        "simulations/scenarios": ("Scenarios", ["simulations.experiment.scenario", "simulations.scenarios.federated"]),
        "simulations/rows": (
            "Rows and sections of the report",
            ["simulations.run_folder.rows", "simulations.report.section"],
        ),
        "simulations/recorded": ("Attacks on recorded updates", ["simulations.external_app.recorded.attack_file"]),
        "simulations/local_grid": ("A federation in one process", ["simulations.runtime.local_grid"]),
    },
}
"""Package -> page -> its title, and the modules whose public names it shows."""


@cache
def source() -> griffe.ModulesCollection:
    """The five packages as their source says."""
    extensions = griffe.load_extensions(str(Path(__file__).with_name("facts.py")))
    loader = griffe.GriffeLoader(extensions=extensions, search_paths=[str(ROOT)], allow_inspection=False)
    for package in INTERFACES:
        loader.load(package)
    loader.resolve_aliases()
    return loader.modules_collection


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the pages into the navigation, where it names ``PLACE``."""
    whole: list[Any] = [PLACE]
    for package in INTERFACES:
        whole.append({package: [_entry(uri) for uri in pages()[package]]})
    _replace(config.nav or [], whole)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    text = INTRODUCTION
    for package, own in pages().items():
        text += f"| [`{package}`]({next(iter(own))}.md) | {_about(package)} |\n"
        for uri, content in own.items():
            files.append(File.generated(config, f"reference/api/{uri}.md", content=content))
    files.append(File.generated(config, PLACE, content=text))
    return files


@cache
def pages() -> dict[str, dict[str, str]]:
    """Package -> page -> its Markdown: interfaces first, then the algorithms."""
    found = {package: {uri: _of_modules(*what) for uri, what in own.items()} for package, own in INTERFACES.items()}
    for package in ("defenses", "attacks"):
        for uri, (title, classes) in sorted(_algorithms(package).items()):
            found[package][uri] = f"# {title}\n\n" + "".join(f"::: {path}\n\n" for path in classes)
    return found


def exported(package: str) -> list[griffe.Object]:
    """What a package exports, where it is defined."""
    module = source()[f"{package}.exports" if "exports" in source()[package].members else package]
    return [_defined(module[str(getattr(name, "name", name))]) for name in module.exports or []]


def _algorithms(package: str) -> dict[str, tuple[str, list[str]]]:
    """Page -> title and the exported algorithms on it, the bases that their room has for them first."""
    shown = {module for _, modules in INTERFACES[package].values() for module in modules}
    found: dict[str, tuple[str, list[str]]] = {}
    rooms: dict[str, list[str]] = defaultdict(list)
    for one in exported(package):
        if not isinstance(one, griffe.Class | griffe.Function) or _module(one) in shown:
            continue
        uri, title = _page(package, one)
        found[uri] = (title, rooms[uri])
        rooms[uri].append(one.path)
    for uri, paths in rooms.items():
        paths[:0] = [base for base in _bases(uri) if base not in paths]
    return found


def _page(package: str, one: griffe.Class | griffe.Function) -> tuple[str, str]:
    if package == "defenses" and isinstance(one, griffe.Class):
        stage = next(str(base.members["stage"].value) for base in (one, *one.mro()) if "stage" in base.members)
        stage = ast.literal_eval(stage)
        return f"defenses/{stage.replace(' ', '_')}", f"Defences of {stage}"
    room = _module(one).split(".")[1]
    return f"attacks/{room}", f"attacks.{room}: {_about(f'attacks.{room}')}"


def _bases(uri: str) -> list[str]:
    """The public classes of a room's file ``base``, which its algorithms derive from and others may."""
    package, room = uri.split("/")
    folder = source()[package].members.get(room)
    base = folder.members.get("base") if folder is not None else None
    return [one.path for one in base.classes.values() if one.is_public and not one.is_alias] if base is not None else []


def _of_modules(title: str, modules: list[str]) -> str:
    shown = "".join(f"::: {module}\n    options:\n      heading_level: 2\n\n" for module in modules)
    return f"# {title}\n\n{shown}"


def _about(path: str) -> str:
    text = source()[path].docstring
    return text.value.split("\n")[0].rstrip(".").replace("``", "`") if text else ""


def _defined(one: griffe.Object | griffe.Alias) -> griffe.Object:
    return one.final_target if isinstance(one, griffe.Alias) else one


def _module(one: griffe.Object) -> str:
    return one.module.path


def _entry(uri: str) -> str | dict[str, str]:
    """A page in the navigation: a room by its name, as its title is a sentence; others by their titles."""
    place, known = f"reference/api/{uri}.md", [page for own in INTERFACES.values() for page in own]
    return place if uri in known or uri.startswith("defenses/") else {uri.rpartition("/")[2]: place}


def _replace(nav: list[Any], whole: list[Any]) -> None:
    for entry in nav:
        for title, below in entry.items() if isinstance(entry, dict) else ():
            if below == PLACE:
                entry[title] = whole
            elif isinstance(below, list):
                _replace(below, whole)
