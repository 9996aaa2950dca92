"""``check_app``: an app tried up to the first round of its server, and its source read for what the trial does not show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simulations.external_app.check.decide import hopeless, limits, questions, without_classes
from simulations.external_app.check.lines import lines_to_add
from simulations.external_app.check.report import AppReport, ClientFacts, ModelFacts, ServerFacts, settings_of
from simulations.external_app.check.source.project import Module, read_project
from simulations.external_app.check.source.reading import read_source
from simulations.external_app.check.trial.work import try_app
from simulations.settings.errors import ConfigError

DEFAULT_NODES = 2
"""Of a simulation of Flower."""
DEFAULT_SECONDS = 120.0
MOST_NODES = 10_000
"""Limit of a checked federation: the app's server holds all its nodes and a message for each in memory."""


def check_app(path: Path, nodes: int = DEFAULT_NODES, seconds: float = DEFAULT_SECONDS) -> AppReport:
    """Look at a Flower app without training it, and without its data.

    A child process without network imports both apps, and runs the ServerApp's main up to the first message of training; no client
    trains. An app whose first message is not seen is not ready. The source is parsed for what the lines to add need.

    Args:
        path: Folder of the app, with its pyproject.toml.
        nodes: Of the federation, from 1 to ``MOST_NODES``.
        seconds: That importing the app and starting its server may take.

    Raises:
        ConfigError: When the folder holds no app, or an argument is out of its range.
    """
    if not 1 <= nodes <= MOST_NODES:
        raise ConfigError(f"nodes is {nodes}; allowed: a whole number from 1 to {MOST_NODES}")
    if not seconds > 0:
        raise ConfigError(f"seconds is {seconds}; allowed: a number above 0")
    project = read_project(path.resolve())
    source, missing, reasons = read_source(project), project.missing(), tuple(hopeless(project))
    found = {} if reasons or missing else try_app(project, nodes, seconds)
    server = ServerFacts(**found.get("server", {}), audited=_imports(project.server, "audited"))
    report = AppReport(
        folder=str(project.folder), server_app=project.server_app, client_app=project.client_app, refused=reasons,
        missing=missing, nodes=nodes, run_config=dict(project.run_config), server=server,
        client=ClientFacts(**found.get("client", {}), answers=_imports(project.client, "answer_audits")),
        model=ModelFacts(**found.get("model", {})), source=source.to_json(),
        settings=settings_of(server.message or {}, project.run_config, sgd=source.sgd),
    )  # fmt: skip
    if reasons:
        return report
    absent = f"packages are missing, so the app cannot be imported: {', '.join(missing)} (uv pip install {' '.join(missing)})"
    return replace(
        report,
        refused=(*([absent] if missing else []), *found.get("refused", []), *without_classes(source)),
        cannot=tuple(limits(source)),
        additions=lines_to_add(project, report, source),
        to_decide=tuple(questions(report, source)),
    )


def _imports(module: Module | None, name: str) -> bool:
    return module is not None and any(full.rpartition(".")[2] == name for full in module.imported.values())
