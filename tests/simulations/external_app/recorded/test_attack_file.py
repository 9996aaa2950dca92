"""``fedveil attack``: from a real update of a digit to a picture of it, and every bad input to one clear error."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import Result

from attacks import ClientUpdate, Knowledge, Reconstruction
from attacks.choice import ON_PROBES
from attacks.observations import AttackError
from clients.data.datasets import load_dataset
from clients.data.images import to_float
from clients.models.classifiers import build_model
from defenses.base import Batch
from defenses.pipeline import Pipeline
from simulations.external_app.recorded.attack_file import attack_update, without_truth
from simulations.external_app.recorded.audit import prepare
from simulations.external_app.recorded.missing import require_complete
from simulations.external_app.recorded.settings import AttackSettings, Request
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.simulations.external_app.recorded import recordings
from tests.simulations.external_app.recorded.recordings import MEAN, RATE, STD

DIGIT = 17
NEEDED = {"model": "lenet", "num-classes": 10, "input-shape": "1,28,28"}
DLG = "DLG(iterations=150, restarts=1, labels='auto')"


GUESSES = Path("guesses", "round-0001-client-0.safetensors")


def rows_of(out: Path, metric: str = "") -> list[dict[str, Any]]:
    return [row for row in read_lines(out / "rows.jsonl") if metric in ("", row["metric"])]


def digit() -> tuple[Tensor, Tensor]:
    data = load_dataset("mnist-5k").train
    return to_float(data.images[DIGIT : DIGIT + 1]), data.labels[DIGIT : DIGIT + 1]


def network(name: str = "lenet", seed: int = 4, norm: str = "group") -> nn.Module:
    return build_model(name, num_classes=10, input_shape=(1, 28, 28), seed=seed, norm=norm)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def trained(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights before and after a step of ``torch.optim.SGD``, as another project's client makes it."""
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
    """The command with lenet's settings; ``changes`` replaces some, and None drops one."""
    return recordings.invoke(update, *options, **{"learning_rate": RATE, "normalisation": None} | changes)


def test_json_has_the_scores_of_each_attack_and_the_reasons_of_those_that_failed(files: Path, tmp_path: Path) -> None:
    result = invoke(
        files / "update", "--out", tmp_path / "out", "--json", originals=files / "truth", weights=files / "global",
        update_attacks="SpearPlusPlus(); InvertingGradients(iterations=2, restarts=1)",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["directory"], found["scored"]) == (str(tmp_path / "out"), True)
    (exact,) = (one for one in found["attacks"] if one["attack"] == "SpearPlusPlus()")
    (inverting,) = (one for one in found["attacks"] if one["attack"] != "SpearPlusPlus()")
    (psnr,) = (row for row in rows_of(tmp_path / "out", "psnr") if row["role"] == "attack")
    assert inverting["psnr"] == inverting["best_psnr"] == pytest.approx(psnr["value"])
    assert (inverting["identified"], inverting["verdict"]) == (0, "unknown"), "one picture has no others beside it"
    assert exact["failure"].startswith("does not apply: ")
    assert result.stderr == "", "that an attack does not apply is no error"


def test_examples_of_an_update_are_its_originals_and_psnr_has_its_baseline(files: Path, tmp_path: Path) -> None:
    data = load_dataset("mnist-5k").train
    save_file({"images": to_float(data.images[:4]), "labels": data.labels[:4, None].clone()}, tmp_path / "four")
    for given, count in (
        ({"originals": str(tmp_path / "four")}, 4), ({"labels": "3,5,1"}, 3), ({"batch-size": 2}, 2), ({}, 0),
        ({"originals": str(tmp_path / "four"), "num-examples": 1}, 1),
    ):  # fmt: skip
        request = require_complete(files / "update", NEEDED | given, tmp_path / "new")
        assert request.settings.num_examples == count
    attacks, out = "InvertingGradients(iterations=2, restarts=1); LabelInference()", tmp_path / "out"
    result = invoke(files / "update", "--out", out, "--json", originals=tmp_path / "four", update_attacks=attacks)
    assert result.exit_code == 0, result.output
    inverting, labels = json.loads(result.stdout)["attacks"]
    (grey,) = (row for row in rows_of(out, "psnr") if row["role"] == "null baseline")
    assert (grey["attack"], grey["n"]) == ("grey", 4)
    assert (inverting["null_psnr"], inverting["verdict"]) == (pytest.approx(grey["value"]), "unknown")
    assert (labels["null_psnr"], labels["verdict"]) == (None, "")


