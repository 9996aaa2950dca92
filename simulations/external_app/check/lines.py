"""The lines that make an app answer an audit, with its own names and numbers in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

from simulations.external_app.check.report import Addition, AppReport, ModelFacts, Setting
from simulations.external_app.check.source.entries import Start
from simulations.external_app.check.source.images import Images, SeenNormalisation
from simulations.external_app.check.source.loading import Loading
from simulations.external_app.check.source.project import Module, Project
from simulations.external_app.check.source.reading import AppSource

UNKNOWN_MODEL = "YourModel"
BUILDS = "audited_model"
"""The function that is added where the model takes arguments."""
WIDEST = 110
RANDOM = "Leave out the random transforms"
OPEN = (UNKNOWN_MODEL, "NotImplementedError", "=...", RANDOM)
"""What stands in lines that a person must complete."""


def lines_to_add(project: Project, report: AppReport, source: AppSource) -> tuple[Addition, ...]:
    """Additions to the file of the ClientApp and to that of the ServerApp, those that are missing."""
    server, client, model, start = report.server, report.client, report.model, source.start
    found: list[Addition] = []
    home = _home(project, model)
    if model.call and not (client.answers and server.audited):
        text = f"def {BUILDS}():\n    return {_quoted(model.call)}"
        found.append(Addition(_file(project, home), "at the end", text))
    if not client.answers and project.client is not None:
        text = _client_lines(project, project.client, model, source.images, source.loading)
        found.append(Addition(_file(project, project.client), "at the end", text))
    if not server.audited and project.server is not None:
        where = (
            f"before `{start.strategy or 'strategy'}.start(` ({start.where})" if start else "before the strategy starts"
        )
        imports, call = _server_lines(project, project.server, model, report.settings, start)
        found.append(Addition(_file(project, project.server), "at the top", imports))
        found.append(Addition(_file(project, project.server), where, call))
    return tuple(found)


def _file(project: Project, module: Module) -> str:
    return str(module.path.relative_to(project.folder))


def _home(project: Project, model: ModelFacts) -> Module:
    """The file that gets a function for the model: that of what the function calls."""
    name = model.call.partition("(")[0]
    own = next((one for one in project.modules.values() if project.definition(f"{one.name}.{name}")), None)
    return own or project.client or next(iter(project.modules.values()))


def _named(project: Project, module: Module, model: ModelFacts) -> tuple[list[str], str]:
    """The import that a file lacks for the model, and what the file calls the model."""
    if model.call:
        home = _home(project, model)
        return ([] if home is module else [f"from {home.name} import {BUILDS}"]), BUILDS
    if not model.factory:
        return [], UNKNOWN_MODEL
    return _imported(module, model.factory)


def _imported(module: Module, target: str) -> tuple[list[str], str]:
    place, _, name = target.partition(":")
    if place == module.name:
        return [], name
    bound = next(
        (own for own, full in module.imported.items() if full.rpartition(".")[2] == name and _same(full, place)), ""
    )
    return ([], bound) if bound else ([f"from {place} import {name}"], name)


def _same(full: str, place: str) -> bool:
    """Whether a name is imported from a module or from a package around it, such as ``torchvision.models``."""
    return place == full.rpartition(".")[0] or place.startswith(f"{full.rpartition('.')[0]}.")


def _client_lines(project: Project, module: Module, model: ModelFacts, images: Images, loading: Loading | None) -> str:
    imports, name = _named(project, module, model)
    code = list(_pixels(module, images, loading, imports))
    given = f"app, model={name}, data=pixels{_normalised(images)}"
    app = project.client_app.partition(":")[2]
    call = f"answer_audits({given.replace('app', app, 1)})"
    return "\n".join(["from clients import answer_audits", *imports, "", "", *code, "", "", call])


def _normalised(images: Images) -> str:
    if len(images.normalisations) != 1:
        return "" if not (images.normalisations or images.unreadable) else ", mean=..., std=..."
    one = images.normalisations[0]
    return f", mean={_number(one.mean)}, std={_number(one.std)}"


def _number(values: tuple[float, ...]) -> str:
    return repr(values[0]) if len(values) == 1 else repr(values)


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
    call = loading.call if not added else loading.call.replace(loading.call.partition("(")[0], called, 1)
    parts = _variables(loading)
    of = ".dataset" if loading.is_loader else ""
    kept = [parts[at] for at in (loading.train, loading.held_out) if at >= 0]
    yield '    """Images that this node trains on, and those that it holds out, in [0, 1], each with its class."""'
    if images.augmentations:
        yield f"    # {RANDOM}: {', '.join(one.partition(' ')[0] for one in images.augmentations)}."
    left = ", ".join(name if name in kept else "_" for name in parts)
    yield indent(broken(f"{left} = ", _quoted(call)), "    ")
    one = images.normalisations[0] if len(images.normalisations) == 1 else None
    if one is not None and max(len(one.mean), len(one.std)) > 1:
        imports += [] if "torch" in module.imported else ["import torch"]
        yield f"    mean, std = (torch.tensor(one).view(-1, 1, 1) for one in ({list(one.mean)}, {list(one.std)}))"
    pair, target = _item(images, one)
    if len(kept) == 2:
        yield from ("", "    def pairs(loader):", f"        return [{pair} for {target} in loader{of}]", "")
        yield f"    return pairs({kept[0]}), pairs({kept[1]})"
    else:
        yield f"    return [{pair} for {target} in {kept[0]}{of}]"


def _variables(loading: Loading) -> list[str]:
    usual = {loading.train: "trainloader", loading.held_out: "testloader"}
    return [name if name.isidentifier() else usual.get(at, f"other_{at}") for at, name in enumerate(loading.names)]


def _item(images: Images, one: SeenNormalisation | None) -> tuple[str, str]:
    """The pair that is wanted of an item of the app's data set, and what the item is called."""
    image, label, target = "x", "y", "x, y"
    if not images.pairs:
        image, label, target = (
            f'item["{images.image_key or "image"}"]',
            f'item["{images.label_key or "label"}"]',
            "item",
        )
    if one is not None:
        many = max(len(one.mean), len(one.std)) > 1
        mean, std = ("mean", "std") if many else (repr(one.mean[0]), repr(one.std[0]))
        # Grey levels of eight bits: rounding takes off what the arithmetic adds, and leaves a wrong normalisation to be seen.
        image = f"(({image} * {std} + {mean}) * 255).round() / 255"
    return f"({image}, {label})", target


