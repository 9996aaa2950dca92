"""Outsourced training in this process: real clients, real training, real attacks; only the transport is local."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import Tensor
from torch.nn import functional as F

from clients.wire.records import tensors_of
from defenses import VisualMixer
from simulations import server_app
from simulations.experiment.experiment import Experiment
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.local_grid import LocalGrid, Tamper
from tests.simulations.report.report_run import Page
from tests.simulations.run_folder.test_resume import Killed, killed_at, killed_with_open_attacks
from tests.simulations.split.test_run import Wire, untimed


def outsourced_experiment(out: Path, **changes: Any) -> Experiment:
    """Two clients with three batches of 16 digits each: 120 examples less a fifth for the server."""
    small = Experiment.of(
        scenario="outsourced", model="lenet", output_dir=str(out), dataset="mnist-5k", train_limit=120, test_limit=30,
        num_clients=2, rounds=2, local_epochs=1, batch_size=16, learning_rate=0.1, momentum=0.5, upload_batches=2, defenses="",
        probe_targets=2, probe_images=2, attack_rounds="first,final", attack_workers=0, adaptive=False, share_images=False,
    )  # fmt: skip
    return replace(small, **changes)


def outsourced_rows(settings: Experiment, tamper: Tamper | None = None) -> list[dict[str, Any]]:
    """The rows of a run."""
    run_experiment(LocalGrid(settings.num_clients, tamper), settings)
    return rows_in(settings)


def rows_in(settings: Experiment) -> list[dict[str, Any]]:
    return read_lines(Path(settings.output_dir) / "rows.jsonl")


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no concern to rows, and the longest part of so short a run."""
    monkeypatch.setattr(server_app, "write_report", lambda path: path)


MIXER = "VisualMixer(window_lower=4, window_upper=4)"
ADAPTIVE = ("WindowMean", "Shredder", "ShadowModels")
"""Two refinements, and one that stands alone and attacks models."""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], Wire]:
    """Folder, rows and messages of a run with VisualMixer whose adaptive attacks run as well."""
    out, wire = tmp_path_factory.mktemp("audited") / "run", Wire()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VisualMixer, "adaptive_attacks", ADAPTIVE)
        settings = outsourced_experiment(
            out, defenses=MIXER, adaptive=True, share_images=True, probe_targets=3, probe_images=3, train_limit=400,
            model_attacks="LossThreshold(); ClassGAN(iterations=2, images_per_class=1)",
        )  # fmt: skip
        return out, outsourced_rows(settings, wire), wire


Audited = tuple[Path, list[dict[str, Any]], Wire]


# Rows ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.essential
def test_every_pipeline_has_rows_of_every_kind(audited: Audited) -> None:
    _, rows, _ = audited
    assert {row["scenario"] for row in rows} == {"outsourced"}
    assert {row["defense"] for row in rows} == {"", MIXER}
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    for defense in ("", MIXER):
        mine = [row for row in rows if row["defense"] == defense]
        by_round = {at: {row["metric"] for row in mine if row["round"] == at and not row["attack"]} for at in range(4)}
        uploaded = {"clients-failed", "upload-bytes", "upload-seconds", "uploaded-images"}
        evaluated, trained = {"test-accuracy", "test-loss"}, {"train-loss", "server-seconds"}
        counted = (
            {"counted-images", "windows-of-4", "vfe-sum-before", "vfe-sum-after", "log10-keys"} if defense else set()
        )
        assert by_round[0] == evaluated
        assert by_round[1] == evaluated | trained | uploaded | counted
        assert by_round[2] == evaluated | trained
        assert by_round[3] == set()
        assert {row["value"] for row in mine if row["metric"] == "uploaded-images"} == {320}
        assert {row["n"] for row in mine if row["metric"] == "train-loss"} == {320}
        # Uploads never change: they are attacked once, and the model behind the last round.
        seen = {(row["card"]["observation"], row["round"]) for row in mine if row["attack"]}
        assert seen == {("uploaded images", 1), ("trained model", 3)}
        final = [row for row in mine if row["final"]]
        assert {row["card"]["observation"] for row in final if row["attack"]} == {"trained model"}
    members = [row for row in rows if row["metric"] == "membership-auc"]
    assert len(members) == 4
    assert {(row["card"]["members"], row["card"]["others"]) for row in members} == {(320, 30)}


def scored(rows: list[dict[str, Any]], attack: str, metric: str, defense: str, reference: str = "original") -> Any:
    """The only row of a score."""
    wanted = (attack, metric, defense, reference)
    (row,) = [row for row in rows if (row["attack"], row["metric"], row["defense"], row["reference"]) == wanted]
    return row


