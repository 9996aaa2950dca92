"""Every shipped configuration passes a dry run, and its header says what its settings say; what a run takes is computed right."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from clients.data.card import DataCard
from clients.data.images import MissingDataError
from clients.process.machine import cgroup_limits, memory_of_machine
from clients.training.step_cost import measure_step
from simulations.cli import app
from simulations.console.command_line import read_toml
from simulations.experiment.experiment import Experiment
from simulations.forecast.dry_run import StepMemory, describe, measure, shadow_trainings
from simulations.forecast.hardware import this_machine
from simulations.forecast.memory_needs import check_needs, needs_of
from simulations.forecast.notices import idle_defenses, too_few_images, unusual_values
from simulations.forecast.outlined import check_outline, outlined_step
from simulations.settings.errors import ConfigError
from strategies.federated.observations import PROBE
from tests.bounded import bounded

CONFIGS = Path(__file__).resolve().parents[3] / "simulations" / "configs"


def test_attacks_and_shadow_models_are_told_before_any_is_trained() -> None:
    """Shadow models are trained at the server once a pipeline, at clients in every attacked round."""
    settings: dict[str, Any] = {
        "num-clients": 3, "rounds": 2, "attack-rounds": "first,final", "probe-attacks": "InvertingGradients(iterations=10)",
        "update-attacks": "LossThreshold(); LiRA(num_shadows=5); OnlineLiRA(num_shadows=4)",
        "auxiliary-fraction": 0.2, "defenses": "GaussianNoise(std=0.01, per='step')",
    }  # fmt: skip
    experiment = Experiment.from_mapping(settings)
    assert len(experiment.pipelines) == 2
    assert shadow_trainings(experiment) == {"LiRA(num_shadows=5)": 10, "OnlineLiRA(num_shadows=4)": 2 * 2 * 3 * 4}
    assert shadow_trainings(replace(experiment, attack_rounds="")) == {}
    told = {line.partition(":")[0]: line for line in describe(experiment, StepMemory(1, 0.0, 0.0), "")}
    assert "58 trainings of a new model for 2 rounds" in told["shadows"]
    named = {repr(one) for each in experiment.pipelines for one in experiment.attacks_on(each, PROBE)}
    assert len(named) > 1, "those that know the defence are among them"
    assert all(one in told["attacks"] for one in named)
    assert told["attacks"].endswith("in 2 rounds")
    none = replace(experiment, attack_rounds="")
    assert "attacks:    none" in list(describe(none, StepMemory(1, 0.0, 0.0), ""))


def test_a_measured_step_is_as_large_as_its_parts_and_grows_by_the_image() -> None:
    """At the peak of a step there are at least weights, their gradients and the images' activations."""
    plan = Experiment.of(model="resnet20", dataset="photos").plan()
    step = measure(plan)
    model = plan.build_model()
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert step.parameters == weights
    assert step.peak(1) > 2 * 4 * weights
    # Every convolution's output is kept for the backward pass: 16 channels at 32 x 32 in the first of three stages.
    assert step.image_bytes > 7 * 16 * 32 * 32 * 4
    images = torch.rand(6, 3, 32, 32)
    assert step.peak(6) == pytest.approx(
        measure_step(lambda: model(images), [model], trained=True).peak_bytes, rel=0.02
    )


def test_values_that_are_possible_and_hardly_meant_are_warned_of() -> None:
    assert unusual_values(Experiment.of(rounds=10_001)) == ["rounds is 10001; sensible values are 1 to 10000"]
    assert unusual_values(Experiment.of(weight_decay=2)) == ["weight-decay is 2; sensible values are 0 to 1"]
    assert unusual_values(Experiment.of(rounds=10_000, learning_rate=10.0, weight_decay=1.0)) == []
    for path in (path for path in CONFIGS.glob("*.toml") if not path.name.startswith("search")):
        assert unusual_values(Experiment.from_mapping(read_toml(path, ""))) == [], path.name
    grey, mixer = DataCard(10, (1, 28, 28), (0.5,), (0.5,)), "VisualMixer(window_lower=4, window_upper={})"
    for defense, told in (
        ("GaussianNoise(std=0)", "std is 0, so this stage changes nothing and is no defence; try 0.01"),
        (mixer.format(16), "in windows of one size, 4 pixels, whatever its VFE"),
    ):
        assert told in idle_defenses(Experiment.of(defenses=defense), grey)[0]
    assert idle_defenses(Experiment.of(defenses=mixer.format(4)), grey) == [], "equal bounds ask for one size"
    default = Experiment.of()
    assert idle_defenses(default, default.plan().data_card()) == []
    tried = 0
    for path in (path for path in CONFIGS.glob("*.toml") if "VisualMixer" in path.read_text(encoding="utf-8")):
        shipped = Experiment.from_mapping(read_toml(path, ""))
        try:
            card = shipped.plan().data_card()
        except MissingDataError:
            assert shipped.dataset in ("fashion-mnist", "garment-digit"), "whose images are grey, 28 pixels"
            card = grey
        assert idle_defenses(shipped, card) == [], path.name
        tried += 1
    assert tried >= 4
    few = Experiment.of(probe_targets=1, probe_images=1)
    assert "each attacked round has 15 images (15 clients" in too_few_images(few, 15)
    assert too_few_images(few, 16) == too_few_images(replace(few, attack_rounds=""), 1) == ""


