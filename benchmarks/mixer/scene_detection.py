"""A small detector without pretrained weights, its training, and how its detections are judged.

Imported by ``vm_detection.py``; prints nothing by itself. Judging wants the dependency group ``studies``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from detection_scenes import Scenes
from torch import Tensor, nn

from defenses.random_draws import Key, generator_for

OVERLAP = 0.5
"""Intersection over union from which a detection is a garment's."""
MOST_FOUND = 100
"""Detections of a scene, as COCO counts them."""
AT_ONCE = 64
"""Scenes of a forward pass."""
CONFIDENCES = tuple(step / 20 for step in range(1, 20))
"""Among which one is chosen."""
LARGEST_GRADIENT = 5.0
"""Norm to which a step's gradient is clipped: networks with random weights begin steeply."""

Detections = Sequence[dict[str, Tensor]]
"""Of each scene "boxes" (n, 4), "labels" (n,) and, unless it is the truth, "scores" (n,)."""


class Schedule(NamedTuple):
    """How a detector is trained: passes over the scenes, scenes of a step, and the largest learning rate."""

    epochs: int
    batch_size: int
    learning_rate: float


def detector(size: int, num_classes: int, seed: int) -> nn.Module:
    """SSDLite on MobileNetV3 with random weights: scenes (3, size, size) -> boxes, labels and scores; nothing is downloaded.

    Default boxes follow from the maps that the backbone makes of a scene, so that they fit any size.

    Source: Howard et al., "Searching for MobileNetV3", 2019, section 6.3, as torchvision builds it for 320 pixels.
    """
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large  # type: ignore[import-untyped]
    from torchvision.models.detection.transform import GeneralizedRCNNTransform  # type: ignore[import-untyped]

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model: nn.Module = ssdlite320_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=num_classes + 1, detections_per_img=MOST_FOUND, score_thresh=0.01
        )  # fmt: skip
        # As torchvision draws MobileNetV3 as a classifier; in a detector all layers get a deviation of 0.03, and it learns slowly.
        for layer in model.backbone.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    # torchvision fixes 320 pixels in the transform alone, which would enlarge every scene.
    model.transform = GeneralizedRCNNTransform(
        size, size, [0.5] * 3, [0.5] * 3, size_divisible=1, fixed_size=(size, size)
    )
    return model.to(memory_format=torch.channels_last)


def targets_of(scenes: Scenes, rows: Iterable[int] | None = None) -> list[dict[str, Tensor]]:
    """Boxes and labels of these scenes, or of all, as torchvision and torchmetrics want them."""
    chosen = range(len(scenes)) if rows is None else rows
    return [{"boxes": scenes.boxes[row], "labels": scenes.labels[row]} for row in chosen]


def train(model: nn.Module, scenes: Scenes, schedule: Schedule, key: Key, after: Callable[[int], None]) -> float:
    """Trains in place, by AdamW with one cycle of the learning rate; returns the mean loss of the last epoch.

    Args:
        model: As ``detector`` gives it.
        scenes: Images as they were uploaded; boxes as they were before.
        schedule: See there.
        key: Where the orders of the scenes start.
        after: Called with the number of each finished epoch, from 1; may use the model.
    """
    steps = schedule.epochs * math.ceil(len(scenes) / schedule.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), schedule.learning_rate, weight_decay=1e-4)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, schedule.learning_rate, max(2, steps))
    total = 0.0
    for epoch in range(1, schedule.epochs + 1):
        order, total = torch.randperm(len(scenes), generator=generator_for(*key, "order", epoch)), 0.0
        model.train()
        for rows in torch.split(order, schedule.batch_size):
            loss = sum(model(list(scenes.images[rows]), targets_of(scenes, rows.tolist())).values())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
            optimizer.step()
            cycle.step()
            total += float(loss.detach()) * len(rows) / len(scenes)
        after(epoch)
    return total


@torch.no_grad()
def detect(model: nn.Module, images: Tensor) -> list[dict[str, Tensor]]:
    """Boxes, labels and scores in each image (N, 3, S, S)."""
    model.eval()
    return [found for part in torch.split(images, AT_ONCE) for found in model(list(part))]


def coco(found: Detections, truth: Detections) -> dict[str, Tensor]:
    """What COCO's protocol says at an overlap of 0.5, class by class; see torchmetrics."""
    from torchmetrics.detection import MeanAveragePrecision

    metric = MeanAveragePrecision(
        iou_thresholds=[OVERLAP], class_metrics=True, max_detection_thresholds=[1, 10, MOST_FOUND]
    )
    metric.update(list(found), list(truth))
    result: dict[str, Tensor] = metric.compute()
    return result


def precision_and_recall(found: Detections, truth: Detections, confidence: float) -> tuple[float, float]:
    """Over all garments, of the detections of at least this confidence; without any, both are 0.

    COCO's protocol gives the recall of each class, that is its hits over its garments, both whole numbers.
    """
    kept = [{name: value[one["scores"] >= confidence] for name, value in one.items()} for one in found]
    detections = sum(len(one["labels"]) for one in kept)
    if not detections:
        return 0.0, 0.0
    result, labels = coco(kept, truth), torch.cat([one["labels"] for one in truth])
    classes, recalls = result["classes"].view(-1), result[f"mar_{MOST_FOUND}_per_class"].view(-1)
    counts = (labels == classes[:, None]).sum(1)
    hits = float((recalls * counts)[counts > 0].round().sum())  # of a class that is not there the recall is -1
    return hits / detections, hits / len(labels)


def best_confidence(found: Detections, truth: Detections) -> float:
    """That of ``CONFIDENCES`` with the largest F1; the lowest of equal ones."""

    def f1(confidence: float) -> float:
        precision, recall = precision_and_recall(found, truth, confidence)
        return 2 * precision * recall / max(precision + recall, 1e-12)

    return max(CONFIDENCES, key=f1)
