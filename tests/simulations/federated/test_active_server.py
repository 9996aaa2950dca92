"""An active server in a federated run, in this process: asked for, in rows of its own, and in no headline."""

from pathlib import Path
from typing import Any

import pytest

from simulations.experiment.experiment import Experiment
from simulations.report.analysis.finding import findings_of
from simulations.report.analysis.run import read_run
from simulations.server_app import run_experiment
from tests.lines import read_lines
from tests.local_grid import LocalGrid

HONEST, IMPRINT = "InvertingGradients(iterations=2)", "ImprintLayer(bins=96)"
SETTINGS: dict[str, Any] = {
    "dataset": "mnist-5k", "model": "mlp", "train-limit": 400, "test-limit": 40, "num-clients": 2, "rounds": 1,
    "local-steps": 1, "defenses": "", "update-attacks": "", "probe-attacks": HONEST, "probe-targets": 2, "probe-images": 4,
    "attack-rounds": "first", "attack-workers": 0, "adaptive": False,
}  # fmt: skip


def run(out: Path, nodes: dict[int, dict[str, Any]] | None = None, **changes: Any) -> list[dict[str, Any]]:
    changed = {key.replace("_", "-"): value for key, value in changes.items()}
    experiment = Experiment.from_mapping({**SETTINGS, **changed, "output-dir": str(out)})
    run_experiment(LocalGrid(experiment.num_clients, node_config=nodes), experiment)
    return read_lines(out / "rows.jsonl")


def section_of(folder: Path, name: str) -> str:
    page = (folder / "report.html").read_text(encoding="utf-8")
    return page.partition(f'<section id="{name}"')[2].partition("</section>")[0]


def test_a_run_reads_batches_from_answers_to_its_model_and_keeps_them_apart(tmp_path: Path) -> None:
    """A third client answers no probes: of the others two batches of four images each are read."""
    wide = "ImprintLayer(bins=5000)"
    rows = run(tmp_path / "run", {2: {"probes": False}}, active_attacks=f"{IMPRINT}; {wide}", num_clients=3)
    active = [row for row in rows if row["card"].get("server") == "active"]
    scored = {(row["attack"], row["metric"], row["reference"]): row for row in active}
    found = scored[IMPRINT, "psnr", "original"]
    assert (found["n"], found["card"]["threat_class"]) == (16, "G")
    assert found["value"] > 40
    # Which client answers no probe at all has not judged the model.
    refused = scored[IMPRINT, "model-refused", ""]
    assert (refused["value"], refused["n"]) == (0.0, 2)
    assert {row["card"]["observation"] for row in active} == {"probe of a manipulated model"}
    assert not any(row["card"].get("server") for row in rows if row["attack"] == HONEST)
    (row,) = [row for row in rows if row["attack"] == wide]
    assert row["status"] == "not-applicable"
    assert "bins is 5000" in row["message"]
    assert "data:image/png" in section_of(tmp_path / "run", "active")
    (study,) = read_run(tmp_path / "run").studies
    (line,) = findings_of(study, {})
    assert line.strongest is not None
    assert line.strongest.attack == HONEST, "the headline is of the honest-but-curious server"


@pytest.mark.long
def test_a_run_that_was_only_attacked_actively_says_so_and_its_probes_spend(tmp_path: Path) -> None:
    rows = run(
        tmp_path / "run", probe_attacks="", active_attacks=f"{IMPRINT}; TrapWeights()", defenses="DPSGD(target_epsilon=8.0)"
    )  # fmt: skip
    assert "Attacked only by an active server" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    spent = [row["value"] for row in rows if row["metric"] == "epsilon-with-probes"]
    (trained,) = [row["value"] for row in rows if row["metric"] == "epsilon"]
    assert len(spent) >= 2
    assert spent == sorted(spent)
    assert spent[-1] > max(spent[0], trained) > 0


@pytest.mark.long
def test_clients_that_check_refuse_it_in_rows_and_honest_training_goes_on(tmp_path: Path) -> None:
    """By the setting all of them; by a node's own key one of two, where the other is read."""
    attacks = f"{IMPRINT}; TrapWeights(); ClassFishing(iterations=5)"
    everyone = {"active_attacks": attacks, "rounds": 2, "attack_rounds": "all", "probe_targets": 1}
    for changes, nodes, refused in (({"model_check": True}, None, 1.0), ({}, {0: {"model-check": True}}, 0.5)):
        rows = run(tmp_path / str(refused), nodes, **everyone, **changes)
        shares = [row["value"] for row in rows if row["metric"] == "model-refused"]
        assert shares == [refused] * 9, "three models in two rounds and the final one"
        told = [row for row in rows if row["status"] == "refused"]
        assert len(told) == round(9 * 2 * refused)
        assert all("model-check" in row["message"] and "train.probe" in row["message"] for row in told)
        assert not any(row["metric"] == "clients-failed" and row["value"] for row in rows)
        read = [row for row in rows if row["metric"] == "psnr" and row["card"].get("server") == "active"]
        assert bool([row for row in read if not row["attack"].startswith("baseline")]) == (refused < 1)
        honest = [row for row in rows if row["attack"] == HONEST and row["metric"] == "psnr"]
        assert {row["n"] for row in honest} == {8}, "no honest probe was refused"
        assert ("2 of 2" if refused == 1 else "1 of 2") in section_of(tmp_path / str(refused), "active")
