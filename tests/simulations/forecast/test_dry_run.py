"""Every shipped configuration passes a dry run, and its header says what its settings say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from attacks.gradient.inversion import GradientInversion
from attacks.spec import stages_of
from clients.data.card import DataCard
from clients.data.datasets import reads_data_dir
from clients.data.images import MissingDataError, StoredImages
from clients.models.packaged_weights import PACKAGED
from clients.process.machine import cgroup_limits, memory_of_machine
from defenses.pipeline import Pipeline
from simulations.cli import app
from simulations.console.command_line import read_toml
from simulations.experiment.experiment import Experiment
from simulations.forecast.dry_run import StepMemory, describe, measure
from simulations.forecast.hardware import this_machine
from simulations.forecast.memory_needs import check_needs, needs_of
from simulations.forecast.notices import idle_defenses, unusual_values
from simulations.forecast.outlined import check_outline, outlined_step
from simulations.settings.errors import ConfigError
from strategies.federated.observations import AGGREGATE, PROBE, UPDATE
from tests.bounded import bounded
from tests.clients.data.data_files import write_celeba, write_cifar10, write_cifar100, write_mnist
from tests.clients.data.table_files import criteo_line, write_census
from tests.clients.models.test_packaged_weights import is_installed

FOLDER = Path(__file__).resolve().parents[3] / "simulations" / "configs"
FILES = sorted(path for path in FOLDER.glob("*.toml") if not path.name.startswith("search"))
"""Of runs; those of searches are tests/simulations/search's."""
PAPER = [(path, "paper") for path in FILES if "\n[paper]\n" in path.read_text()]
CONFIGS = sorted([*((path, "") for path in FILES), *PAPER])
"""Files and sizes."""
every_configuration = pytest.mark.parametrize(("path", "size"), CONFIGS, ids=lambda part: getattr(part, "name", part))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files of every data set that configurations ask for, in their exact formats."""
    folder, generator = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def images(*shape: int) -> Any:
        return generator.integers(0, 256, shape, dtype=np.uint8)

    write_cifar10(folder / "cifar-10-batches-py", images(360, 3, 32, 32), [at % 10 for at in range(360)])
    write_cifar100(folder / "cifar-100-python", images(400, 3, 32, 32), [at % 100 for at in range(400)], 100)
    labels = np.arange(700, dtype=np.uint8) % 10
    write_mnist(folder, (images(700, 28, 28), labels), (images(280, 28, 28), labels[:280]))
    both = {"Wearing_Lipstick": [1, 1, -1, -1] * 32, "Wearing_Hat": [1, -1] * 64}
    write_celeba(folder / "celeba", [0] * 64 + [2] * 64, {"Smiling": [1, -1] * 64, **both})
    for person in ("Ada", "Grace"):
        for number in range(6):
            path = folder / "lfw_funneled" / person / f"{person}_{number:04d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images(250, 250, 3)).save(path)
    write_census(folder, train=400, test=80)
    (folder / "train.txt").write_text("\n".join(criteo_line(str(at % 2)) for at in range(400)) + "\n")
    return folder


def dry_run(path: Path, *settings: str, size: str = "") -> tuple[int, str]:
    options = [word for setting in settings for word in ("-s", setting)] + (["--size", size] if size else [])
    result = CliRunner().invoke(app, ["run", str(path), "--dry-run", *options])
    return result.exit_code, " ".join(result.output.split())


@every_configuration
def test_a_shipped_configuration_passes_with_its_data_and_writes_nothing(
    path: Path, size: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = Experiment.from_mapping(read_toml(path, size))
    big = bool(size) and experiment.scenario == "split" and not experiment.on_tables
    # The papers' sets exceed the limit with all their images; these few exceed a limit of few images.
    little = ("image-memory=0.006", "auxiliary-limit=10") if big else ()
    # All 24 blocks are built and measured for the table whose model is the same; two elsewhere, because one build takes seconds.
    small = ("depth=2",) if big and path.name != "split_table6.toml" else ()
    # It attacks the test images, of which a client has ten here.
    small += ("probe-images=2",) if size and path.name == "split_table3.toml" else ()
    if experiment.scenario == "inference":
        if (packaged := PACKAGED.get(experiment.weights)) and not is_installed(packaged):
            pytest.skip(f"{packaged.distribution} is not installed: uv sync --group dev")
        # At one cut: each builds the model anew, and VGG16 has 138 million weights. Balanced data are refused beyond what there is.
        small = (f"cuts={experiment.cuts.partition(',')[0]}", "train-limit=0", "test-limit=0", "auxiliary-fraction=0.3")
        # The server of so few images keeps none to measure on.
        small += ("path-images=0", *(("auxiliary-fraction=0.5",) if not size else ()))
        # Table 3 builds VGG16; its weights take seconds to draw.
        small += ("model=vgg_small", "cuts=conv2") if size and path.name == "adp_table4.toml" else ()
        # 56 little frames of a client are five batches only where batches are small.
        small += ("batch-size=8",) if path.name == "adp.toml" else ()
        # A step is measured at the paper's size once.
        small += (
            ("image-size=64",) if experiment.image_size and (path.name, size) != ("adp_table5.toml", "paper") else ()
        )
    files = any(map(reads_data_dir, (experiment.dataset, experiment.auxiliary_data)))
    code, output = dry_run(path, *([f"data-dir={data}"] if files else []), *little, *small, size=size)
    assert code == 0, output
    for word in ("data:", "clients:", "model:", "memory:", "pipelines:", "attacks:"):
        assert f"{word} " in output
    assert not list(tmp_path.iterdir())
    assert ("read batch by batch" in output) == big


@pytest.mark.parametrize("path", [path for path, _ in PAPER], ids=lambda path: path.name)
def test_missing_data_are_said_with_what_to_do(path: Path, tmp_path: Path) -> None:
    code, output = dry_run(path, f"data-dir={tmp_path}", size="paper")
    assert code == 2
    assert "set data-dir to the directory that holds it" in output


@every_configuration
def test_what_a_header_counts_is_what_the_settings_say(path: Path, size: str) -> None:
    usual, _, paper = path.read_text().partition("\n[paper]\n")
    experiment = Experiment.from_mapping(read_toml(path, size))
    header = " ".join(line.lstrip("# ") for line in (paper if size else usual).splitlines() if line.startswith("#"))
    pipelines = len(experiment.pipelines)
    for rounds, count in re.findall(r"(\d+) rounds? for each of (\d+) pipelines", header):
        assert (int(rounds), int(count)) == (experiment.rounds, pipelines)
    for total in re.findall(r"besides (\d+) (?:short )?rounds", header):
        assert int(total) == experiment.rounds * pipelines
    for epochs in re.findall(r"published: (\d+) epochs", header):
        assert int(epochs) == experiment.rounds * experiment.local_epochs
    for limit in re.findall(r"learns from ([\d,]+) images at most", header):
        assert int(limit.replace(",", "")) == experiment.auxiliary_limit
    for attacked in re.findall(r"and (\d+) attacked images", header):
        images = experiment.num_clients * experiment.probe_targets * experiment.probe_images
        assert int(attacked) == images * pipelines * len(experiment.attacked_rounds)
    inversions = [
        stages_of(one)[0] for kind in (PROBE, UPDATE, AGGREGATE) for one in experiment.attacks_on(Pipeline(), kind)
    ]
    of_membership = bool(inversions) and all(one.infers_membership for one in inversions)
    assert (
        experiment.scenario != "federated"
        or of_membership
        or any(isinstance(one, GradientInversion) for one in inversions)
    )
    if "Differs from the paper" in header and experiment.nesterov:
        assert "GroupNorm" not in header
        assert not re.search(r"no cropping|constant learning rate", header)


def test_attacks_are_told_by_name_with_those_that_know_a_defence() -> None:
    settings = {
        "num-clients": 2,
        "attack-rounds": "first,final",
        "probe-attacks": "InvertingGradients(iterations=10)",
        "update-attacks": "",
    }
    experiment = Experiment.from_mapping({**settings, "defenses": "GaussianNoise(std=0.01, per='step')"})
    (told,) = (line for line in describe(experiment, StepMemory(1, 0.0, 0.0), "") if line.startswith("attacks:"))
    named = {repr(one) for each in experiment.pipelines for one in experiment.attacks_on(each, PROBE)}
    assert len(named) > 1
    assert all(one in told for one in named)
    assert told.endswith("in 2 rounds")
    none = replace(experiment, attack_rounds="")
    assert "attacks:    none" in list(describe(none, StepMemory(1, 0.0, 0.0), ""))


def test_the_ats_recipe_is_the_published_one() -> None:
    experiment = Experiment.from_mapping(read_toml(FOLDER / "ats_table2.toml", "paper"))
    assert (experiment.rounds * experiment.local_epochs, experiment.batch_size, experiment.norm) == (200, 128, "batch")
    assert (experiment.learning_rate, experiment.momentum, experiment.nesterov) == (0.1, 0.9, True)
    assert (experiment.weight_decay, experiment.crop_padding, experiment.horizontal_flip) == (5e-4, 4, True)
    assert experiment.milestones == (75, 125, 175)
    assert (experiment.probe_mode, experiment.learning_rate_factor) == ("eval", 0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["defenses=Blurr()"], "did you mean 'Blur'?"),
        (["dataset=cifar10", "data-dir=/no/such/folder"], "/no/such/folder"),
        (["crop-padding=28"], "crop-padding is 28; allowed: below 28"),
        (["image-memory=0.0001"], "set auxiliary-limit to at most 34, or raise image-memory"),
        (["image-memory=0.0001", "auxiliary-limit=30"], "update-attacks: all images of a client are"),
        (["image-memory=0"], "image-memory is 0; allowed: at least 1e-09"),
        (["auxiliary-limit=-1"], "auxiliary-limit is -1; allowed: at least 0"),
        (["defenses=Soteria(layer='nope')"], "the model's fully connected layers are"),
        (["aggregate-clients=" + "9" * 5000], "is no number of clients"),
        (
            ["active-attacks=ImprintLayer(bins=1000000000)"],
            "bins is 1000000000; allowed: a whole number from 2 to 1000000",
        ),
    ],
)
def test_what_cannot_run_is_refused_by_name(settings: list[str], message: str) -> None:
    code, output = dry_run(FOLDER / "quick.toml", "dataset=mnist-5k", "model=lenet", *settings)
    assert code == 2
    assert message in output


def test_a_measured_step_is_as_large_as_its_parts() -> None:
    """At the peak of a step there are at least weights, their gradients and the images' activations."""
    plan = Experiment.of(model="resnet20", dataset="photos").plan()
    step = measure(plan)
    model = plan.build_model()
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert step.parameters == weights
    assert step.peak(1) > 2 * 4 * weights
    # Every convolution's output is kept for the backward pass: 16 channels at 32 x 32 in the first of three stages.
    assert step.image_bytes > 7 * 16 * 32 * 32 * 4


