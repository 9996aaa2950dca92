"""The lines that make an app answer an audit, with its own names and numbers in them, and the text around them for a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent

from simulations.external_app.check.report import Addition, AppReport, TrainingFacts

Names = Mapping[str, str]
"""``module:name`` of what a file knows -> what the file calls it."""
UNKNOWN_MODEL = "YourModel"
BUILDS = "audited_model"
"""The function that is added where the model takes arguments."""
WIDEST = 110
RANDOM = "Leave out the random transforms"
OPEN = (UNKNOWN_MODEL, "NotImplementedError", "=...", RANDOM)
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


def lines_to_add(report: AppReport) -> tuple[Addition, ...]:
    """Additions to the file of the ClientApp and to that of the ServerApp, those that are missing."""
    client, server, model = report.client, report.server, report.model
    home, (name, _, _) = _home(report), model.call.partition("(")
    found = list[Addition]()
    if model.call and not (client.answers and server.audited):
        imported = "" if home == model.home else f"    from {model.home} import {name}\n\n"
        text = f"def {BUILDS}():\n{imported}    return {model.call.replace(chr(39), chr(34))}"
        found.append(Addition(_file(report, home), "at the end", text))
    if not client.answers:
        module, _, app = report.client_app.partition(":")
        imports, name = _model(report, module, client.names)
        code = list(_pixels(module, client.names, report.training, imports))
        call = f"answer_audits({app}, model={name}, data=pixels{_normalised(report.training)})"
        text = "\n".join(["from clients import answer_audits", *imports, "", "", *code, "", "", call])
        found.append(Addition(_file(report, module), "at the end", text))
    if not server.audited:
        module, start = report.server_app.partition(":")[0], server.start
        file = str(Path(start["file"]).relative_to(report.folder)) if start else _file(report, module)
        imports, name = _model(report, module, server.names)
        text = "\n".join(["from simulations.audited import audited", *imports])
        found.append(Addition(file, "at the top", text))
        strategy = (start and start["strategy"]) or "strategy"
        where = (
            f"before `{strategy}.start(` ({Path(file).name}:{start['line']})" if start else "before the strategy starts"
        )
        found.append(Addition(file, where, _audited(report, name, strategy)))
    return tuple(found)


def results_folder(folder: Path) -> Path:
    """A folder for results: beside that of the app, as Flower sends an app with all that it finds in its folder."""
    return folder.parent / f"{folder.name}-audit"


def _file(report: AppReport, module: str) -> str:
    """The file of a module of the app, from the app's folder."""
    base = Path(*module.split("."))
    return str(base / "__init__.py" if (Path(report.folder) / base).is_dir() else base.with_suffix(".py"))


def _home(report: AppReport) -> str:
    """The module that gets a function for the model: that of what the function calls, if it is one of the app's."""
    home = report.model.home
    return (
        home if home and (Path(report.folder) / _file(report, home)).is_file() else report.client_app.partition(":")[0]
    )


def _model(report: AppReport, module: str, names: Names) -> tuple[list[str], str]:
    """The import that a file lacks for the model, and what the file calls the model."""
    target = f"{_home(report)}:{BUILDS}" if report.model.call else report.model.factory
    return _imported(module, names, target) if target else ([], UNKNOWN_MODEL)


def _imported(module: str, names: Names, target: str) -> tuple[list[str], str]:
    """The import that a file lacks for ``module:name``, and what the file calls it."""
    place, _, name = target.partition(":")
    known = target in names or place == module
    return ([] if known else [f"from {place} import {name}"]), names.get(target, name)


def _normalised(training: TrainingFacts) -> str:
    if training.normalisation is None:
        return ", mean=..., std=..." if training.normalisations or training.outside else ""
    mean, std = (values[0] if len(values) == 1 else tuple(values) for values in training.normalisation)
    return f", mean={mean!r}, std={std!r}"


