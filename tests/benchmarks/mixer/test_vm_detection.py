"""Detection on protected scenes: the detector, how it is judged, and a whole study in seconds that computes nothing twice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import vm_detection
from detection_scenes import Scenes
from scene_detection import (  # fmt: skip
    CONFIDENCES,
    Schedule,
    best_confidence,
    coco,
    detect,
    detector,
    precision_and_recall,
    train,
)
from torch import Tensor, nn
from torchvision.ops import box_iou
from vm_detection import ARMS, OWN, PLAIN, PROTECTED, Trial, options, run

from clients.data.images import ImageData, ImageDataset
from defenses.random_draws import generator_for
from simulations.settings.errors import ConfigError

SMALL = [
    "--seeds", "0", "--size", "64", "--train-scenes", "6", "--auxiliary-scenes", "16", "--validation-scenes", "4",
    "--test-scenes", "5", "--epochs", "1", "--batch-size", "4", "--restorer-iterations", "2",
]  # fmt: skip


@pytest.fixture
def garments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small data set in place of Fashion-MNIST, which may not be installed."""

    def part(count: int, key: str) -> ImageData:
        images = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
        images[:, :, 3:25, 6:22] = torch.randint(60, 256, (count, 1, 22, 16), generator=generator_for(key)).byte()
        return ImageData(images, torch.arange(count) % 10)

    data = ImageDataset(part(40, "train"), part(20, "test"), tuple("0123456789"), (0.3,), (0.3,), name="garments")
    monkeypatch.setattr(vm_detection, "load_dataset", lambda *_, **__: data)


def chosen(path: Path, *more: str) -> Any:
    return options().parse_args([*SMALL, "--out", str(path / "out.jsonl"), *more])


def silent(_: str) -> None:
    pass


def found(boxes: list[list[float]], labels: list[int], scores: list[float] | None = None) -> dict[str, Tensor]:
    one = {"boxes": torch.tensor(boxes).view(-1, 4), "labels": torch.tensor(labels, dtype=torch.int64)}
    return one if scores is None else one | {"scores": torch.tensor(scores)}


A, B, C = [0.0, 0, 10, 10], [20.0, 20, 40, 40], [50.0, 50, 60, 60]
TRUTH = [found([A, B], [1, 2]), found([C], [2])]


def test_precision_and_recall_of_a_case_worked_out_by_hand() -> None:
    pytest.importorskip("torchmetrics")
    said = [
        # A right one; the same garment again; the right place under another name, of which there is none.
        found([A, A, B], [1, 1, 3], [0.9, 0.8, 0.7]),
        # Half of it to the left: an intersection over union of 1/3. And a right one of little confidence.
        found([[45.0, 50, 55, 60], C], [2, 2], [0.6, 0.2]),
    ]
    assert precision_and_recall(said, TRUTH, 0.1) == pytest.approx((2 / 5, 2 / 3))
    assert precision_and_recall(said, TRUTH, 0.5) == pytest.approx((1 / 4, 1 / 3))
    assert precision_and_recall(said, TRUTH, 0.85) == pytest.approx((1, 1 / 3))
    assert precision_and_recall(said, TRUTH, 0.95) == (0, 0)
    # F1 is 1/2 at 0.1, 2/7 at 0.5 and 1/2 at 0.85; the first of equal ones.
    assert best_confidence(said, TRUTH) == CONFIDENCES[0]


def test_the_truth_as_detections_is_perfect() -> None:
    pytest.importorskip("torchmetrics")
    said = [one | {"scores": torch.ones(len(one["labels"]))} for one in TRUTH]
    assert precision_and_recall(said, TRUTH, 0.5) == (1, 1)
    assert float(coco(said, TRUTH)["map_50"]) == pytest.approx(1)


def greedy(said: list[dict[str, Tensor]], truth: list[dict[str, Tensor]], confidence: float) -> tuple[float, float]:
    """COCO's matching, detection by detection: the likeliest first, each to the garment that it overlaps most and nobody has."""
    hits = total = 0
    for one, true in zip(said, truth, strict=True):
        free = set(range(len(true["labels"])))
        for at in one["scores"].argsort(descending=True).tolist():
            if one["scores"][at] < confidence:
                continue
            total += 1
            overlap = box_iou(one["boxes"][at : at + 1], true["boxes"])[0]
            fits = [k for k in free if true["labels"][k] == one["labels"][at] and overlap[k] >= 0.5]
            if fits:
                free.remove(max(fits, key=lambda k: float(overlap[k])))
                hits += 1
    return hits / max(total, 1), hits / sum(len(true["labels"]) for true in truth)