def broken(before: str, call: str) -> str:
    """``before`` and a call, with each argument on a line of its own where one line would be too wide."""
    if len(before + call) <= WIDEST:
        return before + call
    parsed = ast.parse(call, mode="eval").body
    assert isinstance(parsed, ast.Call)
    given = [ast.get_source_segment(call, one) for one in parsed.args]
    given += [f"{one.arg}={ast.get_source_segment(call, one.value)}" for one in parsed.keywords]
    return f"{before}{ast.unparse(parsed.func)}(\n    " + ",\n    ".join(map(str, given)) + ",\n)"


def _quoted(call: str) -> str:
    return call if '"' in call else call.replace("'", '"')


def _server_lines(
    project: Project, module: Module, model: ModelFacts, settings: tuple[Setting, ...], start: Start | None
) -> tuple[str, str]:
    """The imports that the server's file lacks, and the call, as far to the right as what follows it."""
    imports, name = _named(project, module, model)
    strategy, context = (start.strategy or "strategy", start.context) if start else ("strategy", "context")
    folder = results_folder(project.folder)
    given = [strategy, f'"{folder}"', name, *(f"{one.name}={one.value!r}" for one in settings if one.argument)]
    if any(one.from_settings for one in settings):
        given.append(f"settings={context}.run_config")
    call = broken(f"{strategy} = ", f"audited({', '.join(given)})")
    return "\n".join(["from simulations.audited import audited", *imports]), indent(
        call, " " * (start.indent if start else 0)
    )


def results_folder(folder: Path) -> Path:
    """A folder for results: beside that of the app, as Flower sends an app with all that it finds in its folder."""
    return folder.parent / f"{folder.name}-audit"
