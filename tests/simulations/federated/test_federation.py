"""The whole federation in this process: real ClientApp, real strategy, real attacks; only the transport is local."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from torch import nn

from attacks.local_model import local_model
from attacks.observations import AttackError, ClientUpdate
from clients.task.scenarios import read_task
from clients.wire.records import to_tensors
from defenses.pipeline import Pipeline
from simulations.experiment.experiment import Experiment
from simulations.forecast.notices import too_few_images
from simulations.report.analysis.failures import failed_attacks
from simulations.run_folder.run_directory import RunDirectory
from simulations.server_app import run_experiment
from tests.lines import read_lines
from tests.local_grid import LocalGrid

FAST = "InvertingGradients(iterations=20); LabelInference()"


def experiment(out: Path, **changes: object) -> Experiment:
    small = Experiment.of(
        output_dir=str(out), dataset="mnist-5k", model="lenet", batch_size=32, learning_rate=0.1, momentum=0.5,
        train_limit=120, test_limit=40, num_clients=3, rounds=2, local_epochs=1,
        defenses="GaussianNoise(std=0.02, per='update')", probe_attacks=FAST, probe_targets=1, attack_rounds="first",
        update_attacks="LabelInference(); LossThreshold()", attack_workers=0,
        adaptive=False,
    )  # fmt: skip
    return replace(small, **changes)


def untimed(rows: list[dict]) -> list[dict]:
    """Rows without what measures time."""
    kept = [row for row in rows if "seconds" not in row["metric"]]
    return [{k: v for k, v in row.items() if k not in ("seconds", "computed_on")} for row in kept]


@pytest.mark.long
def test_chains_membership_and_attacks_over_rounds_run_on_what_the_server_knows(tmp_path: Path) -> None:
    """Every kind of guess goes to the clients and comes back as rows; the history reaches back to the first attacked round."""
    chain = "InvertingGradients(iterations=20) | WindowMean()"
    settings = experiment(
        tmp_path / "run", defenses="VisualMixer(window_lower=4, window_upper=4)", attack_rounds="all",
        probe_attacks=f"InvertingGradients(iterations=20); {chain}",
        update_attacks="LossThreshold(); ShadowModels(num_shadows=2); ClassGAN(iterations=2, images_per_class=1)",
    )  # fmt: skip
    run_experiment(LocalGrid(3), settings)
    rows = read_lines(tmp_path / "run" / "rows.jsonl")
    failed = [row for row in rows if row["status"] == "failed"]
    assert not failed
    mixed = [
        r for r in rows if r["defense"] and r["reference"] == "original" and r["metric"] == "psnr" and r["round"] == 1
    ]
    assert {row["attack"] for row in mixed if "Inverting" in row["attack"]} == set(settings.probe_attacks.split("; "))
    recognised = [row for row in rows if row["metric"] == "recognition" and row["attack"] == chain]
    assert {(row["n"], row["card"]["auxiliary_data"] != "none") for row in recognised} == {(3, True)}
    # Counted once, over the 96 images of the three clients; 49 windows of 4 an image, of which the background's hold one value.
    counts = {row["metric"]: row for row in rows if row["metric"].startswith(("windows-of", "counted", "vfe-"))}
    assert {name: (row["n"], row["round"]) for name, row in counts.items()} == {
        "counted-images": (3, 1),
        "windows-of-4": (3, 1),
        "vfe-sum-before": (3, 1),
        "vfe-sum-after": (3, 1),
    }
    assert counts["counted-images"]["value"] == 96
    windows = counts["windows-of-4"]["value"]
    assert 10 * 96 < windows < 49 * 96
    before, after = (counts[f"vfe-sum-{when}"]["value"] / windows for when in ("before", "after"))
    assert before < after
    assert after == pytest.approx(24, rel=0.02)  # 2 WS (WS - 1), the mean over all shuffles
    found = {(r["attack"], r["round"]): r for r in rows if r["metric"] == "membership-auc" and not r["defense"]}
    assert set(found) == {
        (attack, at) for attack in ("LossThreshold()", "ShadowModels(num_shadows=2)") for at in (1, 2)
    }
    one = found["LossThreshold()", 1]
    # 120 examples less a fifth for the server, and 40 test examples.
    assert (one["card"]["members"], one["card"]["others"]) == (96, 40)
    assert one["ci_low"] < one["value"] < one["ci_high"]
    assert one["roc"][0] == [0.0, 0.0]
    assert one["roc"][-1] == [1.0, 1.0]
    drawn = [row for row in rows if row["metric"] == "class-mean-psnr" and not row["defense"]]
    assert [(row["round"], row["card"]["rounds_observed"]) for row in drawn] == [(2, 2)]


@pytest.mark.long
def test_windows_are_told_to_upper_bounds_alone_and_as_they_are(tmp_path: Path) -> None:
    """Through the wire: what clients reveal reaches the attack, and makes the difference between an answer and a failure."""
    told = "InvertingGradients(iterations=5) | WindowMean(partition='known')"
    mixer = "VisualMixer(window_lower=2, window_upper=16, first_regions='nearest')"
    for name, attacks, defense in (("told", told, mixer), ("hidden", told, f"Blur() | {mixer}")):
        settings = experiment(
            tmp_path / name, defenses=defense, probe_attacks=f"InvertingGradients(iterations=5); {attacks}",
            update_attacks="", rounds=1, num_clients=2,
        )  # fmt: skip
        run_experiment(LocalGrid(2), settings)
        rows = [r for r in read_lines(tmp_path / name / "rows.jsonl") if r["attack"] == told and r["defense"]]
        scores = [r for r in rows if (r["metric"], r["reference"]) == ("psnr", "original")]
        assert scores
        # Behind a blur nobody tells windows: those of the original are not those that were shuffled.
        assert {row["failures"] for row in scores} == ({0} if name == "told" else {2})


@pytest.mark.long
def test_the_final_model_is_attacked_as_the_last_round_left_it(tmp_path: Path) -> None:
    probed: dict[int, ArrayRecord] = {}

    def keep(partition: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train.probe":
            task = read_task(request.content["config"]["task"])
            probed[task.round] = request.content["arrays"]
        return reply

    settings = experiment(
        tmp_path / "run", defenses="", rounds=3, attack_rounds="first,final",
        update_attacks="LossThreshold(); ClassGAN(iterations=2, images_per_class=1)",
    )  # fmt: skip
    run_experiment(LocalGrid(3, keep), settings)
    assert set(probed) == {1, 4}
    final = RunDirectory(tmp_path / "run", settings).checkpoint(Pipeline(()))
    assert final is not None
    sent = to_tensors(probed[4])
    assert all(torch.equal(weight, final.weights[name]) for name, weight in sent.items())
    first = to_tensors(probed[1])
    assert any(not torch.equal(weight, first[name]) for name, weight in sent.items())
    rows = read_lines(tmp_path / "run" / "rows.jsonl")
    assert not [row for row in rows if row["status"] == "failed"]
    accuracy = {r["round"]: r["value"] for r in rows if r["metric"] == "test-accuracy" and r["reference"] == "original"}
    assert set(accuracy) == {0, 1, 2, 3}
    attacked = [row for row in rows if row["card"].get("observation") == "one-step probe"]
    assert {(row["round"], row["final"], row["card"]["model_accuracy"]) for row in attacked} == {
        (1, False, round(accuracy[0], 4)), (4, True, round(accuracy[3], 4))
    }  # fmt: skip
    # No update follows the final model: those that led to it are attacked, and the history ends with them.
    followed = [row for row in rows if row["card"].get("observation") == "training update"]
    assert {(row["round"], row["final"]) for row in followed} == {(1, False), (3, False)}
    drawn = [row for row in rows if row["metric"] == "class-mean-psnr"]
    assert [(row["round"], row["card"]["rounds_observed"]) for row in drawn] == [(3, 2)]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "rounds\n  0 to 3 and the final model" in page
    every = (tmp_path / "run" / "attacks.html").read_text(encoding="utf-8")
    assert '<td class="num">final</td>' in every
    assert "final model" in page
    assert "round 4" not in page + every


@pytest.mark.long
def test_without_auxiliary_data_an_attack_that_needs_it_says_so(tmp_path: Path) -> None:
    settings = experiment(
        tmp_path / "run", defenses="", rounds=1, update_attacks="ShadowModels()", auxiliary_fraction=0.0
    )
    run_experiment(LocalGrid(3), settings)
    (row,) = [r for r in read_lines(tmp_path / "run" / "rows.jsonl") if r["attack"] == "ShadowModels()"]
    assert row["status"] == "failed"
    assert "auxiliary-fraction is 0" in row["message"]


@pytest.mark.essential
def test_run_leaves_a_report_and_rows_of_every_kind(tmp_path: Path) -> None:
    report = run_experiment(LocalGrid(3), experiment(tmp_path / "run"))
    rows = read_lines(tmp_path / "run" / "rows.jsonl")
    assert report.read_text(encoding="utf-8").lstrip().startswith("<!doctype html>")
    assert {row["defense"] for row in rows} == {"", "GaussianNoise(std=0.02, per='update')"}
    for defense in ("", "GaussianNoise(std=0.02, per='update')"):
        mine = [row for row in rows if row["defense"] == defense]
        accuracy = [r["round"] for r in mine if r["metric"] == "test-accuracy" and r["reference"] == "original"]
        assert accuracy == [0, 1, 2]
        attacked = {row["attack"] for row in mine if row["round"] == 1}
        assert {
            "",
            "InvertingGradients(iterations=20)",
            "LabelInference()",
            "grey",
            "mean",
        } <= attacked
    psnr = [
        r
        for r in rows
        if r["metric"] == "psnr" and r["attack"].startswith("Inverting") and r["reference"] == "original"
    ]
    assert [row["n"] for row in psnr] == [3, 3]
    needed = {"experiment", "scenario", "dataset", "model", "seed", "defense", "attack", "card", "round", "metric"}
    assert all(needed | {"reference", "value", "n", "status", "seconds"} <= set(row) for row in rows)


@pytest.mark.long
def test_an_attack_that_does_not_break_the_undefended_run_is_not_validated(tmp_path: Path) -> None:
    weak = "InvertingGradients(iterations=1); DLG(iterations=250, restarts=1)"
    settings = experiment(tmp_path / "run", probe_attacks=weak, rounds=1, probe_targets=6)
    run_experiment(LocalGrid(3), settings)
    rows = [row for row in read_lines(tmp_path / "run" / "rows.jsonl") if row["metric"] == "psnr"]
    status = {(row["defense"], row["attack"].split("(")[0]): row["status"] for row in rows}
    assert (
        status["", "InvertingGradients"]
        == status["GaussianNoise(std=0.02, per='update')", "InvertingGradients"]
        == "not-validated"
    )
    assert status["", "DLG"] == status["GaussianNoise(std=0.02, per='update')", "DLG"] == "ok"


@pytest.mark.long
def test_two_images_give_scores_and_no_verdict(tmp_path: Path) -> None:
    """The report's banner said of such a run that no attack recovered its images, beside a reconstruction at 31.5 dB."""
    settings = experiment(tmp_path / "run", probe_attacks="DLG(iterations=250, restarts=1)", rounds=1, num_clients=2)
    assert "4 images" in too_few_images(replace(settings, probe_targets=2), 2)
    assert "has 1 image (1 clients, " in too_few_images(replace(settings, probe_targets=1), 1)
    assert "has 2 images (2 clients, " in too_few_images(replace(settings, probe_targets=1), 2)
    assert too_few_images(replace(settings, probe_targets=8), 2) == ""
    assert (
        too_few_images(replace(settings, attack_rounds=""), 2)
        == too_few_images(replace(settings, probe_attacks=""), 2)
        == ""
    )
    report = run_experiment(LocalGrid(2), settings).read_text(encoding="utf-8")
    assert "Too few images for a verdict" in report
    assert "2 images" in report
    assert "Positive control failed" not in report
    assert "recovered the images" not in " ".join(report.split())
    rows = read_lines(tmp_path / "run" / "rows.jsonl")
    scored = [row for row in rows if row["metric"] == "psnr" and row["attack"].startswith("DLG")]
    assert {row["status"] for row in scored} == {"under-powered"}
    assert {row["n"] for row in scored} == {2}
    found = [row for row in rows if row["metric"] == "retrieval" and row["attack"].startswith("DLG")]
    # Each of two clients has 48 training and 20 test examples: 68 candidates.
    assert [row["card"]["chance"] for row in found] == pytest.approx([1 / 68] * 2)


