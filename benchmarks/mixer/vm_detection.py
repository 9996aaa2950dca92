"""Detection on protected scenes (VisualMixer, NDSS 2024, Table VI), beside what a server detects that undoes the protection first.

Scenes are garments of Fashion-MNIST on photographs (``detection_scenes``). Arms are named "trained on / tested on". The paper's are
plain / plain and protected / protected, whose boxes stay as they are. The server's detector was trained on plain auxiliary scenes;
it is shown the clients' test scenes: plain (its positive control), as uploaded, and as WindowMean (told nothing but the algorithm)
and LearnedRestorer restore them. Test scenes are protected under fresh draws. A server that wants detections only need undo
nothing: protected / protected is what it gets from scenes that it protects itself.

Precision and recall are over all garments at an intersection over union of 0.5, at the confidence with the best F1 on validation
scenes that were treated alike; mAP50 is the mean over classes. PSNR is of what the detector sees of the test scenes.

    uv run --group studies python benchmarks/mixer/vm_detection.py --seeds 0 &
    uv run --group studies python benchmarks/mixer/vm_detection.py --seeds 1 & wait
    uv run --group studies python benchmarks/mixer/vm_detection.py --seeds 0 1

The first two share the work between two processors, the third computes what is missing and prints the tables of both.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from detection_scenes import PARTS, Scenes, compose
from scene_detection import Schedule, best_confidence, coco, detect, detector, precision_and_recall, targets_of, train
from seeded_results import Column, Numbers, Results, differences, means
from torch import nn
from upload_restoration import CHUNK, decibels, fitted, restored

from attacks.refinement.base import Refinement
from attacks.refinement.restoration import HOLDOUT, LearnedRestorer
from attacks.refinement.unshuffle import WindowMean
from clients.data.datasets import load_dataset
from clients.data.images import DataError
from defenses.base import Batch, InputDefense
from defenses.random_draws import generator_for
from defenses.spec import SpecError, parse
from simulations.settings.errors import ConfigError

STUDY = "vm_detection"
DATASET = "fashion-mnist"
INSTALL = "mAP needs torchmetrics and pycocotools: uv run --group studies python benchmarks/mixer/vm_detection.py"
LAST = 3
"""Epochs at the end after which validation scenes are judged, so that one sees whether the detector still moves."""

PLAIN, PROTECTED = "plain / plain", "protected / protected"
OWN = "auxiliary / "
SEEN = ("plain", "as uploaded", "WindowMean", "LearnedRestorer")
"""What the server's own detector is shown of a scene."""
ARMS = (PLAIN, PROTECTED, *(OWN + seen for seen in SEEN))
PAIRS = (*((arm, PLAIN) for arm in ARMS[1:]), *((OWN + seen, OWN + SEEN[0]) for seen in SEEN[1:]))
QUALITY = (Column("precision", "precision", 3), Column("recall", "recall", 3), Column("map50", "mAP50", 3))
MORE = (Column("confidence", "confidence", 2), Column("psnr", "seen, dB"), Column("objects", "garments", 0))


