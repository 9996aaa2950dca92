"""``fedveil attack`` on a final model: released weights, or predictions; digits that it has learned by heart."""

import csv
import json
import shutil
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import RMIA, ShadowModels
from attacks.local_model import shared_tensors
from attacks.membership.loss_threshold import predict
from attacks.normalisation import normalise
from attacks.scoring.intervals import Estimate
from attacks.scoring.roc import auc
from clients.data.card import DataCard
from clients.data.datasets import load_dataset
from clients.models.classifiers import build_model
from clients.outsourced.messages import OutsourcedPlan
from clients.task.auxiliary import Auxiliary
from clients.task.batches import local_batch
from clients.wire.records import tensors_of
from defenses.base import Batch
from simulations.experiment.experiment import Experiment
from simulations.external_app.recorded.missing import require_complete
from simulations.external_app.released.doubts import DIFFER, INCONSISTENT, UNCOMPARED, WORSE, Null, general_doubt
from simulations.external_app.released.model import ReleasedModel, prepare
from simulations.external_app.released.records import ReleasedPlan, read_pictures
from strategies.audit.jobs import AttackJob
from strategies.audit.kinds import Observed, Seen
from strategies.audit.runner import run_job
from strategies.audit.threat_card import ThreatCard
from strategies.outsourced.observations import MODEL as KIND
from strategies.training.central_training import train_alone
from tests.attacks.membership.remembering import digits
from tests.common.test_documented_code import commands
from tests.lines import read_lines
from tests.simulations.commands import fedveil, refused
from tests.simulations.short_runs import Wire, rows_of

MEMBERS, OTHERS = 120, 240
TRAINING: dict[str, Any] = {"learning-rate": 0.1, "batch-size": 16, "local-epochs": 30, "momentum": 0.5}
MODEL = {"model": "mlp", "width": 32, "num-classes": 10, "input-shape": "1,28,28", "normalisation": "0.13/0.31"}
LOSS = "LossThreshold()"


def words_of(**settings: Any) -> list[str]:
    """Settings as words of a command."""
    named = {**MODEL, **TRAINING, **{name.replace("_", "-"): value for name, value in settings.items()}}
    return [word for name, value in named.items() if value is not None for word in ("-s", f"{name}={value}")]


def picture(folder: Path, image: Tensor, label: int, number: int) -> None:
    (folder / str(label)).mkdir(parents=True, exist_ok=True)
    Image.fromarray((image[0] * 255).round().byte().numpy()).save(folder / str(label) / f"{number:04d}.png")


def pictures(folder: Path, first: int, count: int) -> Path:
    """Digits of the set whose labels are in part wrong, from ``first`` on, in folders of their labels."""
    images, labels = digits()
    for label in range(10):
        (folder / str(label)).mkdir(parents=True)
    for at in range(first, first + count):
        picture(folder, images[at], int(labels[at]), at)
    return folder


