"""``fedveil attack``: from a real update of a digit to a picture of it, and every bad input to one clear error."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner, Result

from attacks import ClientUpdate, Knowledge, Reconstruction
from attacks.observations import AttackError
from clients.data.datasets import load_dataset, to_float
from clients.models.classifiers import build_model
from defenses.base import Batch
from defenses.pipeline import Pipeline
from simulations.cli import app
from simulations.external_app.recorded.arguments.request import Request
from simulations.external_app.recorded.attack_file import attack_update, prepare
from simulations.external_app.recorded.known import without_truth
from simulations.runtime.launch import ROOT
from simulations.settings.errors import ConfigError

RATE, DIGIT = 0.1, 17
MEAN, STD = 0.1307, 0.3081
DLG = "DLG(iterations=150, restarts=1, labels='auto')"


def digit() -> tuple[Tensor, Tensor]:
    data = load_dataset("mnist-5k").train
    return to_float(data.images[DIGIT : DIGIT + 1]), data.labels[DIGIT : DIGIT + 1]


def network(name: str = "lenet", seed: int = 4, norm: str = "group") -> nn.Module:
    return build_model(name, num_classes=10, input_shape=(1, 28, 28), seed=seed, norm=norm)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def trained(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights before and after a step of ``torch.optim.SGD``: somebody else's client."""
    images, labels = digit()
    before = state(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    F.cross_entropy(model((images - MEAN) / STD), labels).backward()
    optimizer.step()
    return before, state(model)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """update, local, global and truth of one digit."""
    folder = tmp_path_factory.mktemp("update")
    before, after = trained(network())
    images, labels = digit()
    save_file({name: after[name] - before[name] for name in before}, folder / "update")
    save_file(after, folder / "local")
    save_file(before, folder / "global")
    save_file({"images": images, "labels": labels}, folder / "truth")
    return folder


def invoke(update: Path, *options: Any, **changes: Any) -> Result:
    """The command with lenet's options; ``changes`` replaces some, and None drops one."""
    values = {"model": "lenet", "num_classes": 10, "input_shape": "1,28,28", "learning_rate": RATE} | changes
    named = [word for key, v in values.items() if v is not None for word in (f"--{key.replace('_', '-')}", str(v))]
    return CliRunner().invoke(app, ["attack", str(update), *named, *map(str, options)])


def test_json_has_the_scores_of_each_attack_and_the_reasons_of_those_that_failed(files: Path, tmp_path: Path) -> None:
    result = invoke(
        files / "update", "--truth", files / "truth", "--out", tmp_path / "out", "--json",
        weights=files / "global", attack="Spear(); InvertingGradients(iterations=2, restarts=1)",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["directory"], found["scored"]) == (str(tmp_path / "out"), True)
    exact, inverting = found["attacks"]
    written = json.loads((tmp_path / "out" / "result.json").read_text())["attacks"]
    assert inverting["psnr"] == inverting["best_psnr"] == pytest.approx(written[1]["scores"]["psnr"][0])
    assert inverting["recovered"] is None, "one picture has no others to be identified among"
    assert exact["failure"] == written[0]["failure"] != ""
    assert f"Spear() failed: {exact['failure']}" in result.stderr.replace("\n", " ")


def test_without_the_truth_nothing_was_scored_and_a_quiet_command_prints_nothing(files: Path, tmp_path: Path) -> None:
    words = [files / "update", "--out", tmp_path / "out"]
    result = invoke(*words, weights=files / "global", attack="LabelInference()")
    told = "No guess was scored, as no originals were given. The guesses of LabelInference() are in"
    assert f"{told} {tmp_path / 'out'}" in " ".join(result.output.split())
    result = invoke(
        files / "update", "--out", tmp_path / "b", "-q", weights=files / "global", attack="LabelInference()"
    )
    assert (result.exit_code, result.output) == (0, "")
    assert (tmp_path / "b" / "result.json").is_file()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["update", "local"])
