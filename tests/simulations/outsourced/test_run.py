"""Outsourced training in this process: real clients, real training, real attacks; only the transport is local."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clients.wire.records import tensors_of
from defenses import VisualMixer
from simulations.experiment.experiment import Experiment
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.simulations.report.report_run import Page
from tests.simulations.short_runs import Wire, rows_of, untimed


def outsourced_experiment(out: Path, **changes: Any) -> Experiment:
    """Two clients with three batches of 16 digits each: 120 examples less a fifth for the server."""
    small = Experiment.of(
        scenario="outsourced", model="lenet", output_dir=str(out), dataset="mnist-5k", train_limit=120, test_limit=30,
        num_clients=2, rounds=2, local_epochs=1, batch_size=16, learning_rate=0.1, momentum=0.5, batches_per_message=2, defenses="",
        probe_targets=2, probe_images=2, attack_rounds="first,final", attack_workers=0, adaptive=False, share_images=False,
    )  # fmt: skip
    return small.but(**changes)


MIXER = "VisualMixer(window_lower=4, window_upper=4)"
ADAPTIVE = ("WindowMean", "LossThreshold")
"""A refinement, and an attack that stands alone and attacks models."""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], Wire]:
    """Folder, rows and messages of a run with VisualMixer whose adaptive attacks run as well."""
    out, wire = tmp_path_factory.mktemp("audited") / "run", Wire()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VisualMixer, "adaptive_attacks", ADAPTIVE)
        settings = outsourced_experiment(
            out, defenses=MIXER, adaptive=True, share_images=True, probe_targets=3, probe_images=3,
            model_attacks="ClassGAN(iterations=2, images_per_class=1)",
        )  # fmt: skip
        return out, rows_of(settings, wire), wire


Audited = tuple[Path, list[dict[str, Any]], Wire]


@pytest.mark.essential
def test_every_pipeline_has_rows_of_every_kind(audited: Audited) -> None:
    out, rows, _ = audited
    assert {row["scenario"] for row in rows} == {"outsourced"}
    assert {row["defense"] for row in rows} == {"", MIXER}
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    for defense in ("", MIXER):
        mine = [row for row in rows if row["defense"] == defense]
        by_round = {at: {row["metric"] for row in mine if row["round"] == at and not row["attack"]} for at in range(4)}
        uploaded = {"clients-failed", "upload-bytes", "upload-seconds", "uploaded-images"}
        evaluated, trained = {"test-accuracy", "test-loss"}, {"train-loss", "server-seconds"}
        windows = {"counted-images", "windows-of-4", "vfe-sum-before", "vfe-sum-after", "log10-keys"}
        counted = windows if defense else set()
        assert by_round[0] == evaluated
        assert by_round[1] == evaluated | trained | uploaded | counted
        assert by_round[2] == evaluated | trained
        assert by_round[3] == set()
        assert {row["value"] for row in mine if row["metric"] == "uploaded-images"} == {96}
        assert {row["n"] for row in mine if row["metric"] == "train-loss"} == {96}
        # Uploads never change: they are attacked once, and the model behind the last round.
        seen = {(row["card"]["observation"], row["round"]) for row in mine if row["attack"]}
        assert seen == {("uploaded images", 1), ("trained model", 3)}
        final = [row for row in mine if row["final"]]
        assert {row["card"]["observation"] for row in final if row["attack"]} == {"trained model"}
    members = [row for row in rows if row["metric"] == "membership-auc"]
    assert len(members) == 2
    assert {(row["card"]["members"], row["card"]["others"]) for row in members} == {(96, 30)}
    assert "outsourced" in Page((out / "report.html").read_text(encoding="utf-8")).sections
    drawn = [one for one in read_lines(out / "pictures" / "index.jsonl") if one["observation"] == "uploaded images"]
    assert {one["kind"] for one in drawn} == {"original", "protected", "reconstruction"}


def scored(rows: list[dict[str, Any]], attack: str, metric: str, defense: str, reference: str = "original") -> Any:
    """The only row of a score."""
    wanted = (attack, metric, defense, reference)
    (row,) = [row for row in rows if (row["attack"], row["metric"], row["defense"], row["reference"]) == wanted]
    return row


def first_images(wire: Wire, pipeline: str) -> Tensor:
    """The attacked ones: three of each of a client's first three batches, as they crossed the wire."""
    found: dict[tuple[int, int], Tensor] = {}
    for partition, request, reply in wire.of("train.upload"):
        if json.loads(str(request.content["config"]["task"]))["plan"]["pipeline"] == pipeline:
            found |= {(partition, int(name)): images[:3] for name, images in tensors_of(reply, "images").items()}
    return torch.cat([found[partition, number] for partition in (0, 1) for number in range(3)])


