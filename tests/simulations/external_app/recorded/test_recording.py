"""``fedveil attack FOLDER``: from the recording of somebody's strategy to a report, with and without the true images."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from attacks.metrics.names import GuessName, Role
from clients.data.datasets import load_dataset
from simulations.external_app.recorded import attack_recording, audit
from simulations.external_app.recorded.originals import Truth
from tests.lines import read_lines
from tests.simulations.external_app.recorded.recordings import DLG, EXACT, MEAN, STD, invoke, page_of, record


@pytest.mark.long
def test_without_originals_it_guesses_reports_and_claims_nothing(tmp_path: Path) -> None:
    folder, out = record(tmp_path, rounds=2, names=False), tmp_path / "out"
    result = invoke(folder, "--local-steps", 1, out=out, attack=f"{DLG}; LabelInference()")
    assert result.exit_code == 0, result.output
    rows = read_lines(out / "rows.jsonl")
    assert {row["round"] for row in rows} == {1, 2}
    assert not [row for row in rows if row["metric"] in ("psnr", "ssim", "retrieval", "label-accuracy")]
    assert len(read_lines(out / "pictures" / "index.jsonl")) == 4, "a guess of each node in each round"
    page = page_of(out)
    assert "No guess was scored: the true images were not given" in page.split("Headline")[0]
    assert "No attack on the images has a score, so nothing is known about them" in page
    assert "so they were taken in order" in page
    assert "not known: Which classes the examples have" in result.output
    said = " ".join(result.output.split())
    assert "No guess was scored, as no originals were given. The guesses of" in said
    assert f"are in {out / 'guesses'}" in said
    assert result.output.splitlines()[-1] == f"report: {out / 'report.html'}"
    for word in (
        "Which loss the clients used",
        "dropout acted",
        "layers were frozen that",
        "names and shapes",
        "hold weights",
    ):
        assert word in result.output
    assert (out / "guesses" / "round-0002-client-1.safetensors").is_file()


@pytest.mark.long
def test_who_interrupts_it_keeps_what_every_attack_has_found_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = record(tmp_path, rounds=3, names=False), tmp_path / "out"
    attacked = audit.guess_safely

    def interrupted(attack: Any, seen: Any, seed: int, server_round: int, client: int) -> Any:
        if server_round == 2 and "DLG" in repr(attack):
            raise KeyboardInterrupt
        return attacked(attack, seen, seed, server_round, client)

    monkeypatch.setattr(audit, "guess_safely", interrupted)
    result = invoke(folder, "--local-steps", 1, out=out, attack=f"LabelInference(); {DLG}")
    assert result.exit_code == 130
    assert f"stopped; what the attacks before had found is kept in {out}" in " ".join(result.output.split())
    rows = read_lines(out / "rows.jsonl")
    found = {
        (row["round"], row["attack"].partition("(")[0]) for row in rows if row["attack"] and ":" not in row["attack"]
    }
    assert {(1, "LabelInference"), (1, "DLG"), (2, "LabelInference")} <= found
    assert not found & {(2, "DLG"), (3, "LabelInference"), (3, "DLG")}
    assert json.loads((out / "config.json").read_text())["progress"]["finished"] is False
    assert (out / "report.html").is_file()
    with safe_open(out / "guesses" / "round-0002-client-1.safetensors", framework="pt") as kept:
        assert [name.partition("/")[0] for name in kept.keys()] == ["LabelInference"]  # noqa: SIM118 (not a mapping)


@pytest.mark.long
def test_with_originals_it_scores_and_digits_come_back(tmp_path: Path) -> None:
    folder, out = record(tmp_path, **{"local-epochs": 1, "batch-size": 1}), tmp_path / "out"
    result = invoke(folder, "--json", originals=tmp_path / "originals", out=out, attack=f"{DLG}; LabelInference()")
    assert result.exit_code == 0, result.output
    rows = read_lines(out / "rows.jsonl")
    told = {one["attack"]: one for one in json.loads(result.stdout)["attacks"]}
    assert told["LabelInference()"]["labels"] == 1.0
    assert [(one["round"], one["psnr"], one["status"]) for name, one in told.items() if name.startswith("DLG")] == [
        (1, row["value"], row["status"]) for row in rows if row["attack"].startswith("DLG") and row["metric"] == "psnr"
    ]
    mine = {(row["attack"], row["metric"]): row for row in rows}
    attack = next(name for name, metric in mine if name.startswith("DLG") and metric == "psnr")
    assert mine[attack, "psnr"]["value"] > mine["grey", "psnr"]["value"] + 3
    assert mine[attack, "psnr"]["n"] == 2
    assert mine[attack, "psnr"]["status"] == "under-powered", "two images are no verdict"
    assert mine["LabelInference()", "label-accuracy"]["value"] == 1.0
    index = read_lines(out / "pictures" / "index.jsonl")
    assert sorted(one["kind"] for one in index) == ["original"] * 2 + ["reconstruction"] * 2
    assert "Under-powered: too few images for a verdict." in page_of(out)


def test_what_a_recorded_app_says_about_its_privacy_is_on_the_page_and_in_json(tmp_path: Path) -> None:
    """The metrics of every reply, and the strategy's wrapper by its name; JSON of a recording has no infinity."""
    folder, out = record(tmp_path, rounds=2), tmp_path / "out"
    about = json.loads((folder / "recording.json").read_text())
    wrapper = "DifferentialPrivacyServerSideFixedClipping"
    (folder / "recording.json").write_text(json.dumps(about | {"strategy": [wrapper, *about["strategy"]]}))
    for path, epsilon in zip(sorted(folder.glob("round-*/train-*.json")), (2.5, 7.0, "inf", 4.0), strict=True):
        reply = json.loads(path.read_text())
        reply["metrics"]["metrics"] |= {"epsilon": epsilon, "delta": 1e-5}
        path.write_text(json.dumps(reply))
    result = invoke(folder, "--local-steps", 1, "--json", out=out, attack="LabelInference()")
    assert result.exit_code == 0, result.output
    metrics, server = json.loads(result.stdout)["claims"]
    assert (metrics["epsilon"], metrics["lowest"], metrics["delta"], metrics["rounds"]) == (7.0, 2.5, 1e-5, 2)
    assert "1 value of epsilon was left out" in metrics["text"]
    assert f"The server's {wrapper} claims differential privacy in 2 rounds" in server["text"]
    said = [metrics["text"], server["text"]]
    assert all(row["card"]["claimed_privacy"] == said for row in read_lines(out / "rows.jsonl"))
    page = html.unescape(page_of(out))
    assert all(text in page for text in said)
    assert not json.loads(invoke(record(tmp_path / "b"), "--local-steps", 1, "--json", out=tmp_path / "c",
                                 attack="LabelInference()").stdout)["claims"]  # fmt: skip