def test_a_run_that_cannot_fit_is_refused_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["run", "--preset", "quick", "--dry-run"]
    told = CliRunner().invoke(app, settings)
    assert told.exit_code == 0
    (line,) = (line for line in told.output.splitlines() if line.startswith("memory:"))
    found = re.match(
        r"memory: +about (\d\.\d) GiB: (\d) processes (\d\.\d) GiB, images \d+ MiB, training \d+ MiB, attacks", line
    )
    assert found
    # The command, a server, its attacks' workers, and as many clients as there are cores: 480 MiB each, and Flower's and Ray's own.
    processes = 1 + 1 + 2 + this_machine().workers(4, 1)
    assert int(found[2]) == processes
    assert float(found[3]) == pytest.approx((processes * 480 + 600) / 1024, abs=0.06)
    in_process = CliRunner().invoke(app, [*settings, "--in-process"])
    assert "3 processes 1.4 GiB" in in_process.output
    monkeypatch.setattr("simulations.forecast.memory_needs.memory_of_machine", lambda: 2**30)
    refused = CliRunner().invoke(app, settings)
    assert refused.exit_code == 2
    assert "this machine has 1.0 GiB in all. Lower batch-size, image-size" in " ".join(refused.output.split())


def test_memory_grows_with_what_is_held() -> None:
    few = Experiment.of(dataset="mnist-5k", model="lenet", num_clients=4)
    data = few.plan().load_data()
    step = StepMemory(1000, 8000.0, 100.0)
    plain = needs_of(few, data, step, 2)
    assert plain.training == 2 * (8000 + 16 * 100)
    assert plain.images >= 6 * 5000 * 28 * 28  # a byte for each pixel in each of six processes
    alone = needs_of(few, data, step, 2, in_process=True)
    assert alone.processes == plain.processes - 3
    assert alone.training == 8000 + 16 * 100
    assert needs_of(replace(few, batch_size=1600), data, step, 2).training == 2 * (8000 + 1600 * 100)
    with pytest.raises(ConfigError, match="this machine has 100 MiB in all"):
        check_needs(plain, 100 * 2**20)
    assert check_needs(plain, 2**40) == ""


def test_memory_grows_with_the_images_of_a_mixture() -> None:
    few = Experiment.of(dataset="mnist-5k", model="lenet", num_clients=4, defenses="InstaHide(num_mixed=4)")
    data, step = few.plan().load_data(), StepMemory(1000, 8000.0, 100.0)
    least, most = (
        needs_of(replace(few, defenses=f"InstaHide(num_mixed={count}, max_weight=1.0)"), data, step, 2)
        for count in (4, 32)
    )
    assert most.training - least.training == 2 * (32 - 4) * 16 * 28 * 28 * 4
    with pytest.raises(ConfigError, match=r"defenses: .*num_mixed is 1000000; allowed: a whole number from 1 to 32"):
        replace(few, defenses="InstaHide(num_mixed=1000000)")


def test_images_that_fit_no_machine_are_refused_before_a_model_is_built() -> None:
    """The default model at 4096 took 8 GB and 43 s, and the error named neither."""
    experiment = Experiment.of(num_clients=4, image_size=4096)
    data = experiment.plan().load_data()
    told = r"image-size.*this machine has 15\.0 GiB|Lower.*image-size"
    with bounded(120, 2**30), pytest.raises(ConfigError, match=told):
        check_outline(experiment, data, 15 * 2**30)


def test_an_outline_is_what_a_step_takes() -> None:
    experiment = Experiment.of(num_clients=4, train_limit=40, test_limit=40, image_size=288)
    data = experiment.plan().load_data()
    outline, real = outlined_step(experiment, data), measure(experiment.plan(card=DataCard.of(data)))
    assert outline == real
    check_outline(experiment, data, 2**40)


def test_control_groups_of_both_versions_limit_memory(tmp_path: Path) -> None:
    for place, name, size in (
        ("a/b", "memory.max", "max"), ("a", "memory.max", "3000"), ("", "memory.max", "5000"),
        ("memory/c", "memory.limit_in_bytes", "2000"), ("memory", "memory.limit_in_bytes", "9223372036854771712"),
        ("cpu/d", "memory.limit_in_bytes", "1"),
    ):  # fmt: skip
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / name).write_text(f"{size}\n")
    both = "4:memory:/c\n3:cpu,cpuacct:/d\n0::/a/b\n"
    assert sorted(cgroup_limits(both, tmp_path)) == [2000, 3000, 5000, 9223372036854771712]
    # In a container the names are of the host: what is mounted is the container's own.
    assert cgroup_limits("0::/docker/0123\n", tmp_path) == [5000]
    assert cgroup_limits("", tmp_path) == []
    assert memory_of_machine() > 2**28
