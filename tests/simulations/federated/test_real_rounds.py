"""Whole rounds beside one-step probes, in a federation in this process: attacks on both, and what the report says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.report.analysis.run import read_run
from simulations.report.analysis.sentences import sentence
from simulations.server_app import run_experiment
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.federated.test_federation import experiment

PROBED, MATCHED = "InvertingGradients(iterations=2)", "SurrogateMatching(iterations=2)"
MIXER = "VisualMixer(window_lower=2, window_upper=4)"


@pytest.mark.long
def test_refinements_go_on_from_whole_rounds_and_the_report_tells_both(tmp_path: Path) -> None:
    settings = experiment(
        tmp_path / "run", defenses=MIXER, rounds=1, train_limit=80, num_clients=2, local_steps=2, batch_size=4,
        probe_attacks=PROBED, update_attacks=f"{MATCHED}; {MATCHED} | WindowMean(); Spear()", adaptive=False,
        share_images=False,
    )  # fmt: skip
    run_experiment(LocalGrid(settings.num_clients), settings)
    folder = Path(settings.output_dir)
    rows = read_lines(folder / "rows.jsonl")
    scored = {
        (row["defense"], row["attack"]) for row in rows if row["metric"] == "psnr" and "Matching" in row["attack"]
    }
    mixer = next(row["defense"] for row in rows if row["defense"])
    assert scored == {(of, attack) for of in ("", mixer) for attack in (MATCHED, f"{MATCHED} | WindowMean()")}
    # An attack of one step on whole rounds: a row that says what is for them.
    spear = [row["card"] for row in rows if row["attack"] == "Spear()" and row["metric"] == "psnr"]
    (told,) = {reason for card in spear for reason in card["attack_failures"]}
    assert "does not apply: the update has 2 local steps" in told
    run = read_run(folder)
    (study,) = run.studies
    for line in run.lines(study):
        text = sentence(line)
        assert text.startswith("One-step probe: ")
        assert ". Training update of 2 steps on " in text
        assert " images, searched by 2 iterations: " in text
