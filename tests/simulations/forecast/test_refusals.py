"""What cannot run ends before any work: each of these once took minutes, memory, or a traceback to be told."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from flwr.app import Message
from PIL import Image
from typer.testing import CliRunner

from attacks.attributes.inference import ARCHITECTURES
from clients.data.datasets import load_dataset
from clients.data.images import fingerprint
from clients.models.packaged_weights import NORMALISATIONS
from simulations.cli import app
from simulations.experiment.experiment import Experiment, all_settings
from simulations.experiment.scenario import scenarios
from simulations.run.requested import requested
from simulations.runtime.launch import ROOT
from simulations.server_app import run_experiment
from simulations.settings.common import CHOSEN_HERE
from simulations.settings.errors import ConfigError
from simulations.settings.fields import checked
from simulations.settings.inference import ARCHITECTURES as DECLARED_ARCHITECTURES
from simulations.settings.inference import STATISTICS
from simulations.settings.plain import SETTINGS, USUAL, fields_of, refuse_plain
from tests.flower_private import get_fused_config_from_dir
from tests.local_grid import LocalGrid


def refused(tmp_path: Path, *arguments: str) -> str:
    """The one line in which the command says why it does not run; nothing is left behind."""
    before = sorted(tmp_path.iterdir())
    result = CliRunner().invoke(app, ["run", "--preset", "quick", "-s", "dataset=mnist-5k", *arguments])
    assert result.exit_code == 2, result.output
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)
    assert sorted(tmp_path.iterdir()) == before
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("rounds=1000000000", "rounds is 1000000000; allowed: at least 1, at most 1000000"),
        (f"seed={2**70}", f"seed is {2**70}; allowed: at least 0, at most {2**63 - 1}"),
        ("learning-rate=1e308", "learning-rate is 1e+308; allowed: at least 1e-12, at most 1e+06"),
        ("weight-decay=1e400", "weight-decay is inf; allowed: at least 0"),
        ("client-timeout=1e308", "client-timeout is 1e+308; allowed"),
        ("local-epochs=1000000000000", "local-epochs is 1000000000000; allowed"),
        (f"train-limit={10**30}", f"train-limit is {10**30}; allowed: at least 0, at most {2**63 - 1}"),
        ("attack-gpus=1e308", "attack-gpus is 1e+308; allowed"),
        ("attack-gpus=1000", "attack-gpus is 1000; allowed: 0 to"),
        ("experiment=" + "x" * 200_000, "(200002 characters); allowed: one line of at most 200 characters"),
        ("defenses=DPSGD(target_epsilon=0.001)", "allowed: above 0.008367, which no noise goes below"),
        ("defenses=GaussianNoise(std=1e308)", "std is 1e+308; allowed: 0, or a number from 1e-12 to 1e+06"),
        ("defenses=Clip(max_norm=1); Clip(max_norm=1.0)", "given twice; allowed: each pipeline once"),
        ("defenses=Clip(max_norm=1) | VisualMixer()", "write VisualMixer"),
        ("probe-attacks=DLG(); DLG()", "probe-attacks: DLG() is given twice"),
        ("probe-attacks=LossThreshold()", "does not attack one-step probes but training updates (see update-attacks)"),
        ("update-attacks=Spear()", "update-attacks: Spear() reads the gradient of one step"),
        ("probe-images=100000", "probe-images is 100000; a client holds about 800 images"),
        ("probe-targets=801", "probe-targets is 801, each of probe-images = 1; a client holds about 800 images"),
        ("partition=shards(num_shards_per_partition=5000)", "partition: 4 partitions of 5000 shards need 20000 examples"),
        ("partition=dirichlet(alpha=1e308)", "alpha is 1e+308; allowed: a number from 0.001 to 1e+09"),
        ("smashed-attacks=FeatureInversion()", "it is a setting of split"),
        ("dataset=[/red]", "unknown dataset '[/red]'"),
        ("learning-rate=nan", "learning-rate is nan; allowed: at least 1e-12, at most 1e+06 "),
        ("learning-rate=1e309", "learning-rate is inf; allowed: at least 1e-12, at most 1e+06 "),
        ("learning-rate=-0.0", "learning-rate is -0.0; allowed: at least 1e-12"),
        ("resume=true", "resume is True; allowed: False. `fedveil run --resume DIR` goes on"),
        ("probe-images=1000000000000", "probe-images is 1000000000000; allowed: at least 1, at most 1048576"),
        ("ronds=3", "unknown setting 'ronds', did you mean 'rounds'?"),
        ("=3", "unknown setting ''"),
        ("rounds", "-s 'rounds': expected key=value"),
        ("scenario=", "scenario is ''; allowed: 'federated' or 'inference'"),
        ("model=", "unknown model ''"),
        ("rounds=", "rounds is '' (str); expected int"),
        ("adaptive=1", "adaptive is 1 (int); expected bool"),
        ("defenses=GaussianNoise(std=[1])", "std is [1]; allowed: 0, or a number from 1e-12 to 1e+06"),
        ("defenses=GaussianNoise(std=True)", "std is True; allowed: 0, or a number from 1e-12 to 1e+06"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_run(tmp_path: Path, setting: str, told: str) -> None:
    message = refused(tmp_path, "--out", str(tmp_path / "out"), "-s", setting)
    assert told in f"{message} "
    assert len(message) < 2500


def test_an_empty_list_of_attacks(tmp_path: Path) -> None:
    empty = ["-s", "probe-attacks=", "-s", "update-attacks=;"]
    told = refused(tmp_path, "--out", str(tmp_path / "out"), *empty)
    assert "attack-rounds is 'final', and no attacks are named (probe-attacks, update-attacks" in told
    training_only = ["run", "--preset", "quick", *empty, "-s", "attack-rounds=", "--dry-run"]
    assert CliRunner().invoke(app, training_only).exit_code == 0


def test_fewer_examples_than_clients(tmp_path: Path) -> None:
    assert "1000000000 clients share 4000 training" in refused(tmp_path, "--clients", "1000000000")


def test_two_folders(tmp_path: Path) -> None:
    told = refused(tmp_path, "--out", str(tmp_path / "a"), "-s", f"output-dir={tmp_path / 'b'}")
    assert f"--out is {tmp_path / 'a'}, and -s output-dir is {tmp_path / 'b'}" in told
    file = tmp_path / "settings.toml"
    file.write_text(f'output-dir = "{tmp_path / "b"}"\n')
    result = CliRunner().invoke(app, ["run", str(file), "--out", str(tmp_path / "a")])
    assert result.exit_code == 2
    assert "give one of them" in result.output


def test_two_numbers_of_clients(tmp_path: Path) -> None:
    told = refused(tmp_path, "--clients", "3", "-s", "num-clients=5")
    assert told == "error: --clients is 3, and num-clients is 5; give one of them"
    file = tmp_path / "settings.toml"
    file.write_text("num-clients = 5\n")
    assert requested(file, {"num-clients": 3}, clients=3).num_clients == 3
    assert requested(file, {}, clients=4).num_clients == 4  # an option stands over the file


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xff\xfe\x00rounds = 3", "is not text in UTF-8"),
        (b"rounds = ", "is not valid TOML"),
        (b"\xef\xbb\xbfrounds = 0", "rounds is 0; allowed"),
        (b"rounds = [1, 2]", "rounds is [1, 2] (list); expected int"),
        (b"[rounds]\na = 1", "rounds is {'a': 1} (dict); expected int"),
        (b"rounds = true", "rounds is True (bool); expected int"),
        (b"model = true", "model is True (bool); expected str"),
        (b"experiment = 2020-01-01", "(date); expected str"),
        (b"learning-rate = 1e309", "learning-rate is inf; allowed: at least 1e-12"),
        (b'scenario = ["split"]', "scenario is ['split'] (list); expected str"),
        (b'scenario = "split"\nprobe-mode = "eval"', "it is a setting of federated, and scenario is 'split'"),
        (b"bach-size = 3", "unknown setting 'bach-size', did you mean 'batch-size'?"),
        (b"learning-rate = nan", "learning-rate is nan; allowed: at least 1e-12"),
        (b"weight-decay = inf", "weight-decay is inf; allowed: at least 0"),
        (b"local-steps = 99999999999999999999999", "allowed: at least 0, at most 1000000000"),
    ],
)
def test_a_file_that_cannot_be_meant(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "settings.toml").write_bytes(content)
    result = CliRunner().invoke(app, ["run", str(tmp_path / "settings.toml")])
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", str(tmp_path)])
    assert result.exit_code == 2
    assert f"cannot read {tmp_path}: Is a directory" in " ".join(result.output.split())


def test_a_folder_that_only_the_system_knows_to_be_closed() -> None:
    """The superuser may write everywhere, says the system, until he tries: no folder can be made there."""
    result = CliRunner().invoke(
        app, ["run", "--preset", "quick", "-s", "dataset=mnist-5k", "--out", "/sys/fedveil-test"]
    )
    assert result.exit_code == 2
    assert "error: output-dir: /sys" in " ".join(result.output.split())


@pytest.mark.parametrize("name", ["split", "outsourced", "inference"])
def test_switching_the_scenario_alone_works(name: str) -> None:
    result = CliRunner().invoke(app, ["run", "-s", f"scenario={name}", "--dry-run"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "given", [{"scenario": "split", "dataset": "census"}, *({"scenario": name} for name in SETTINGS)]
)
def test_switching_the_scenario_alone_works_in_a_plain_flwr_run(given: dict[str, str]) -> None:
    """Flower gives the app all that stands in its file, with what somebody sets in its place."""
    everything = get_fused_config_from_dir(ROOT, dict(given))
    assert Experiment.from_mapping(everything) == Experiment.from_mapping(given)
    set_too = {
        "model": "difm" if "dataset" in given else "vit" if given["scenario"] == "split" else "vgg_small",
        "defenses": "",
    }
    everything = get_fused_config_from_dir(ROOT, {**given, **set_too})
    assert Experiment.from_mapping(everything) == Experiment.from_mapping(given | set_too)


PLAIN = [
    ("rounds=0", "rounds is 0; allowed"),
    ("ronds=3", "did you mean 'rounds'?"),
    ("scenario=splitt", "scenario is 'splitt'; allowed"),
    ("depth=8", "it is a setting of split, and scenario is 'federated'"),
    ("fraction-train=0", "fraction-train is 0; allowed"),
    ("scenario=split,depth=0", "depth is 0; allowed"),
    ("scenario=inference,query-batches=0", "query-batches is 0; allowed"),
    ("scenario=outsourced,upload-passes=0", "upload-passes is 0; allowed"),
]


@pytest.mark.parametrize("in_file", [True, False])
def test_plain_values_are_refused_without_torch(tmp_path: Path, in_file: bool) -> None:
    commands = []
    for at, (settings, _) in enumerate(PLAIN):
        pairs = [one.split("=") for one in settings.split(",")]
        file = tmp_path / f"{at}.toml"
        file.write_text("".join(f"{key} = {value if value.isdigit() else repr(value)}\n" for key, value in pairs))
        commands.append(
            ["run", str(file)] if in_file else ["run", *(w for one in settings.split(",") for w in ("-s", one))]
        )
    code = (
        "import json, sys; from typer.testing import CliRunner; from simulations.cli import app; "
        f"told = [CliRunner().invoke(app, one) for one in {commands!r}]; "
        "print(json.dumps([[one.exit_code for one in told], [one.output for one in told], "
        "sorted({'torch', 'flwr', 'ray'} & set(sys.modules))]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    codes, outputs, imported = json.loads(done.stdout)
    assert imported == []
    assert codes == [2] * len(PLAIN)
    for (settings, told), output in zip(PLAIN, outputs, strict=True):
        assert told in " ".join(output.split()), settings


def test_names_of_what_brings_torch_with_it_are_written_down_right() -> None:
    assert set(STATISTICS) == set(NORMALISATIONS)
    assert DECLARED_ARCHITECTURES == ARCHITECTURES


def test_what_is_refused_without_torch_is_what_experiments_refuse() -> None:
    known = all_settings()
    for key, spec in fields_of(SETTINGS).items():
        assert spec.default == known[key].default
        assert spec.metadata["allowed"] == known[key].metadata["allowed"]
        wrong = object()
        with pytest.raises(ConfigError) as early:
            refuse_plain({key: wrong})
        with pytest.raises(ConfigError) as late:
            checked(known[key], wrong)
        assert str(early.value) == str(late.value)
    assert known.keys() == fields_of(SETTINGS).keys()
    assert {*SETTINGS} == {*scenarios()}
    for name, one in scenarios().items():
        assert {spec.name for spec in fields(SETTINGS[name])} == {spec.name for spec in fields(one.settings)}
    usual = {key for one in scenarios().values() for key in (*one.settings.usual, *one.settings.usual_on_tables)}
    assert usual | {CHOSEN_HERE} == USUAL


def test_pictures_that_nobody_reads(tmp_path: Path) -> None:
    told = refused(tmp_path, "-s", f"data-dir={tmp_path}")
    assert (
        f"data-dir is '{tmp_path}', and dataset = 'mnist-5k' reads no files: for your own pictures set dataset = folder"
        in told
    )


@pytest.mark.parametrize("parts", [("train", "val"), ("Train", "Test"), ("train", "val", "test"), ("train",)])
def test_parts_that_look_like_classes(tmp_path: Path, parts: tuple[str, ...]) -> None:
    for part in parts:
        for name in ("a", "b"):
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / part / name / "0.png")
    told = refused(tmp_path, "-s", "dataset=folder", "-s", f"data-dir={tmp_path}")
    assert f"{parts[0]} looks like a part of the data, not like a class" in told or "looks like a part" in told


def test_a_split_that_differs_between_processes(tmp_path: Path) -> None:
    """Scores would be of other images than those that were attacked."""
    file = tmp_path / "mine.py"
    file.write_text(UNSEEDED)
    settings = Experiment.of(
        dataset=f"{file}:load", num_clients=2, rounds=1, output_dir=str(tmp_path / "run"), batch_size=8, model="lenet",
        defenses="", attack_workers=0, probe_targets=1,
    )  # fmt: skip
    load_dataset.cache_clear()
    mine = fingerprint(settings.plan().load_data())
    load_dataset.cache_clear()
    assert fingerprint(settings.plan().load_data()) != mine
    with pytest.raises(RuntimeError, match="reads other examples than the server does from dataset"):
        run_experiment(Forgetful(2), settings)


UNSEEDED = """
import torch
from torch.utils.data import TensorDataset, random_split

images = torch.rand(120, 1, 28, 28, generator=torch.Generator().manual_seed(0))

def load():
    return random_split(TensorDataset(images, torch.arange(120) % 10), [80, 40])
"""


class Forgetful(LocalGrid):
    """A grid whose nodes read the data anew, as other processes do."""

    def answer(self, message: Message) -> Message | None:
        load_dataset.cache_clear()
        return super().answer(message)


@pytest.mark.long
def test_a_model_that_cannot_learn_from_one_image(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(ONE_IMAGE)
    mine = [
        "-s",
        f"model={file}:net",
        "-s",
        "norm=batch",
        "-s",
        "probe-attacks=LabelInference()",
        "-s",
        "adaptive=false",
    ]
    mine += ["-s", "defenses=", "-s", "update-attacks=LabelInference()"]
    told = refused(tmp_path, *mine)
    assert "probe-images is 1, and the model cannot be trained on so few: Expected more than 1 value" in told
    for way_out in ("probe-images=2", "probe-mode=eval"):
        arguments = ["run", "--preset", "quick", "-s", "dataset=mnist-5k", *mine, "-s", way_out, "--dry-run"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output


ONE_IMAGE = """
from torch import nn

def net(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, num_classes))
"""