def _pixels(module: str, names: Names, training: TrainingFacts, imports: list[str]) -> Iterator[str]:
    """The function that gives the images of a node, from the app's own loaders where a context is enough to call them."""
    loading = training.loading
    yield "def pixels(context):"
    if not loading or loading["arguments"] is None:
        yield '    """Images that this node trains on, in [0, 1] and without random transforms, each with its class."""'
        if loading:
            yield f"    # {loading['function']} loads the data; call it with what it needs."
        yield '    partition, partitions = context.node_config["partition-id"], context.node_config["num-partitions"]'
        yield '    raise NotImplementedError("return a list of (image (C, H, W) in [0, 1], class)")'
        return
    added, called = _imported(module, names, loading["function"])
    imports += added
    usual = {loading["train"]: "trainloader", loading["held_out"]: "testloader"}
    parts = [usual.get(at, "_") for at in range(loading["parts"])]
    yield '    """Images that this node trains on, and those that it holds out, in [0, 1], each with its class."""'
    if training.augmentations:
        yield f"    # {RANDOM}: {', '.join(training.augmentations)}."
    yield indent(_call(f"{', '.join(parts)} = {called}", loading["arguments"]), "    ")
    image, label, target = (
        f'item["{training.image_key or "image"}"]',
        f'item["{training.label_key or "label"}"]',
        "item",
    )
    if training.pairs:
        image, label, target = "x", "y", "x, y"
    if training.normalisation is not None:
        mean, std = (repr(one[0]) for one in training.normalisation)
        if max(map(len, training.normalisation)) > 1:
            mean, std = "mean", "std"
            imports += [] if names.get("torch") == "torch" else ["import torch"]
            both = ", ".join(map(str, map(list, training.normalisation)))
            yield f"    mean, std = (torch.tensor(one).view(-1, 1, 1) for one in ({both}))"
        # Grey levels of eight bits: rounding takes off what the arithmetic adds, and leaves a wrong normalisation to be seen.
        image = f"(({image} * {std} + {mean}) * 255).round() / 255"
    lists = [f"[({image}, {label}) for {target} in {name}.dataset]" for name in parts if name != "_"]
    if len(lists) == 1:
        yield f"    return {lists[0]}"
    else:
        yield from ("    return (", *(f"        {one}," for one in lists), "    )")


def _audited(report: AppReport, model: str, strategy: str) -> str:
    """The call at the server, as far to the right as what follows it; a number that the trial did not show is left open."""
    start, given = report.server.start, [one for one in report.settings if one.given]
    numbers = {f"{one.name}={'...' if one.value is None else one.value}": one for one in given}
    arguments = [strategy, f'"{results_folder(Path(report.folder))}"', model, *numbers]
    if any(one.from_settings for one in report.settings):
        arguments.append(f"settings={(start and start['context']) or 'context'}.run_config")
    comments = {text: one.source for text, one in numbers.items() if one.value is None}
    return indent(_call(f"{strategy} = audited", arguments, comments), " " * (start["indent"] if start else 0))


def _call(before: str, given: Sequence[str], comments: dict[str, str] | None = None) -> str:
    """A call; with each argument on a line of its own where one line would be too wide, or comments stand behind arguments."""
    if not comments and len(line := f"{before}({', '.join(given)})") <= WIDEST:
        return line
    texts = (f"    {one},{f'  # {comments[one]}' if comments and one in comments else ''}" for one in given)
    return "\n".join([f"{before}(", *texts, ")"])


def printed(report: AppReport) -> str:
    """The whole text, without the line break at its end."""
    parts = [_block(f"App {report.folder}", _apps(report))]
    if report.server.strategy:
        parts.append(_block("Server, in a trial up to its first round", _server(report)))
    if report.training.optimizer:
        parts.append(_block("Training, of one client in a trial", _training(report.training)))
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
    yield "mods", "; ".join([*client.app_mods, *client.train_mods]) or "none seen"
    yield "network", "none" if report.isolated else "refused by Python's sockets alone: other code could reach it"


def _server(report: AppReport) -> Iterator[tuple[str, str]]:
    server, model = report.server, report.model
    asked = f"; round 1 asks {server.asked} of {max(report.nodes, server.waits_for)} nodes" if server.asked else ""
    yield "strategy", " around ".join(server.strategy) or UNSEEN
    yield "rounds", f"{server.rounds or UNSEEN}{asked}"
    for name, values in (("message", server.message), ("run config", report.run_config)):
        yield name, ", ".join(f"{key} = {value!r}" for key, value in (values or {}).items()) or "empty"
    for one in report.settings:
        if one.taken and not one.given:
            yield one.name, f"{one.value} (`audited` takes {one.source})"
    name = model.factory or model.call
    yield "model", f"{name or UNSEEN}{f', tried on images {model.images}' if model.images else ''}"


def _training(training: TrainingFacts) -> Iterator[tuple[str, str]]:
    yield (
        "optimizer",
        f"{training.optimizer}({', '.join(f'{key}={value}' for key, value in training.settings.items())})",
    )
    yield "loss", ", ".join(training.losses) or UNSEEN
    norms = (f"mean {mean}, std {std}" for mean, std in training.normalisations)
    yield "normalised", "; ".join(norms) or "not seen"
    yield "transforms", ", ".join(training.augmentations) or "none random seen"


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
