"""Settings at which a defence changes nothing: they are warned of before a run and on its page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from defenses import DPSGD, Blur, Clip, FeatureNoise, GaussianNoise, ImageNoise, LaplaceNoise, Pipeline, Pruning
from defenses.base import Batch, Defense, InputDefense, SmashedDefense, UpdateDefense
from defenses.images.blur import Downsample
from defenses.random_draws import generator_for
from simulations.experiment.experiment import Experiment
from simulations.run_folder.run_config import about_run

DECLARED = [Blur(), Clip(), Downsample(), FeatureNoise(), GaussianNoise(), ImageNoise(), LaplaceNoise(), Pruning()]


def change(defense: Defense) -> float:
    """The largest change of a tensor whose norm is far above 1."""
    values = torch.rand(2, 1, 32, 32, generator=generator_for(1))
    match defense:
        case InputDefense():
            protected: Any = defense.protect_batch(Batch(values, torch.eye(2)), generator_for(0)).images
        case UpdateDefense():
            protected = defense.protect_update({"w": values}, generator_for(0))["w"]
        case SmashedDefense():
            protected = defense.protect_features(values, generator_for(0))
    return float((protected - values).abs().max())


@pytest.mark.parametrize("defense", DECLARED, ids=lambda one: type(one).__name__)
def test_a_declared_setting_changes_nothing_and_its_default_something(defense: Defense) -> None:
    ((name, value),) = defense.no_defense_at.items()
    nothing = replace(defense, **{name: value})  # type: ignore[type-var]
    assert change(nothing) == pytest.approx(0, abs=1e-6)
    assert change(defense) > 1e-3
    assert defense.no_defense == ""
    assert f"{name} is {value:g}, so this stage changes nothing and is no defence; try " in nothing.no_defense
    assert Pipeline((nothing,)).idle(32, 32) == [nothing.no_defense]
    assert Pipeline((defense,)).idle(32, 32) == []


def test_every_stage_without_effect_is_named_whatever_is_beside_it() -> None:
    pipeline = Pipeline((ImageNoise(std=0.0), Clip(per="update"), GaussianNoise(std=0.0, per="update")))
    assert [why.split("(")[0] for why in pipeline.idle(8, 8)] == ["ImageNoise", "GaussianNoise"]
    assert Pipeline((DPSGD(),)).idle(8, 8) == []


def test_the_page_of_a_run_says_which_stage_is_no_defense(tmp_path: Any) -> None:
    experiment = Experiment.of(defenses="GaussianNoise(std=0)", dataset="mnist-5k", output_dir=str(tmp_path))
    described = about_run(experiment, tmp_path, {})["defenses"]
    assert described["GaussianNoise(std=0, per='step')"]["caveats"] == [GaussianNoise(std=0).no_defense]
    assert described[""]["caveats"] == []