def test_guesses_are_pictured_under_the_number_of_the_original_that_they_are_scored_against(tmp_path: Path) -> None:
    folder, out = record(tmp_path, model="mlp", each=4, batch=4), tmp_path / "out"
    attack = "InvertingGradients(iterations=2, restarts=1, max_images=2)"
    options = {"originals": tmp_path / "originals", "attack": attack, "model": "mlp"}
    assert invoke(folder, "--local-steps", 1, out=out, **options).exit_code == 0
    shown = [one for one in read_lines(out / "pictures" / "index.jsonl") if one["client"] == 0]
    guesses = load_file(out / "guesses" / "round-0001-client-0.safetensors")["InvertingGradients/images"]
    truth = load_file(tmp_path / "originals" / "round-0001-node-11.safetensors")["images"]
    numbers = Truth(truth, None, truth[:0]).pairs(guesses)[1].tolist()
    assert [one["image"] for one in shown if one["kind"] == "original"] == [0, 1, 2, 3]
    assert [one["image"] for one in shown if one["kind"] == "reconstruction"] == sorted(numbers)
    told = json.loads((out / "config.json").read_text())
    assert (told["config"]["scenario"], told["progress"]["finished"]) == ("recording", True)
    assert not (out / "jobs").exists()


@pytest.mark.parametrize("scored", [True, False])
def test_an_attack_that_fails_on_every_reply_leaves_a_row_and_alone_ends_with_1(tmp_path: Path, scored: bool) -> None:
    """The exact attack reads a linear layer on the pixels, which a convolutional network lacks."""
    folder, out = record(tmp_path), tmp_path / "out"
    originals = {"originals": tmp_path / "originals"} if scored else {}
    result = invoke(folder, "--local-steps", 1, out=out, attack=EXACT, **originals)
    assert result.exit_code == 1, result.output
    (row,) = [row for row in read_lines(out / "rows.jsonl") if row["metric"] == "attack"]
    assert (row["status"], row["n"], row["failures"]) == ("failed", 2, 2)
    assert row["message"] == "; ".join(row["card"]["attack_failures"]) != ""


