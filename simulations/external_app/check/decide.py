"""Abilities and limits of an audit with an app, and the open questions for its user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simulations.external_app.check.lines import UNKNOWN_MODEL
from simulations.external_app.check.report import LEAST_IMAGES, AppReport
from simulations.external_app.check.settings import optimizer_of
from simulations.external_app.check.source.entries import SeenReplies, Start
from simulations.external_app.check.source.images import Images
from simulations.external_app.check.source.loading import Loading
from simulations.external_app.check.source.reading import AppSource
from simulations.external_app.check.source.training import SeenTraining
from strategies.external_app.settings import AuditSettings

IMAGE_SHAPES = 4
"""Dimensions of a convolution's weights."""
ON_PROBES, ON_UPDATES = (
    " and ".join(one.strip().removesuffix("()") for one in attacks.split(";"))
    for attacks in (AuditSettings.probe_attacks, AuditSettings.update_attacks)
)
"""Names of the attacks that an audit runs by default."""
FOR_TRANSFORMERS = 'probe_attacks="PatchEmbeddingInversion(); InvertingGradients(); LabelInference()"'
"""The setting that adds the exact attack on patches."""
FOR_IMAGES = 'update_attacks="InvertingGradients(); LabelInference()"'
"""The setting that attacks the images of updates, too."""


def abilities(report: AppReport, source: AppSource) -> Iterator[str]:
    """Abilities of the audit, as sentences."""
    each, asked = report.images_of_node, report.nodes_asked
    yield (
        f"Attack one-step probes with {ON_PROBES}, for images and classes. A probe is one step of SGD on one image; there are up "
        f"to {each * asked} images in an attacked round: {each} from each of {asked} node{'s' if asked > 1 else ''} with so many. "
        f"A verdict needs {LEAST_IMAGES}."
    )
    if _holds_updates(source.replies) and _knows_steps(report):
        yield (
            f"Attack the clients' own updates with {ON_UPDATES} alone, which infers classes and no images. {FOR_IMAGES} in "
            "audited(...) attacks their images."
        )
    yield f"Attack in round {', '.join(map(str, AuditSettings.rounds))} alone; rounds=[1, 3] in audited(...) names others."
    yield "Clients score each guess against the null baseline, the score of a guess made without the update."


def limits(report: AppReport, source: AppSource) -> Iterator[str]:
    """Limits of the audit, as sentences."""
    training, images = source.training, source.images
    optimizer = optimizer_of(training)
    if not _knows_steps(report):
        yield (
            "The clients' own updates are not attacked, as local epochs or batch size are unknown. "
            "audited(..., local_epochs=..., batch_size=...) gives them."
        )
    if optimizer is not None and not _is_sgd(training):
        yield (
            f"The clients train with {optimizer.name} ({optimizer.where}): probes and attacks assume SGD, so attacks on the "
            "clients' own updates reckon with another optimizer."
        )
    for text in report.source.privacy:
        yield f"{text}: a probe has neither its clipping nor its noise, so scores of probes are those of an app without it."
    if report.source.privacy:
        yield "The page shows an epsilon of the app, unchecked, only if the replies to training have a metric epsilon."
    for text in report.source.beyond:
        yield f"{text[:1].upper()}{text[1:]}: a probe does not."
    if images.augmentations:
        yield f"The clients augment their images ({', '.join(images.augmentations)}): a probe does not."
    if report.server.statistics or (report.model.facts or {}).get("batch_norm"):
        yield "The model has BatchNorm: a probe is a step in train mode, and attacks reckon with the statistics of its batch."
    if any(one.startswith("DifferentialPrivacy") for one in report.server.strategy):
        yield "The server's differential privacy acts after the replies have arrived: a curious server sees them without it."
    yield "Membership tests, and attacks over the rounds of one client, need a federation of fedveil (`fedveil run`)."


