"""What cannot run ends before any work: each of these once took minutes, memory, or a traceback to be told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from flwr.app import Message
from PIL import Image
from typer.testing import CliRunner

from clients.data.datasets import load_dataset
from clients.data.images import fingerprint
from defenses.pipeline import Pipeline
from simulations.cli import app
from simulations.declared.plain import DECLARED, plain_settings, refuse_plain
from simulations.errors import ConfigError
from simulations.experiment import Experiment, all_settings
from simulations.scenarios.base import scenarios
from simulations.server_app import run_experiment
from simulations.settings import checked
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
        ("learning-rate=1e308", "learning-rate is 1e+308; allowed: above 0, at most 1e+06"),
        ("weight-decay=1e400", "weight-decay is inf; allowed: at least 0"),
        ("client-timeout=1e308", "client-timeout is 1e+308; allowed"),
        ("local-epochs=1000000000000", "local-epochs is 1000000000000; allowed"),
        (f"train-limit={10**30}", f"train-limit is {10**30}; allowed: at least 0, and at most {2**63 - 1}"),
        ("attack-gpus=1e308", "attack-gpus is 1e+308; allowed"),
        ("attack-gpus=1000", "attack-gpus is 1000; allowed: 0 to"),
        ("experiment=" + "x" * 200_000, "(200002 characters); allowed: one line of at most 200 characters"),
        ("defenses=DPSGD(target_epsilon=0.001)", "allowed: above 0.008367, which no noise goes below"),
        ("defenses=GaussianNoise(std=1e308)", "std is 1e+308; allowed: a number from 0 to 1e6"),
        ("defenses=Clip(max_norm=1); Clip(max_norm=1.0)", "given twice; allowed: each pipeline once"),
        ("defenses=Clip(max_norm=1) | VisualMixer()", "write VisualMixer"),
        ("probe-attacks=DLG(); DLG()", "probe-attacks: DLG() is given twice"),
        ("probe-attacks=LossThreshold()", "does not attack one-step probes but training updates (see update-attacks)"),
        ("update-attacks=Spear()", "update-attacks: Spear() reads the gradient of one step"),
        ("probe-images=100000", "probe-images is 100000; a client holds about 800 images"),
        ("probe-targets=801", "probe-targets is 801, each of probe-images = 1; a client holds about 800 images"),
        ("partition=shards(num_shards_per_partition=5000)", "partition: 4 partitions of 5000 shards need 20000 examples"),
        ("partition=dirichlet(alpha=1e308)", "alpha is 1e+308; allowed: a number above 0, at most 1e9"),
        ("smashed-attacks=FeatureInversion()", "it is a setting of split"),
        ("dataset=[/red]", "unknown dataset '[/red]'"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_run(tmp_path: Path, setting: str, told: str) -> None:
    message = refused(tmp_path, "--out", str(tmp_path / "out"), "-s", setting)
    assert told in message
    assert len(message) < 2500


def test_an_empty_list_of_attacks(tmp_path: Path) -> None:
    empty = ["-s", "probe-attacks=", "-s", "update-attacks=;"]
    told = refused(tmp_path, "--out", str(tmp_path / "out"), *empty)
    assert "attack-rounds is 'first,final', and no attacks are named (probe-attacks, update-attacks" in told
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


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xff\xfe\x00rounds = 3", "is not text in UTF-8"),
        (b"rounds = ", "is not valid TOML"),
        (b"learning-rate = nan", "learning-rate is nan; allowed: above 0"),
        (b"weight-decay = inf", "weight-decay is inf; allowed: at least 0"),
        (b"local-steps = 99999999999999999999999", f"allowed: at least 0, and at most {2**63 - 1}"),
    ],
)
def test_a_file_that_cannot_be_meant(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "settings.toml").write_bytes(content)
    result = CliRunner().invoke(app, ["run", str(tmp_path / "settings.toml")])
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


@pytest.mark.parametrize("name", ["split", "outsourced", "inference"])
def test_switching_the_scenario_alone_works(name: str) -> None:
    result = CliRunner().invoke(app, ["run", "-s", f"scenario={name}", "--dry-run"])
    assert result.exit_code == 0, result.output


def test_a_plain_value_is_refused_without_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from simulations.cli import app; "
        "told = CliRunner().invoke(app, ['run', '-s', 'rounds=0']); "
        "print(told.exit_code, 'rounds is 0; allowed' in told.output, sorted({'torch', 'flwr', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "2 True []"


def test_what_is_refused_without_torch_is_what_experiments_refuse() -> None:
    known = all_settings()
    for key, spec in plain_settings().items():
        assert spec.default == known[key].default
        assert spec.metadata["allowed"] == known[key].metadata["allowed"]
        wrong = object()
        with pytest.raises(ConfigError) as early:
            refuse_plain({key: wrong})
        with pytest.raises(ConfigError) as late:
            checked(known[key], wrong)
        assert str(early.value) == str(late.value)
    assert known.keys() == plain_settings().keys()
    assert {*DECLARED} == {*scenarios()}
    for name, one in scenarios().items():
        declared = {spec.name for kind in DECLARED[name] for spec in fields(kind)}
        assert declared == {spec.name for spec in fields(one.settings)}


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
    mine = fingerprint(settings.plan(Pipeline()).load_data())
    load_dataset.cache_clear()
    assert fingerprint(settings.plan(Pipeline()).load_data()) != mine
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