@pytest.mark.long
def test_a_recording_of_somebodys_own_network(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n"
        "    def __init__(self, num_classes):\n        super().__init__()\n"
        "        self.last = torch.nn.Linear(784, num_classes)\n\n"
        "    def forward(self, images):\n        return self.last(torch.sinc(images.flatten(1)))\n"
    )
    folder, out = record(tmp_path, model=f"{file}:Net", **{"local-epochs": 1, "batch-size": 1}), tmp_path / "out"
    result = invoke(folder, originals=tmp_path / "originals", out=out, attack="LabelInference()", model=f"{file}:Net")
    assert result.exit_code == 0, result.output
    rows = [row for row in read_lines(out / "rows.jsonl") if row["metric"] == "label-accuracy"]
    assert [row["value"] for row in rows if row["attack"] == "LabelInference()"] == [1.0]
    refused = invoke(folder, out=tmp_path / "other", attack="LabelInference()", model=f"{file}:Other")
    assert refused.exit_code == 2
    assert "has no 'Other'; in it are Net" in " ".join(refused.stderr.split())
    assert not (tmp_path / "other").exists()


@pytest.mark.long
def test_a_batch_of_32_on_a_relu_network_gets_a_plain_verdict(tmp_path: Path) -> None:
    """The oldest open wish of the field: a usual batch of a usual network, from a recording; a weak attack is not validated."""
    folder, out = (
        record(tmp_path, model="cnn", each=32, batch=32, **{"local-epochs": 1, "batch-size": 32}),
        tmp_path / "out",
    )
    attack = "InvertingGradients(iterations=3, restarts=1, max_images=32)"
    options = {
        "originals": tmp_path / "originals",
        "auxiliary": "mnist-5k",
        "out": out,
        "attack": attack,
        "model": "cnn",
    }
    result = invoke(folder, **options)
    assert result.exit_code == 0, result.output
    rows = read_lines(out / "rows.jsonl")
    psnr = next(row for row in rows if row["metric"] == "psnr" and row["attack"].startswith("Inv"))
    assert (psnr["n"], psnr["status"]) == (64, "not-validated")
    assert (psnr["card"]["batch"], psnr["card"]["local_steps"]) == (32, 1)
    page = page_of(out)
    assert "Not validated: no attack here recovered these images (the run as recorded scores no better than " in page
    assert "No defence known" in page
    assert psnr["card"]["reported_defence"].startswith("none: whether one acted on the replies before they were sent")


@pytest.mark.long
def test_what_an_exact_attack_recovers_is_validated(tmp_path: Path) -> None:
    """A linear layer that sees the pixels gives a single image away: a closed form, so the verdict must be the opposite."""
    steps = {"local-epochs": 1, "batch-size": 1}
    folder, out = record(tmp_path, model="mlp", nodes=16, **steps), tmp_path / "out"
    options = {"originals": tmp_path / "originals", "auxiliary": "mnist-5k", "model": "mlp", "attack": EXACT}
    result = invoke(folder, out=out, **options)
    assert result.exit_code == 0, result.output
    psnr = next(
        row for row in read_lines(out / "rows.jsonl") if row["metric"] == "psnr" and row["attack"].startswith("Spear")
    )
    assert (psnr["n"], psnr["status"]) == (16, "ok")
    assert psnr["value"] > 60, "exact but for the rounding of float32 weights, whose difference the update is"
    page = page_of(out)
    assert "in round 1 recovered images from these updates." in page
    assert "Where no defence is known: readable (" in page
    result = invoke(folder, out=tmp_path / "told", defense="GaussianNoise(std=0.1)", **options)
    assert result.exit_code == 0, result.output
    page = page_of(tmp_path / "told")
    assert "Without an undefended recording the report cannot show" in page
    assert "there is no run without the defence beside this one" in page


