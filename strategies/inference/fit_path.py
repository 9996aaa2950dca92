"""Effect of a defence while it learns: the answers and a static adversary along its fit (ADP, Figures 5 and 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attacks.attributes.inference import AttributeInference
from attacks.metrics.metric import Metric
from attacks.metrics.training import MASKED_SHARE, ON_MASKED, PATH_ADVERSARY_ACCURACY, PATH_SERVER_ACCURACY
from attacks.normalisation import normalise
from attacks.queries.training import AT_ONCE, MIN_EXAMPLES, STATIC
from attacks.sender import Sender
from clients.inference.plan import CutModel, InferencePlan
from clients.task.task import Task
from clients.training.evaluation import device
from defenses.fitting import FitContext, placed
from defenses.pipeline import Pipeline
from defenses.random_draws import Key, generator_for
from defenses.smashed.delta_autoencoder import DeltaAutoencoder
from defenses.smashed.delta_masks import grad_cam, last_map_layer
from defenses.tensors import Tensors
from strategies.audit.jobs import Recorder
from strategies.audit.score_rows import mean_and_interval, share_and_interval
from strategies.exchange.guard import Rows
from strategies.inference.observations import adversary_builder, unprotected_knowledge
from strategies.inference.public_model import OwnImages

MOST_POINTS = 13
"""Of a curve: more would cost more than the fit and show no more."""
ADVERSARY = AttributeInference(training=STATIC, iterations=600)
"""Trained on unprotected features, as in the paper's figures, where the run has no static adversary of its own."""

Answer = Callable[[Tensor], Tensor]
"""Features (B, C', H', W') -> the class or the attribute (B,) that is read from them, on the CPU."""

_ADVERSARIES: WeakKeyDictionary[OwnImages, dict[str, AttributeInference]] = WeakKeyDictionary()
"""One for each cut, for all pipelines of a run: it sees what no defence has touched."""


def fit_with_path(
    pipeline: Pipeline,
    context: FitContext,
    key: Key,
    model: CutModel,
    cut: str,
    own: OwnImages,
    task: Task,
    rows: Rows,
    recipe: AttributeInference | None = None,
) -> Pipeline:
    """Run ``pipeline.fit(context, key)``, with rows on the way, measured on images that neither model nor defence learned from.

    Rows "path-server-accuracy" and, where the images have a sensitive attribute, "path-adversary-accuracy", with n, the exact
    interval, and as further columns "axis" ("epochs", "components") and "position"; those without a position are of unprotected
    features. None where nothing is kept to measure on, or what learns has no path.

    Of a delta autoencoder also what it learns to imitate: "masked-share", the mean share of an image that is masked, and
    "masked-server-accuracy" and "masked-adversary-accuracy", the accuracies on the masked images. Those two are the limit of any
    autoencoder that is fitted to these masks; longer training does not hide what they leave.

    All pipelines of a run share ``own``, the server's images, and ``recipe``, its static adversary; None takes ``ADVERSARY``.
    ``DefenseError`` gives the reason if a defence cannot learn from these features.
    """
    if not len(own.kept) or not pipeline.path_axis:
        return pipeline.fit(context, key)
    measure = _Measure(model, cut, own, task, rows, recipe)
    measure.record(Pipeline(), {})
    shown = few(pipeline.path_positions)
    for position, fitted in pipeline.path(context, key):
        if position in shown:
            measure.record(fitted, {"axis": pipeline.path_axis, "position": position})
    masking = _masking(fitted)
    if len(masking) == 1:
        measure.record_masked(fitted, masking[0], context, key)
    return fitted


def _masking(pipeline: Pipeline) -> list[int]:
    return [index for index, stage in enumerate(pipeline.defenses) if isinstance(stage, DeltaAutoencoder)]


