"""Reasons for which an app cannot be audited."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from simulations.external_app.check.source.project import Module, Project
from simulations.external_app.check.source.reading import AppSource

TEXT = re.compile("For(SequenceClassification|TokenClassification|CausalLM|MaskedLM|QuestionAnswering|Seq2SeqLM)$")
"""Classes of the package transformers."""
PACKAGES = {"attacks", "clients", "defenses", "simulations", "strategies"}
"""fedveil's own, which an audited app imports."""
OF_CLASSES = re.compile("cross_?entropy|nll|bce|margin|kl_?div|focal", re.IGNORECASE)
"""Losses of logits and classes."""
TORCH = ("torch", "torchvision", "pytorch_lightning", "lightning", "timm")


def in_the_source(project: Project, source: AppSource) -> Iterator[str]:
    """Reasons in the files alone: no PyTorch, no classes, or the interface before Flower's message API."""
    if not project.uses(*TORCH):
        others = [one for one in ("tensorflow", "keras", "sklearn", "jax", "xgboost", "mlx") if project.uses(one)]
        kind = f" (it imports {', '.join(others)})" if others else ""
        yield f"the app does not use PyTorch{kind}: probes and attacks differentiate a torch.nn.Module"
    for name in sorted(PACKAGES & {one.partition(".")[0] for one in project.modules}):
        yield f"the app's package {name} has the name of one of fedveil's packages, and hides it: rename the app's"
    if texts := [name for name in _names(project) if TEXT.search(name)]:
        yield f"the app trains a model of text ({texts[0]}): an audit probes images, (C, H, W) in [0, 1]"
    losses, images = source.training.losses, source.images
    if losses and images.image_key and not images.label_key and not any(OF_CLASSES.search(one.text) for one in losses):
        yield (
            f"the training loop reads {images.image_key!r} of a batch and no class, and its loss is {losses[0].text} "
            f"({losses[0].where}): an audit needs a classifier"
        )
    if where := _given(project.client, "ClientApp", "client_fn", positional=True):
        yield f"the ClientApp is of the older interface, client_fn ({where}): an audit needs @app.train() of the message API"
    if where := _given(project.server, "ServerApp", "server_fn", positional=False):
        yield f"the ServerApp is of the older interface, server_fn ({where}): an audit needs @app.main() of the message API"
    for module in project.modules.values():
        for full in module.imported.values():
            if full.rpartition(".")[2] in ("secaggplus_mod", "secagg_mod", "SecAggPlusWorkflow", "SecAggWorkflow"):
                yield f"{module.path.name} uses secure aggregation ({full.rpartition('.')[2]}): no server sees a single reply"


def _names(project: Project) -> Iterator[str]:
    """The last part of every imported name."""
    return (full.rpartition(".")[2] for module in project.modules.values() for full in module.imported.values())


def _given(module: Module | None, kind: str, name: str, *, positional: bool) -> str:
    """Where a file builds an app with an argument of the older interface; "" for nowhere."""
    for node in ast.walk(module.tree) if module else ():
        if not module or not isinstance(node, ast.Call) or module.full(node.func).rpartition(".")[2] != kind:
            continue
        if (positional and node.args) or any(one.arg == name for one in node.keywords):
            return module.at(node)
    return ""


def in_the_trial(project: Project, missing: list[str], found: Mapping[str, Any]) -> Iterator[str]:
    """Reasons from importing and starting the app; ``found`` is the result of ``trial.work.look``."""
    for text in project.unreadable:
        yield f"a file cannot be parsed: {text}"
    if missing:
        yield f"packages are missing, so the app cannot be imported: {', '.join(missing)} (uv pip install {' '.join(missing)})"
    else:
        for what, text in found.get("errors", {}).items():
            older = (
                f"; the app is written for another Flower than the installed {version('flwr')}"
                if "'flwr." in text
                else ""
            )
            yield f"the {what} cannot be imported: {text}{older}"
    client, server = found.get("client", {}), found.get("server", {})
    if client.get("client_fn"):
        yield "the ClientApp is of the older interface, client_fn: an audit needs @app.train() of the message API"
    elif client and not any(name.startswith("train.") for name in client["functions"]):
        yield "the ClientApp has no function for training (@app.train())"
    if server.get("server_fn"):
        yield "the ServerApp is of the older interface: it has no @app.main()"
    if server.get("asked") and not server.get("by_strategy"):
        yield "the ServerApp sends its messages of training itself: audited wraps a strategy of flwr.serverapp.strategy"
    if server.get("array_records", 1) != 1:
        yield f"the message of training holds {server['array_records']} ArrayRecords; an audit needs one, with all weights"
    model = found.get("model", {})
    if model.get("facts", {}).get("embeds"):
        yield "the model begins with an embedding of tokens: an audit probes images, (C, H, W) in [0, 1]"
    if model.get("lacks_buffers_of") and not model.get("by"):
        yield (
            f"the server sends the trained parameters of {model['lacks_buffers_of']} without its buffers, such as BatchNorm's "
            "running averages: an audit needs them in the messages, or a model without buffers"
        )
    elif model.get("part_of") and not model.get("by"):
        yield f"the server sends some of the arrays of {model['part_of']}; an audit needs every parameter that the model trains"