def test_the_paper_sized_data_would_be_read_batch_by_batch(data: Path) -> None:
    settings = read_toml(FOLDER / "split_table1.toml", "paper") | {"data-dir": str(data), "image-memory": 0.001}
    loaded = Experiment.from_mapping(settings).plan().load_data()
    assert isinstance(loaded.train.images, StoredImages)
    assert DataCard.of(loaded).input_shape == (3, 224, 224)


@pytest.mark.parametrize(
    ("defense", "warned"),
    [
        ("VisualMixer(window_lower=4, window_upper=16)", True),
        ("VisualMixer(window_lower=4, window_upper=4)", False),  # equal bounds ask for one size
        ("VisualMixer(window_lower=2, window_upper=16, first_regions='nearest')", False),
    ],
)
def test_bounds_that_leave_nothing_to_decide_are_told_before_the_run(defense: str, warned: bool) -> None:
    code, output = dry_run(DIGITS, f"defenses={defense}")
    assert code == 0
    assert ("in windows of one size, 4 pixels, whatever its VFE" in output) == warned


@pytest.mark.parametrize(
    ("setting", "warning"),
    [
        ("rounds=1000000", "warning: rounds is 1000000; sensible values are 1 to 10000"),
        ("learning-rate=1e6", "warning: learning-rate is 1e+06; sensible values are 1e-06 to 10"),
        ("weight-decay=100", "warning: weight-decay is 100; sensible values are 0 to 1"),
        (
            "defenses=GaussianNoise(std=0)",
            "warning: GaussianNoise(std=0, per='step'): std is 0, so this stage changes nothing and is no defence; try 0.01",
        ),
        (
            "defenses=Clip(max_norm=1.0) | LaplaceNoise(scale=0.0, per='update')",
            "warning: LaplaceNoise(scale=0.0, per='update'): scale is 0, so this stage changes nothing and is no defence; try 0.01",
        ),
    ],
)
def test_values_that_are_possible_and_hardly_meant_are_warned_of(setting: str, warning: str) -> None:
    code, output = dry_run(DIGITS, setting)
    assert code == 0
    assert " ".join(output.split()).count(warning) == 1
    assert "sensible" not in dry_run(DIGITS, "seed=1")[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_values_of_shipped_configurations_are_usual(path: Path) -> None:
    assert unusual_values(Experiment.from_mapping(read_toml(path, ""))) == []


MIXING = [path for path in FILES if "VisualMixer" in path.read_text()]


@pytest.mark.parametrize("path", [None, *MIXING], ids=lambda path: path.stem if path else "defaults")
def test_no_shipped_configuration_has_a_defence_that_does_nothing(path: Path | None) -> None:
    one = Experiment.of() if path is None else Experiment.from_mapping(read_toml(path, ""))
    try:
        card = one.plan().data_card()
    except MissingDataError as error:
        pytest.skip(str(error))
    assert idle_defenses(one, card) == []


DIGITS = FOLDER / "lenet_digits.toml"


def test_probes_of_queries_may_be_more_than_a_client_would_train_on(tmp_path: Path) -> None:
    """A client of edge-cloud inference sends test images: 20 of ``photo-face``, and 16 images that it would train on elsewhere."""
    few = ("dataset=photo-face", "model=vgg_small", "cuts=conv4", "auxiliary-fraction=0.8", "image-size=0")
    few += (
        "train-limit=0",
        "test-limit=0",
        "num-clients=2",
        "probe-images=20",
        "probe-targets=1",
        "defenses=FeatureNoise(std=1.0)",
    )
    code, output = dry_run(FOLDER / "inference.toml", *few)
    assert code == 0, output
    code, output = dry_run(FOLDER / "inference.toml", *few, "probe-images=21")
    assert code == 2
    assert "probe-images is 21" in output


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


@pytest.mark.parametrize(
    "settings",
    [
        {"image_size": 4096},
        {"image_size": 4096, "scenario": "outsourced"},
        {"image_size": 2048, "model": "convnet", "width": 1024},
        {"image_size": 4096, "model": "vgg16"},
        {"image_size": 4096, "scenario": "split", "patch_size": 16},
    ],
)
def test_images_that_fit_no_machine_are_refused_before_a_model_is_built(settings: dict[str, Any]) -> None:
    """The default model at 4096 took 8 GB and 43 s, and the error named neither."""
    experiment = Experiment.of(num_clients=4, **settings)
    data = experiment.plan().load_data()
    with (
        bounded(20, 2**30),
        pytest.raises(ConfigError, match=r"image-size.*this machine has 15\.0 GiB|Lower.*image-size"),
    ):
        check_outline(experiment, data, 15 * 2**30)


@pytest.mark.parametrize("settings", [{"image_size": 288}, {"image_size": 264, "model": "resnet20"}])
def test_an_outline_is_what_a_step_takes(settings: dict[str, Any]) -> None:
    experiment = Experiment.of(num_clients=4, train_limit=40, test_limit=40, **settings)
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
