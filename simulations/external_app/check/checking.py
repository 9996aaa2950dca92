"""``check_app``: an app's source read, its server started up to the first round, and both put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from clients.process.own_code import OwnCodeError
from simulations.external_app.check.decide import abilities, limits, questions
from simulations.external_app.check.lines import lines_to_add
from simulations.external_app.check.refusals import in_the_source, in_the_trial
from simulations.external_app.check.report import (
    AppReport,
    ClientFacts,
    ModelFacts,
    SentArray,
    ServerFacts,
    SourceFacts,
)
from simulations.external_app.check.settings import settings_of
from simulations.external_app.check.source.entries import Builder, calls_of
from simulations.external_app.check.source.project import Project, read_project
from simulations.external_app.check.source.reading import AppSource, read_source
from simulations.external_app.check.source.training import Optimizer
from simulations.external_app.check.trial.work import try_app
from simulations.settings.errors import ConfigError

DEFAULT_NODES = 2
"""Of a simulation of Flower."""
DEFAULT_SECONDS = 60.0
MOST_NODES = 10_000
"""Limit of a checked federation: the app's server holds all its nodes and a message for each in memory."""


def check_app(path: Path, nodes: int = DEFAULT_NODES, seconds: float = DEFAULT_SECONDS) -> AppReport:
    """Look at a Flower app without training it, and without its data.

    The source is parsed. A child process without network imports both apps, and runs the ServerApp's main up to the first
    message of training; no client trains.

    Args:
        path: Folder of the app, with its pyproject.toml.
        nodes: Of the federation, from 1 to ``MOST_NODES``.
        seconds: That importing the app, starting its server, and building its models may take, each.

    Raises:
        ConfigError: When the folder holds no app, or an argument is out of its range.
    """
    if not 1 <= nodes <= MOST_NODES:
        raise ConfigError(f"nodes is {nodes}; allowed: a whole number from 1 to {MOST_NODES}")
    if not seconds > 0:
        raise ConfigError(f"seconds is {seconds}; allowed: a number above 0")
    project = read_project(path.resolve())
    source, missing = read_source(project), project.missing()
    hopeless = tuple(dict.fromkeys(in_the_source(project, source)))
    found = {} if hopeless or missing else _tried(project, source, nodes, seconds)
    report = _described(project, source, found, nodes, tuple(missing))
    if hopeless:
        return replace(report, refused=hopeless)
    report = replace(report, refused=tuple(dict.fromkeys(in_the_trial(project, missing, found))))
    return replace(
        report,
        can=tuple(abilities(report, source)),
        cannot=tuple(limits(report, source)),
        additions=lines_to_add(project, report, source),
        to_decide=tuple(questions(report, source, found)),
    )


def _tried(project: Project, source: AppSource, nodes: int, seconds: float) -> dict[str, Any]:
    """What the child process found; an error where it ended or hung."""
    packages = sorted({full.partition(".")[0] for one in project.modules.values() for full in one.imported.values()})
    try:
        return try_app(
            project.folder, project.server_app, project.client_app, project.run_config, packages,
            [asdict(one) for one in source.builders], nodes, seconds,
        )  # fmt: skip
    except OwnCodeError as error:
        return {"errors": {"app": f"the process that tried it {error}"}}


def _described(
    project: Project, source: AppSource, found: Mapping[str, Any], nodes: int, missing: tuple[str, ...]
) -> AppReport:
    """The facts, without what follows from them."""
    server = _server(project, found)
    return AppReport(
        folder=str(project.folder), server_app=project.server_app, client_app=project.client_app, refused=(), missing=missing,
        nodes=nodes, run_config=dict(project.run_config), server=server, client=_client(project, found),
        model=_model(found, source.builders), source=_source(source),
        settings=settings_of(source.training, server.message or {}, project.run_config), wrote=tuple(found.get("wrote", [])),
    )  # fmt: skip


def _server(project: Project, found: Mapping[str, Any]) -> ServerFacts:
    seen = found.get("server", {})
    rounds = seen.get("rounds")
    return ServerFacts(
        tuple(seen.get("strategy", [])), rounds if isinstance(rounds, int) else 0, seen.get("asked", 0), seen.get("waits_for", 0),
        seen.get("config"),
        tuple(SentArray(name, tuple(shape), dtype) for name, shape, dtype in seen.get("arrays", [])),
        seen.get("failed", ""), bool(calls_of(project.server, "audited")),
    )  # fmt: skip


def _client(project: Project, found: Mapping[str, Any]) -> ClientFacts:
    seen = found.get("client", {})
    if not seen:
        return ClientFacts(answers=bool(calls_of(project.client, "answer_audits")))
    return ClientFacts(
        tuple(seen["functions"]), tuple(seen["app_mods"]), tuple(seen["train_mods"]),
        tuple(tuple(one) for one in seen["budgets"]), seen["answers"],
    )  # fmt: skip


def _model(found: Mapping[str, Any], builders: Sequence[Builder]) -> ModelFacts:
    """As the trial found it; where the app could not be tried, as the source builds it."""
    seen = found.get("model", {})
    call = seen.get("call", -1)
    if not found.get("server") and not seen.get("by") and builders and builders[0].known:
        one = builders[0]
        return (
            ModelFacts("", one.text, "source")
            if one.arguments or one.keywords
            else ModelFacts(one.target, "", "source")
        )
    factory = seen.get("model", "")
    return ModelFacts(
        factory, "" if factory or call < 0 else builders[call].text, seen.get("by", ""), seen.get("facts") or None
    )


def _source(source: AppSource) -> SourceFacts:
    training, images, replies, loading = source.training, source.images, source.replies, source.loading
    return SourceFacts(
        tuple(map(_optimizer, training.optimizers)),
        tuple(f"{one.text} ({one.where})" for one in training.losses),
        tuple(f"mean {list(one.mean)}, std {list(one.std)} ({one.where})" for one in images.normalisations),
        images.augmentations,
        training.beyond,
        training.privacy,
        f"{replies.arrays} ({replies.where})" if replies.where and replies.arrays != "unseen" else "",
        "" if loading is None else f"{loading.function} returns {', '.join(loading.names)}",
    )


def _optimizer(one: Optimizer) -> str:
    given = ", ".join(f"{name} {origin.described()}" for name, origin in one.arguments.items())
    return f"{one.name} ({one.where}){f': {given}' if given else ''}"
