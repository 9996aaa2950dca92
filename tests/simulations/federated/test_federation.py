"""The whole federation in this process: real ClientApp, real strategy, real attacks; only the transport is local."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message
from torch import nn

from attacks.local_model import local_model
from attacks.observations import AttackError, ClientUpdate
from clients.task.scenarios import read_task
from clients.wire.records import to_tensors
from defenses.pipeline import Pipeline
from simulations.experiment.experiment import Experiment
from simulations.report.analysis.failures import failed_attacks
from simulations.run_folder.run_directory import RunDirectory
from tests.lines import read_lines
from tests.simulations.broken_replies import Break, edit, is_asked, metric, raising
from tests.simulations.short_runs import rows_of, untimed

FAST = "InvertingGradients(iterations=5); LabelInference()"
NOISE, PRUNED = "GaussianNoise(std=0.02, per='update')", "Pruning(fraction=1.0, per='step')"


def experiment(out: Path, **changes: object) -> Experiment:
    small = Experiment.of(
        output_dir=str(out), dataset="mnist-5k", model="lenet", batch_size=32, learning_rate=0.1, momentum=0.5,
        train_limit=120, test_limit=40, num_clients=3, rounds=2, local_epochs=1,
        defenses=NOISE, probe_attacks=FAST, probe_targets=1, attack_rounds="first",
        update_attacks="LabelInference(); LossThreshold()", attack_workers=0,
        adaptive=False,
    )  # fmt: skip
    return small.but(**changes)


def without_attacks(out: Path, **changes: object) -> Experiment:
    return experiment(out, **{"model": "mlp", "defenses": "", "rounds": 1, "attack_rounds": "", **changes})


GOLDEN = {"defenses": f"{NOISE}; {PRUNED}"}


Golden = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """The folder and the rows of a run without a defence, with noise and with nothing left of an update."""
    out = tmp_path_factory.mktemp("federated") / "run"
    return out, rows_of(experiment(out, **GOLDEN))


@pytest.mark.essential
def test_a_run_leaves_rows_of_every_kind_and_a_report(golden: tuple[Path, list[dict[str, Any]]]) -> None:
    out, rows = golden
    assert (out / "report.html").read_text(encoding="utf-8").lstrip().startswith("<!doctype html>")
    assert {row["defense"] for row in rows} == {"", NOISE, PRUNED}
    needed = {"experiment", "scenario", "dataset", "model", "seed", "defense", "attack", "card", "round", "metric"}
    assert all(needed | {"reference", "value", "n", "status", "seconds"} <= set(row) for row in rows)
    for defense in ("", NOISE, PRUNED):
        mine = [row for row in rows if row["defense"] == defense]
        accuracy = [r["round"] for r in mine if r["metric"] == "test-accuracy" and r["reference"] == "original"]
        assert accuracy == [0, 1, 2]
        assert {"", *FAST.split("; "), "LossThreshold()", "grey", "mean"} <= {r["attack"] for r in mine}
        assert {row["n"] for row in mine if row["metric"] == "train-loss"} == {3}
        assert {row["n"] for row in mine if row["metric"] == "test-accuracy"} == {40}
        members = [row for row in mine if row["metric"] == "membership-auc"]
        # 120 examples less a fifth for the server, and 40 test examples.
        assert [(row["card"]["members"], row["card"]["others"]) for row in members] == [(96, 40)]


def test_probes_and_updates_are_attacked_behind_the_defence(golden: tuple[Path, list[dict[str, Any]]]) -> None:
    """Of a pruned update nothing is left to match: the message on the wire is what the attacks see."""
    out, rows = golden
    for name in ("psnr", "label-accuracy"):
        attacked = [r for r in rows if r["metric"] == name and r["card"].get("observation") == "one-step probe"]
        guessed = {(row["defense"], row["n"], row["failures"]) for row in attacked if row["attack"] in FAST.split("; ")}
        assert guessed == {("", 3, 0), (NOISE, 3, 0), (PRUNED, 3, 3)}, name
    failed = {(one.what, one.defense) for one in failed_attacks(out)}
    assert failed == {(attack, PRUNED) for attack in FAST.split("; ")}


@pytest.mark.long
def test_the_same_seed_gives_the_same_rows_and_another_one_others(tmp_path: Path, golden: Golden) -> None:
    again, other = (rows_of(experiment(tmp_path / str(seed), seed=seed, **GOLDEN)) for seed in (0, 1))
    assert untimed(again) == untimed(golden[1])
    assert [r["value"] for r in again if r["metric"] == "psnr"] != [r["value"] for r in other if r["metric"] == "psnr"]


@pytest.mark.long
def test_chains_membership_and_attacks_over_rounds_run_on_what_the_server_knows(tmp_path: Path) -> None:
    """Every kind of guess goes to the clients and comes back as rows; the history reaches back to the first attacked round."""
    chain = "InvertingGradients(iterations=20) | WindowMean()"
    settings = experiment(
        tmp_path / "run", defenses="VisualMixer(window_lower=4, window_upper=4)", attack_rounds="all",
        probe_attacks=f"InvertingGradients(iterations=20); {chain}",
        update_attacks="LossThreshold(); ShadowModels(num_shadows=2); ClassGAN(iterations=2, images_per_class=1)",
    )  # fmt: skip
    rows = rows_of(settings)
    assert not [row for row in rows if row["status"] == "failed"]
    mixed = [r for r in rows if r["defense"] and (r["reference"], r["metric"], r["round"]) == ("original", "psnr", 1)]
    assert {row["attack"] for row in mixed if "Inverting" in row["attack"]} == set(settings.probe_attacks.split("; "))
    recognised = [row for row in rows if row["metric"] == "recognition" and row["attack"] == chain]
    assert {(row["n"], row["card"]["auxiliary_data"] != "none") for row in recognised} == {(3, True)}
    # Counted once, over the 96 images of the three clients; 49 windows of 4 an image, of which the background's hold one value.
    counts = {row["metric"]: row for row in rows if row["metric"].startswith(("windows-of", "counted", "vfe-"))}
    names = {"counted-images", "windows-of-4", "vfe-sum-before", "vfe-sum-after"}
    assert {name: (row["n"], row["round"]) for name, row in counts.items()} == dict.fromkeys(names, (3, 1))
    assert counts["counted-images"]["value"] == 96
    windows = counts["windows-of-4"]["value"]
    assert 10 * 96 < windows < 49 * 96
    before, after = (counts[f"vfe-sum-{when}"]["value"] / windows for when in ("before", "after"))
    assert before < after
    assert after == pytest.approx(24, rel=0.02)  # 2 WS (WS - 1), the mean over all shuffles
    found = {(r["attack"], r["round"]): r for r in rows if r["metric"] == "membership-auc" and not r["defense"]}
    assert set(found) == {(name, at) for name in ("LossThreshold()", "ShadowModels(num_shadows=2)") for at in (1, 2)}
    one = found["LossThreshold()", 1]
    assert one["ci_low"] < one["value"] < one["ci_high"]
    assert (one["roc"][0], one["roc"][-1]) == ([0.0, 0.0], [1.0, 1.0])
    drawn = [row for row in rows if row["metric"] == "class-mean-psnr" and not row["defense"]]
    assert [(row["round"], row["card"]["rounds_observed"]) for row in drawn] == [(2, 2)]
    # Pictures of an attack on training updates are not taken for those of the probes of the same round.
    pictures = read_lines(tmp_path / "run" / "pictures" / "index.jsonl")
    seen = {(one["attack"].split("(")[0], one["observation"], one.get("rounds_observed")) for one in pictures}
    probe, update = "one-step probe", "training update"
    assert seen == {("", probe, None), ("InvertingGradients", probe, None), ("", update, None), ("ClassGAN", update, 2)}
    names = [picture["file"] for picture in pictures]
    assert len(set(names)) == len(names)


@pytest.mark.long
def test_the_final_model_is_attacked_as_the_last_round_left_it(tmp_path: Path) -> None:
    probed: dict[int, ArrayRecord] = {}

    def keep(partition: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train.probe":
            probed[read_task(request.content["config"]["task"]).round] = request.content["arrays"]
        return reply

    settings = experiment(
        tmp_path / "run", defenses="", rounds=3, attack_rounds="first,final",
        update_attacks="LossThreshold(); ClassGAN(iterations=2, images_per_class=1)",
    )  # fmt: skip
    rows = rows_of(settings, keep)
    assert set(probed) == {1, 4}
    final = RunDirectory(tmp_path / "run", settings).checkpoint(Pipeline(()))
    assert final is not None
    first, sent = to_tensors(probed[1]), to_tensors(probed[4])
    assert all(torch.equal(weight, final.weights[name]) for name, weight in sent.items())
    assert any(not torch.equal(weight, first[name]) for name, weight in sent.items())
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
    assert "final" in page
    assert "round 4" not in page


@pytest.mark.long
def test_few_images_give_scores_and_no_verdict(tmp_path: Path) -> None:
    """Two images once gave the verdict that no attack recovered them, beside a reconstruction at 31.5 dB."""
    strong = "DLG(iterations=250, restarts=1)"
    two = experiment(tmp_path / "two", probe_attacks=strong, rounds=1, num_clients=2)
    rows = rows_of(two)
    scored = [row for row in rows if row["metric"] == "psnr" and row["attack"] == strong]
    assert {(row["status"], row["n"]) for row in scored} == {("under-powered", 2)}
    # Each of two clients has 48 training and 20 test examples, some seven of a class.
    found = [row for row in rows if row["metric"] == "identified" and row["attack"] == strong]
    assert all(1 / 20 < row["card"]["chance"] < 1 / 3 for row in found)
    page = " ".join((tmp_path / "two" / "report.html").read_text(encoding="utf-8").split())
    assert "2 of 2 †" in page


def test_a_failed_test_of_membership_is_no_privacy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros for every record once gave an AUC of 0.5, "ok", and an exit code of success."""
    for failing in (1, 3):
        asked: list[ClientUpdate] = []

        def breaks(observation: ClientUpdate, asked: list = asked, failing: int = failing) -> nn.Module:
            asked.append(observation)
            if len(asked) <= failing:
                raise AttackError("no model to be had")
            return local_model(observation)

        monkeypatch.setattr("attacks.membership.loss_threshold.local_model", breaks)
        out = tmp_path / str(failing)
        attacked = {"probe_attacks": "", "update_attacks": "LossThreshold()", "attack_rounds": "first"}
        rows = [row for row in rows_of(without_attacks(out, **attacked)) if row["metric"].startswith("membership")]
        assert len(asked) == 3
        told = [str(one) for one in failed_attacks(out)]
        if failing == 3:
            assert [(row["status"], row["value"], row["failures"]) for row in rows] == [("failed", None, 3)]
            assert told == ["LossThreshold() on no defence, round 1: no model to be had"]
        else:
            area = next(row for row in rows if row["metric"] == "membership-auc")
            # Two of three clients, of 32 members each; a third of the 40 test examples is the failed client's.
            assert area["card"]["members"] == 2 * 96 // 3
            assert 26 <= area["card"]["others"] <= 27
            assert (area["failures"], area["n"], told) == (1, area["card"]["others"] + 64, [])


