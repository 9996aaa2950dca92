"""The number of shadow models that a run trains, as a dry run states it."""

from __future__ import annotations

from dataclasses import replace

from simulations.experiment.experiment import Experiment
from simulations.forecast.dry_run import StepMemory, describe, shadow_trainings


def test_shadow_models_are_counted_before_any_is_trained() -> None:
    """At the server once a pipeline, at clients in every attacked round."""
    settings = {
        "num-clients": 3,
        "rounds": 2,
        "attack-rounds": "first,final",
        "probe-attacks": "",
        "update-attacks": "LossThreshold(); LiRA(num_shadows=5); OnlineLiRA(num_shadows=4)",
        "auxiliary-fraction": 0.2,
        "defenses": "GaussianNoise(std=0.01, per='update')",
        "adaptive": False,
    }
    experiment = Experiment.from_mapping(settings)
    assert len(experiment.pipelines) == 2
    assert shadow_trainings(experiment) == {"LiRA(num_shadows=5)": 10, "OnlineLiRA(num_shadows=4)": 2 * 2 * 3 * 4}
    (line,) = (one for one in describe(experiment, StepMemory(1, 0.0, 0.0), "") if one.startswith("shadows:"))
    assert "58 trainings of a new model for 2 rounds" in line
    assert "LiRA(num_shadows=5) 10" in line
    assert shadow_trainings(replace(experiment, attack_rounds="")) == {}
    none = Experiment.from_mapping({**settings, "update-attacks": "LossThreshold()"})
    assert not [one for one in describe(none, StepMemory(1, 0.0, 0.0), "") if one.startswith("shadows:")]