def test_a_digit_comes_back_from_its_update(files: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    result = invoke(
        files / kind, "--truth", files / "truth", "--out", out, *(["--local"] if kind == "local" else []),
        weights=files / "global", mean=MEAN, std=STD, attack=f"{DLG}; LabelInference()",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    written = json.loads((out / "result.json").read_text())
    inversion, inference = written["attacks"]
    assert inversion["scores"]["psnr"][0] > 20 > 15 > written["null"]["grey"]["psnr"][0]
    assert inversion["scores"]["label-accuracy"] == inference["scores"]["label-accuracy"] == 1
    assert not inversion["failure"]
    assert inversion["pictures"] == ["DLG-0.png"]
    guesses = load_file(out / "guesses.safetensors")
    assert guesses["LabelInference/labels"].tolist() == digit()[1].tolist() == inference["labels"]
    from skimage.io import imread

    pixels = torch.from_numpy(imread(out / "DLG-0.png")) / 255
    assert torch.allclose(pixels, guesses["DLG/images"][0, 0], atol=0.51 / 255)


@pytest.mark.long
def test_momentum_is_part_of_how_the_client_trained(files: Path, tmp_path: Path) -> None:
    """Nesterov's first step is 1 + momentum times as long: an attack on lengths finds the digit only if it is told."""
    model = network()
    images, labels = digit()
    before = state(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, nesterov=True)
    F.cross_entropy(model((images - MEAN) / STD), labels).backward()
    optimizer.step()
    save_file({name: value - before[name] for name, value in state(model).items()}, tmp_path / "update")
    found = {}
    for name, options in (("told", ["--nesterov", "--momentum", 0.9]), ("untold", [])):
        out = tmp_path / name
        result = invoke(
            tmp_path / "update", "--truth", files / "truth", "--out", out, *options,
            weights=files / "global", mean=MEAN, std=STD, attack=DLG,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        found[name] = json.loads((out / "result.json").read_text())["attacks"][0]["scores"]["psnr"][0]
    assert found["told"] > 20
    assert found["told"] > found["untold"] + 5


def test_attacks_do_not_learn_from_the_truth_that_auxiliary_data_hold(files: Path, tmp_path: Path) -> None:
    request = Request(
        files / "update", "lenet", 10, "1,28,28", RATE, attacks="LabelInference()", auxiliary="mnist-5k",
        truth=files / "truth",
    )  # fmt: skip
    data = load_dataset("mnist-5k").train
    told = f"1 of the {len(data)} images of --auxiliary mnist-5k are true images: they were left out"
    assert any(notice.startswith(told) for notice in prepare(request).notices)
    knowledge = Knowledge(_batch(slice(DIGIT - 5, DIGIT + 5)), Pipeline(), (MEAN,), (STD,), None)  # type: ignore[arg-type]
    left, _ = without_truth(knowledge, digit()[0] + 1e-7, "mnist-5k")
    assert torch.equal(left.auxiliary.images, knowledge.auxiliary.images[[0, 1, 2, 3, 4, 6, 7, 8, 9]])
    assert torch.equal(left.auxiliary.targets, knowledge.auxiliary.targets[[0, 1, 2, 3, 4, 6, 7, 8, 9]])
    with pytest.raises(ConfigError, match="holds nothing but true images"):
        without_truth(knowledge, knowledge.auxiliary.images, "mnist-5k")


def _batch(at: slice) -> Batch:
    data = load_dataset("mnist-5k").train
    return Batch(to_float(data.images[at]), F.one_hot(data.labels[at], 10).float())


def test_the_truth_never_reaches_the_attack(files: Path, tmp_path: Path) -> None:
    """Another truth, and none: the same guesses, other scores."""
    save_file({"images": torch.rand(1, 1, 28, 28)}, tmp_path / "other")
    seen = []
    for name, truth in (("a", files / "truth"), ("b", tmp_path / "other"), ("c", None)):
        invoke(
            files / "update",
            "--out",
            tmp_path / name,
            weights=files / "global",
            truth=truth,
            attack="DLG(iterations=3)",
        )
        seen.append(load_file(tmp_path / name / "guesses.safetensors")["DLG/images"])
        scores = json.loads((tmp_path / name / "result.json").read_text())["attacks"][0]["scores"]
        assert ("psnr" in scores) == (truth is not None)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


def test_an_update_made_by_hand_is_attacked_from_python() -> None:
    model = network()
    before, after = trained(model)
    model.load_state_dict(before)
    update = {name: after[name] - before[name] for name in before}
    seen = ClientUpdate(model, update, (1, 28, 28), (MEAN,), (STD,), 1, 1, 1, RATE)
    text = "DLG(iterations=5); LabelInference()"
    first, labels = attack_update(seen, text, seed=1)
    assert isinstance(first, Reconstruction)
    assert torch.equal(labels.classes, digit()[1])
    assert torch.equal(first.images, attack_update(seen, text, seed=1)[0].images)
    assert not torch.equal(first.images, attack_update(seen, text, seed=2)[0].images)
    with pytest.raises(AttackError, match="auxiliary"):
        attack_update(seen, "InvertingGradients() | LearnedRestorer()")
    with pytest.raises(AttackError, match="several rounds"):
        attack_update(seen, "ClassGAN()")


def test_what_is_assumed_is_said(files: Path, tmp_path: Path) -> None:
    """Without --weights: the initial weights of the seed, which here are the right ones."""
    result = invoke(
        files / "update", "--out", tmp_path / "o", "--seed", 4, attack="LabelInference()", truth=files / "truth"
    )
    assert "initial weights of seed 4" in result.output
    assert "mean 0 and std 1" in result.output
    (line,) = [one.split() for one in result.output.splitlines() if "100.0 %" in one]
    assert line == ["LabelInference()", *["\N{EN DASH}"] * 3, "100.0", "%"]
    assert result.output.splitlines()[-1] == f"results: {tmp_path / 'o' / 'result.json'}"
    again = invoke(files / "local", "--out", tmp_path / "p", attack="LabelInference()", weights=files / "global")
    assert "add --local" in again.output


def test_running_averages_are_read_and_counters_ignored(tmp_path: Path) -> None:
    model = network("resnet20", norm="batch")
    before, after = trained(model)
    assert any("num_batches_tracked" in name for name in after)
    before["1.running_mean" if "1.running_mean" in before else next(n for n in before if "running_mean" in n)] += 0.5
    save_file(before, tmp_path / "global")
    save_file(after, tmp_path / "local")
    request = Request(
        tmp_path / "local", "resnet20", 10, "1,28,28", RATE, tmp_path / "global", local=True, norm="batch",
        attacks="LabelInference()",
    )  # fmt: skip
    observation = prepare(request).observation
    own = dict(observation.model.named_buffers())
    for name, value in own.items():
        if value.is_floating_point():
            assert torch.equal(value, before[name])
            assert torch.equal(observation.update[name], after[name] - before[name])
    assert not any("num_batches_tracked" in name for name in observation.update)


def test_the_default_attacks_are_the_same_everywhere(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the command, of a request and of the Python call."""
    seen: list[str] = []
    monkeypatch.setattr(
        "simulations.external_app.recorded.attack_file.UPDATE",
        SimpleNamespace(parse=lambda text: seen.append(text) or []),
    )
    assert attack_update(cast("ClientUpdate", None)) == []
    monkeypatch.setattr(
        "simulations.external_app.recorded.attack_file.prepare",
        lambda request: seen.append(request.attacks) or prepare(request),
    )
    monkeypatch.setattr(
        "simulations.external_app.recorded.attack_file.run",
        lambda prepared, *_: seen.append(prepared.request.attacks) or [],
    )
    invoke(files / "update", "--out", tmp_path / "o")
    seen.append(Request(files / "update", "lenet", 10, "1,28,28", RATE).attacks)
    assert len(seen) == 4
    assert set(seen) == {"InvertingGradients(); LabelInference()"}


def test_a_crash_of_one_attack_leaves_the_others(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("attacks.gradient.inversion.GradientInversion.attack_many", broken)
    result = invoke(files / "update", "--out", tmp_path / "o", weights=files / "global", truth=files / "truth")
    assert result.exit_code == 0
    crashed, fine = json.loads((tmp_path / "o" / "result.json").read_text())["attacks"]
    assert crashed["failure"] == "ZeroDivisionError: oops"
    null = json.loads((tmp_path / "o" / "result.json").read_text())["null"]
    assert crashed["scores"]["psnr"] == null["grey"]["psnr"]
    assert fine["scores"]["label-accuracy"] == 1


def changed(files: Path, change: Any) -> dict[str, Tensor]:
    tensors = load_file(files / "update")
    change(tensors)
    return tensors


BAD_FILES = {
    "lacks": (lambda t: [t.pop(n) for n in list(t)[:4]], "and 1 more of the model's 8 parameters; it holds '"),
    "prefixed": (lambda t: [t.update({f"module.{n}": t.pop(n)}) for n in list(t)], "it holds 'module."),
    "empty": (lambda t: t.clear(), "of the model's 8 parameters; it holds nothing"),
    "unknown": (lambda t: t.update({f"extra.{i}": torch.zeros(1) for i in range(5)}), "'extra.0', 'extra.1', 'extra.2' and 2 more"),
    "shape": (lambda t: t.update({"7.bias": torch.zeros(3)}), "'7.bias' has shape (3,), the model (10,)"),
    "dtype": (lambda t: t.update({"7.bias": torch.zeros(10, dtype=torch.int32)}), "'7.bias' has type torch.int32"),
    "nan": (lambda t: t["7.bias"].fill_(torch.nan), "'7.bias' holds NaN or infinite"),
    "overflow": (lambda t: t.update({"7.bias": torch.full((10,), 1e300, dtype=torch.float64)}), "as float32"),
    "zero": (lambda t: [v.zero_() for v in t.values()], "holds no update: every value is 0"),
}  # fmt: skip


def refused(result: Result, told: str) -> None:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.output.count("error:") == 1
    assert told in result.output.replace("\n", " ")


@pytest.mark.parametrize("case", BAD_FILES)
def test_refuses_an_update_that_does_not_fit(files: Path, tmp_path: Path, case: str) -> None:
    change, told = BAD_FILES[case]
    save_file(changed(files, change), tmp_path / "bad")
    refused(invoke(tmp_path / "bad", "--out", tmp_path / "out"), told)
    assert not (tmp_path / "out").exists()


def test_refuses_local_weights_that_did_not_move(files: Path, tmp_path: Path) -> None:
    refused(invoke(files / "global", "--local", weights=files / "global"), "the local weights equal the global ones")


def test_refuses_files_that_are_none(files: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    refused(invoke(tmp_path / "none"), "UPDATE: there is no file")
    refused(invoke(tmp_path), "holds no recording (no recording.json)")
    refused(invoke(tmp_path / "text"), "cannot be read as safetensors")
    refused(invoke(files / "update", weights=tmp_path / "none"), "--weights: there is no file")
    refused(invoke(files / "update", truth=tmp_path / "none"), "--truth: there is no file")
    (tmp_path / "result.json").write_text("{}")
    refused(invoke(files / "update", "--out", tmp_path), "already holds results")
    refused(invoke(files / "update", "--out", tmp_path / "text"), "text is a file, and results need a folder")


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "labels-count": ({"labels": "3,5"}, "--labels holds 2 classes; --num-examples is 1"),
    "labels-range": ({"labels": "10"}, "--labels is '10'; allowed: classes from 0 to 9"),
    "labels-text": ({"labels": "cat"}, "--labels is 'cat'"),
    "labels-long": ({"labels": "9" * 5000}, "allowed: classes from 0 to 9"),
    "attack": ({"attack": "DLGG()"}, "--attack: unknown attack 'DLGG', did you mean 'DLG'?"),
    "attack-argument": ({"attack": "DLG(iterations=0)"}, "iterations is 0; allowed"),
    "attack-markup": ({"attack": "[red]DLG()"}, "[red]DLG()"),
    "no-attack": ({"attack": ";"}, "--attack is ';'"),
    "history": ({"attack": "ClassGAN()"}, "several rounds"),
    "membership": ({"attack": "LossThreshold()"}, "judges records"),
    "auxiliary": ({"attack": "InvertingGradients() | LearnedRestorer()"}, "--auxiliary"),
    "auxiliary-name": ({"auxiliary": "mnits"}, "--auxiliary: unknown data set 'mnits'"),
    "auxiliary-missing": ({"auxiliary": "cifar10"}, "set --data-dir to the directory that holds it"),
    "auxiliary-classes": ({"auxiliary": "photos"}, "--auxiliary photos has 8 classes"),
    "defense": ({"defense": "Nothing()"}, "--defense: unknown defence 'Nothing'"),
    "wrong-defense": ({"attack": "InvertingGradients() | WindowMean()"}, "WindowMean"),
    "model": ({"model": "lennet"}, "--model lennet: unknown model 'lennet'"),
    "norm": ({"norm": "layer"}, "norm is 'layer'"),
    "width": ({"width": 3}, "width is 3"),
    "classes": ({"num_classes": 1}, "--num-classes is 1"),
    "other-classes": ({"num_classes": 7}, "the model (7"),
    "shape": ({"input_shape": "28,28"}, "--input-shape is '28,28'; allowed"),
    "shape-huge": ({"input_shape": "1,9999999,9999999"}, "9999999"),
    "mean": ({"mean": "0.1,0.2"}, "--mean is '0.1,0.2'; allowed: one number"),
    "std": ({"std": "0"}, "--std is '0'; allowed: positive"),
    "std-text": ({"std": "nan"}, "--std is 'nan'"),
    "examples": ({"num_examples": 0}, "--num-examples is 0"),
    "too-many-examples": ({"num_examples": 10**9}, "--num-examples is 1000000000; allowed: at most"),
    "steps": ({"local_steps": 0}, "--local-steps is 0"),
    "batch": ({"batch_size": 2}, "--batch-size is 2; allowed: at most --num-examples, 1"),
    "rate": ({"learning_rate": 0}, "--learning-rate is 0.0; allowed: a positive number"),
    "rate-nan": ({"learning_rate": "nan"}, "--learning-rate is nan"),
    "decay": ({"weight_decay": -1}, "--weight-decay is -1.0"),
    "momentum": ({"momentum": 1}, "--momentum is 1.0; allowed: from 0, below 1"),
    "momentum-nan": ({"momentum": "nan"}, "--momentum is nan"),
    "seed": ({"seed": -1}, "--seed is -1"),
    "memory": ({"num_examples": 900_000, "attack": "DLG(max_images=900000)"}, "GB are free; lower its max_images"),
}


def test_nesterov_without_momentum_is_refused(files: Path) -> None:
    refused(invoke(files / "update", "--nesterov"), "--nesterov needs a --momentum above 0")


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_refuses_options_before_any_work(files: Path, tmp_path: Path, case: str) -> None:
    changes, told = BAD_OPTIONS[case]
    refused(invoke(files / "update", "--out", tmp_path / "out", **changes), told)
    assert not (tmp_path / "out").exists()


def test_refuses_a_truth_that_is_no_picture(files: Path, tmp_path: Path) -> None:
    images, labels = digit()
    for at, (truth, told) in enumerate([
        ({"pictures": images}, "'pictures'; allowed: 'images'"),
        ({"images": images * 255}, "allowed: 0 to 1, before normalisation"),
        ({"images": images[:, :, :9]}, "(1, 1, 9, 28)"),
        ({"images": (images * 255).to(torch.uint8)}, "torch.uint8"),
        ({"images": images, "labels": labels + 10}, "whole numbers from 0 to 9"),
        ({"images": images * torch.nan}, "run from nan to nan"),
        ({"images": images, "labels": labels + 10}, f"run from {int(labels) + 10} to"),
        ({"images": images, "labels": labels.float()}, "torch.float32 (1,)"),
        ({"images": images, "labels": labels.bool()}, "torch.bool (1,)"),
    ]):  # fmt: skip
        save_file({name: value.contiguous() for name, value in truth.items()}, tmp_path / str(at))
        refused(invoke(files / "update", truth=tmp_path / str(at)), told)


def test_what_a_request_leaves_out_is_what_an_observation_leaves_out() -> None:
    """Plain SGD: no decay, no momentum."""
    own = {field.name: field.default for field in fields(ClientUpdate)}
    asked = {field.name: field.default for field in fields(Request)}
    for name in ("weight_decay", "momentum", "nesterov"):
        assert asked[name] == own[name], name
    assert asked["eval_mode"] is (not own["train_mode"])


@pytest.mark.long
def test_who_interrupts_a_long_attack_keeps_what_was_found(files: Path, tmp_path: Path) -> None:
    command = [
        "fedveil", "attack", str(files / "update"), "--model", "lenet", "--num-classes", "10",
        "--input-shape", "1,28,28", "--learning-rate", str(RATE), "--truth", str(files / "truth"),
        "--attack", "LabelInference(); InvertingGradients(iterations=1000000, restarts=1)", "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    # What starts in the background ignores SIGINT, and so would this process's children.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heard}; import sys; sys.argv = {command!r}; from simulations.cli import main; main()"
    running = subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    with running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("InvertingGradients("):
                break
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=600)
    assert running.returncode == 130
    assert f"stopped; what the attacks before had found is kept in {tmp_path / 'out'}" in told
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["interrupted"].startswith("InvertingGradients(iterations=1000000")
    (entry,) = result["attacks"]
    assert entry["attack"] == "LabelInference()"
    assert entry["scores"]["label-accuracy"] == 1.0
    assert "LabelInference/labels" in load_file(tmp_path / "out" / "guesses.safetensors")