def few(positions: Sequence[int]) -> tuple[int, ...]:
    """At most ``MOST_POINTS`` of the positions, evenly spread, the first and the last among them."""
    if len(positions) <= MOST_POINTS:
        return tuple(positions)
    return tuple(positions[round(at * (len(positions) - 1) / (MOST_POINTS - 1))] for at in range(MOST_POINTS))


class _Measure:
    """Accuracies of what reads the features of the images that are kept."""

    def __init__(
        self, model: CutModel, cut: str, own: OwnImages, task: Task, rows: Rows, recipe: AttributeInference | None
    ) -> None:
        self.model, self.kept, self.task, self.rows = model, own.kept, task, rows

        def answer(features: Tensor) -> Tensor:
            logits: Tensor = model.server(features)
            return logits.argmax(1).cpu()

        classes = own.kept.batch.targets.argmax(1)
        self.readers: dict[Metric, tuple[Answer, Tensor]] = {PATH_SERVER_ACCURACY: (answer, classes)}
        adversary, hidden = static_adversary(model, cut, own, task, recipe), own.kept.sensitive
        if adversary is not None and hidden is not None:
            self.readers[PATH_ADVERSARY_ACCURACY] = (adversary, hidden)

    @torch.no_grad()
    def _hits(self, features: Callable[[Tensor], Tensor]) -> dict[Metric, list[float]]:
        """Reader -> whether it is right on each image, of which ``features`` gives some by their rows."""
        hits: dict[Metric, list[float]] = {metric: [] for metric in self.readers}
        for piece in torch.split(torch.arange(len(self.kept)), AT_ONCE):
            found = features(piece)
            for metric, (read, truth) in self.readers.items():
                hits[metric] += (read(found) == truth[piece]).float().tolist()
        return hits

    def record(self, pipeline: Pipeline, place: Mapping[str, Any]) -> None:
        """A row of each reader; every state meets the same draws, so that a curve shows the states and not the draws."""
        card = self.task.plan.data_card()
        sender = Sender(self.model.client, pipeline, card.mean, card.std)
        generator = generator_for("path", self.task.plan.seed)
        hits = self._hits(lambda piece: sender.query(self.kept.batch.images[piece].to(device()), generator)[0])
        for metric, found in hits.items():
            self.rows.row(self.task, metric=metric.name, **share_and_interval(found), **place)

    def record_masked(self, fitted: Pipeline, index: int, context: FitContext, key: Key) -> None:
        """Rows of the images that the stage of this number learns to imitate, as the readers find them at the cut."""
        card, stage = self.task.plan.data_card(), fitted.defenses[index]
        assert isinstance(stage, DeltaAutoencoder)
        behind = fitted.context_of(index, context, key)
        # What is read is at the cut: behind the decoders of earlier stages, before the server half.
        cut = fitted.context_of(index, replace(context, server=nn.Identity(), adversary=None), key)
        shown = fitted.protect_test(self.kept.batch, ("path", self.task.plan.seed)).images
        shares: list[float] = []

        def masked(piece: Tensor) -> Tensor:
            with torch.enable_grad():
                images, mask = stage.masks.apply(normalise(shown[piece].to(device()), card), behind)
            shares.extend(mask.flatten(1).float().mean(1).tolist())
            features: Tensor = cut.server(cut.client(images))
            return features

        hits = self._hits(masked)
        self.rows.row(self.task, metric=MASKED_SHARE.name, **mean_and_interval(shares))
        for metric, found in hits.items():
            self.rows.row(self.task, metric=ON_MASKED[metric].name, **share_and_interval(found))


