"""``check_app``: an app tried up to the first round of its server, and its source read for what the trial does not show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from simulations.external_app.check.lines import lines_to_add
from simulations.external_app.check.report import AppReport, ClientFacts, ModelFacts, ServerFacts
from simulations.external_app.check.source.project import Module, Project, read_project
from simulations.external_app.check.source.reading import AppSource, read_source
from simulations.external_app.check.trial.work import try_app
from simulations.settings.errors import ConfigError

DEFAULT_NODES = 2
"""Of a simulation of Flower."""
SECONDS = 120.0
"""That importing the app and starting its server may take."""
MOST_NODES = 10_000
"""Limit of a checked federation: the app's server holds all its nodes and a message for each in memory."""
CLASSES = re.compile(r"CrossEntropy|(?<!binary_)cross_entropy|\b(NLL|nll_|MultiMargin|multi_margin_)")
NO_CLASSES = re.compile("BCE|binary_cross_entropy|MultiLabel")
"""Losses of PyTorch: of one class for each image, and of several labels; others may take one-hot classes."""
SECURE = re.compile(r"(secagg(plus)?_mod|SecAgg(Plus)?Workflow)$")
PACKAGES = {"attacks", "clients", "defenses", "simulations", "strategies"}
"""fedveil's own, which an audited app imports."""
TORCH = {"torch", "torchvision", "pytorch_lightning", "lightning", "timm"}
OTHERS = ("tensorflow", "keras", "sklearn", "jax", "xgboost", "mlx")


def check_app(path: Path, nodes: int = DEFAULT_NODES) -> AppReport:
    """Look at a Flower app without training it, and without its data.

    A child process, without network where the system can take it away, imports both apps, and runs the ServerApp's main up to the
    first message of training; no client trains. An app whose first message is not seen is not ready. The source is parsed for what
    the lines to add need.

    Args:
        path: Folder of the app, with its pyproject.toml.
        nodes: Of the federation, from 1 to ``MOST_NODES``.

    Raises:
        ConfigError: When the folder holds no app, or an argument is out of its range.
    """
    if not 1 <= nodes <= MOST_NODES:
        raise ConfigError(f"nodes is {nodes}; allowed: a whole number from 1 to {MOST_NODES}")
    project = read_project(path.resolve())
    source, reasons = read_source(project), tuple(hopeless(project))
    found = {} if reasons else try_app(project, nodes, SECONDS)
    server = ServerFacts(**found.get("server", {}), audited=_imports(project.server, "audited"))
    report = AppReport(
        folder=str(project.folder), server_app=project.server_app, client_app=project.client_app, refused=reasons,
        nodes=nodes, run_config=dict(project.run_config), server=server,
        client=ClientFacts(**found.get("client", {}), answers=_imports(project.client, "answer_audits")),
        model=ModelFacts(**found.get("model", {})),
        isolated=found.get("isolated", False),
    )  # fmt: skip
    if reasons:
        return report
    return replace(
        report,
        refused=(*found.get("refused", []), *_of_labels(report, source)),
        additions=lines_to_add(project, report, source),
        to_decide=tuple(questions(report, source)),
    )


def _imports(module: Module | None, name: str) -> bool:
    return module is not None and any(full.rpartition(".")[2] == name for full in module.imported.values())


def hopeless(project: Project) -> Iterator[str]:
    """Reasons against an audit that the imports of an app's files show: the app is not tried."""
    if not project.packages() & TORCH:
        others = [one for one in OTHERS if one in project.packages()]
        kind = f" (it imports {', '.join(others)})" if others else ""
        yield f"the app does not use PyTorch{kind}: probes and attacks differentiate a torch.nn.Module"
    for name in sorted(PACKAGES & {one.partition(".")[0] for one in project.modules}):
        yield f"the app's package {name} has the name of one of fedveil's packages, and hides it: rename the app's"
    for full in sorted(project.imports()):
        name = full.rpartition(".")[2]
        if SECURE.match(name):
            yield f"the app uses secure aggregation ({name}): no server sees a single reply"


def _of_labels(report: AppReport, source: AppSource) -> Iterator[str]:
    """A reason against an audit: every loss takes labels that are no classes, and the app does not say how it answers audits."""
    other = (not CLASSES.search(one) and (not source.one_hot or NO_CLASSES.search(one)) for one in source.losses)
    if source.losses and not report.client.answers and all(other):
        yield (
            f"the clients train with {source.losses[0]}, for numbers, several labels or one answer of yes or no: an audit "
            "needs a class for each image. If each has one, call answer_audits with a loss= of logits and classes, and check again"
        )


def questions(report: AppReport, source: AppSource) -> Iterator[str]:
    """Missing or unclear facts, each as a sentence with the action that settles it."""
    yield from _of_server(report, source)
    if report.model.home and not report.model.images:
        yield "The model took no image of the many sizes that were tried, so that attacks on it were not tried."
    if not report.client.answers:
        yield from _of_data(source)
    if any("LocalDpMod" in one or "clipping" in one for one in report.client.app_mods):
        yield "ClientApp(mods=...) holds a privacy mod, which answers an audit with an error: give it to @app.train(mods=...)."


def _of_server(report: AppReport, source: AppSource) -> Iterator[str]:
    server, start = report.server, source.start
    if server.waits_for > report.nodes:
        yield (
            f"The strategy waits for {server.waits_for} nodes, and the federation has {report.nodes} (--nodes): with fewer it "
            "never begins."
        )
    if server.audited:
        return
    if start is None:
        yield "No `strategy.start(` was found in the ServerApp's file: wrap the outermost strategy where it starts."
    elif not start.strategy:
        yield f"The strategy has no name where it starts ({start.where}): assign it to `strategy` first, then wrap it."


def _of_data(source: AppSource) -> Iterator[str]:
    images, loading = source.images, source.loading
    if images.normalisation is None and (seen := (*(one.where for one in images.normalisations), *images.unreadable)):
        yield f"The normalisation is not clear from the source ({'; '.join(seen)}): fill in mean and std of the training images."
    elif images.normalisation is None:
        yield "No normalisation was seen: mean 0 and std 1 are assumed, so that the model takes images in [0, 1]."
    if source.losses and not any("cross_entropy(" in one or "CrossEntropyLoss()" in one for one in source.losses):
        yield f"The source has the loss {source.losses[0]}. answer_audits assumes cross entropy; for another give it loss=."
    if loading is None:
        yield "No function that loads the data was found: write pixels(context)."
    elif loading.call is None:
        yield f"{loading.function} loads the data, and needs more than the context of a node: complete pixels(context)."
    else:
        if not images.pairs and not (images.image_key and images.label_key):
            yield "Which fields of a batch hold the image and the class could not be seen: correct them in pixels(context)."
        yield f"Read pixels(context) once: it takes what {loading.function} returns, which the check did not run."
