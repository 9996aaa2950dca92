"""Own models and own data on the command line: whatever their code does, the command says it in one error, or warns of it."""

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from simulations.cli import app
from simulations.preflight import preflight
from simulations.run.requested import requested
from simulations.runtime import own_code_trials
from simulations.runtime.own_code_trials import try_model
from simulations.settings.errors import ConfigError
from tests.simulations.runtime.runtimes import BINARIES, wait_until

FEDVEIL = BINARIES / "fedveil"

CODE = """
import os, random
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

class Plain(nn.Module):
    def __init__(self, num_classes, input_shape):
        super().__init__()
        self.last = nn.Linear(torch.tensor(input_shape).prod().item(), num_classes)
    def odd(self, features):
        return features
    def forward(self, images):
        return self.last(self.odd(images.flatten(1)))

class Exits(Plain):
    def odd(self, features):
        os._exit(0)

class FailsLate(Plain):
    def odd(self, features):
        if len(features) > 8:
            raise RuntimeError("too many " + chr(27) + "[31mred")
        return features

class Dropped(Plain):
    def odd(self, features):
        return F.dropout(features, 0.5, training=True)

class Mixed(Plain):
    def odd(self, features):
        return features * features.softmax(0)

class Normed(nn.Sequential):
    def __init__(self, num_classes, input_shape):
        super().__init__(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, num_classes))

def data():
    drawn = {n: torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(n)) for n in (120, 40)}
    return [TensorDataset(images, torch.arange(n) % 4) for n, images in drawn.items()]

def exits():
    os._exit(0)

class Flips(Dataset):
    targets = [at % 4 for at in range(60)]
    def __len__(self):
        return 60
    def __getitem__(self, at):
        image = torch.linspace(0, 1, 64).view(1, 8, 8)
        # The first of all images never turns, others do in half of the readings.
        return (image.flip(2) if at and random.random() < 0.5 else image), at % 4

def flips():
    return Flips(), Flips()
"""
SMALL = {
    "train-limit": 100, "test-limit": 40, "rounds": 1, "batch-size": 4, "probe-images": 1, "num-clients": 2,
    "defenses": "", "update-attacks": "", "probe-attacks": "LabelInference()", "attack-rounds": "first",
    "attack-workers": 0, "adaptive": "false",
}  # fmt: skip
SPLIT = {"scenario": "split", "dataset": "mnist-5k", "attack-workers": 0}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with models and data; a command lets Python find what lies beside it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def dry_run_of(tmp_path: Path, changes: dict[str, str]) -> list[str]:
    """The words of a command."""
    words = [word for key, value in (SMALL | changes).items() for word in ("-s", f"{key}={value}")]
    return ["run", "--dry-run", "--out", str(tmp_path / "out"), *words]


def dry_run(tmp_path: Path, **changes: str) -> Result:
    return CliRunner().invoke(app, dry_run_of(tmp_path, changes))


def told(result: Result) -> str:
    return " ".join(result.output.split())


def test_a_model_that_fails_late_is_refused_by_setting_and_reason(file: Path) -> None:
    with pytest.raises(ConfigError, match="fails in train mode on a batch of 16 images: RuntimeError: too many "):
        try_model("model", f"{file}:FailsLate", 4, (1, 8, 8), batch_size=16)


OWN = {"dataset": "{file}:data", "model": "mlp"}
INTERRUPTS, PAINTS = "raise KeyboardInterrupt", "raise SystemExit('\\x1b[2J\\x1b]0;x\\x07\\u202e')"
ATTACK = [
    "attack", "{dir}/update.safetensors", "-s", "num-classes=4", "-s", "input-shape=1,8,8", "-s", "learning-rate=0.1",
]  # fmt: skip