@cache
def overfitted() -> nn.Module:
    """A model that fedveil trained on the first digits until it knows their wrong labels, too."""
    plan = ReleasedPlan.known(
        scenario="released", dataset="", model="mlp", seed=3, rounds=1, members="elsewhere",
        card=DataCard(10, (1, 28, 28), (0.13,), (0.31,)),
        **{name.replace("-", "_"): value for name, value in (TRAINING | {"width": 32}).items()},
    )  # fmt: skip
    images, labels = digits()
    return train_alone(plan, Batch(images[:MEMBERS], F.one_hot(labels[:MEMBERS], 10).float()), 5)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the weights, the pictures that trained them (in), others (out), and as many others (new)."""
    folder = tmp_path_factory.mktemp("release")
    save_file(shared_tensors(overfitted()), folder / "model.safetensors")
    pictures(folder / "in", 0, MEMBERS)
    pictures(folder / "out", MEMBERS, OTHERS)
    pictures(folder / "new", MEMBERS + OTHERS, MEMBERS)
    return folder


def options(release: Path, **changed: Any) -> list[str]:
    """The three options, with other folders or files; None leaves one out."""
    paths = {
        "weights": release / "model.safetensors",
        "members": release / "in",
        "nonmembers": release / "out",
    } | changed
    return [word for name, path in paths.items() if path is not None for word in (f"--{name}", str(path))]


def attacked(out: Path, *words: str) -> dict[str, Any]:
    """What the command tells a program."""
    code, told = fedveil("attack", *words, "--json", "--out", out)
    assert code == 0, told
    found: dict[str, Any] = json.loads(told)
    return found


@pytest.fixture(scope="module")
def audited(release: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("audited") / "out"
    return out, attacked(out, *options(release), *words_of())


@pytest.mark.long
@pytest.mark.numeric
def test_a_model_that_learned_by_heart_gives_its_pictures_away(audited: tuple[Path, dict[str, Any]]) -> None:
    out, told = audited
    assert (told["members"], told["nonmembers"], told["set_aside"]) == (MEMBERS, OTHERS // 2, OTHERS // 2)
    by_name = {attack["attack"]: attack for attack in told["attacks"]}
    assert {name.split("(")[0] for name in by_name} == {"LossThreshold", "ShadowModels", "LiRA", "RMIA"}
    for attack in by_name.values():
        assert (attack["verdict"], attack["status"], attack["failure"]) == ("infers members", "ok", "")
        assert 0.55 < attack["low"] < attack["auc"] < attack["high"]
        assert 0 <= attack["tpr_low"] <= attack["tpr"] <= attack["tpr_high"] <= 1
        assert (attack["attack"] == LOSS) == (attack["shadow_auc"] is None)
    rows = read_lines(out / "rows.jsonl")
    assert {"membership-auc", "membership-tpr", "test-accuracy"} <= {row["metric"] for row in rows}
    (card,) = (row["card"] for row in rows if (row["attack"], row["metric"]) == ("LiRA()", "membership-auc"))
    assert (card["members"], card["others"], card["observation"]) == (MEMBERS, OTHERS // 2, "trained model")
    assert card["shadow_training"].startswith("30 epochs of SGD in batches of 16, learning rate 0.1, momentum 0.5")
    assert "Attacks infer members (highest AUC: 0." in (out / "report.html").read_text(encoding="utf-8")
    again = {row["attack"]: row["value"] for row in rows if row["metric"] == "membership-auc"}
    assert again == {name: attack["auc"] for name, attack in by_name.items()}


@pytest.mark.numeric
def test_pictures_that_never_trained_the_model_are_at_chance(release: Path, tmp_path: Path) -> None:
    """Of 120 against 240 records of one distribution the AUC has a standard deviation of 0.032."""
    members = shutil.copytree(release / "new", tmp_path / "new")
    first = next(members.glob("3/*.png"))
    shutil.copy(first, first.with_stem("copy"))
    told = attacked(tmp_path / "out", *options(release, members=members), *words_of(update_attacks=LOSS))
    assert (told["members"], told["copies"]) == (MEMBERS, 1)
    (attack,) = told["attacks"]
    assert told["set_aside"] == 0
    assert abs(attack["auc"] - 0.5) < 4 * 0.032
    assert attack["high"] - attack["low"] > 0.08
    cards = [row["card"] for row in read_lines(tmp_path / "out" / "rows.jsonl") if row["metric"] == "membership-auc"]
    assert [card["normalisation"] for card in cards] == ["0.13/0.31"]


def prepared(release: Path, out: Path, **settings: Any) -> ReleasedModel:
    paths = {"--weights": release / "model.safetensors", "--members": release / "in", "--nonmembers": release / "out"}
    return prepare(require_complete(None, {**MODEL, **TRAINING, **settings}, out, paths))


def test_no_record_is_tested_that_trained_a_shadow_model(release: Path, tmp_path: Path) -> None:
    pixels = {}
    for seed in (0, 0, 1):
        model = prepared(release, tmp_path / "out", seed=seed)
        own, records = Auxiliary(model.plan).examples(), model.records
        tested = records.test_plain(torch.arange(records.num_test))
        assert (len(own), len(tested)) == (OTHERS // 2, OTHERS // 2)
        assert not {image.numpy().tobytes() for image in own.images} & {
            image.numpy().tobytes() for image in tested.images
        }
        assert (own.targets.sum(0) - tested.targets.sum(0)).abs().max() <= 1  # of each class
        assert pixels.setdefault(seed, tested.images).equal(tested.images)
    assert not pixels[0].equal(pixels[1])


def test_grey_pictures_are_given_to_a_model_of_three_channels(release: Path, tmp_path: Path) -> None:
    grey = prepared(release, tmp_path / "out", **{"update-attacks": LOSS}).records
    model = build_model("mlp", num_classes=10, input_shape=(3, 28, 28), width=32)
    save_file(shared_tensors(model), tmp_path / "colours.safetensors")
    paths = {
        "--weights": tmp_path / "colours.safetensors",
        "--members": release / "in",
        "--nonmembers": release / "out",
    }
    values = {
        **MODEL,
        **TRAINING,
        "input-shape": "3,28,28",
        "normalisation": "0.1,0.1,0.1/0.3,0.3,0.3",
        "update-attacks": LOSS,
    }
    colours = prepare(require_complete(None, values, tmp_path / "out", paths)).records
    at = torch.arange(3)
    assert colours.plain(at).images.equal(grey.plain(at).images.expand(-1, 3, -1, -1))


def test_unlike_shares_of_classes_have_no_verdict_whatever_the_null_says() -> None:
    """And models that learned nothing compare no folders, nor is one right that knows its members less than these."""
    alike, skewed = torch.arange(100) % 2, (torch.arange(100) < 80).long()
    chance, sure = Null(Estimate(0.5, 0.45, 0.55), 0.5), Null(Estimate(0.5, 0.45, 0.55), 0.8)
    strong, tied, apart = (
        Null(Estimate(*area), right)
        for area, right in (((0.5, 0.45, 0.55), 0.95), ((0.5, 0.5, 0.5), 0.8), ((0.6, 0.55, 0.65), 0.8))
    )
    for members, null, right, said in (
        (alike, sure, 0.9, ""), (skewed, sure, 0.9, DIFFER), (skewed, None, 0.9, DIFFER), (alike, chance, 0.9, UNCOMPARED),
        (alike, strong, 0.7, WORSE), (alike, None, 0.5, INCONSISTENT), (alike, apart, 0.9, DIFFER), (alike, tied, 0.9, UNCOMPARED),
    ):  # fmt: skip
        records: Any = SimpleNamespace(
            card=DataCard(2, (1, 1, 1), (0.0,), (1.0,)), num_train=100, num_test=100,
            train_labels=lambda members=members: members, test_labels=lambda: alike,
        )  # fmt: skip
        assert general_doubt(records, null, right) == said, (null, right)


OWN_DATA = """
import numpy as np
from pathlib import Path