def test_precision_and_recall_are_those_of_a_slow_count() -> None:
    pytest.importorskip("torchmetrics")
    generator = generator_for("boxes")
    said, truth = [], []
    for _ in range(12):
        number = int(torch.randint(1, 6, (), generator=generator))
        corner = torch.randint(0, 60, (number, 2), generator=generator).float()
        boxes = torch.cat([corner, corner + torch.randint(12, 36, (number, 2), generator=generator)], 1)
        labels = torch.randint(1, 4, (number,), generator=generator)
        truth.append({"boxes": boxes, "labels": labels})
        moved = boxes.repeat(2, 1) + torch.randint(-4, 5, (2 * number, 4), generator=generator)
        scores = torch.randperm(1000, generator=generator)[: 2 * number] / 1000
        said.append({"boxes": moved, "labels": labels.roll(1).repeat(2), "scores": scores})
        said[-1]["labels"][:number] = labels
    for confidence in (0.05, 0.3, 0.6, 0.9):
        assert precision_and_recall(said, truth, confidence) == pytest.approx(greedy(said, truth, confidence))


def test_the_detector_takes_scenes_of_its_size_as_they_are() -> None:
    model = detector(96, 10, 0)
    images, _ = model.transform([torch.rand(3, 96, 96)])  # type: ignore[operator]
    assert images.tensors.shape == (1, 3, 96, 96)
    assert "fixed_size" in vars(model.transform)
    same, other = detector(96, 10, 0), detector(96, 10, 1)
    weights, others = next(model.parameters()), next(other.parameters())
    assert torch.equal(weights, next(same.parameters()))
    assert not torch.equal(weights, others)


def test_a_detector_learns_one_scene_by_heart() -> None:
    """Some steps on two scenes with one bright square each: the loss falls to a small share."""
    images = torch.zeros(2, 3, 64, 64)
    images[0, :, 8:32, 8:32] = images[1, 0, 30:58, 30:58] = 1
    boxes = (torch.tensor([[8.0, 8, 32, 32]]), torch.tensor([[30.0, 30, 58, 58]]))
    two, model = Scenes(images, boxes, (torch.tensor([1]), torch.tensor([2]))), detector(64, 2, 0)
    seen: list[int] = []
    first = train(detector(64, 2, 0), two, Schedule(1, 2, 1e-9), ("test",), lambda _: None)
    last = train(model, two, Schedule(25, 2, 2e-3), ("test",), seen.append)
    assert seen == list(range(1, 26))
    assert last < first / 2
    assert {"boxes", "labels", "scores"} <= set(detect(model, images)[0])


@pytest.mark.usefixtures("garments")
def test_protected_scenes_keep_boxes_and_values_and_no_two_parts_share_a_garment(tmp_path: Path) -> None:
    trial = Trial(chosen(tmp_path), 0, None)  # type: ignore[arg-type]
    for part, plain in trial.scenes.items():
        mixed = trial.shown(part, "as uploaded")
        assert mixed.boxes is plain.boxes
        assert mixed.labels is plain.labels
        assert not torch.equal(mixed.images, plain.images)
        assert torch.equal(mixed.images.flatten(2).sort().values, plain.images.flatten(2).sort().values)
        assert trial.shown(part, "plain") is plain


@pytest.mark.usefixtures("garments")
def test_a_whole_study_and_one_that_goes_on_compute_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchmetrics")
    trained: list[nn.Module] = []

    def counted(model: nn.Module, *given: Any) -> float:
        trained.append(model)
        return train(model, *given)

    monkeypatch.setattr(vm_detection, "train", counted)
    whole = run(chosen(tmp_path), silent)
    assert len(trained) == 3  # of the clients' plain and protected scenes, and the server's own
    text = whole.path.read_text()
    # Killed behind the server's first arm: its detector is taken from where it was kept.
    whole.path.write_text("".join(text.splitlines(keepends=True)[:4]))
    again = run(chosen(tmp_path), silent)
    assert len(trained) == 3
    for arm in ARMS:
        mine, other = (one.find(0, arm) for one in (whole, again))
        assert mine is not None
        assert other is not None
        assert {**mine, "seconds": 0} == {**other, "seconds": 0}
    assert float(whole.find(0, PLAIN)["psnr"]) == 100  # type: ignore[index]
    assert whole.find(0, PROTECTED)["psnr"] == whole.find(0, OWN + "as uploaded")["psnr"]  # type: ignore[index]
    lines: list[str] = []
    run(chosen(tmp_path), lines.append)
    assert len(trained) == 3
    assert "| auxiliary / LearnedRestorer - auxiliary / plain | 1 |" in lines[-1]


def test_too_few_scenes_to_learn_from_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="auxiliary-scenes is 15; allowed: at least 16"):
        run(chosen(tmp_path, "--auxiliary-scenes", "15"), silent)


@pytest.mark.parametrize("defense", ["", "InstaHide()", "VisualMixer() | STAdam()"])
def test_a_defence_that_leaves_test_scenes_as_they_are_is_refused(tmp_path: Path, defense: str) -> None:
    with pytest.raises(ConfigError, match="at_inference"):
        run(chosen(tmp_path, "--defense", defense), silent)


def test_the_library_that_is_missing_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.setattr(sys, "argv", ["vm_detection.py"])
    with pytest.raises(SystemExit, match=r"uv run --group studies python benchmarks/mixer/vm_detection\.py"):
        vm_detection.main()