@pytest.mark.long
def test_without_enough_images_for_an_oracle_only_its_column_is_missing(tmp_path: Path) -> None:
    """On a folder of 80 pictures 13 are the server's: every attack on images ran and was thrown away."""
    settings = experiment(tmp_path / "run", train_limit=65, rounds=1, defenses="")
    run_experiment(LocalGrid(3), settings)
    rows = [row for row in read_lines(tmp_path / "run" / "rows.jsonl") if row["attack"].startswith("Inverting")]
    assert {"psnr", "ssim", "mse", "retrieval"} <= {row["metric"] for row in rows if row["status"] != "failed"}
    failed = [row for row in rows if row["status"] == "failed"]
    assert [(row["metric"], row["message"]) for row in failed] == [
        ("oracle-accuracy", "an oracle needs at least 16 auxiliary images, there are 13")
    ]
    assert "recognition" not in {row["metric"] for row in rows}
    assert failed_attacks(tmp_path / "run") == []


@pytest.mark.long
@pytest.mark.parametrize("images", [1, 3])
def test_attacks_that_gave_no_score_are_listed_at_the_end(tmp_path: Path, images: int) -> None:
    """Of several images a probe, a failed guess is as many failures as it has images: else an attack seemed to have scored most."""
    settings = experiment(
        tmp_path / "run", defenses="Pruning(fraction=1.0)", rounds=1, update_attacks="ShadowModels()",
        auxiliary_fraction=0.0, probe_images=images,
    )  # fmt: skip
    run_experiment(LocalGrid(3), settings)
    pruned = [
        row for row in read_lines(tmp_path / "run" / "rows.jsonl") if row["defense"] and row["attack"].startswith("Inv")
    ]
    assert {(row["n"], row.get("failures", 0)) for row in pruned if row["metric"] == "psnr"} == {
        (3 * images, 3 * images)
    }
    assert {(row["n"], row.get("failures", 0)) for row in pruned if row["metric"] == "label-accuracy"} == {(3, 3)}
    failed = failed_attacks(tmp_path / "run")
    assert {(one.what, one.defense.partition("(")[0], one.rounds) for one in failed} == {
        ("InvertingGradients(iterations=20)", "Pruning", ("1",)),  # of a pruned update nothing is left to match
        ("LabelInference()", "Pruning", ("1",)),
        ("ShadowModels()", "Pruning", ("1",)),
        ("ShadowModels()", "", ("1",)),
    }
    told = [str(one) for one in failed if one.what == "ShadowModels()" and not one.defense]
    assert told[0].startswith("ShadowModels() on no defence, round 1: AttackError: ")
    assert "auxiliary-fraction is 0" in told[0]


