"""``check_app``: an app tried up to the first round of its server, and the lines that it lacks for an audit."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from simulations.external_app.check.project import Module, Project, read_project
from simulations.external_app.check.report import AppReport, ClientFacts, ModelFacts, ServerFacts, lines_to_add
from simulations.external_app.check.trial.work import try_app
from simulations.settings.errors import ConfigError

DEFAULT_NODES = 2
"""Of a simulation of Flower."""
SECONDS = 120.0
"""That importing the app and starting its server may take."""
MOST_NODES = 10_000
"""Limit of a checked federation: the app's server holds all its nodes and a message for each in memory."""
PIXELS = (
    "Fill in pixels(context) with your app's own loader, before its Normalize and without random transforms: return a list "
    "of pairs, or two as a tuple (trained, held out). The audit reports images that the training was given and that `data` "
    "does not hold."
)
NORMALISATION = "mean and std are those of the app's Normalize; leave them out if it has none."
LOSS = "Each image needs one class. answer_audits assumes cross entropy of logits and classes; for another loss give it loss=."
"""What the added lines of the ClientApp leave to a person: the check reads neither data nor training from the source."""
SECURE = re.compile(r"(secagg(plus)?_mod|SecAgg(Plus)?Workflow)$")
PACKAGES = {"attacks", "clients", "defenses", "simulations", "strategies"}
"""fedveil's own, which an audited app imports."""
TORCH = {"torch", "torchvision", "pytorch_lightning", "lightning", "timm"}
OTHERS = ("tensorflow", "keras", "sklearn", "jax", "xgboost", "mlx")


def check_app(path: Path, nodes: int = DEFAULT_NODES) -> AppReport:
    """Look at a Flower app without training it, and without its data.

    A child process, without network where the system can take it away, imports both apps, and runs the ServerApp's main up to the
    first message of training; no client trains. An app whose first message is not seen is not ready. Of the source only imports and
    the call that starts the strategy are read.

    Args:
        path: Folder of the app, with its pyproject.toml.
        nodes: Of the federation, from 1 to ``MOST_NODES``.

    Raises:
        ConfigError: When the folder holds no app, or an argument is out of its range.
    """
    if not 1 <= nodes <= MOST_NODES:
        raise ConfigError(f"nodes is {nodes}; allowed: a whole number from 1 to {MOST_NODES}")
    project = read_project(path.resolve())
    reasons = tuple(hopeless(project))
    trial = {} if reasons else try_app(project, nodes, SECONDS)
    server = ServerFacts(**trial.get("server", {}), audited=_imports(project.server, "audited"))
    report = AppReport(
        folder=str(project.folder), server_app=project.server_app, client_app=project.client_app, refused=reasons,
        nodes=nodes, run_config=dict(project.run_config), server=server,
        client=ClientFacts(**trial.get("client", {}), answers=_imports(project.client, "answer_audits")),
        model=ModelFacts(**trial.get("model", {})),
        isolated=trial.get("isolated", False),
    )  # fmt: skip
    if reasons:
        return report
    return replace(
        report,
        refused=tuple(trial.get("refused", [])),
        additions=lines_to_add(project, report),
        to_decide=tuple(questions(report, project)),
    )


def _imports(module: Module | None, name: str) -> bool:
    return module is not None and any(full.rpartition(".")[2] == name for full in module.imported.values())


def hopeless(project: Project) -> Iterator[str]:
    """Reasons against an audit that the imports of an app's files show: the app is not tried."""
    if not project.packages() & TORCH:
        others = [library for library in OTHERS if library in project.packages()]
        kind = f" (it imports {', '.join(others)})" if others else ""
        yield f"the app does not use PyTorch{kind}: probes and attacks differentiate a torch.nn.Module"
    for name in sorted(PACKAGES & {module.partition(".")[0] for module in project.modules}):
        yield f"the app's package {name} has the name of one of fedveil's packages, and hides it: rename the app's"
    for full in sorted(project.imports()):
        name = full.rpartition(".")[2]
        if SECURE.match(name):
            yield f"the app uses secure aggregation ({name}): no server sees a single reply"


def questions(report: AppReport, project: Project) -> Iterator[str]:
    """Missing or unclear facts, each as a sentence with the action that settles it."""
    server, start = report.server, project.start
    if server.waits_for > report.nodes:
        yield (
            f"The strategy waits for {server.waits_for} nodes, and the federation has {report.nodes} (--nodes): with fewer it "
            "never begins."
        )
    if start is None and not server.audited:
        yield "No `strategy.start(` was found in the ServerApp's file: wrap the outermost strategy where it starts."
    elif start and not start.strategy and not server.audited:
        yield f"The strategy has no name where it starts ({start.where}): assign it to `strategy` first, then wrap it."
    if report.model.home and not report.model.images:
        yield "The model took no image of the many sizes that were tried, so that attacks on it were not tried."
    if not report.client.answers:
        yield PIXELS
        yield NORMALISATION
        yield LOSS
    if any("LocalDpMod" in mod or "clipping" in mod for mod in report.client.app_mods):
        yield "ClientApp(mods=...) holds a privacy mod, which answers an audit with an error: give it to @app.train(mods=...)."
