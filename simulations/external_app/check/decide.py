"""Refusals and limits of an audit with an app, and the open questions for its user."""

from __future__ import annotations

import re
from collections.abc import Iterator

from simulations.external_app.check.lines import UNKNOWN_MODEL
from simulations.external_app.check.report import AppReport
from simulations.external_app.check.source.project import Project
from simulations.external_app.check.source.reading import AppSource

TEXT = re.compile("For(SequenceClassification|TokenClassification|CausalLM|MaskedLM|QuestionAnswering|Seq2SeqLM)$")
"""Classes of the package transformers."""
SECURE = re.compile(r"(secagg(plus)?_mod|SecAgg(Plus)?Workflow)$")
PACKAGES = {"attacks", "clients", "defenses", "simulations", "strategies"}
"""fedveil's own, which an audited app imports."""
TORCH = {"torch", "torchvision", "pytorch_lightning", "lightning", "timm"}
OTHERS = ("tensorflow", "keras", "sklearn", "jax", "xgboost", "mlx")
WITHOUT_CLASSES = re.compile("mse|l1|bce|binary", re.IGNORECASE)
"""Losses that no logits of classes go into."""
FOR_TRANSFORMERS = 'probe_attacks="PatchEmbeddingInversion(); InvertingGradients(); LabelInference()"'
"""The setting that adds the exact attack on patches."""


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
        if TEXT.search(name):
            yield f"the app trains a model of text ({name}): an audit probes images, (C, H, W) in [0, 1]"
        if SECURE.match(name):
            yield f"the app uses secure aggregation ({name}): no server sees a single reply"


def without_classes(source: AppSource) -> Iterator[str]:
    """A reason against an audit where all losses are of something else than classes."""
    if source.losses and all(map(WITHOUT_CLASSES.search, source.losses)):
        yield f"the loss is {source.losses[0]}: an audit needs a classifier, with a logit for each class"


def limits(source: AppSource) -> Iterator[str]:
    """Where probes differ from training, as far as the source shows, in sentences."""
    if not source.sgd:
        yield f"The clients train with {source.optimizers[0]}: a probe is a step of SGD, and attacks assume SGD."
    if source.privacy:
        yield f"Opacus runs DP-SGD inside train, {source.privacy[0]}: a probe has neither its clipping nor its noise."
    if source.images.augmentations:
        yield f"The clients augment their images ({', '.join(source.images.augmentations)}): a probe does not."


def questions(report: AppReport, source: AppSource) -> Iterator[str]:
    """Missing or unclear facts, each as a sentence with the action that settles it."""
    yield from _of_server(report, source)
    yield from _of_model(report)
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
    if missing := [one.name for one in report.settings if one.value is None]:
        seen = f" The source has {'; '.join(source.optimizers)}." if source.optimizers else ""
        yield f"Fill in {', '.join(missing)} of audited(...): the check reads no numbers of training from the source.{seen}"
    if {"local_epochs", "batch_size"} & set(missing):
        yield "Delete local_epochs or batch_size if your clients have no such number: their own updates are then not attacked."


def _of_model(report: AppReport) -> Iterator[str]:
    model = report.model
    name = model.factory or model.call
    if not name:
        yield f"No model with the arrays that the server sends was seen: name what builds it in place of {UNKNOWN_MODEL}."
    elif model.by == "order":
        yield f"The arrays carry no names of {name}: they are matched in the order of its state_dict()."
    elif model.by == "trained":
        yield (
            f"The server sends the trained parameters of {name} alone: the frozen ones must be the same wherever {name} is built, "
            "as from a file of weights. A node that builds others answers no audit."
        )
    if model.facts.get("transformer"):
        yield f"The model has attention layers: if it is a vision transformer, give audited {FOR_TRANSFORMERS}."


def _of_data(source: AppSource) -> Iterator[str]:
    images, loading = source.images, source.loading
    if images.normalisation is None and (seen := (*source.to_json()["normalisation"], *images.unreadable)):
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
            which = "class" if images.image_key else "image" if images.label_key else "image and which the class"
            yield f"Which field of a batch holds the {which} could not be seen: correct it in pixels(context)."
        if images.augmentations:
            yield f"pixels(context) gets images after random transforms: {', '.join(images.augmentations)}. Leave these out."
        yield f"Read pixels(context) once: it takes what {loading.function} returns, which the check did not run."
