"""An ``AppReport`` as text for a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

from simulations.external_app.check.lines import OPEN, results_folder
from simulations.external_app.check.report import AppReport

SHOWN = 3
"""Arrays that are shown by name."""
UNSEEN = "could not be seen"
AGREES = {
    "names": "all names and shapes agree", "order": "shapes agree in order", "trained": "its trained parameters agree",
}  # fmt: skip
WIDTH = 13
RULE = "-----"
"""Around lines to add, which stand at the left as they are pasted."""
RUN = """Run it. The variable keeps flwr from installing the app's dependencies anew, where fedveil is missing:

  export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
  flwr run {folder} --stream --federation-config "num-supernodes={nodes}"

{results}A local SuperLink that runs already keeps its old environment. End it first; this ends every simulation of yours:

  pkill -u "$USER" -f flower-superlink"""
"""How the app is run in a simulation."""
RESULTS = """Read {results}/report.html then. A second run writes beside it, to {results}-2, and says so.
"""
"""Where the results of the printed lines are."""


def printed(report: AppReport) -> str:
    """The whole text, without the line break at its end."""
    parts = [_block(f"App {report.folder}", _apps(report))]
    if report.server.strategy or report.server.arrays:
        parts.append(_block("Server, in a trial up to its first round", _server(report)))
    if report.additions or report.server.strategy:
        parts.append(_block("Clients, as their source shows", _source(report)))
    if report.cannot:
        parts.append(_listed("Where probes differ from the training of this app", report.cannot))
    parts += [f"{RULE} Add to {one.file}, {one.where}:\n\n{one.text}" for one in report.additions]
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
    if client.functions:
        yield "functions", ", ".join(one.removesuffix(".default") for one in client.functions)
        yield "mods", "; ".join([*client.app_mods, *client.train_mods]) or "none seen"


def _server(report: AppReport) -> Iterator[tuple[str, str]]:
    server, model = report.server, report.model
    asked = f"; round 1 asks {server.asked} of {max(report.nodes, server.waits_for)} nodes" if server.asked else ""
    yield "strategy", " around ".join(server.strategy) or UNSEEN
    yield "rounds", f"{server.rounds or UNSEEN}{asked}"
    for name, values in (("message", server.message), ("run config", report.run_config)):
        yield name, ", ".join(f"{key} = {value!r}" for key, value in (values or {}).items()) or "empty"
    for one in report.settings:
        if one.value is not None:
            yield one.name, f"{one.value} (`audited` takes {one.source})"
    shown = ", ".join(f"{name} {tuple(shape)}" for name, shape, _ in server.arrays[:SHOWN])
    numbers = sum(prod(shape) for _, shape, _ in server.arrays)
    yield "arrays", f"{len(server.arrays)} with {numbers:,} numbers, the first: {shown}" if shown else UNSEEN
    name = model.factory or model.call
    yield "model", f"{name} ({AGREES[model.by]})" if name else UNSEEN


def _source(report: AppReport) -> Iterator[tuple[str, str]]:
    for name, seen in report.source.items():
        yield name, (seen if isinstance(seen, str) else "; ".join(seen)) or "none seen"


def _block(title: str, lines: Iterable[tuple[str, str]]) -> str:
    return "\n".join([title, *(f"  {name:<{WIDTH}} {text}" for name, text in lines)])


def _listed(title: str, lines: Iterable[str], *, numbered: bool = False) -> str:
    return "\n".join([title, *(f"  {f'{at}.' if numbered else '-'} {text}" for at, text in enumerate(lines, 1))])


def _end(report: AppReport) -> str:
    if report.refused:
        return _listed("Not ready: this app cannot be audited or checked as it is", report.refused)
    if not report.additions:
        return "Ready: the app answers audits, and its server is audited."
    open_ones = any(word in one.text for one in report.additions for word in OPEN)
    completed = " and completed, as listed under To decide" if open_ones else ""
    return f"Ready once these lines are added{completed}. Then run the app, and open report.html in the results folder."