def test_without_a_defence_whoever_looks_sees_the_images_themselves(audited: Audited) -> None:
    _, rows, _ = audited
    for reference in ("original", "transformed"):
        row = scored(rows, "AsUploaded()", "psnr", "", reference)
        assert (row["value"], row["n"], row["status"]) == (100.0, 18, "ok")
    picked = scored(rows, "AsUploaded()", "retrieval", "")
    assert (picked["value"], picked["status"]) == (1.0, "ok")
    assert {row["card"]["labels"] for row in rows if row["attack"]} == {"uploaded with the images"}
    assert {row["card"]["uploads_of_an_image"] for row in rows if row["attack"]} == {1}


def test_a_defence_hides_from_who_looks_what_it_does_to_the_images(audited: Audited) -> None:
    """The row against the transformed images says that the audit found what was sent; that against the originals, by hand."""
    _, rows, wire = audited
    assert scored(rows, "AsUploaded()", "psnr", MIXER, "transformed")["value"] == 100.0
    found = scored(rows, "AsUploaded()", "psnr", MIXER)
    plain, mixed = (first_images(wire, defense) for defense in ("", MIXER))
    by_hand = -10 * (plain - mixed).double().square().mean((1, 2, 3)).log10()
    assert found["value"] == pytest.approx(float(by_hand.mean()), abs=1e-3)
    assert found["value"] < 25
    # That it is broken without a defence says that the attack works.
    assert found["status"] == "ok"


def first_images(wire: Wire, pipeline: str) -> Tensor:
    """The attacked ones: three of each of a client's first three batches, as they crossed the wire."""
    found: dict[tuple[int, int], Tensor] = {}
    for partition, request, reply in wire.of("train.upload"):
        if json.loads(str(request.content["config"]["task"]))["plan"]["pipeline"] == pipeline:
            found |= {(partition, int(name)): images[:3] for name, images in tensors_of(reply, "images").items()}
    return torch.cat([found[partition, number] for partition in (0, 1) for number in range(3)])


def test_refinements_that_know_a_defence_go_on_from_the_uploads_without_an_inversion(audited: Audited) -> None:
    _, rows, _ = audited
    mixed = {row["attack"] for row in rows if (row["defense"], row["metric"]) == (MIXER, "attack-seconds")}
    chains = {"AsUploaded() | WindowMean()", "AsUploaded() | Shredder()"}
    alone = {"AsUploaded()", "LossThreshold()", "ShadowModels()", "ClassGAN(iterations=2, images_per_class=1)"}
    assert mixed == chains | alone
    for chain in chains:
        row = scored(rows, chain, "psnr", MIXER)
        assert (row["n"], row["status"], row["card"]["observation"]) == (18, "ok", "uploaded images")
        assert row["card"]["auxiliary_data"] == "disjoint from all clients"
    plain = {row["attack"] for row in rows if (row["defense"], row["metric"]) == ("", "attack-seconds")}
    assert plain == alone, "with the positive control of what stands alone"
    # Window means are those of the original: by hand, from what a plain upload has sent.
    _, _, wire = audited
    plain = first_images(wire, "")
    means = F.interpolate(F.avg_pool2d(plain, 4), scale_factor=4, mode="nearest")
    by_hand = -10 * (plain - means).double().square().mean((1, 2, 3)).log10()
    mean = scored(rows, "AsUploaded() | WindowMean()", "psnr", MIXER)
    assert mean["value"] == pytest.approx(float(by_hand.mean()), abs=1e-3)
    assert mean["value"] > scored(rows, "AsUploaded()", "psnr", MIXER)["value"]


def test_the_report_shows_the_section_and_pictures_of_uploads(audited: Audited) -> None:
    out, rows, _ = audited
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    assert "Outsourced training" in page.sections["outsourced"]
    none, mixer = page.table("outsourced")
    assert none["Defence"][0] == "No defence"
    assert none["images uploaded"] == mixer["images uploaded"] == ["320"]
    shown = {(one["Defence"][0], one["Attack"][0]): one for one in page.table("outsourced", 1)}
    looking = shown["No defence", "AsUploaded()"]
    assert looking["PSNR, dB"][0] == "100.0"
    chain = next(one for (_, attack), one in shown.items() if attack.startswith("AsUploaded() | WindowMean"))
    gain = (
        scored(rows, "AsUploaded() | WindowMean()", "psnr", MIXER)["value"]
        - scored(rows, "AsUploaded()", "psnr", MIXER)["value"]
    )
    assert float(chain["over the upload"][0].replace("+", "")) == pytest.approx(gain, abs=0.06)
    drawn = read_lines(out / "pictures" / "index.jsonl")
    assert {one["kind"] for one in drawn if one["observation"] == "uploaded images"} == {
        "original", "protected", "reconstruction",
    }  # fmt: skip


