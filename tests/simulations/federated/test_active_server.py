"""An active server in a federated run, in this process: asked for, in rows of its own, and in no headline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulations.experiment.experiment import Experiment
from simulations.report.analysis.run import read_run
from simulations.report.analysis.summary import summarise
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from strategies.exchange.guard import TooFewReplies
from tests.lines import read_lines
from tests.local_grid import LocalGrid

SETTINGS: dict[str, Any] = {
    "dataset": "mnist-5k", "model": "mlp", "train-limit": 400, "test-limit": 40, "num-clients": 2, "rounds": 1,
    "local-steps": 1, "defenses": "", "update-attacks": "", "probe-attacks": "InvertingGradients(iterations=2)",
    "probe-targets": 2, "probe-images": 4, "attack-rounds": "first", "attack-workers": 0, "adaptive": False,
}  # fmt: skip


def run(out: Path, nodes: dict[int, dict[str, Any]] | None = None, **changes: Any) -> list[dict[str, Any]]:
    changed = {key.replace("_", "-"): value for key, value in changes.items()}
    experiment = Experiment.from_mapping({**SETTINGS, **changed, "output-dir": str(out)})
    run_experiment(LocalGrid(2, node_config=nodes), experiment)
    return list(read_lines(out / "rows.jsonl"))


@pytest.mark.long
def test_a_run_reads_batches_from_answers_to_its_model_and_keeps_them_apart(tmp_path: Path) -> None:
    rows = run(tmp_path / "run", active_attacks="ImprintLayer(bins=96)")
    active = [row for row in rows if row["card"].get("server") == "active"]
    scored = {(row["attack"], row["metric"], row["reference"]): row for row in active}
    found = scored["ImprintLayer(bins=96)", "psnr", "original"]
    assert found["n"] == 16
    assert found["value"] > 40
    assert found["card"]["threat_class"] == "G"
    assert scored["ImprintLayer(bins=96)", "model-refused", ""]["value"] == 0.0
    assert {row["card"]["observation"] for row in active} == {"probe of a manipulated model"}
    assert not any(row["card"].get("server") for row in rows if row["attack"].startswith("InvertingGradients"))

    (study,) = read_run(tmp_path / "run").studies
    (line,) = summarise(study, {})
    assert line.strongest is not None
    assert line.strongest.attack == "InvertingGradients(iterations=2)", (
        "the headline is of the honest-but-curious server"
    )
    assert line.attacks == 1
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    before, _, section = page.partition('<section id="active"')
    assert "ImprintLayer" not in before.partition("<section")[2]
    assert "Not honest but curious" in section
    assert "ImprintLayer(<wbr>bins=96)" in section.replace("</wbr>", "") or "bins=96" in section
    assert "data:image/png" in section.partition("</section>")[0]


@pytest.mark.parametrize("key", ["probe-attacks", "update-attacks"])
def test_active_attacks_are_asked_for_by_their_own_setting(key: str) -> None:
    with pytest.raises(
        ConfigError, match=r"does not attack .* but probes of manipulated models \(see active-attacks\)"
    ):
        Experiment.from_mapping({**SETTINGS, key: "ImprintLayer()"})
    with pytest.raises(
        ConfigError, match=r"active-attacks: InvertingGradients\(\) does not attack probes of manipulated models"
    ):
        Experiment.from_mapping({**SETTINGS, "active-attacks": "InvertingGradients()"})


@pytest.mark.long
def test_a_model_without_the_layer_costs_one_row(tmp_path: Path) -> None:
    rows = run(tmp_path / "run", model="cnn", image_size=16, active_attacks="ImprintLayer()")
    (row,) = [row for row in rows if row["attack"] == "ImprintLayer()"]
    assert row["status"] == "failed"
    assert row["message"].startswith("does not apply: no linear layer of the agreed")
    assert row["card"]["server"] == "active"


def test_who_answers_no_probes_has_not_judged_the_model(tmp_path: Path) -> None:
    rows = run(tmp_path / "run", {0: {"probes": False}}, probe_attacks="", active_attacks="ImprintLayer(bins=96)")
    (refused,) = [row for row in rows if row["metric"] == "model-refused"]
    assert (refused["value"], refused["n"]) == (0.0, 1)


@pytest.mark.long
def test_what_active_probes_spend_is_told(tmp_path: Path) -> None:
    rows = run(
        tmp_path / "run", probe_attacks="", adaptive=False, active_attacks="ImprintLayer(bins=96); TrapWeights()",
        defenses="DPSGD(target_epsilon=8.0)",
    )  # fmt: skip
    spent = [row["value"] for row in rows if row["metric"] == "epsilon-with-probes"]
    trained = [row["value"] for row in rows if row["metric"] == "epsilon"]
    assert len(spent) >= 2
    assert spent == sorted(spent)
    assert spent[-1] > spent[0] > 0
    assert trained


def test_a_run_that_was_only_attacked_actively_says_so_and_tells_what_failed(tmp_path: Path) -> None:
    run(tmp_path / "run", probe_attacks="", active_attacks="ImprintLayer(bins=96); ImprintLayer(bins=5000)")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Attacked only by an active server" in page
    assert "No attack has finished yet" not in page
    failures = page.partition('<section id="failures"')[2].partition("</section>")[0]
    assert "Nothing failed" not in failures
    assert "bins is 5000" in failures


def test_where_every_client_refuses_to_train_the_first_reason_is_told(tmp_path: Path) -> None:
    with pytest.raises(TooFewReplies, match=r"no client trains; first reason: .*pipelines"):
        run(tmp_path / "run", {at: {"pipelines": "ImageNoise(std=0.1)"} for at in (0, 1)}, probe_attacks="")


@pytest.mark.long
def test_clients_that_check_refuse_it_in_rows_and_honest_training_goes_on(tmp_path: Path) -> None:
    """By the setting all of them; by a node's own key one of two, where the other is read."""
    attacks = "ImprintLayer(bins=96); TrapWeights(); ClassFishing(iterations=5)"
    everyone = {"active_attacks": attacks, "rounds": 2, "attack_rounds": "all", "probe_targets": 1}
    for number, (changes, nodes, refused) in enumerate(
        [({"model_check": True}, None, 1.0), ({}, {0: {"model-check": True}}, 0.5)]
    ):
        rows = run(tmp_path / str(number), nodes, **everyone, **changes)
        shares = [row["value"] for row in rows if row["metric"] == "model-refused"]
        assert shares == [refused] * 9, "three models in two rounds and the final one"
        told = [row for row in rows if row["status"] == "refused"]
        assert len(told) == round(9 * 2 * refused)
        assert all("model-check" in row["message"] and "train.probe" in row["message"] for row in told)
        assert not any(row["metric"] == "clients-failed" and row["value"] for row in rows)
        read = [row for row in rows if row["metric"] == "psnr" and row["card"].get("server") == "active"]
        assert bool([row for row in read if not row["attack"].startswith("baseline")]) == (refused < 1)
        honest = [row for row in rows if row["attack"].startswith("InvertingGradients") and row["metric"] == "psnr"]
        assert {row["n"] for row in honest} == {8}, "no honest probe was refused"
        section = (
            (tmp_path / str(number) / "report.html").read_text(encoding="utf-8").partition('<section id="active"')[2]
        )
        assert ("2 of 2" if refused == 1 else "1 of 2") in section
        assert "no answer" in section or refused < 1
