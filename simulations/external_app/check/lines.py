"""The lines that make an app answer an audit, with its own names and numbers in them, and the text around them for a person."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import indent

from simulations.external_app.check.report import Addition, AppReport, ModelFacts
from simulations.external_app.check.source.loading import Loading
from simulations.external_app.check.source.project import Module, Project
from simulations.external_app.check.source.reading import AppSource, Images, Start

UNKNOWN_MODEL = "YourModel"
BUILDS = "audited_model"
"""The function that is added where the model takes arguments."""
WIDEST = 110
OPEN = (UNKNOWN_MODEL, "NotImplementedError", "=...")
"""What stands in lines that a person must complete."""
UNSEEN = "could not be seen"
WIDTH = 13
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


def lines_to_add(project: Project, report: AppReport, source: AppSource) -> tuple[Addition, ...]:
    """Additions to the file of the ClientApp and to that of the ServerApp, those that are missing."""
    client, server, model, start = project.client, project.server, report.model, source.start
    found = list[Addition]()
    if model.call and not (report.client.answers and report.server.audited):
        name, own = model.call.partition("(")[0], model.home in project.modules
        imported = "" if own else f"    from {model.home} import {name}\n\n"
        text = f"def {BUILDS}():\n{imported}    return {model.call.replace(chr(39), chr(34))}"
        found.append(Addition(_file(project, _home(project, model)), "at the end", text))
    if client is not None and not report.client.answers:
        app = project.client_app.partition(":")[2]
        imports, name = _model(project, client, model)
        code = list(_pixels(client, source.images, source.loading, imports))
        call = f"answer_audits({app}, model={name}, data=pixels{_normalised(source.images)})"
        text = "\n".join(["from clients import answer_audits", *imports, "", "", *code, "", "", call])
        found.append(Addition(_file(project, client), "at the end", text))
    if server is not None and not report.server.audited:
        imports, name = _model(project, server, model)
        text = "\n".join(["from simulations.audited import audited", *imports])
        found.append(Addition(_file(project, server), "at the top", text))
        where = (
            f"before `{start.strategy or 'strategy'}.start(` ({start.where})" if start else "before the strategy starts"
        )
        found.append(Addition(_file(project, server), where, _audited(report, name, start)))
    return tuple(found)


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


def _normalised(images: Images) -> str:
    one = images.normalisation
    if one is None:
        return ", mean=..., std=..." if images.normalisations or images.unreadable else ""
    mean, std = (values[0] if len(values) == 1 else values for values in (one.mean, one.std))
    return f", mean={mean!r}, std={std!r}"


def _pixels(module: Module, images: Images, loading: Loading | None, imports: list[str]) -> Iterator[str]:
    """The function that gives the images of a node, from the app's own loaders where a context is enough to call them."""
    yield "def pixels(context):"
    if loading is None or not loading.call:
        yield '    """Images that this node trains on, in [0, 1] and without random transforms, each with its class."""'
        if loading is not None:
            yield f"    # {loading.function} loads the data; call it with what it needs."
        yield '    partition, partitions = context.node_config["partition-id"], context.node_config["num-partitions"]'
        yield '    raise NotImplementedError("return a list of (image (C, H, W) in [0, 1], class)")'
        return
    added, called = _imported(module, loading.function)
    imports += added
    usual = {loading.train: "trainloader", loading.held_out: "testloader"}
    parts = [name if name.isidentifier() else usual.get(at, "_") for at, name in enumerate(loading.names)]
    kept = [parts[at] for at in (loading.train, loading.held_out) if at >= 0]
    yield '    """Images that this node trains on, and those that it holds out, in [0, 1], each with its class."""'
    left = ", ".join(name if name in kept else "_" for name in parts)
    given = [ast.unparse(one) for one in (*loading.call.args, *loading.call.keywords)]
    yield indent(_call(f"{left} = {called}", [one if '"' in one else one.replace("'", '"') for one in given]), "    ")
    image, label, target = f'item["{images.image_key or "image"}"]', f'item["{images.label_key or "label"}"]', "item"
    if images.pairs:
        image, label, target = "x", "y", "x, y"
    if (one := images.normalisation) is not None:
        mean, std = repr(one.mean[0]), repr(one.std[0])
        if max(len(one.mean), len(one.std)) > 1:
            mean, std = "mean", "std"
            imports += [] if "torch" in module.imported else ["import torch"]
            yield f"    mean, std = (torch.tensor(one).view(-1, 1, 1) for one in ({list(one.mean)}, {list(one.std)}))"
        # Grey levels of eight bits: rounding takes off what the arithmetic adds, and leaves a wrong normalisation to be seen.
        image = f"(({image} * {std} + {mean}) * 255).round() / 255"
    lists = [f"[({image}, {label}) for {target} in {name}.dataset]" for name in kept]
    if len(lists) == 1:
        yield f"    return {lists[0]}"
    else:
        yield from ("    return (", *(f"        {one}," for one in lists), "    )")


def _audited(report: AppReport, model: str, start: Start | None) -> str:
    """The call at the server, as far to the right as what follows it."""
    strategy = start.strategy or "strategy" if start else "strategy"
    text = _call(f"{strategy} = audited", [strategy, f'"{results_folder(Path(report.folder))}"', model])
    return indent(text, " " * (start.indent if start else 0))


def _call(before: str, given: Sequence[str]) -> str:
    """A call; with each argument on a line of its own where one line would be too wide."""
    if len(line := f"{before}({', '.join(given)})") <= WIDEST:
        return line
    return "\n".join([f"{before}(", *(f"    {one}," for one in given), ")"])


def printed(report: AppReport) -> str:
    """The whole text, without the line break at its end."""
    parts = [_block(f"App {report.folder}", _apps(report))]
    if report.server.strategy:
        parts.append(_block("Server, in a trial up to its first round", _server(report)))
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
    open_ones = any(word in one.text for one in report.additions for word in OPEN)
    completed = " and completed, as listed under To decide" if open_ones else ""
    return f"Ready once these lines are added{completed}. Then run the app, and open report.html in the results folder."
