"""The run that the benchmark of split training times: its file of settings gives the experiment again."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

from split_speed import changed, settings

from simulations.experiment.experiment import Experiment


def test_the_settings_that_are_written_give_the_experiment_again() -> None:
    options = Namespace(model="vit", width=64, patch_size=4, depth=5, train_edge=True, clients=4)
    experiment = settings(options, batches_per_message=16)
    written = changed(experiment)
    assert written["scenario"] == "split"
    assert len(written) < len(experiment.to_mapping())
    again = Experiment.from_mapping({**written, "output-dir": "/nowhere"})
    assert replace(again, output_dir=experiment.output_dir) == experiment