def digits():
    with np.load(Path(__file__).with_name("records.npz")) as held:
        return [list(zip(held[f"{name}_images"], held[name].tolist())) for name in ("train", "test")]
"""


@pytest.fixture
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which the folder of the file is added


def own_data(folder: Path, train: Batch, test: Batch) -> str:
    """A data set for runs, as a person would write one."""
    arrays = {}
    for name, batch in (("train", train), ("test", test)):
        arrays[name] = batch.targets.argmax(1).numpy()
        arrays[f"{name}_images"] = (batch.images * 255).round().byte().permute(0, 2, 3, 1).numpy()
    folder.mkdir()
    np.savez(folder / "records.npz", **arrays)
    (folder / "own.py").write_text(OWN_DATA)
    return f"{folder}/own.py:digits"


@pytest.mark.long
@pytest.mark.usefixtures("own_path")
def test_a_run_that_trained_the_model_has_the_same_score(release: Path, tmp_path: Path) -> None:
    records = prepared(release, tmp_path / "prepared", **{"update-attacks": LOSS}).records
    name = own_data(tmp_path / "own", records.originals(), records.test_plain(torch.arange(records.num_test)))
    wire, settings = Wire(), {key.replace("-", "_"): value for key, value in TRAINING.items()}
    run = Experiment.of(
        scenario="outsourced", model="mlp", width=32, output_dir=str(tmp_path / "run"), num_clients=2, rounds=1, dataset=name,
        auxiliary_fraction=0.0, model_attacks=LOSS, upload_attacks="", attack_rounds="final", attack_workers=0, adaptive=False,
        defenses="", **settings,
    )  # fmt: skip
    (area,) = (row["value"] for row in rows_of(run, wire) if row["metric"] == "membership-auc")
    save_file(tensors_of(wire.of("evaluate")[-1][1], "arrays"), tmp_path / "model.safetensors")
    data = load_dataset(name)
    words = words_of(update_attacks=LOSS, normalisation=f"{data.mean[0]!r}/{data.std[0]!r}")
    (attack,) = attacked(tmp_path / "out", *options(release, weights=tmp_path / "model.safetensors"), *words)["attacks"]
    assert attack["auc"] == pytest.approx(area, abs=1e-9)


@pytest.mark.long
@pytest.mark.usefixtures("own_path")
def test_shadow_models_are_those_of_a_run(release: Path, audited: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """A run's plan of outsourced training, which holds the non-members as its own data set, and a run's own worker."""
    model = prepared(release, tmp_path / "out")
    data, records = model.plan.load_data(), model.records
    everyone, members = local_batch(data.train, torch.arange(OTHERS), 10), records.originals()
    card, settings = model.plan.data_card(), {key.replace("-", "_"): value for key, value in TRAINING.items()}
    plan = OutsourcedPlan(
        scenario="outsourced", dataset=own_data(tmp_path / "own", everyone, members), data_dir="", download=False, image_size=0,
        train_limit=0, test_limit=0, model="mlp", width=32, norm="group", pipeline="", seed=0, rounds=1, weight_decay=0.0,
        probe_targets=1, probe_images=1, auxiliary_fraction=0.5, owns_data=False, card=card, **settings,
    )  # fmt: skip
    attacks = (ShadowModels(), RMIA())
    observed = Observed(plan.at(2), shared_tensors(overfitted()), [Seen(0, 0, MEMBERS)])
    others = records.test_plain(torch.arange(records.num_test))
    told = {attack["attack"]: attack["auc"] for attack in audited[1]["attacks"]}
    for outcome in run_job(AttackJob("job", attacks, KIND, observed, ThreatCard())).outcomes:
        (test,) = outcome.guesses
        scores = [test.scores(normalise(of.images, card), of.targets.argmax(1)) for of in (members, others)]
        assert auc(*scores) == pytest.approx(told[repr(outcome.attack)], abs=1e-9)


def written(path: Path, lines: list[list[Any]], header: str = "member,label,a,b") -> Path:
    with path.open("w", newline="") as file:
        file.write(header + "\n")
        csv.writer(file).writerows(lines)
    return path


def test_predictions_have_the_scores_of_the_weights(release: Path, tmp_path: Path) -> None:
    images, labels = digits()
    held = predict(overfitted(), (images[: MEMBERS + OTHERS] - 0.13) / 0.31).softmax(1)
    lines = [[int(at < MEMBERS), int(labels[at]), *row.tolist()] for at, row in enumerate(held)]
    path = written(tmp_path / "said.csv", lines, "member,label," + ",".join(map(str, range(10))))
    said = attacked(tmp_path / "said", "--predictions", str(path))
    known = attacked(tmp_path / "known", *options(release), *words_of(update_attacks=LOSS))
    assert (said["members"], said["nonmembers"], said["set_aside"]) == (MEMBERS, OTHERS, 0)
    (one,), (other,) = said["attacks"], known["attacks"]
    # A double softmax of certain records is exactly 1, so that few of them tie.
    assert one["auc"] == pytest.approx(other["auc"], abs=2e-3)
    assert said["accuracy"]["mean"] == known["accuracy"]["mean"]
    cards = {row["card"].get("attacker_has") for row in read_lines(tmp_path / "said" / "rows.jsonl") if row["attack"]}
    assert cards == {"predictions of the tested records alone"}


def test_wrong_predictions_are_named(tmp_path: Path) -> None:
    good = [[at % 2, 0, 0.25, 0.75] for at in range(32)]
    for at, (line, said) in enumerate((
        ([2, 0, 0.5, 0.5], "line 3 is '2,0,0.5,0.5'; allowed: member 1 or 0"), ([1, 2, 0.5, 0.5], "allowed: label 0 to 1"),
        ([1, 0, 3.5, -2.5], "from 0 to 1, so no logits"), ([1, 0, 0.5, 0.4], "sum to 1 within 0.01"),
        ([1, 0, "nan", 0.4], "from 0 to 1"), ([1, 0, "?", 0.4], "could not convert"),
        ([1, 0, 1.0], "line 3 is '1,0,1.0'; allowed: 4 numbers"),
    )):  # fmt: skip
        path = written(tmp_path / f"{at}.csv", [good[0], line, *good[2:]])
        told = refused("attack", "--predictions", path)
        assert "--predictions" in told
        assert said in told, told
    path = tmp_path / "blank.csv"
    path.write_text("member,label,a\u2028,b\n\n\n1,0,0.5,0.5\n3,0,0.5,0.5\n", encoding="utf-8")
    assert "line 5 is '3,0,0.5,0.5'" in refused("attack", "--predictions", path)
    few = written(tmp_path / "few.csv", good[:20])
    assert "there are 10 non-members; needed: 16 or more" in refused("attack", "--predictions", few)
    assert "expected member,label" in refused("attack", "--predictions", written(tmp_path / "no.csv", good, "a,b,c,d"))
    path = written(tmp_path / "good.csv", good)
    assert "allowed with --predictions: auto, LossThreshold" in refused(
        "attack", "--predictions", path, "-s", "update-attacks=LiRA()"
    )
    assert "model is not read with --predictions" in refused("attack", "--predictions", path, "-s", "model=mlp")


def test_what_does_not_go_together_or_fit_is_named(release: Path, tmp_path: Path) -> None:
    small, both = pictures(tmp_path / "small", MEMBERS, 20), pictures(tmp_path / "both", 100, 60)
    nine = pictures(tmp_path / "nine", MEMBERS, 40)
    for path in (nine / "9").iterdir():
        path.unlink()
    (nine / "9").rmdir()
    for label in range(10):
        picture(tiny := tmp_path / "tiny", digits()[0][label][:, :14, :14], label, label)
    for label in range(2):
        picture(twice := tmp_path / "twice", digits()[0][0], label, 0)
    for label in range(2, 10):
        (twice / str(label)).mkdir()
    text = tmp_path / "no.safetensors"
    text.write_text("no weights")
    needed = words_of()
    for words, said in (
        ([], "UPDATE is missing"),
        ([release, *options(release), *needed], "UPDATE is"),
        ([*options(release, nonmembers=None), *needed], "--nonmembers is missing"),
        ([*options(release, weights=None), *needed], "--weights is missing"),
        ([*options(release), "--predictions", text], "--members and --predictions do not go together"),
        ([*options(release)], "model is missing"),
        ([*options(release), *words_of(normalisation=None)], "normalisation is missing; mean/std of images in [0, 1]"),
        ([*options(release, members=tmp_path / "none"), *needed], "--members: there is no folder"),
        ([*options(release, weights=tmp_path), *needed], "--weights: there is no file"),
        ([*options(release, weights=text), *needed], "cannot be read as safetensors"),
        ([*options(release), *words_of(labels="3")], "labels is not read with --weights"),
        ([*options(release), *words_of(width=None)], "'1.bias' has shape (32,), the model (200,)"),
        ([*options(release), *words_of(model="cnn", width=None)], "lacks"),
        ([*options(release), *words_of(update_attacks="ClassGAN()")], "allowed with --weights, --members, --nonmembers: auto"),
        ([*options(release), *words_of(update_attacks="DLG()")], "update-attacks"),
        ([*options(release, nonmembers=small), *needed], "--nonmembers: there are 20 different pictures; needed: 32 or more"),
        (
            [*options(release), *words_of(update_attacks="LiRA(num_members=100)")],
            f"there are {OTHERS} different pictures; needed: 400",
        ),
        ([*options(release, nonmembers=both), *needed], "; 20 of both folders are the same; a record is a member or not"),
        ([*options(release, nonmembers=twice), *needed], "0.png; a record has one class"),
        ([*options(release, weights=tmp_path / ":smile:.st"), *needed], "/:smile:.st"),
        ([*options(release, nonmembers=nine), *needed], "folders of the same classes; '9': in one only"),
        ([*options(release, members=tiny), *needed], "--members: pictures are (1, 14, 14); allowed: input-shape, (1, 28, 28)"),
    ):  # fmt: skip
        out = tmp_path / "out"
        told = refused("attack", *words, "--out", out)
        assert said in told, (said, told)
        assert not out.exists()


def test_the_page_has_a_command_that_works(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(release)
    (words,) = (words for words in commands("docs/membership.md") if "--weights" in words)
    code, told = fedveil(
        *words[:-1], tmp_path / "out", "-s", "local-epochs=1", "-s", "update-attacks=LossThreshold(); RMIA()"
    )
    assert (code, told.count("infers members")) == (0, 2), told


def skewed(folder: Path, first: int, count: int, kept: range) -> Path:
    """Pictures as of ``pictures``, without those of other classes than ``kept``, whose folders stay."""
    for path in pictures(folder, first, count).glob("*/*"):
        if int(path.parent.name) not in kept:
            path.unlink()
    return folder


@pytest.mark.parametrize("attacks", [LOSS, "RMIA(num_shadows=2)"])
def test_folders_that_differ_have_no_verdict(release: Path, tmp_path: Path, attacks: str) -> None:
    """The model saw none of either. Without shadow models the classes are counted; else models that saw no tested record judge."""
    paths = {
        "members": skewed(tmp_path / "a", 360, 300, range(5)),
        "nonmembers": skewed(tmp_path / "b", 700, 300, range(5, 10)),
    }
    words = words_of(update_attacks=attacks, local_epochs=2)
    told = attacked(tmp_path / "out", *options(release, **paths), *words)
    (attack,) = told["attacks"]
    assert (attack["verdict"], attack["status"]) == ("cannot tell: folders differ", "not-validated")
    assert attacks == LOSS or not attack["null_low"] <= 0.5 <= attack["null_high"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Attacks have no verdict on members (cannot tell: folders differ)" in page
    assert "Attacks infer members" not in page


def test_folders_that_are_alike_have_a_null_at_chance(release: Path, tmp_path: Path) -> None:
    words = words_of(update_attacks="RMIA(num_shadows=2)", local_epochs=2)
    code, shown = fedveil("attack", *options(release), *words, "--out", tmp_path / "shown")
    (attack,) = attacked(tmp_path / "out", *options(release), *words)["attacks"]
    assert (code, attack["verdict"]) == (0, "infers members")
    assert f"null AUC, by models that saw no tested record: {attack['null_auc']:.2f}, " in shown
    assert attack["null_low"] < 0.5 < attack["null_high"]
    assert attack["null_low"] < attack["null_auc"] < attack["null_high"]


def test_class_folders_number_the_classes_in_the_order_of_their_names_as_texts(tmp_path: Path) -> None:
    for name in ("10", "9", "2"):
        for at, folder in enumerate((tmp_path / "in", tmp_path / "out")):
            picture(folder, digits()[0][int(name) + 20 * at], int(name), 0)
    data, _ = read_pictures(str(tmp_path / "in"), str(tmp_path / "out"))
    assert data.class_names == ("10", "2", "9")
    for at, part in enumerate((data.test, data.train)):
        by_label = dict(zip(part.labels.tolist(), part.images, strict=True))
        for label, name in enumerate((10, 2, 9)):
            assert by_label[label].equal((digits()[0][name + 20 * at] * 255).round().byte())


def test_a_wrong_order_of_classes_is_no_safety(release: Path, tmp_path: Path) -> None:
    for name in ("in", "out"):
        for folder in (release / name).iterdir():
            shutil.copytree(folder, tmp_path / name / str((int(folder.name) + 1) % 10))
    words = [*options(release, members=tmp_path / "in", nonmembers=tmp_path / "out"), *words_of(update_attacks=LOSS)]
    (attack,) = attacked(tmp_path / "told", *words)["attacks"]
    assert attack["high"] < 0.5
    assert attack["verdict"] == "inconsistent: check class order and normalisation"


def test_predictions_that_allow_no_verdict_say_so(tmp_path: Path) -> None:
    """Worse than chance, on other classes than non-members, wrong for members, or alike for every record."""
    sure, unsure, inconsistent = [0.9, 0.1], [0.6, 0.4], "inconsistent: check class order and normalisation"
    for name, member, other, labels, verdict in (
        ("below", unsure, sure, (0, 0), inconsistent), ("wrong", sure[::-1], unsure[::-1], (0, 0), inconsistent),
        ("classes", sure, unsure[::-1], (0, 1), "cannot tell: folders differ"),
        ("tied", unsure, unsure, (0, 0), "cannot tell: all scores are equal"),
        ("told", sure, unsure, (0, 0), "infers members"),
    ):  # fmt: skip
        lines = [[1, labels[0], *member], [0, labels[1], *other]] * 30
        (attack,) = attacked(tmp_path / name, "--predictions", str(written(tmp_path / f"{name}.csv", lines)))["attacks"]
        assert attack["verdict"] == verdict, name
    assert (attack["status"], attack["tpr_status"]) == ("ok", "under-powered")  # of the last, with 30 non-members


def test_a_model_without_finite_logits_is_a_failed_attack(release: Path, tmp_path: Path) -> None:
    path = tmp_path / "huge.safetensors"
    save_file({name: value * 1e20 for name, value in shared_tensors(overfitted()).items()}, path)
    words = [*options(release, weights=path), *words_of(update_attacks=LOSS), "--json", "--out", tmp_path / "out"]
    code, told = fedveil("attack", *words)
    assert code == 1
    assert "LossThreshold() failed: the model's logits are not finite" in told
    assert json.loads(told[told.index("{") :])["attacks"][0]["verdict"] == "failed"