@pytest.mark.long
def test_what_a_vision_transformer_gives_away_is_validated(tmp_path: Path) -> None:
    """Its position embedding shows the gradient of each token, so that the patches are the solution of a linear system."""
    steps = {"local-epochs": 1, "batch-size": 1}
    folder, out = record(tmp_path, model="vit_lite", width=64, nodes=16, **steps), tmp_path / "out"
    result = invoke(
        folder, out=out, originals=tmp_path / "originals", auxiliary="mnist-5k", model="vit_lite", width=64,
        attack="PatchEmbeddingInversion()",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = [row for row in read_lines(out / "rows.jsonl") if row["attack"].startswith("PatchEmbedding")]
    psnr = next(row for row in rows if row["metric"] == "psnr")
    assert (psnr["n"], psnr["status"]) == (16, "ok")
    assert psnr["value"] > 30, "exact but for the rounding of float32 weights, whose difference the update is"
    assert "Where no defence is known: readable (" in page_of(out)


@pytest.mark.long
def test_originals_that_went_through_the_apps_normalisation_are_no_decoys_and_nothing_to_learn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digits of the clients are of the auxiliary data set, too, and differ from it by float errors."""
    folder = record(tmp_path, model="mlp", nodes=16, **{"local-epochs": 1, "batch-size": 1})
    true = set[bytes]()
    for file in (tmp_path / "originals").iterdir():
        with safe_open(file, framework="pt") as found:
            images, labels = found.get_tensor("images"), found.get_tensor("labels")
        true.add((images * 255).round().to(torch.uint8).numpy().tobytes())
        again = (((images - MEAN) / STD) * STD + MEAN).clamp(0, 1)
        assert not torch.equal(again, images)
        save_file({"images": again, "labels": labels}, file)
    learned = list[Any]()
    real = attack_recording.fit
    monkeypatch.setattr(attack_recording, "fit", lambda a, s, known: (learned.append(known), real(a, s, known))[1])
    options = {"originals": tmp_path / "originals", "auxiliary": "mnist-5k", "model": "mlp", "attack": EXACT}
    result = invoke(folder, out=tmp_path / "out", **options)
    assert result.exit_code == 0, result.output
    rows = read_lines(tmp_path / "out" / "rows.jsonl")
    (picked,) = [row for row in rows if row["metric"] == "retrieval" and row["attack"].startswith("Spear")]
    assert (picked["value"], picked["n"]) == (1.0, 16)
    pixels = [(one * 255).round().to(torch.uint8).numpy().tobytes() for one in learned[0].auxiliary.images]
    total = len(load_dataset("mnist-5k").train)
    assert true.isdisjoint(pixels)
    assert len(pixels) == total - 16 == total - len(true)
    said = f"16 of the {total} images of --auxiliary mnist-5k are true images"
    assert said in page_of(tmp_path / "out")
    assert f"whose originals are not here: {said}" in " ".join(result.output.split())


def test_without_other_images_there_is_no_mean_image() -> None:
    """The mean of none is no baseline; grey under its name was one."""
    dark = 0.3 * torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert GuessName(Role.NULL_BASELINE, "mean") not in Truth(dark, None, dark[:0]).baselines(10)
    other = torch.full((1, 1, 8, 8), 0.25)
    found = Truth(dark, None, other).baselines(10)[GuessName(Role.NULL_BASELINE, "mean")]["mse", "original"]
    expected = (dark - 0.25).square().mean((1, 2, 3))  # guesses are alike, so that any assignment is the best
    torch.testing.assert_close(torch.tensor(sorted(found)), expected.sort().values)


def test_nobody_can_say_without_originals_what_auxiliary_data_hold(tmp_path: Path) -> None:
    folder, out = record(tmp_path, names=False), tmp_path / "out"
    result = invoke(folder, "--local-steps", 1, out=out, attack="LabelInference()", auxiliary="mnist-5k")
    assert result.exit_code == 0, result.output
    assert "Whether mnist-5k holds the clients&#39; own images" in page_of(out)