@pytest.mark.parametrize("failing", [1, 3])
def test_a_failed_test_of_membership_is_no_privacy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """The finding: zeros for every record gave an AUC of 0.5, "ok", and an exit code of success."""
    asked: list[ClientUpdate] = []

    def breaks(observation: ClientUpdate) -> nn.Module:
        asked.append(observation)
        if len(asked) <= failing:
            raise AttackError("no model to be had")
        return local_model(observation)

    monkeypatch.setattr("attacks.membership.loss_threshold.local_model", breaks)
    settings = experiment(tmp_path / "run", defenses="", rounds=1, probe_attacks="", update_attacks="LossThreshold()")
    run_experiment(LocalGrid(3), settings)
    assert len(asked) == 3
    rows = [row for row in read_lines(tmp_path / "run" / "rows.jsonl") if row["metric"].startswith("membership")]
    told = failed_attacks(tmp_path / "run")
    if failing == 3:
        (row,) = rows
        assert (row["status"], row["value"], row["failures"]) == ("failed", None, 3)
        assert [str(one) for one in told] == ["LossThreshold() on no defence, round 1: no model to be had"]
        return
    assert told == []
    area = next(row for row in rows if row["metric"] == "membership-auc")
    # Two of three clients, of 32 members each; a third of the 40 test examples is the failed client's.
    assert area["card"]["members"] == 2 * 96 // 3
    assert 26 <= area["card"]["others"] <= 27
    assert (area["failures"], area["n"]) == (1, area["card"]["others"] + 64)