def _holds_updates(replies: SeenReplies) -> bool:
    """Whether nothing in the source speaks against weights and a number of examples in each reply."""
    return replies.arrays != "differences" and replies.counts_examples is not False and not replies.counts_batches


def _knows_steps(report: AppReport) -> bool:
    """Whether local epochs and batch size are known, without which no update is attacked."""
    return {"local_epochs", "batch_size"} <= {one.name for one in report.settings if one.value is not None}


def _is_sgd(training: SeenTraining) -> bool:
    optimizer = optimizer_of(training)
    return optimizer is None or optimizer.name == "SGD"


def questions(report: AppReport, source: AppSource, found: Mapping[str, Any]) -> Iterator[str]:
    """Missing or unclear facts, each as a sentence with the action that settles it."""
    yield from _of_server(report, source.start, found)
    yield from _of_model(report, found)
    yield from _of_settings(report, source.training)
    yield from _of_data(report, source.images, source.loading)
    yield from _of_replies(source.replies)
    yield from _of_client(report, found)


def _of_server(report: AppReport, start: Start | None, found: Mapping[str, Any]) -> Iterator[str]:
    server = report.server
    if server.failed:
        yield (
            f"The first round was not seen: {server.failed}. The check has no network and loads no data; what depends on the "
            "message of training is read from the source alone."
        )
    if text := found.get("server", {}).get("unasked"):
        yield f"The messages of round 1 were not seen: {text}."
    if server.waits_for > report.nodes:
        yield (
            f"The strategy waits for {server.waits_for} nodes, and the federation has {report.nodes} (--nodes): with fewer it "
            "never begins."
        )
    if not server.audited and start is None and not report.refused:
        yield "No `strategy.start(` was found in the ServerApp's file: wrap the outermost strategy where it starts."
    elif not server.audited and start is not None and not start.strategy:
        yield f"The strategy has no name where it starts ({start.where}): assign it to `strategy` first, then wrap it."
    if report.wrote:
        yield f"Starting the app left {', '.join(report.wrote[:5])} in its folder; delete what you do not want."


def _of_model(report: AppReport, found: Mapping[str, Any]) -> Iterator[str]:
    model, arrays = report.model, report.server.arrays
    name = model.factory or model.call
    if not name:
        failed = found.get("model", {}).get("failed", {})
        reasons = "; ".join(f"{one}: {text}" if one else text for one, text in failed.items())
        seen = "that builds without arguments has the arrays that the server sends" if arrays else "was found"
        why = f" ({reasons})" if reasons else ""
        yield f"No model {seen}: name a class or function without arguments in place of {UNKNOWN_MODEL}.{why}"
    elif model.by == "order":
        yield f"The arrays carry no names of {name}: they are matched in the order of its state_dict()."
    elif model.by == "trained":
        yield (
            f"The server sends the trained parameters of {name} alone: the frozen ones must be the same wherever {name} is built, "
            "as from a file of weights. A node that builds others answers no audit."
        )
    elif model.by == "source":
        yield f"That {name} is the model is read from the source: no arrays were seen to compare it with."
    facts = model.facts or {}
    if facts.get("frozen"):
        yield f"{facts['frozen']} parameters of the model are frozen (requires_grad is False): probes and attacks leave them out."
    if facts.get("transformer"):
        yield (
            f"The model has attention layers: if it is a vision transformer, give audited {FOR_TRANSFORMERS}, which solves for the "
            "pixels of one image where all of it is trained."
        )
    if not facts.get("convolves") and arrays and not any(len(one.shape) >= IMAGE_SHAPES for one in arrays):
        yield "The model has no convolution: an audit probes images, (C, H, W) in [0, 1]; make sure that it takes these."