BROKEN: list[tuple[Break, str]] = [
    (raising, "disk full"),
    (lambda reply: None, "no reply"),
    (edit("arrays", lambda arrays: next(iter(arrays.values())).fill(np.nan)), "NaN"),
    (edit("arrays", lambda arrays: arrays.update({n: v[:1] for n, v in arrays.items()})), "expected float32("),
    (edit("arrays", lambda arrays: arrays.popitem()), "names differ"),
    (edit("arrays", lambda arrays: arrays.update({n: v.astype(np.float64) for n, v in arrays.items()})), "float64"),
    (metric("num-examples", -5), "num-examples is -5"),
    (metric("train-loss", float("nan")), "'train-loss' is nan"),
]


def test_each_bad_client_costs_its_own_update_and_a_row(tmp_path: Path) -> None:

    def tamper(partition: int, request: Message, reply: Message) -> Message | None:
        wrong = partition and is_asked(request, "train")
        return BROKEN[partition - 1][0](reply) if wrong else reply

    rows = rows_of(without_attacks(tmp_path / "run", num_clients=9, min_usable=0.1), tamper)
    failed = {row["client"]: row for row in rows if row["status"] == "failed" and row["metric"] == "client"}
    assert sorted(failed) == list(range(1, 9))
    for partition, row in failed.items():
        assert (row["round"], BROKEN[partition - 1][1] in row["message"]) == (1, True), row["message"]
    assert [row["value"] for row in rows if row["metric"] == "clients-failed"] == [8]
    assert [row["n"] for row in rows if row["metric"] == "train-loss"] == [1]


def test_a_client_that_does_not_evaluate_costs_its_share_of_the_test_images_and_a_row(tmp_path: Path) -> None:

    def tamper(partition: int, request: Message, reply: Message) -> Message | None:
        broken: Break = (lambda reply: None, raising, lambda reply: reply)[partition]
        return broken(reply) if is_asked(request, "evaluate") else reply

    rows = rows_of(without_attacks(tmp_path / "run", min_usable=1.0), tamper)
    failed = sorted((row["round"], row["client"], row["message"]) for row in rows if row["status"] == "failed")
    reasons = ("no reply within 300 s", "RuntimeError: disk full")
    assert failed == [(at, client, f"evaluate: {reason}") for at in (0, 1) for client, reason in enumerate(reasons)]
    assert {row["n"] for row in rows if row["metric"] == "test-accuracy"} == {13}  # of 40