@pytest.mark.long
def test_pictures_say_what_they_were_made_from(tmp_path: Path) -> None:
    """Those of a GAN attack come from training updates, and not from the probes of the same round."""
    settings = experiment(
        tmp_path / "run", defenses="", attack_rounds="all", update_attacks="ClassGAN(iterations=2, images_per_class=1)"
    )
    report = run_experiment(LocalGrid(3), settings).read_text(encoding="utf-8")
    pictures = read_lines(tmp_path / "run" / "pictures" / "index.jsonl")
    seen = {
        (picture["attack"].split("(")[0], picture["observation"], picture.get("rounds_observed"))
        for picture in pictures
    }
    probe, update = "one-step probe", "training update"
    assert seen == {("", probe, None), ("InvertingGradients", probe, None), ("ClassGAN", update, 2)}
    assert "round 2, training update of 2 rounds, client 0" in " ".join(report.split())
    names = [picture["file"] for picture in pictures]
    assert len(set(names)) == len(names)


@pytest.mark.long
def test_same_seed_same_rows_other_seed_others(tmp_path: Path) -> None:
    runs = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run_experiment(LocalGrid(3), experiment(tmp_path / name, seed=seed))
        runs[name] = untimed(read_lines(tmp_path / name / "rows.jsonl"))
    assert runs["a"] == runs["b"]
    values = [[row["value"] for row in runs[name] if row["metric"] == "psnr"] for name in ("a", "c")]
    assert values[0] != values[1]