def _of_settings(report: AppReport, training: SeenTraining) -> Iterator[str]:
    for one in report.settings:
        if one.conflict:
            yield f"{one.name}: an audit takes {one.value!r} ({one.source}); the source has {one.conflict}. Make them agree."
        elif one.value is None:
            yield f"{one.name} is not known ({one.source}): give audited {one.name}=..., if attacks shall reckon with it."
    names = {one.name for one in training.optimizers}
    if not names:
        yield "No optimizer of torch.optim was seen: probes and attacks assume SGD; give audited momentum= and weight_decay=."
    elif "SGD" not in names:
        yield f"The optimizer is {', '.join(sorted(names))}: decide whether probes by SGD at its learning rate tell you enough."
    elif len(training.optimizers) > 1:
        several = ", ".join(f"{one.name} {one.where}" for one in training.optimizers)
        yield f"There are several optimizers ({several}): give audited the numbers of the one that trains."
    if len(training.batch_sizes) > 1:
        yield f"Loaders have different batch sizes: {', '.join(one.described() for one in training.batch_sizes)}."
    if not training.losses:
        yield "No loss was seen: answer_audits assumes cross entropy; for another give it loss=, a function of logits and classes."
    for loss in training.losses:
        if not loss.plain:
            yield (
                f"The loss is {loss.text} ({loss.where}): an audit needs a classifier, and assumes cross entropy. Give "
                "answer_audits loss=, a function of logits and classes."
            )


def _of_data(report: AppReport, images: Images, loading: Loading | None) -> Iterator[str]:
    if report.client.answers:
        return
    if len(images.normalisations) > 1:
        several = ", ".join(f"{list(one.mean)} and {list(one.std)} ({one.where})" for one in images.normalisations)
        yield f"There are several normalisations: {several}. Give answer_audits that of the training images."
    elif images.unreadable and not images.normalisations:
        yield f"The numbers of Normalize could not be seen ({', '.join(images.unreadable)}): give answer_audits mean and std."
    elif not images.normalisations:
        yield "No normalisation was seen: mean 0 and std 1 are assumed, so that the model takes images in [0, 1]."
    if loading is not None and loading.call and not images.pairs and not (images.image_key and images.label_key):
        which = "class" if images.image_key else "image" if images.label_key else "image and which the class"
        yield f"Which field of a batch holds the {which} could not be seen: correct it in pixels(context)."
    if loading is not None and loading.call and images.augmentations:
        yield f"pixels(context) gets images after random transforms: {', '.join(images.augmentations)}. Make it leave these out."
    if loading is None:
        yield "No function that loads the data was found: write pixels(context)."
    elif not loading.call:
        yield f"{loading.function} loads the data, and needs more than the context of a node: complete pixels(context)."
    else:
        yield f"Read pixels(context) once: it takes what {loading.function} returns, which the check did not run."


def _of_replies(replies: SeenReplies) -> Iterator[str]:
    if replies.arrays == "differences":
        yield f"Replies seem to hold differences of weights ({replies.where}): an audit needs the weights themselves."
    elif replies.arrays == "unseen":
        yield "Whether replies hold weights or differences could not be seen: an audit needs weights."
    if replies.counts_batches:
        yield f"num-examples counts batches, {replies.counts_batches}: an audit needs the number of images, len(loader.dataset)."
    elif replies.counts_examples is False:
        yield "Replies do not count their examples: add num-examples to their metrics; without it updates cannot be attacked."


def _of_client(report: AppReport, found: Mapping[str, Any]) -> Iterator[str]:
    if differ := found.get("client", {}).get("differ"):
        yield f"{differ}."
    if any("LocalDpMod" in one or "clipping" in one for one in report.client.app_mods):
        yield "ClientApp(mods=...) holds a privacy mod, which answers an audit with an error: give it to @app.train(mods=...)."
    for epsilon, _, sensitivity, norm, enough in report.client.budgets:
        if not enough:
            yield (
                f"LocalDpMod has sensitivity {sensitivity:g} with clipping_norm {norm:g}: two clipped updates lie up to "
                f"{2 * norm:g} apart, so its noise is too small for epsilon {epsilon:g}."
            )
