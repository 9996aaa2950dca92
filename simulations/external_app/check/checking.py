"""``check_app``: an app tried up to the end of a client's first training, and what an audit of it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Any

from simulations.console.command_line import read_toml
from simulations.external_app.check.lines import lines_to_add
from simulations.external_app.check.report import (
    AppReport,
    ClientFacts,
    ModelFacts,
    ServerFacts,
    TrainingFacts,
    settings_of,
)
from simulations.external_app.check.trial.work import try_app
from simulations.settings.errors import ConfigError

DEFAULT_NODES = 2
"""Of a simulation of Flower."""
SECONDS = 120.0
"""That importing the app and starting its server may take."""
MOST_NODES = 10_000
"""Limit of a checked federation: the app's server holds all its nodes and a message for each in memory."""
PACKAGES = ("attacks", "clients", "defenses", "simulations", "strategies")
"""fedveil's own, which an audited app imports."""


def check_app(path: Path, nodes: int = DEFAULT_NODES) -> AppReport:
    """Try a Flower app, and say what an audit of it needs.

    A child process, without network where the system can take it away, imports both apps, and runs the ServerApp's main up to the
    first message of training. One client then trains as that message asks, on a few batches of each pass, while torch's objects are
    watched. An app whose first message is not seen is not ready.

    Args:
        path: Folder of the app, with its pyproject.toml.
        nodes: Of the federation, from 1 to ``MOST_NODES``.

    Raises:
        ConfigError: When the folder holds no app, or an argument is out of its range.
    """
    if not 1 <= nodes <= MOST_NODES:
        raise ConfigError(f"nodes is {nodes}; allowed: a whole number from 1 to {MOST_NODES}")
    folder = path.resolve()
    app = read_app(folder)
    hidden = [one for one in PACKAGES if (folder / f"{one}.py").is_file() or (folder / one / "__init__.py").is_file()]
    reasons = [
        f"the app's package {one} has the name of one of fedveil's packages, and hides it: rename the app's"
        for one in hidden
    ]
    found = {} if reasons else try_app({"folder": str(folder), "nodes": nodes, **app}, SECONDS)
    training, server = TrainingFacts(**found.get("training", {})), ServerFacts(**found.get("server", {}))
    report = AppReport(
        folder=str(folder), server_app=app["server_app"], client_app=app["client_app"], refused=tuple(reasons),
        nodes=nodes, run_config=app["run_config"], server=server, client=ClientFacts(**found.get("client", {})),
        model=ModelFacts(**found.get("model", {})), training=training,
        settings=settings_of(server.message or {}, app["run_config"], training), isolated=found.get("isolated", False),
    )  # fmt: skip
    if reasons:
        return report
    return replace(
        report,
        refused=(*found.get("refused", []), *_of_labels(report), *_of_declared(report)),
        cannot=tuple(limits(training)),
        additions=lines_to_add(report),
        to_decide=tuple(questions(report)),
    )


def read_app(folder: Path) -> dict[str, Any]:
    """The entry points (``module:object``) and the run configuration of an app, keys of whose tables are joined by dots.

    Raises:
        ConfigError: When the folder is none, or its pyproject.toml names no ServerApp and ClientApp.
    """
    file = folder / "pyproject.toml"
    if not file.is_file():
        has_none = ", which has no pyproject.toml" if folder.is_dir() else ""
        raise ConfigError(f"PATH is {folder}{has_none}; allowed: the folder of a Flower app")
    app = _table(read_toml(file), "tool", "flwr", "app")
    components = _table(app, "components")
    for key in ("serverapp", "clientapp"):
        named = components.get(key)
        if not isinstance(named, str) or named.count(":") != 1:
            raise ConfigError(
                f'{file}: [tool.flwr.app.components] {key} is {named!r}; allowed: "package.module:object", as Flower wants it'
            )
    run_config = dict(_flat(_table(app, "config")))
    return {"server_app": components["serverapp"], "client_app": components["clientapp"], "run_config": run_config}