def broken(kind: str):
    """A tamper function: client 1's training replies go wrong in one way."""

    def tamper(partition: int, request: Message, reply: Message) -> Message | None:
        if partition != 1 or request.metadata.message_type != "train":
            return reply
        if kind == "raises":
            raise RuntimeError("disk full")
        if kind == "silent":
            return None
        arrays = {name: array.numpy().copy() for name, array in reply.content["arrays"].items()}
        first = next(iter(arrays))
        if kind == "nan":
            arrays[first].flat[0] = np.nan
        elif kind == "shape":
            arrays[first] = arrays[first][:1]
        elif kind == "keys":
            del arrays[first]
        elif kind == "dtype":
            arrays[first] = arrays[first].astype(np.float64)
        elif kind == "count":
            reply.content["metrics"]["num-examples"] = -5
        reply.content["arrays"] = ArrayRecord({name: Array(value) for name, value in arrays.items()})
        return reply

    return tamper


REASONS = {
    "raises": "disk full", "silent": "no reply", "nan": "NaN", "shape": "expected float32(12, 1, 5, 5)",
    "keys": "names differ", "dtype": "float64", "count": "num-examples is -5",
}  # fmt: skip


@pytest.mark.parametrize("kind", REASONS)
def test_a_bad_client_costs_its_own_update_and_a_row(tmp_path: Path, kind: str) -> None:
    settings = experiment(tmp_path / "run", defenses="", rounds=1, attack_rounds="")
    run_experiment(LocalGrid(3, broken(kind)), settings)
    rows = read_lines(tmp_path / "run" / "rows.jsonl")
    failed = [row for row in rows if row["status"] == "failed"]
    assert [(row["client"], row["round"], row["metric"]) for row in failed] == [(1, 1, "client")]
    assert REASONS[kind] in failed[0]["message"]
    assert [row["value"] for row in rows if row["metric"] == "clients-failed"] == [1]
    assert [row["n"] for row in rows if row["metric"] == "train-loss"] == [2]


