"""An ``AppReport`` as text for a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from simulations.external_app.check.lines import OPEN, results_folder
from simulations.external_app.check.report import AppReport, ServerFacts, Setting

SHOWN = 3
"""Arrays that are shown by name."""
UNSEEN = "could not be seen"
AGREES = {
    "names": "all names and shapes agree", "order": "shapes agree in order", "trained": "its trained parameters agree",
    "source": "from the source",
}  # fmt: skip
WIDTH = 13
RULE = "-----"
"""Around lines to add, which stand at the left as they are pasted."""


def printed(report: AppReport) -> str:
    """The whole text, without the line break at its end."""
    parts = [_apps(report)]
    shown = not report.refused or bool(report.to_decide)
    if report.server.strategy or report.server.arrays:
        parts.append(_block("Server", _server_lines(report)))
    if shown:
        parts.append(_block("Training, as the source shows it", _training_lines(report)))
    if shown:
        parts += [
            _listed("By default an audit will", report.can),
            _listed("An audit cannot, or does not", report.cannot),
        ]
    for one in report.additions:
        parts.append(f"{RULE} Add to {one.file}, {one.where}:\n\n{one.text}")
    if report.additions:
        parts.append(RULE)
    if report.to_decide:
        parts.append(_listed("To decide", report.to_decide, numbered=True))
    if not report.refused:
        results = "" if report.server.audited else RESULTS.format(results=results_folder(Path(report.folder)))
        parts.append(RUN.format(folder=report.folder, nodes=report.nodes, results=results))
    return "\n\n".join([*parts, _end(report)])


RUN = """Run it. The variable keeps flwr from installing the app's dependencies anew, where fedveil is missing:

  export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
  flwr run {folder} --stream --federation-config "num-supernodes={nodes}"

{results}A local SuperLink that runs already keeps its old environment. End it first; this ends every simulation of yours:

  pkill -u "$USER" -f flower-superlink"""
"""How the app is run in a simulation."""


RESULTS = """Read {results}/report.html then. A second run writes beside it, to {results}-2, and says so.
"""
"""Where the results of the printed lines are."""


def _apps(report: AppReport) -> str:
    client = report.client
    functions = ", ".join(one.removesuffix(".default") for one in client.functions) or UNSEEN
    lines = [("ServerApp", report.server_app), ("ClientApp", report.client_app)]
    if client.functions:
        mods = [
            *(f"{one} (of the app)" for one in client.app_mods),
            *(f"{one} (of train)" for one in client.train_mods),
        ]
        lines += [("functions", functions), ("mods", "; ".join(mods) or "none")]
    return _block(f"App {report.folder}", lines)


def _server_lines(report: AppReport) -> Iterator[tuple[str, str]]:
    server = report.server
    if server.strategy:
        yield "strategy", " around ".join(server.strategy)
        asked = f"; round 1 asks {server.asked} of {max(report.nodes, server.waits_for)} nodes" if server.asked else ""
        yield "rounds", f"{server.rounds or UNSEEN}{asked}"
    yield "message", _values(server.message) if server.message is not None else UNSEEN
    yield "run config", _values(report.run_config)
    yield "arrays", _arrays(server)
    name = report.model.factory or report.model.call or UNSEEN
    how = AGREES.get(report.model.by)
    yield "model", f"{name} ({how})" if how else name


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in values.items()) or "empty"


def _arrays(server: ServerFacts) -> str:
    kinds = {
        "list": "a list of arrays",
        "state_dict": "a PyTorch state_dict",
        "named": "arrays with names of their own",
    }
    if not server.arrays:
        return UNSEEN
    first = ", ".join(f"{one.name} {one.shape}" for one in server.arrays[:SHOWN])
    more = ", ..." if len(server.arrays) > SHOWN else ""
    numbers = sum(prod(one.shape) for one in server.arrays)
    norm = f"; BatchNorm statistics in {len(server.statistics)} of them" if server.statistics else ""
    return f"{len(server.arrays)}, {kinds[server.kind_of_arrays]} of {numbers:,} numbers: {first}{more}{norm}"


def _training_lines(report: AppReport) -> Iterator[tuple[str, str]]:
    source = report.source
    yield "optimizer", "; ".join(source.optimizers) or UNSEEN
    for name in ("learning_rate", "local_epochs", "batch_size"):
        if (one := report.setting(name)) is not None:
            yield name.replace("_", " "), _setting(one)
    yield "loss", "; ".join(dict.fromkeys(source.losses)) or UNSEEN
    yield "normalised", "; ".join(source.normalisation) or UNSEEN
    if source.augmentations:
        yield "augmented", ", ".join(source.augmentations)
    yield "DP in train", "; ".join(source.privacy) or "none seen in the source"
    yield "replies hold", source.replies or UNSEEN
    yield "data", source.loading or UNSEEN


def _setting(one: Setting) -> str:
    if one.value is None:
        return one.source
    return one.source if one.argument else f"{one.value!r}, {one.source}"


def _block(title: str, lines: Iterable[tuple[str, str]]) -> str:
    return "\n".join([title, *(f"  {name:<{WIDTH}} {text}" for name, text in lines)])


def _listed(title: str, lines: Iterable[str], *, numbered: bool = False) -> str:
    return "\n".join([title, *(f"  {f'{at}.' if numbered else '-'} {text}" for at, text in enumerate(lines, 1))])


def _end(report: AppReport) -> str:
    if report.refused:
        return _listed("This app cannot be audited as it is", report.refused)
    if not report.additions:
        return "Ready: the app answers audits, and its server is audited."
    if any(word in one.text for one in report.additions for word in OPEN):
        return "Ready once these lines are added and filled in, as listed under To decide."
    if report.to_decide:
        return (
            "To audit the app, add these lines, settle the points under To decide, and run the app. Then open report.html in the "
            "results folder."
        )
    return "Ready once these lines are added: run the app as before, and open report.html in the results folder."