def static_adversary(
    model: CutModel, cut: str, own: OwnImages, task: Task, recipe: AttributeInference | None = None
) -> Answer | None:
    """Classify the sensitive attribute from unprotected features; trained on the server's images, once for each cut of a run.

    None where the images have no such attribute, only one value of it, or are too few.
    """
    learned = own.learned
    hidden = learned.sensitive
    if hidden is None or len(hidden) < MIN_EXAMPLES or bool((hidden == hidden[0]).all()):
        return None
    known = _ADVERSARIES.setdefault(own, {})
    if cut not in known:
        builder = adversary_builder(InferencePlan.narrow(task.plan), cut, {})
        knowledge = unprotected_knowledge(learned, task.plan, model, builder, lambda _, __: model.whole)
        known[cut] = (recipe or ADVERSARY).fit(knowledge, generator_for("path adversary", task.plan.seed, cut))
    fitted = known[cut].learned
    assert fitted is not None
    network = fitted.network

    def read(features: Tensor) -> Tensor:
        logits: Tensor = network(features.cpu())
        return logits.argmax(1)

    return read


OBSERVATION = "delta masks"
"""What the pictures' index calls them; the report shows them apart from what was attacked."""
SHOWN = 3
"""Images, of the server's own."""


def picture_masks(pipeline: Pipeline, context: FitContext, key: Key, cut: str, task: Task, recorder: Recorder) -> None:
    """Pictures of a few images of the context: "image", "server-cam", "adversary-cam", "mask" and "masked".

    The maps are those of the first iteration, on the image as it is; the mask is all that any iteration masked. Only a
    ``DeltaAutoencoder`` has masks, wherever it stands: behind other defences of features it looks through these, and where
    they draw noise, each look meets its own. ``pipeline`` has been fitted to ``context`` with the draws of ``key``.
    """
    masking = _masking(pipeline)
    for number, index in enumerate(masking):
        which = f"cut at {cut}" if len(masking) == 1 else f"cut at {cut}, stage {index + 1}"
        for kind, shown in _pictures(pipeline, index, pipeline.context_of(index, context, key), task).items():
            for at, image in enumerate(shown.cpu()):
                recorder.picture(
                    task, image, image_number=at, attack="", kind=kind, client="server", target=number, observation=OBSERVATION,
                    caption=f"{which}, image {at + 1}",
                )  # fmt: skip


def _pictures(pipeline: Pipeline, index: int, context: FitContext, task: Task) -> Tensors:
    """Kind -> images (B, C, H, W) in [0, 1], of the stage of this number and what it has learned from."""
    stage = pipeline.defenses[index]
    assert isinstance(stage, DeltaAutoencoder)
    shown = torch.linspace(0, len(context.images) - 1, min(SHOWN, len(context.images))).long()
    images = placed(context.images[shown], context.client)
    masked, mask = stage.masks.apply(images, context)
    card = task.plan.data_card()
    mean, std = (images.new_tensor(of)[:, None, None] for of in (card.mean, card.std))
    clean, hidden = ((some * std + mean).clamp(0, 1) for some in (images, masked))
    found = {"image": clean, "server-cam": overlay(clean, _cams(context, context.server, images))}
    if context.adversary is not None:
        found["adversary-cam"] = overlay(clean, _cams(context, context.adversary, images))
    return found | {"mask": mask[:, None].float(), "masked": hidden}


def overlay(images: Tensor, cams: Tensor) -> Tensor:
    """Maps in the colours of "jet", half transparent, on grey images: (B, C, H, W) and (B, H, W), all in [0, 1] -> (B, 3, H, W)."""
    green = (1.5 - (4 * cams - 2).abs()).clamp(0, 1)
    return (torch.stack([_jet_blue(1 - cams), green, _jet_blue(cams)], 1) + images.mean(1, keepdim=True)) / 2


def _jet_blue(values: Tensor) -> Tensor:
    """Blue of the colour map "jet" for values in [0, 1]; red is its mirror image."""
    return torch.minimum(4 * values + 0.5, 2.5 - 4 * values).clamp(0, 1)


def _cams(context: FitContext, half: nn.Module, images: Tensor) -> Tensor:
    model = nn.Sequential(context.client, half)
    return grad_cam(model, images, last_map_layer(model, images, context.client))
