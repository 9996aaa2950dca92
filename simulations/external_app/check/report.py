"""The result of ``check_app``: facts about an app, the lines that make it answer an audit, and the text around them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

from simulations.external_app.check.project import Module, Project, Start

UNKNOWN_MODEL = "YourModel"
BUILDS = "audited_model"
"""The function that is added where the model takes arguments."""
WIDEST = 110
OPEN = (UNKNOWN_MODEL, "=...")
"""What stands in lines that a person must complete."""
UNSEEN = "could not be seen"
WIDTH = 13
ANSWERS = '''
def pixels(context):
    """The (image in [0, 1], class) pairs that this node trains on, and those that it holds out."""
    ...


answer_audits({app}, model={model}, data=pixels, mean=..., std=...)'''
"""The call in the ClientApp; a person writes where the images come from, and how the app normalises them."""
RULE = "-----"
"""Around lines to add, which stand at the left as they are pasted."""
RUN = """Run it. The variable keeps flwr from installing the app's dependencies anew, where fedveil is missing:

  export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
  flwr run {folder} --stream --federation-config "num-supernodes={nodes}"

{results}A local SuperLink that runs already keeps its old environment: end it first."""
"""How the app is run in a simulation."""
RESULTS = """Read {results}/report.html then. A second run writes beside it, to {results}-2, and says so.
"""
"""Where the results of the printed lines are."""


class Addition(NamedTuple):
    """Lines to add: to which file, where in it, and the lines."""

    file: str
    where: str
    text: str


@dataclass(frozen=True)
class ServerFacts:
    """The ServerApp, as it began its first round in the trial.

    ``asked`` nodes are to train in round 1, and the strategy ``waits_for`` so many. ``message`` are the plain values
    of the message of training. ``audited``: whether the file imports that function.
    """

    strategy: Sequence[str] = ()
    rounds: int = 0
    asked: int = 0
    waits_for: int = 0
    message: Mapping[str, Any] | None = None
    audited: bool = False


@dataclass(frozen=True)
class ClientFacts:
    """Mods of the ClientApp, and whether its file imports ``answer_audits``."""

    app_mods: Sequence[str] = ()
    train_mods: Sequence[str] = ()
    answers: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """What builds the model that the arrays are of, as ``find_model`` of the trial gives it."""

    factory: str = ""
    call: str = ""
    home: str = ""
    images: str = ""


@dataclass(frozen=True)
class AppReport:
    """An app, and what an audit can and cannot do with it.

    Attributes:
        folder: Of the app, whose entry points are ``server_app`` and ``client_app``.
        refused: Reasons for which the app cannot be audited or checked; () for none.
        nodes: Of the federation.
        run_config: Of pyproject.toml.
        additions: Lines to add.
        to_decide: What is missing or unclear.
        isolated: Whether the system itself kept the app from the network; else code beside Python's sockets could reach it.
    """

    folder: str
    server_app: str
    client_app: str
    refused: tuple[str, ...]
    nodes: int
    run_config: Mapping[str, Any]
    server: ServerFacts
    client: ClientFacts
    model: ModelFacts
    additions: tuple[Addition, ...] = ()
    to_decide: tuple[str, ...] = ()
    isolated: bool = False

    @property
    def exit_code(self) -> int:
        """0 for an app that is ready or becomes so by the added lines, 2 for one that cannot be audited or checked."""
        return 2 if self.refused else 0

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the exit code."""
        return {**asdict(self), "exit_code": self.exit_code}


def lines_to_add(project: Project, report: AppReport) -> tuple[Addition, ...]:
    """Additions to the file of the ClientApp and to that of the ServerApp, those that are missing."""
    client, server, model, start = project.client, project.server, report.model, project.start
    additions = list[Addition]()
    if model.call and not (report.client.answers and report.server.audited):
        name, own = model.call.partition("(")[0], model.home in project.modules
        imported = "" if own else f"    from {model.home} import {name}\n\n"
        text = f"def {BUILDS}():\n{imported}    return {model.call.replace(chr(39), chr(34))}"
        additions.append(Addition(_file(project, _home(project, model)), "at the end", text))
    if client is not None and not report.client.answers:
        app = project.client_app.partition(":")[2]
        imports, name = _model(project, client, model)
        text = "\n".join(["from clients import answer_audits", *imports, "", ANSWERS.format(app=app, model=name)])
        additions.append(Addition(_file(project, client), "at the end", text))
    if server is not None and not report.server.audited:
        imports, name = _model(project, server, model)
        text = "\n".join(["from simulations.audited import audited", *imports])
        additions.append(Addition(_file(project, server), "at the top", text))
        where = (
            f"before `{start.strategy or 'strategy'}.start(` ({start.where})" if start else "before the strategy starts"
        )
        additions.append(Addition(_file(project, server), where, _audited(report, name, start)))
    return tuple(additions)