def test_looking_at_uploads_shows_what_the_defence_leaves_and_refinements_go_on_from_there(audited: Audited) -> None:
    """The row against the transformed images says that the audit found what was sent; that against the originals, by hand."""
    _, rows, wire = audited
    plain, mixed = (first_images(wire, defense) for defense in ("", MIXER))

    def by_hand(guess: Tensor) -> Any:
        return pytest.approx(float((-10 * (plain - guess).double().square().mean((1, 2, 3)).log10()).mean()), abs=1e-3)

    for reference in ("original", "transformed"):
        row = scored(rows, "AsUploaded()", "psnr", "", reference)
        assert (row["value"], row["n"], row["status"]) == (100.0, 18, "ok")
    picked = scored(rows, "AsUploaded()", "identified", "")
    assert (picked["value"], picked["status"]) == (1.0, "ok")
    attacked = [row["card"] for row in rows if row["attack"]]
    assert {(card["labels"], card["uploads_of_an_image"]) for card in attacked} == {("uploaded with the images", 1)}
    assert scored(rows, "AsUploaded()", "psnr", MIXER, "transformed")["value"] == 100.0
    found = scored(rows, "AsUploaded()", "psnr", MIXER)
    # That it is broken without a defence says that the attack works.
    assert (found["value"], found["status"]) == (by_hand(mixed), "ok")
    assert found["value"] < 25
    chain = "AsUploaded() | WindowMean()"
    alone = {"AsUploaded()", "LossThreshold()", "ClassGAN(iterations=2, images_per_class=1)"}
    for defense, attacks in ((MIXER, {chain} | alone), ("", alone)):  # the positive control of what stands alone
        ran = {row["attack"] for row in rows if (row["defense"], row["metric"]) == (defense, "attack-seconds")}
        assert ran == attacks
    refined = scored(rows, chain, "psnr", MIXER)
    assert (refined["n"], refined["status"], refined["card"]["observation"]) == (18, "ok", "uploaded images")
    assert refined["card"]["auxiliary_data"] == "disjoint from all clients"
    # Window means are those of the original.
    assert refined["value"] == by_hand(F.interpolate(F.avg_pool2d(plain, 4), scale_factor=4, mode="nearest"))
    assert refined["value"] > found["value"]


@pytest.mark.usefixtures("no_report")
def test_optimizers_of_a_defence_train_and_other_runs_differ_only_where_it_acts(tmp_path: Path) -> None:
    runs = {}
    for name, defense in (("plain", ""), ("adam", "STAdam()")):
        rows = rows_of(outsourced_experiment(tmp_path / name, defenses=defense, attack_rounds=""))
        runs[name] = [row for row in untimed(rows) if row["defense"] == defense]
    first, second = ({(r["metric"], r["reference"], r["round"]): r["value"] for r in rows} for rows in runs.values())
    assert first.keys() == second.keys()
    differ = {metric for (metric, reference, at), value in first.items() if second[metric, reference, at] != value}
    assert {"train-loss", "test-loss"} <= differ <= {"train-loss", "test-loss", "test-accuracy"}
    assert first["test-loss", "original", 0] == second["test-loss", "original", 0]


def test_no_message_holds_more_than_it_should(audited: Audited) -> None:
    """Uploads: images and labels. Down go weights and guesses, which are all that an audit is told."""
    _, _, wire = audited
    requests = {
        "query.partition": {"config"}, "query.setup": {"config", "indices"}, "train.upload": {"config"},
        "evaluate": {"config", "arrays"}, "query.audit": {"config", "guesses", "oracle"},
    }  # fmt: skip
    for _, kind, request, reply in wire.messages:
        assert set(request.content) <= requests[kind]
        if kind == "train.upload":
            assert set(reply.content) == {"images", "targets", "metrics"}
            assert set(reply.content["metrics"]) == {"num-examples", "train-seconds"}
        if kind == "evaluate":
            assert set(reply.content) == {"metrics"}
    asked = [(at, str(request.content["config"]["task"])) for at, request, _ in wire.of("train.upload")]
    uploads = [(at, json.loads(task)["plan"]["pipeline"]) for at, task in asked]
    # 48 images a client: three batches in messages of two, under each pipeline once.
    assert {place: uploads.count(place) for place in uploads} == {(at, p): 2 for at in (0, 1) for p in ("", MIXER)}


@pytest.mark.long
def test_uploads_of_several_passes_are_attacked_together(tmp_path: Path) -> None:
    """Every image is uploaded three times under fresh draws; all of a client's uploads are one observation."""
    attack, mixes = "JointEncodingInversion(iterations=4, restarts=1)", "InstaHide(num_mixed=4)"
    settings = outsourced_experiment(
        tmp_path / "run", defenses="InstaHide()", upload_attacks=attack, upload_passes=3,
        model_attacks="", rounds=1,
    )  # fmt: skip
    rows = rows_of(settings)
    assert {row["value"] for row in rows if row["metric"] == "uploaded-images"} == {3 * 96}
    found = [row for row in rows if row["attack"] == attack]
    assert {row["status"] for row in found if row["metric"] != "label-accuracy"} == {"ok"}
    # All classes are right, but of two clients: their labels are two trials, and drawing classes at random gives 0.88.
    assert {(row["n"], row["status"]) for row in found if row["metric"] == "label-accuracy"} == {(2, "not-validated")}
    assert scored(rows, attack, "psnr", mixes)["n"] == 96
    assert scored(rows, attack, "equations", mixes, "")["value"] == 3
    # Without the defence it takes what came: the positive control.
    assert scored(rows, attack, "psnr", "")["value"] == 100
    passes = {row["card"]["uploads_of_an_image"] for row in rows if row["attack"]}
    assert passes == {3, "several mixtures in each of 3 passes"}
    with pytest.raises(ConfigError, match=r"upload-passes is 1, and JointEncodingInversion\(.*\) in upload-attacks"):
        settings.but(upload_passes=1)