@pytest.mark.numeric
@pytest.mark.long
def test_a_digit_comes_back_from_its_update(files: Path, tmp_path: Path) -> None:
    from skimage.io import imread

    for kind, local in (("update", "false"), ("local", "true")):
        out = tmp_path / kind
        result = invoke(
            files / kind, "--out", out, originals=files / "truth", local=local, weights=files / "global",
            normalisation=f"{MEAN}/{STD}", update_attacks=f"{DLG}; LabelInference()",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        original = [row for row in rows_of(out) if row["reference"] in ("", "original")]
        scores = {(row["attack"], row["metric"]): row["value"] for row in original}
        assert scores[DLG, "psnr"] > 20 > 15 > scores["grey", "psnr"]
        assert scores[DLG, "label-accuracy"] == scores["LabelInference()", "label-accuracy"] == 1
        (shown,) = (one for one in read_lines(out / "pictures" / "index.jsonl") if one["attack"] == DLG)
        guesses = load_file(out / GUESSES)
        assert guesses["LabelInference/labels"].tolist() == digit()[1].tolist()
        pixels = torch.from_numpy(imread(out / "pictures" / shown["file"])) / 255
        assert torch.allclose(pixels, guesses["DLG/images"][0, 0], atol=0.51 / 255)


def test_attacks_do_not_learn_from_the_truth_that_auxiliary_data_hold(files: Path, tmp_path: Path) -> None:
    settings = AttackSettings(
        model="lenet", num_classes=10, input_shape="1,28,28", learning_rate=RATE, update_attacks="LabelInference()",
        auxiliary_data="mnist-5k", originals=str(files / "truth"),
    )  # fmt: skip
    data = load_dataset("mnist-5k").train
    told = f"1 of the {len(data)} images of auxiliary-data mnist-5k are true images: they were left out"
    assert any(told in sentence for sentence in prepare(Request(files / "update", settings)).replayed.assumed)
    near = slice(DIGIT - 5, DIGIT + 5)
    batch = Batch(to_float(data.images[near]), F.one_hot(data.labels[near], 10).float())
    knowledge = Knowledge(batch, Pipeline(), (MEAN,), (STD,), None)  # type: ignore[arg-type]
    left, _ = without_truth(knowledge, digit()[0] + 1e-7, "mnist-5k")
    assert torch.equal(left.auxiliary.images, knowledge.auxiliary.images[[0, 1, 2, 3, 4, 6, 7, 8, 9]])
    assert torch.equal(left.auxiliary.targets, knowledge.auxiliary.targets[[0, 1, 2, 3, 4, 6, 7, 8, 9]])
    with pytest.raises(ConfigError, match="holds nothing but true images"):
        without_truth(knowledge, knowledge.auxiliary.images, "mnist-5k")


def test_classes_that_the_server_knows_are_on_the_card_and_in_the_observation(files: Path, tmp_path: Path) -> None:
    """Another class than that of the digit, so that no attack infers it."""
    label = (int(digit()[1]) + 1) % 10
    attack = "InvertingGradients(iterations=1, restarts=1)"
    options = {"labels": label, "weights": files / "global", "update_attacks": attack}
    result = invoke(files / "update", "--out", tmp_path / "out", "--json", **options, originals=files / "truth")
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["attacks"]
    assert found["psnr"] is not None
    (row,) = (row for row in rows_of(tmp_path / "out", "psnr") if row["role"] == "attack")
    assert row["card"]["labels"] == "known"
    guessed = load_file(tmp_path / "out" / GUESSES)["InvertingGradients/labels"]
    assert guessed.tolist() == [label]


def test_the_truth_never_reaches_the_attack(files: Path, tmp_path: Path) -> None:
    save_file({"images": torch.rand(1, 1, 28, 28)}, tmp_path / "other")
    seen = []
    for name, truth in (("a", files / "truth"), ("b", tmp_path / "other"), ("c", None)):
        given = {"weights": files / "global", "originals": truth, "update_attacks": "DLG(iterations=3)"}
        invoke(files / "update", "--out", tmp_path / name, **given)
        seen.append(load_file(tmp_path / name / GUESSES)["DLG/images"])
        assert bool(rows_of(tmp_path / name, "psnr")) == (truth is not None)
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


def test_an_attack_that_crashes_leaves_the_others(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"weights": files / "global", "originals": files / "truth"}
    for name, error in (("crash", ZeroDivisionError("oops")), ("stop", KeyboardInterrupt())):

        def broken(*_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr("attacks.gradient.inversion.GradientInversion.attack_many", broken)
        order = {} if name == "crash" else {"update_attacks": "LabelInference(); InvertingGradients()"}
        result = invoke(files / "update", "--out", tmp_path / name, **given, **order)
        assert result.exit_code == (0 if name == "crash" else 130), result.output
        rows = rows_of(tmp_path / name)
        (right,) = (r for r in rows if r["attack"] == "LabelInference()" and r["metric"] == "label-accuracy")
        assert right["value"] == 1
        assert "LabelInference/labels" in load_file(tmp_path / name / GUESSES)
        if name == "crash":
            failed = {row["attack"]: row["message"] for row in rows if row["metric"] == "attack"}
            assert set(map(repr, ON_PROBES)) == {r["attack"] for r in rows if r["role"] == "attack" and r["attack"]}
            crashed = failed["InvertingGradients(iterations=150, max_images=16)"]
            assert crashed == "ZeroDivisionError: oops"
            assert failed[repr(ON_PROBES[0])].startswith("does not apply")
        else:
            assert json.loads((tmp_path / name / "config.json").read_text())["progress"]["finished"] is False


BAD_FILES: dict[str, tuple[Any, str]] = {
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


def test_refuses_updates_that_do_not_fit(files: Path, tmp_path: Path) -> None:
    for case, (change, told) in BAD_FILES.items():
        change(tensors := load_file(files / "update"))
        save_file(tensors, tmp_path / case)
        refused(invoke(tmp_path / case, "--out", tmp_path / "out"), told)
        assert not (tmp_path / "out").exists(), case
    still = invoke(files / "global", local="true", weights=files / "global")
    refused(still, "the local weights equal the global ones")


def test_refuses_files_that_are_none(files: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "rows.jsonl").write_text("{}")
    update = files / "update"
    for result, told in (
        (invoke(tmp_path / "none"), "none does not exist; name a file or a folder"),
        (invoke(tmp_path), "holds no recording (no recording.json)"),
        (invoke(tmp_path / "text"), "cannot be read as safetensors"),
        (invoke(update, weights=tmp_path / "none"), "weights: there is no file"),
        (invoke(update, originals=tmp_path / "none"), "originals: there is no file"),
        (invoke(update, "--out", tmp_path), "is not empty: it holds 'rows.jsonl'; name another folder"),
        (invoke(update, "--out", tmp_path / "text"), "text is a file, and results need a folder"),
        (invoke(update, nesterov="true"), "nesterov is true with a momentum of 0; allowed: with a momentum above 0"),
    ):
        refused(result, told)


BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"labels": "3,5", "num_examples": 1}, "labels holds 2 classes; num-examples is 1"),
    ({"labels": "10"}, "labels is '10'; allowed: classes from 0 to 9"),
    ({"labels": "9" * 5000}, "allowed: classes, such as 3,5"),
    ({"update_attacks": "DLGG()"}, "update-attacks: unknown attack 'DLGG', did you mean 'DLG'?"),
    ({"update_attacks": "DLG(iterations=0)"}, "iterations is 0; allowed"),
    ({"update_attacks": "ClassGAN()"}, "several rounds"), ({"update_attacks": "LossThreshold()"}, "judges records"),
    ({"update_attacks": "InvertingGradients() | LearnedRestorer()"}, "auxiliary-data"),
    ({"update_attacks": "InvertingGradients() | WindowMean()"}, "WindowMean"),
    ({"auxiliary_data": "cifar10"}, "set data-dir to the directory that holds it"),
    ({"auxiliary_data": "photos"}, "auxiliary-data photos has 8 classes"),
    ({"defenses": "Nothing()"}, "defenses: unknown defence 'Nothing'"),
    ({"model": "lennet"}, "model lennet: unknown model 'lennet'"), ({"num_classes": 7}, "the model (7"),
    ({"input_shape": "28,28"}, "input-shape is '28,28'; allowed"), ({"input_shape": "1,9999999,9999999"}, "9999999"),
    ({"normalisation": "0.1,0.2/1"}, "normalisation is '0.1,0.2/1'; allowed: one number"),
    ({"normalisation": "0/0"}, "normalisation is '0/0'; allowed: mean/std"),
    ({"num_examples": 10**9}, "num-examples is 1000000000; allowed: a whole number from 0 to 1000000"),
    ({"batch_size": 2, "num_examples": 1}, "batch-size is 2; allowed: at most num-examples, 1"),
    ({"learning_rate": -1}, "learning-rate is -1; allowed: 0, or a number from 1e-12"),
    ({"num_examples": 900_000, "update_attacks": "DLG(max_images=900000)"}, "GB are free; lower its max_images"),
]  # fmt: skip


def test_refuses_settings_before_any_work(files: Path, tmp_path: Path) -> None:
    for changes, told in BAD_SETTINGS:
        refused(invoke(files / "update", "--out", tmp_path / "out", **changes), told)
        assert not (tmp_path / "out").exists(), changes


def test_refuses_a_truth_that_is_no_picture(files: Path, tmp_path: Path) -> None:
    images, labels = digit()
    for at, (truth, told) in enumerate([
        ({"pictures": images}, "'pictures'; allowed: 'images'"),
        ({"images": images * 255}, "allowed: 0 to 1, before normalisation"),
        ({"images": images[:, :, :9]}, "(1, 1, 9, 28)"),
        ({"images": (images * 255).to(torch.uint8)}, "torch.uint8"),
        ({"images": images, "labels": labels + 10}, "whole numbers from 0 to 9"),
        ({"images": images * torch.nan}, "run from nan to nan"),
        ({"images": images, "labels": labels.float()}, "torch.float32 (1,)"),
    ]):  # fmt: skip
        save_file({name: value.contiguous() for name, value in truth.items()}, tmp_path / str(at))
        refused(invoke(files / "update", originals=tmp_path / str(at)), told)