def results_folder(folder: Path) -> Path:
    """A folder for results: beside that of the app, as Flower sends an app with all that it finds in its folder."""
    return folder.parent / f"{folder.name}-audit"


def _file(project: Project, module: Module) -> str:
    return str(module.path.relative_to(project.folder))


def _home(project: Project, model: ModelFacts) -> Module:
    """The file that gets a function for the model: that of what the function calls, if it is one of the app's."""
    return project.modules.get(model.home) or project.client or next(iter(project.modules.values()))


def _model(project: Project, module: Module, model: ModelFacts) -> tuple[list[str], str]:
    """The import that a file lacks for the model, and what the file calls the model."""
    if model.call:
        return _imported(module, f"{_home(project, model).name}:{BUILDS}")
    return _imported(module, model.factory) if model.factory else ([], UNKNOWN_MODEL)


def _imported(module: Module, target: str) -> tuple[list[str], str]:
    """The import that a file lacks for ``module:name``, and what the file calls it."""
    place, _, name = target.partition(":")
    bound = next((own for own, full in module.imported.items() if full == f"{place}.{name}"), "")
    return ([], bound or name) if bound or place == module.name else ([f"from {place} import {name}"], name)


def _audited(report: AppReport, model: str, start: Start | None) -> str:
    """The call at the server, as far to the right as what follows it."""
    strategy = start.strategy or "strategy" if start else "strategy"
    text = _call(f"{strategy} = audited", [strategy, f'"{results_folder(Path(report.folder))}"', model])
    return indent(text, " " * (start.indent if start else 0))


def _call(before: str, given: Sequence[str]) -> str:
    """A call; with each argument on a line of its own where one line would be too wide."""
    if len(line := f"{before}({', '.join(given)})") <= WIDEST:
        return line
    return "\n".join([f"{before}(", *(f"    {argument}," for argument in given), ")"])


def printed(report: AppReport) -> str:
    """The whole text, without the line break at its end."""
    parts = [_block(f"App {report.folder}", _apps(report))]
    if report.server.strategy:
        parts.append(_block("Server, in a trial up to its first round", _server(report)))
    parts += [f"{RULE} Add to {addition.file}, {addition.where}:\n\n{addition.text}" for addition in report.additions]
    if report.additions:
        parts.append(RULE)
    if report.to_decide:
        parts.append(_listed("To decide", report.to_decide, numbered=True))
    if not report.refused:
        results = "" if report.server.audited else RESULTS.format(results=results_folder(Path(report.folder)))
        parts.append(RUN.format(folder=report.folder, nodes=report.nodes, results=results))
    return "\n\n".join([*parts, _end(report)])


def _apps(report: AppReport) -> Iterator[tuple[str, str]]:
    client = report.client
    yield "ServerApp", report.server_app
    yield "ClientApp", report.client_app
    yield "mods", "; ".join([*client.app_mods, *client.train_mods]) or "none seen"
    yield "network", "none" if report.isolated else "refused by Python's sockets alone: other code could reach it"


def _server(report: AppReport) -> Iterator[tuple[str, str]]:
    server, model = report.server, report.model
    asked = f"; round 1 asks {server.asked} of {max(report.nodes, server.waits_for)} nodes" if server.asked else ""
    yield "strategy", " around ".join(server.strategy) or UNSEEN
    yield "rounds", f"{server.rounds or UNSEEN}{asked}"
    for name, values in (("message", server.message), ("run config", report.run_config)):
        yield name, ", ".join(f"{key} = {value!r}" for key, value in (values or {}).items()) or "empty"
    name = model.factory or model.call
    yield "model", f"{name or UNSEEN}{f', tried on images {model.images}' if model.images else ''}"


def _block(title: str, lines: Iterable[tuple[str, str]]) -> str:
    return "\n".join([title, *(f"  {name:<{WIDTH}} {text}" for name, text in lines)])


def _listed(title: str, lines: Iterable[str], *, numbered: bool = False) -> str:
    return "\n".join([title, *(f"  {f'{at}.' if numbered else '-'} {text}" for at, text in enumerate(lines, 1))])


def _end(report: AppReport) -> str:
    if report.refused:
        return _listed("Not ready: this app cannot be audited or checked as it is", report.refused)
    if not report.additions:
        return "Ready: the app answers audits, and its server is audited."
    open_ones = any(word in addition.text for addition in report.additions for word in OPEN)
    completed = " and completed, as listed under To decide" if open_ones else ""
    return f"Ready once these lines are added{completed}. Then run the app, and open report.html in the results folder."