@pytest.mark.usefixtures("no_report")
def test_optimizers_of_a_defence_train_and_other_runs_differ_only_where_it_acts(tmp_path: Path) -> None:
    runs = {}
    for name, defense in (("plain", ""), ("adam", "STAdam()")):
        rows = outsourced_rows(outsourced_experiment(tmp_path / name, defenses=defense, attack_rounds=""))
        runs[name] = [row for row in untimed(rows) if row["defense"] == defense]
    first, second = ({(r["metric"], r["reference"], r["round"]): r["value"] for r in rows} for rows in runs.values())
    assert first.keys() == second.keys()
    differ = {metric for (metric, reference, at), value in first.items() if second[metric, reference, at] != value}
    assert {"train-loss", "test-loss"} <= differ <= {"train-loss", "test-loss", "test-accuracy"}
    assert first["test-loss", "original", 0] == second["test-loss", "original", 0]


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_same_seed_same_rows_other_seed_others(tmp_path: Path) -> None:
    runs = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        settings = outsourced_experiment(tmp_path / name, defenses="InstaHide()", seed=seed)
        runs[name] = untimed(outsourced_rows(settings))
    assert runs["a"] == runs["b"]
    for metric in ("psnr", "train-loss", "test-loss", "membership-auc"):
        values = [[row["value"] for row in runs[name] if row["metric"] == metric] for name in "ac"]
        assert values[0] != values[1]


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_the_size_of_messages_changes_no_number(tmp_path: Path) -> None:
    runs = [
        untimed(
            outsourced_rows(outsourced_experiment(tmp_path / str(count), defenses="InstaHide()", upload_batches=count))
        )
        for count in (1, 8)
    ]
    assert runs[0] == runs[1]


# The wire -----------------------------------------------------------------------------------------------------------------


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
    uploads = [
        (at, json.loads(str(q.content["config"]["task"]))["plan"]["pipeline"]) for at, q, _ in wire.of("train.upload")
    ]
    # 160 images a client: ten batches in messages of two, under each pipeline once.
    assert {place: uploads.count(place) for place in uploads} == {(at, p): 5 for at in (0, 1) for p in ("", MIXER)}


# Killed, and refused ------------------------------------------------------------------------------------------------------

RESUMED = {"defenses": "InstaHide(); STAdam()", "rounds": 3, "attack_rounds": "first,2,final"}
Unbroken = list[dict[str, Any]]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    """The rows of a run that nobody killed."""
    settings = outsourced_experiment(tmp_path_factory.mktemp("unbroken") / "run", **RESUMED)
    return untimed(outsourced_rows(settings))


