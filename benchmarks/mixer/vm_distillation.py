"""Knowledge distillation from a teacher that learned from protected images (VisualMixer, NDSS 2024, Table V), with what it lacks.

Arms: TO and TV are teachers of original and of protected images; SO and SV are students that learn from the labels and
from the answers of TO and TV to images of their own, protected as the teacher's; CO and CV are the same students of the same
images without a teacher. Whoever learned from protected images is tested on test images under fresh draws. Images of teacher,
student, attacker, outsiders and test are disjoint, and drawn anew for each seed.

Beside each arm: the area under the ROC curve of telling the teacher's and the student's training images from outsiders', which are
drawn from the same part of the data set, by their loss (LossThreshold), twice: of images, shown to the model under fresh draws as
test images are, as somebody can who holds the plain picture; and of uploads, training images under the very draws under which they
were learned and outsiders under draws of their own, as the server can. Without protection the two are the same. A teacher has not
seen the student's images, and a student alone not the teacher's: these are controls. And the PSNR of that arm's training images as
uploaded, as WindowMean and LearnedRestorer restore them, and of the mean image, which needs no upload.

    uv run python benchmarks/mixer/vm_distillation.py --arms TO SO CO &
    uv run python benchmarks/mixer/vm_distillation.py --arms TV SV CV & wait
    uv run python benchmarks/mixer/vm_distillation.py

The first two share the work between two processors, the third computes what is missing and prints the tables of all.
``--dataset mnist-5k`` (4,000 training and 1,000 test images) and ``photos`` (558 and 137) want smaller numbers of images.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from distillation_trial import ARMS, STUDY, Trial
from seeded_results import Column, Results, differences, means

from attacks.observations import AttackError
from clients.data.images import DataError
from clients.models.library import ModelError
from simulations.settings.errors import ConfigError

PAIRS = (("TV", "TO"), ("SV", "SO"), ("CV", "CO"), ("SO", "CO"), ("SV", "CV"))
"""Protected less plain, and what a teacher is worth."""
QUALITY = (Column("top1", "top-1, %", 1, 100), Column("top3", "top-3, %", 1, 100))
MEMBERSHIP = (
    Column("auc_teacher", "AUC, teacher's images", 3), Column("auc_student", "AUC, student's images", 3),
    Column("auc_uploaded_teacher", "AUC, teacher's uploads", 3), Column("auc_uploaded_student", "AUC, student's uploads", 3),
)  # fmt: skip
PICTURES = (
    Column("as_uploaded", "as uploaded, dB"), Column("WindowMean", "WindowMean, dB"),
    Column("LearnedRestorer", "LearnedRestorer, dB"), Column("mean_image", "mean image, dB"),
)  # fmt: skip


def run(chosen: argparse.Namespace, write: Callable[[str], Any] = print) -> Results:
    """Computes what is not known yet, arm by arm, and writes the tables.

    Raises:
        ConfigError: On settings that cannot be run; DataError, ModelError and AttackError likewise.
    """
    settings = {key: value for key, value in vars(chosen).items() if key not in ("seeds", "arms", "out", "threads")}
    results = Results(chosen.out, STUDY, settings)
    for seed in chosen.seeds:
        trial = Trial(chosen, seed, results)
        for name in chosen.arms:
            one = results.known(seed, name, functools.partial(trial.numbers, name))
            curve = ", ".join(f"{100 * accuracy:.1f} ({epoch}: {loss:.3f})" for epoch, accuracy, loss in one["curve"])
            write(f"seed {seed}, {name}: test accuracy in % (epoch: its loss) {curve}; {one['seconds']:.0f} s")
    write(
        f"\n{chosen.dataset}, {chosen.defense}; {chosen.teacher} taught by {chosen.teacher_images} images, {chosen.student} by "
        f"{chosen.student_images}, outsiders {chosen.outsider_images}, tests {chosen.test_images}; attacked {chosen.attacked}, "
        f"attacks learn from {chosen.auxiliary_images}; T = {chosen.temperature:g}, weight of the teacher {chosen.weight:g}\n"
    )
    write(means(results, chosen.seeds, list(ARMS), [*QUALITY, *MEMBERSHIP, *PICTURES]))
    write("\nMean over seeds of the difference, each seed paired, with its 95 % interval (t):\n")
    write(differences(results, chosen.seeds, PAIRS, [*QUALITY, *MEMBERSHIP]))
    return results


def options() -> argparse.ArgumentParser:
    """What the command line takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--out", type=Path, default=Path("runs/vm_distillation.jsonl"), help="results; a killed study goes on from it")
    add(
        "--arms",
        nargs="+",
        choices=list(ARMS),
        default=list(ARMS),
        help="which to compute; the tables show all that are known",
    )
    add("--threads", type=int, default=1)
    add("--dataset", default="fashion-mnist")
    add("--data-dir", default="", help="of data sets that are read from files")
    add("--image-size", type=int, default=0, help="side to resize images to; 0: as they are")
    add("--defense", default="VisualMixer(window_lower=2, window_upper=16, first_regions='nearest')")
    add("--teacher", default="resnet20")
    add("--student", default="cnn")
    add("--norm", choices=("batch", "group"), default="batch", help="normalisation layers")
    add("--teacher-images", type=int, default=2000)
    add("--student-images", type=int, default=500)
    add("--auxiliary-images", type=int, default=400)
    add("--outsider-images", type=int, default=1000, help="which nobody trains on; membership is told from them")
    add("--test-images", type=int, default=2000)
    add("--attacked", type=int, default=64, help="uploaded images that are restored")
    add("--teacher-epochs", type=int, default=14)
    add("--student-epochs", type=int, default=200)
    add("--teacher-learning-rate", type=float, default=0.1)
    add("--student-learning-rate", type=float, default=0.03)
    add("--batch-size", type=int, default=64)
    add("--temperature", type=float, default=4.0)
    add("--weight", type=float, default=0.9, help="of the teacher's answers; the rest is of the labels")
    add("--restorer-iterations", type=int, default=400)
    return parser


def main() -> None:
    """Prints the study."""
    chosen = options().parse_args()
    torch.set_num_threads(chosen.threads)
    try:
        run(chosen, functools.partial(print, flush=True))
    except (ConfigError, DataError, ModelError, AttackError) as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