@pytest.mark.parametrize("lost", [True, False])
def test_a_client_that_does_not_evaluate_costs_its_share_of_the_test_images_and_a_row(
    tmp_path: Path, lost: bool
) -> None:
    """A lost reply too: nobody was told that the accuracy was that of two clients."""

    def tamper(partition: int, request: Message, reply: Message) -> Message | None:
        if partition != 1 or request.metadata.message_type != "evaluate":
            return reply
        if lost:
            return None
        raise RuntimeError("disk full")

    settings = experiment(tmp_path / "run", defenses="", rounds=1, attack_rounds="", min_usable=1.0)
    run_experiment(LocalGrid(3, tamper), settings)
    rows = read_lines(tmp_path / "run" / "rows.jsonl")
    failed = [(row["round"], row["client"], row["message"]) for row in rows if row["status"] == "failed"]
    reason = "no reply within 300 s" if lost else "RuntimeError: disk full"
    assert failed == [(at, 1, f"evaluate: {reason}") for at in (0, 1)]
    assert {row["n"] for row in rows if row["metric"] == "test-accuracy"} == {27}  # of 40


def test_numbers_that_json_cannot_hold_do_not_end_the_run(tmp_path: Path) -> None:
    def tamper(partition: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train" and partition == 1:
            reply.content["metrics"]["train-loss"] = float("nan")
        return reply

    settings = experiment(tmp_path / "run", defenses="", rounds=1, attack_rounds="")
    run_experiment(LocalGrid(3, tamper), settings)
    (row,) = [row for row in read_lines(tmp_path / "run" / "rows.jsonl") if row["metric"] == "train-loss"]
    assert (row["value"], row["worst"], row["message"]) == (None, None, "train-loss is nan")


def test_too_few_usable_replies_stop_the_run_and_keep_its_rows(tmp_path: Path) -> None:
    settings = experiment(tmp_path / "run", defenses="", min_usable=1.0, attack_rounds="")
    with pytest.raises(RuntimeError, match=r"2 of 3 train replies are usable.*disk full"):
        run_experiment(LocalGrid(3, broken("raises")), settings)
    assert any(row["status"] == "failed" for row in read_lines(tmp_path / "run" / "rows.jsonl"))
    about = json.loads((tmp_path / "run" / "config.json").read_text())
    assert "min-usable" in about["progress"]["failed"]


@pytest.mark.long
def test_probes_show_the_defended_update(tmp_path: Path) -> None:
    """Pruning every entry leaves an attacker nothing: the message on the wire is what is attacked."""
    settings = experiment(tmp_path / "run", defenses="Pruning(fraction=1.0, per='step')", rounds=1)
    run_experiment(LocalGrid(3), settings)
    rows = read_lines(tmp_path / "run" / "rows.jsonl")
    images = [row for row in rows if row["attack"].startswith("Inverting") and row["metric"] == "psnr"]
    failures = {(row["defense"], row["failures"]) for row in images}
    assert failures == {("", 0), ("Pruning(fraction=1.0, per='step')", 3)}