@pytest.mark.long
def test_commands_say_which_setting_and_code_failed_and_how_and_write_nothing(file: Path, tmp_path: Path) -> None:
    save_file({"last.weight": torch.ones(4, 64), "last.bias": torch.ones(4)}, tmp_path / "update.safetensors")
    for name, code in (("interrupts", INTERRUPTS), ("paints", PAINTS)):
        (tmp_path / f"{name}.py").write_text(code)
    for command, error in (
        (OWN | {"model": "{file}:Exits"}, "model: {file}:Exits ends its process with exit code 0, as os._exit(0) does"),
        # The first image is the same each time.
        (OWN | {"dataset": "{file}:flips"}, "is another image at every reading; leave augmentations to crop-padding and"),
        # The bound is for each example, whose gradient this model mixes with those of others.
        (OWN | {"model": "{file}:Mixed", "defenses": "DPSGD(noise_multiplier=1.0)"}, "the clipped sum of random examples is not"),
        (OWN | {"model": "{dir}/interrupts.py:Net"}, "Net raises KeyboardInterrupt; it was tried in a child process"),
        # Without what a terminal obeys.
        (OWN | {"model": "{dir}/paints.py:Net"}, r"SystemExit: \x1b[2J\x1b]0;x\x07\u202e"),
        ([*ATTACK, "-s", "model={file}:Exits"], "model: {file}:Exits ends its process"),
        (
            [*ATTACK, "-s", "model={file}:Plain", "-s", "auxiliary-data={file}:exits"],
            "auxiliary-data: {file}:exits ends its process",
        ),
        (["protect", "{file}:exits", "{dir}/p", "--defense", "VisualMixer()"], "IN: {file}:exits ends its process"),
        (["search", "-s", "dataset={file}:exits", "--out", "{dir}/s"], "dataset: {file}:exits ends its process"),
    ):  # fmt: skip
        words = command if isinstance(command, list) else dry_run_of(tmp_path, command)
        result = CliRunner().invoke(app, [word.format(file=file, dir=tmp_path) for word in words])
        assert result.exit_code == 2, result.output
        assert error.replace("{file}", str(file)) in told(result)
        assert "\x1b" not in result.output
        assert not [name for name in ("out", "a", "p", "s") if (tmp_path / name).exists()]
    with pytest.raises(ConfigError, match=r"^auxiliary-data: .*mine\.py:exits ends its process with exit code 0"):
        preflight(requested(None, SPLIT | {"auxiliary-data": f"{file}:exits"}, tmp_path / "out"), print)


@pytest.mark.long
def test_ctrl_c_during_a_trial_ends_both_processes_with_a_word(tmp_path: Path) -> None:
    path, marker = tmp_path / "mine.py", tmp_path / "pid"
    path.write_text(
        f"import os, time\nwith open({str(marker)!r} + '.part', 'w') as one: one.write(str(os.getpid()))\n"
        f"os.rename({str(marker)!r} + '.part', {str(marker)!r})\ntime.sleep(600)\n"
    )
    command = [str(FEDVEIL), "run", "--dry-run", "-s", f"dataset={path}:load"]
    # A shell that starts the tests in the background has them ignore Ctrl-C, and their children with them.
    heard = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=heard) as process:
        wait_until(marker.exists)
        child = psutil.Process(int(marker.read_text()))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == 130
    assert "stopped; nothing was run" in said
    wait_until(lambda: not child.is_running())


@pytest.mark.long
def test_random_output_and_mixed_images_are_warned_of_once_and_batch_norm_apart(file: Path, tmp_path: Path) -> None:
    for model, warning in (
        ("Dropped", "has random output in eval mode"),
        ("Mixed", "mixes the images of a batch in eval mode"),
    ):
        result = dry_run(tmp_path, dataset=f"{file}:data", model=f"{file}:{model}")
        assert result.exit_code == 0, result.output
        assert told(result).count(f"warning: model: {file}:{model} {warning}") == 1
    assert "mixes the images of a batch in train mode by more than BatchNorm" in told(result)
    private = {"norm": "batch", "defenses": "DPSGD(noise_multiplier=1.0)"}
    result = dry_run(tmp_path, dataset=f"{file}:data", model=f"{file}:Normed", **private)
    assert result.exit_code == 0, result.output
    assert told(result).count("BatchNorm is replaced by GroupNorm") == 1
    assert "mixes" not in result.output


def test_ours_start_no_process_files_are_absolute(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("a child process was started")

    monkeypatch.setattr(own_code_trials, "tried", start)
    assert try_model("model", "torchvision:resnet18", 10, (3, 32, 32)) == ()
    values = {key: value for key, value in SMALL.items() if key != "adaptive"} | {"dataset": "mnist-5k", "model": "mlp"}
    preflight(requested(None, values, tmp_path / "out"), print)
    # The server's process has another working directory.
    monkeypatch.chdir(tmp_path)
    assert (
        requested(None, SPLIT | {"auxiliary-data": "mine.py:data"}, tmp_path / "out").auxiliary_data == f"{file}:data"
    )