class Trial:
    """All arms under one seed.

    Args:
        chosen: The settings.
        seed: Of scenes, draws of the defence, weights and orders.
        results: Where arms, and the server's detector, are kept.

    Raises:
        DataError: Without Fashion-MNIST.
    """

    def __init__(self, chosen: argparse.Namespace, seed: int, results: Results) -> None:
        self.chosen, self.seed, self.results = chosen, seed, results
        self.data = load_dataset(DATASET, data_dir=chosen.data_dir)

    @functools.cached_property
    def scenes(self) -> dict[str, Scenes]:
        """Plain scenes of each part; the garments of the first two are training images, those of the others test images."""
        chosen, found = self.chosen, {}
        for name, at in (("train", 0), ("test", 2)):
            part = getattr(self.data, name)
            order = torch.randperm(len(part), generator=generator_for(STUDY, self.seed, "garments", name))
            for which, rows in zip(PARTS[at : at + 2], order.tensor_split(2), strict=True):
                count = getattr(chosen, f"{which}_scenes")
                stream = generator_for(STUDY, self.seed, "scenes", which)
                found[which] = compose(count, chosen.size, part, rows, which, stream)
        return found

    def protected(self, part: str) -> Scenes:
        """The part's scenes as they are uploaded, under draws of their own; boxes are those of the plain ones."""
        plain, pipeline, images = self.scenes[part], parse(self.chosen.defense), []
        for at, piece in enumerate(torch.split(plain.images, CHUNK)):
            key = (STUDY, self.seed, "upload", part, at)
            batch = pipeline.protect_once(Batch(piece, torch.ones(len(piece), 1)), key)
            images.append(pipeline.protect_batch(batch, key).images)
        return Scenes(torch.cat(images), plain.boxes, plain.labels)

    @functools.cached_property
    def attacks(self) -> dict[str, Refinement]:
        """Both, after they learned from auxiliary scenes."""
        chosen, found = self.chosen, dict[str, Refinement]()
        images = self.scenes["auxiliary"].images
        auxiliary = Batch(images, torch.ones(len(images), 1))
        # Few scenes a step: each has as many pixels as dozens of small images.
        restorer = LearnedRestorer(iterations=chosen.restorer_iterations, batch_size=4)
        for attack in (WindowMean(), restorer):
            name = type(attack).__name__
            found[name] = fitted(attack, parse(chosen.defense), auxiliary, generator_for(STUDY, self.seed, name))
        return found

    def shown(self, part: str, seen: str) -> Scenes:
        """The part's scenes as a detector sees them: one of ``SEEN``."""
        if seen == SEEN[0]:
            return self.scenes[part]
        scenes = self.protected(part)
        if seen == SEEN[1]:
            return scenes
        images = restored(self.attacks[seen], scenes.images, generator_for(STUDY, self.seed, "restore", seen, part))
        return Scenes(images, scenes.boxes, scenes.labels)

    def new_detector(self) -> nn.Module:
        """With the weights that all detectors of this seed begin with."""
        return detector(self.chosen.size, self.data.num_classes, self.seed)

    def trained(self, scenes: Scenes, validation: Scenes) -> tuple[nn.Module, dict[str, Any]]:
        """A detector, with its loss in the last epoch and mAP50 on validation scenes behind the last epochs."""
        chosen, model, maps = self.chosen, self.new_detector(), list[float]()
        schedule = Schedule(chosen.epochs, chosen.batch_size, chosen.learning_rate)

        def after(epoch: int) -> None:
            if epoch > chosen.epochs - LAST:
                maps.append(float(coco(detect(model, validation.images), targets_of(validation))["map_50"]))

        start = time.perf_counter()
        loss = train(model, scenes, schedule, (STUDY, self.seed), after)
        return model, {"validation_map50": maps, "loss": loss, "training_seconds": time.perf_counter() - start}

    def of_server(self) -> tuple[nn.Module, dict[str, Any]]:
        """The server's own detector, as ``trained``; kept for all arms that use it."""
        model, ends = self.trained(self.scenes["auxiliary"], self.scenes["validation"])
        self.results.keep_model(self.seed, "auxiliary", model)
        return model, ends

    def kept(self) -> nn.Module:
        """The same as it was kept, or trained (again, where its file is gone)."""
        model = self.new_detector()
        return model if self.results.load_model(self.seed, "auxiliary", model) else self.of_server()[0]

    def numbers(self, arm: str) -> Numbers:
        """All that is known of an arm."""
        start, seen, ends = time.perf_counter(), arm.removeprefix(OWN), dict[str, Any]()
        if arm == seen:
            seen = SEEN[0] if arm == PLAIN else SEEN[1]
            model, ends = self.trained(self.shown("train", seen), self.shown("validation", seen))
        elif seen == SEEN[0]:
            model, ends = self.of_server()
        else:
            model = self.kept()
        validation, tests = (self.shown(part, seen) for part in ("validation", "test"))
        confidence = best_confidence(detect(model, validation.images), targets_of(validation))
        found, truth = detect(model, tests.images), targets_of(tests)
        precision, recall = precision_and_recall(found, truth, confidence)
        measured = {
            "precision": precision, "recall": recall, "map50": float(coco(found, truth)["map_50"]), "confidence": confidence,
            "psnr": decibels(tests.images, self.scenes["test"].images), "scenes": len(tests), "objects": tests.num_objects,
        }  # fmt: skip
        return {**ends, **measured, "seconds": time.perf_counter() - start}