# Two clients, three pipelines: four messages of an upload each, eight evaluations (rounds 0 to 3). What a checkpoint has of uploads
# is never asked for again.
@pytest.mark.long
@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(
    ("message_type", "count", "uploads_left"),
    [
        ("evaluate", 3, 8), ("evaluate", 6, 8), ("train.upload", 6, 8), ("evaluate", 13, 4),
        ("evaluate", 24, 0), ("query.audit", 3, 8), ("query.audit", 9, 8), ("query.audit", 33, 0),
    ],
)  # fmt: skip
def test_resumed_rows_equal_unbroken_rows(
    tmp_path: Path, unbroken: Unbroken, message_type: str, count: int, uploads_left: int
) -> None:
    settings = outsourced_experiment(tmp_path / "run", **RESUMED)
    with pytest.raises(Killed):
        run_experiment(LocalGrid(2, killed_at(message_type, count)), settings)
    # A new grid: the nodes have forgotten their state, as they have when a simulation ends.
    grid = LocalGrid(2)
    run_experiment(grid, replace(settings, resume=True))
    assert untimed(rows_in(settings)) == unbroken
    assert len([sent for sent in grid.sent if sent[0] == "train.upload"]) == uploads_left


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_attacks_that_were_open_are_run_again_without_an_upload(
    tmp_path: Path, unbroken: Unbroken, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = outsourced_experiment(tmp_path / "run", **RESUMED)
    killed_with_open_attacks(monkeypatch, LocalGrid(2), settings)
    # Uploads once, and models of rounds 2 and 4, under each of three pipelines.
    assert len(list((tmp_path / "run" / "jobs").glob("*.safetensors"))) == 9
    grid = LocalGrid(2)
    run_experiment(grid, replace(settings, resume=True))
    assert untimed(rows_in(settings)) == unbroken
    assert {sent[0] for sent in grid.sent} == {"query.partition", "query.setup", "query.audit"}
    assert not list((tmp_path / "run" / "jobs").glob("*.safetensors"))


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_uploads_are_written_once_and_rounds_write_the_model_only(
    tmp_path: Path, unbroken: Unbroken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a run that goes on; a pipeline that was killed before its first checkpoint uploads, and writes, anew."""
    settings, written = outsourced_experiment(tmp_path / "run", **RESUMED), []
    whole = Path.replace

    def replaced(path: Path, target: Path) -> Path:
        if target.parent.name == "checkpoints":
            written.append((target.name, path.stat().st_size))
        return whole(path, target)

    monkeypatch.setattr(Path, "replace", replaced)
    with pytest.raises(Killed):  # in the evaluation of round 2
        run_experiment(LocalGrid(2, killed_at("evaluate", 6)), settings)
    # Left by who was killed between the two files: uploads that are not those of the run that comes after.
    stale = tmp_path / "run" / "checkpoints" / "p01-fixed.safetensors"
    stale.write_bytes(b"of another upload")
    run_experiment(LocalGrid(2), replace(settings, resume=True))
    assert untimed(rows_in(settings)) == unbroken
    names = [name for name, _ in written]
    for at in range(3):
        # Rounds 0 to 3, and the final model.
        assert names.count(f"p{at:02d}.safetensors") == 5
        assert names.count(f"p{at:02d}-fixed.safetensors") == 1
    images = 2 * 48 * 28 * 28 * 4
    assert all((size > images) == ("fixed" in name) for name, size in written)


@pytest.mark.long
@pytest.mark.parametrize("refusing", [[0], [0, 1]])
def test_a_node_that_refuses_audits_costs_scores_only(tmp_path: Path, refusing: list[int]) -> None:
    plain = outsourced_experiment(tmp_path / "plain")
    rows = untimed(outsourced_rows(plain))
    settings = outsourced_experiment(tmp_path / "run")
    config = {at: {"audits": False} for at in refusing}
    run_experiment(LocalGrid(2, node_config=config), settings)
    found = untimed(rows_in(settings))
    refused = [row for row in found if row["status"] == "refused"]
    # Asked once about each of uploads and model, and no guesses are sent to who refuses.
    assert [(row["client"], row["round"]) for row in refused] == [(at, where) for where in (1, 3) for at in refusing]
    assert not [row for row in found if row["status"] == "failed"]

    def without_attacks(some: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in some if not row["attack"] and row["metric"] != "client"]

    assert without_attacks(found) == without_attacks(rows)
    counts = {(r["metric"], r["n"]) for r in found if r["attack"] == "AsUploaded()" and r["reference"] == "original"}
    assert counts == {(metric, 4) for metric in ("psnr", "ssim", "mse", "retrieval") if len(refusing) < 2}


@pytest.mark.long
def test_a_client_that_breaks_off_leaves_the_run_and_its_report_whole(tmp_path: Path) -> None:
    """Of its upload one batch came, and two are attacked."""
    settings = outsourced_experiment(tmp_path / "run", upload_batches=1)

    def tamper(partition: int, request: Message, reply: Message) -> Message:
        config: Any = request.content.get("config")
        if partition == 1 and request.metadata.message_type == "train.upload" and config["first"] == 1:
            raise RuntimeError("disk full")
        return reply

    rows = outsourced_rows(settings, tamper)
    (failed,) = [row for row in rows if row["status"] == "failed"]
    assert (failed["client"], failed["metric"]) == (1, "client")
    assert scored(rows, "AsUploaded()", "psnr", "")["n"] == 4
    (members,) = [row for row in rows if row["metric"] == "membership-auc"]
    assert members["card"]["members"] == 48
    assert {row["n"] for row in rows if row["metric"] == "train-loss"} == {64}
    assert "disk full" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


# Several passes --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_report")
def test_one_encoding_of_an_image_is_none_to_compare_with() -> None:
    with pytest.raises(
        ConfigError, match=r"upload-passes is 1, and JointEncodingInversion\(.*\) in collection-attacks"
    ):
        Experiment.from_mapping({"scenario": "outsourced", "collection-attacks": "JointEncodingInversion()"})


@pytest.mark.long
def test_uploads_of_several_passes_are_attacked_together(tmp_path: Path) -> None:
    """Every image is uploaded three times under fresh draws; all of a client's uploads are one observation."""
    attack, mixes = "JointEncodingInversion(iterations=4, restarts=1)", "InstaHide(num_mixed=4)"
    settings = outsourced_experiment(
        tmp_path / "run", defenses="InstaHide()", collection_attacks=attack, upload_passes=3, upload_attacks="",
        model_attacks="", rounds=1,
    )  # fmt: skip
    rows = outsourced_rows(settings)
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
