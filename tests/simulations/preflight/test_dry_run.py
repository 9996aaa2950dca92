"""Every shipped configuration passes a dry run, and its header says what its settings say; what a run takes is computed right."""

from pathlib import Path
from typing import Any

import pytest
import torch

from clients.data.card import DataCard
from clients.data.images import MissingDataError
from clients.process.machine import cgroup_limits, memory_of_machine
from clients.training.step_cost import measure_step
from simulations import preflight as memory
from simulations.console.command_line import read_toml
from simulations.experiment.experiment import Experiment
from simulations.preflight import check_fits, check_outline, measured_peak, required_bytes, too_few_images
from simulations.run.command import summary
from simulations.settings.errors import ConfigError
from strategies.federated.observations import PROBE
from tests.bounded import bounded
from tests.simulations.commands import fedveil

CONFIGS = Path(__file__).resolve().parents[3] / "simulations" / "configs"


def peak(batch: int) -> float:
    """Bytes of a step of a small model."""
    return 8000.0 + 100.0 * batch


def test_a_summary_names_pipelines_and_all_attacks() -> None:
    settings: dict[str, Any] = {
        "num-clients": 3, "rounds": 2, "attack-rounds": "first,final", "probe-attacks": "InvertingGradients(iterations=10)",
        "update-attacks": "LossThreshold()", "defenses": "GaussianNoise(std=0.01, per='step')",
    }  # fmt: skip
    experiment = Experiment.from_mapping(settings)
    told = {line.partition(":")[0]: line for line in summary(experiment)}
    assert told["scenario"].split() == ["scenario:", "federated"]
    assert told["pipelines"].endswith("no defence; GaussianNoise(std=0.01, per='step')")
    assert (told["clients"].split()[1], told["rounds"].split()[1]) == ("3", "2")
    named = {repr(one) for each in experiment.pipelines for one in experiment.attacks_on(each, PROBE)}
    assert len(named) > 1, "those that know the defence are among them"
    assert all(one in told["attacks"] for one in named)
    assert told["attacks"].endswith("in 2 rounds")
    assert "attacks:    none" in summary(experiment.but(attack_rounds=""))


def test_a_measured_step_is_as_large_as_its_parts_and_grows_by_the_image() -> None:
    """At the peak of a step there are at least weights, their gradients and the images' activations."""
    experiment = Experiment.of(model="resnet20", dataset="photos")
    plan = experiment.plan()
    step = measured_peak(experiment, plan.load_data())
    model = plan.build_model()
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert step(1) > 2 * 4 * weights
    # Every convolution's output is kept for the backward pass: 16 channels at 32 x 32 in the first of three stages.
    assert step(2) - step(1) > 7 * 16 * 32 * 32 * 4
    images = torch.rand(6, 3, 32, 32)
    assert step(6) == pytest.approx(measure_step(lambda: model(images), [model], trained=True).peak_bytes, rel=0.02)


def test_defences_without_effect_and_rounds_of_few_images_are_warned_of() -> None:
    grey, mixer = DataCard(10, (1, 28, 28), (0.5,), (0.5,)), "VisualMixer(window_lower=4, window_upper={})"
    for defense, told in (
        ("GaussianNoise(std=0)", "std is 0, so this stage changes nothing and is no defence; try 0.01"),
        (mixer.format(16), "in windows of one size, 4 pixels, whatever its VFE"),
    ):
        assert told in Experiment.of(defenses=defense).idle_defenses(28, 28)[0]
    assert Experiment.of(defenses=mixer.format(4)).idle_defenses(28, 28) == [], "equal bounds ask for one size"
    assert Experiment.of().idle_defenses(32, 32) == [], "of photos"
    tried = 0
    for path in (path for path in CONFIGS.glob("*.toml") if "VisualMixer" in path.read_text(encoding="utf-8")):
        shipped = Experiment.from_mapping(read_toml(path, ""))
        try:
            card = shipped.plan().data_card()
        except MissingDataError:
            assert shipped.dataset in ("fashion-mnist", "garment-digit"), "whose images are grey, 28 pixels"
            card = grey
        assert shipped.idle_defenses(*card.input_shape[1:]) == [], path.name
        tried += 1
    assert tried >= 4
    few = Experiment.of(probe_targets=1, probe_images=1)
    assert "each attacked round has 15 images (15 clients" in too_few_images(few, 15)
    assert too_few_images(few, 16) == too_few_images(few.but(attack_rounds=""), 1) == ""


def test_a_run_that_cannot_fit_is_refused_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["run", "--preset", "quick", "--dry-run"]
    for more in ([], ["--in-process"]):
        assert fedveil(*settings, *more)[0] == 0
    # In one process: the command, its attacks' two workers, 480 MiB each. Else Flower's and Ray's own processes, too.
    for size, more, fits in (
        (2**30, ["--in-process"], False), (2 * 2**30, ["--in-process"], True), (2 * 2**30, [], False),
    ):  # fmt: skip
        monkeypatch.setattr(memory, "memory_of_machine", lambda size=size: size)
        refusal = f"this machine has {size / 2**30:.1f} GiB in all. Lower batch-size, image-size"
        code, told = fedveil(*settings, *more)
        assert (code, refusal in told) == ((0, False) if fits else (2, True))


def test_memory_grows_with_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Experiment.of(dataset="mnist-5k", model="lenet", num_clients=4, batch_size=16, defenses="")
    data, program = few.plan().load_data(), memory.PROCESS + 5000 * 28 * 28
    two, three, alone = (required_bytes(few, data, peak, workers) for workers in (2, 3, 0))
    assert two - alone == 3 * program + memory.RUNTIME + peak(16)
    assert three - two == program + peak(16)
    assert required_bytes(few.but(batch_size=1600), data, peak, 2) - two == 2 * (peak(1600) - peak(16))
    held_out = 760 * 28 * 28 * 4
    no_workers = required_bytes(few.but(attack_workers=0), data, peak, 2)
    assert two - no_workers == 2 * (program + held_out) + memory.ATTACK_STEPS * peak(1)
    once = few.but(defenses="Blur(std=2.0)")
    assert required_bytes(once, data, peak, 2) - two == 2 * 4 * 760 * 28 * 28 * 4
    monkeypatch.setattr(memory, "memory_of_machine", lambda: 100 * 2**20)
    with pytest.raises(ConfigError, match="this machine has 100 MiB in all"):
        check_fits(few, data, peak, 2)
    monkeypatch.setattr(memory, "memory_of_machine", lambda: 2**40)
    assert check_fits(few, data, peak, 2) == two


def test_images_that_fit_no_machine_are_refused_before_a_model_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default model at 4096 took 8 GB and 43 s, and the error named neither."""
    experiment = Experiment.of(dataset="photos", model="cnn", num_clients=4, image_size=4096)
    data = experiment.plan().load_data()
    told = r"image-size.*this machine has 15\.0 GiB|Lower.*image-size"
    monkeypatch.setattr(memory, "memory_of_machine", lambda: 15 * 2**30)
    with bounded(120, 2**30), pytest.raises(ConfigError, match=told):
        check_outline(experiment, data)


def test_an_outline_is_what_a_step_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment.of(
        dataset="photos", model="cnn", num_clients=4, train_limit=40, test_limit=40, image_size=288
    )
    data, outlines = experiment.plan().load_data(), list[memory.Peak]()
    monkeypatch.setattr(memory, "check_fits", lambda _, __, outline, **___: outlines.append(outline))
    check_outline(experiment, data)
    (outline,), real = outlines, measured_peak(experiment, data)
    assert [outline(batch) for batch in (1, 7)] == [real(batch) for batch in (1, 7)]


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