def _table(values: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        inner = values.get(key)
        values = inner if isinstance(inner, Mapping) else {}
    return values


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _of_labels(report: AppReport) -> Iterator[str]:
    """A reason against an audit: no loss takes a class for each image, and the app does not say how it answers audits."""
    if not report.training.classes and not report.client.answers:
        yield (
            f"the clients train with {report.training.losses[0]}, for numbers, several labels or one answer of yes or no: an audit "
            "needs a class for each image. If each has one, call answer_audits with a loss= of logits and classes, and check again"
        )


def _of_declared(report: AppReport) -> Iterator[str]:
    """Reasons against an audit: numbers that ``audited`` takes, and with which the client did not train."""
    for one in report.settings if report.server.audited and report.training.optimizer else ():
        taken = report.server.declared.get(one.name) or one.taken
        if taken is not None and one.value is not None and not isclose(taken, one.value, rel_tol=1e-6):
            yield f"audited takes {one.name}={taken:g}, and the client trained with {one.value:g} in the trial: make them agree"


def limits(training: TrainingFacts) -> Iterator[str]:
    """Where probes differ from training, as far as the trial shows, in sentences."""
    if not training.sgd:
        yield f"The clients train with {training.optimizer}: a probe is a step of SGD, and attacks assume SGD."
    if training.private:
        yield "Opacus runs DP-SGD inside train: a probe has neither its clipping nor its noise."
    if training.augmentations:
        yield f"The clients augment their images ({', '.join(training.augmentations)}): a probe does not."


def questions(report: AppReport) -> Iterator[str]:
    """Missing or unclear facts, each as a sentence with the action that settles it."""
    yield from _of_server(report)
    if report.training.failed:
        yield f"The training of a client was not seen to its end: {report.training.failed}."
    if report.model.home and not report.model.images:
        yield "The model took no image of the many sizes that were tried, so that attacks on it were not tried."
    if not report.client.answers:
        yield from _of_data(report.training)
    if any("LocalDpMod" in one or "clipping" in one for one in report.client.app_mods):
        yield "ClientApp(mods=...) holds a privacy mod, which answers an audit with an error: give it to @app.train(mods=...)."


def _of_server(report: AppReport) -> Iterator[str]:
    server = report.server
    if server.waits_for > report.nodes:
        yield (
            f"The strategy waits for {server.waits_for} nodes, and the federation has {report.nodes} (--nodes): with fewer it "
            "never begins."
        )
    if server.audited:
        return
    if not server.start:
        yield "No `strategy.start(` was reached in the ServerApp: wrap the outermost strategy where it starts."
    elif not server.start["strategy"]:
        line = f"{Path(server.start['file']).name}:{server.start['line']}"
        yield f"The strategy has no name where it starts ({line}): assign it to `strategy` first, then wrap it."
    for one in report.settings:
        if one.taken and one.value is not None and one.given:
            yield f"{one.source} is {one.taken:g}, and the client trained with {one.value:g}: the added lines take its own number."
    if missing := [one.name for one in report.settings if one.value is None]:
        yield f"Fill in {', '.join(missing)} of audited(...): the trial did not show these numbers of the clients' training."
    if {"local_epochs", "batch_size"} & set(missing):
        yield "Delete local_epochs or batch_size if your clients have no such number: their own updates are then not attacked."


def _of_data(training: TrainingFacts) -> Iterator[str]:
    loading = training.loading
    if len(training.normalisations) > 1 or (training.outside and not training.normalisations):
        yield "The normalisation is not clear from the trial: fill in mean and std of the training images."
    elif not training.normalisations:
        yield "No normalisation was seen: mean 0 and std 1 are assumed, so that the model takes images in [0, 1]."
    if "cross_entropy" not in training.losses:
        seen = f"The client's loss is {training.losses[0]}" if training.losses else "No loss of PyTorch was seen"
        yield f"{seen}. answer_audits assumes cross entropy; for another give it loss=."
    if not loading:
        yield "No function that gives the loader of training was seen: write pixels(context)."
    elif loading["arguments"] is None:
        yield f"{loading['function']} loads the data, and needs more than the context of a node: complete pixels(context)."
    else:
        if not training.pairs and not (training.image_key and training.label_key):
            yield "Which fields of a batch hold the image and the class could not be seen: correct them in pixels(context)."
        yield f"Read pixels(context) once: it takes what {loading['function']} returns."
