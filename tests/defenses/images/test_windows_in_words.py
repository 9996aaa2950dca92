"""VisualMixer says which share of an image its windows cover, beside the paper's images."""

from __future__ import annotations

from pathlib import Path

import pytest

from defenses.images.visual_mixer import VisualMixer
from defenses.images.visual_mixer_windows import windows_in_words
from defenses.spec import parse
from simulations.experiment.experiment import Experiment
from simulations.run_folder.run_config import about_run


@pytest.mark.parametrize(
    ("sizes", "side", "words"),
    [
        (
            [16, 8, 4, 2],
            32,
            "windows of 2 to 8 of 32 pixels (6 to 25 % of the side), as 14 to 56 of 224 in VisualMixer's paper",
        ),
        ([32, 16, 8], 224, "windows of 8 to 16 of 224 pixels (4 to 7 % of the side)"),
        ([4], 32, "windows of 4 of 32 pixels (12 % of the side), as 28 of 224 in VisualMixer's paper"),
        ([64], 32, "windows of 32 of 32 pixels (100 % of the side), as 224 of 224 in VisualMixer's paper"),
    ],
)
def test_words(sizes: list[int], side: int, words: str) -> None:
    assert windows_in_words(sizes, side) == words


def test_the_longer_side_counts_and_other_defences_say_nothing() -> None:
    mixer = VisualMixer(window_lower=2, window_upper=16)
    assert mixer.at_size(20, 32) == mixer.at_size(32, 32) == windows_in_words([16, 8, 4, 2], 32)
    pipeline = parse("Blur() | VisualMixer(window_lower=2, window_upper=16) | GaussianNoise()")
    assert pipeline.at_size(32, 32) == [mixer.at_size(32, 32)]


def test_a_runs_configuration_says_so_once_its_images_are_known(tmp_path: Path) -> None:
    text = "VisualMixer(window_lower=2, window_upper=16)"
    experiment = Experiment.of(defenses=text, dataset="photos", output_dir=str(tmp_path))
    assert about_run(experiment, tmp_path, {})["defenses"][text]["at_size"] == []
    described = about_run(experiment, tmp_path, {}, (32, 32))["defenses"]
    assert described[text]["at_size"] == [windows_in_words([16, 8, 4, 2], 32)]
    assert described[""]["at_size"] == []