def run(chosen: argparse.Namespace, write: Callable[[str], Any] = print) -> Results:
    """Computes what is not known yet, arm by arm, and writes the tables.

    Raises:
        ConfigError: With too few auxiliary scenes, or a defence that leaves test scenes as they are.
        DataError: Without Fashion-MNIST.
        SpecError: When the defence cannot be read.
    """
    defenses = parse(chosen.defense).defenses
    if not defenses or not all(isinstance(one, InputDefense) and one.at_inference for one in defenses):
        raise ConfigError(
            f"defense is {chosen.defense!r}; allowed: defences of images that test images must pass too (at_inference)"
        )
    if chosen.auxiliary_scenes < 2 * HOLDOUT:
        raise ConfigError(
            f"auxiliary-scenes is {chosen.auxiliary_scenes}; allowed: at least {2 * HOLDOUT}, of which LearnedRestorer learns"
        )
    settings = {key: value for key, value in vars(chosen).items() if key not in ("seeds", "out", "threads")}
    results = Results(chosen.out, STUDY, settings)
    for seed in chosen.seeds:
        trial = Trial(chosen, seed, results)
        for arm in ARMS:
            one = results.known(seed, arm, functools.partial(trial.numbers, arm))
            ends = ", ".join(f"{value:.3f}" for value in one.get("validation_map50", ()))
            trained = f"; last epochs {ends} on validation scenes, loss {one['loss']:.3f}" if ends else ""
            write(f"seed {seed}, {arm}: mAP50 {one['map50']:.3f}{trained}; {one['seconds']:.0f} s")
    write(
        f"\n{chosen.defense}; scenes of {chosen.size} pixels: {chosen.train_scenes} of clients, {chosen.auxiliary_scenes} of the "
        f"server, {chosen.validation_scenes} to choose a confidence on, {chosen.test_scenes} tests; {chosen.epochs} epochs\n"
    )
    write(means(results, chosen.seeds, ARMS, [*QUALITY, *MORE]))
    write("\nMean over seeds of the difference, each seed paired, with its 95 % interval (t):\n")
    write(differences(results, chosen.seeds, PAIRS, QUALITY))
    return results


def options() -> argparse.ArgumentParser:
    """What the command line takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seeds", nargs="+", type=int, default=[0, 1])
    add("--out", type=Path, default=Path("runs/vm_detection.jsonl"), help="results; a killed study goes on from it")
    add("--threads", type=int, default=1)
    add("--data-dir", default="", help="of Fashion-MNIST's files")
    add("--defense", default="VisualMixer(window_lower=2, window_upper=16, first_regions='nearest')")
    add("--size", type=int, default=160, help="side of a scene in pixels")
    add("--train-scenes", type=int, default=600)
    add("--auxiliary-scenes", type=int, default=600)
    add("--validation-scenes", type=int, default=100)
    add("--test-scenes", type=int, default=200)
    add("--epochs", type=int, default=12)
    add("--batch-size", type=int, default=8)
    add("--learning-rate", type=float, default=2e-3)
    add("--restorer-iterations", type=int, default=300)
    return parser


def main() -> None:
    """Prints the study."""
    chosen = options().parse_args()
    try:
        import pycocotools  # type: ignore[import-untyped]  # noqa: F401
        import torchmetrics  # noqa: F401
    except ImportError:
        raise SystemExit(INSTALL) from None
    torch.set_num_threads(chosen.threads)
    try:
        run(chosen, functools.partial(print, flush=True))
    except (ConfigError, DataError, SpecError) as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
