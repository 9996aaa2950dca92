"""The attacks of "auto" on real networks: exact ones first, others where these leave something, chains behind what was found."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attacks import choice
from attacks.choice import EXACT, Needless, Turns
from attacks.exact.head_inversion import HeadInversion
from attacks.gradient.labels import LabelInference
from attacks.gradient.presets import InvertingGradients
from attacks.guesses import Reconstruction
from attacks.refinement.base import Chain
from attacks.refinement.unshuffle import WindowMean
from simulations.experiment.experiment import Experiment
from simulations.report.analysis.failures import failed_attacks
from simulations.server_app import run_experiment
from strategies.audit.auditor import _failed_values
from strategies.audit.kinds import Kind, Seen, kinds
from strategies.federated.observations import PROBE, UPDATE
from tests.lines import read_lines
from tests.local_grid import LocalGrid

SETTINGS: dict[str, Any] = {
    "dataset": "mnist-5k", "train-limit": 200, "test-limit": 40, "num-clients": 2, "rounds": 1, "local-steps": 1, "batch-size": 4,
    "attack-workers": 0, "probe-targets": 2, "auxiliary-fraction": 0.0, "attack-rounds": "first", "learning-rate": 0.01,
}  # fmt: skip
MIXER = "VisualMixer(window_lower=4, window_upper=4)"


SEARCH = InvertingGradients(iterations=10)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = (replace(one, iterations=5) if isinstance(one, HeadInversion) else one for one in EXACT)
    monkeypatch.setattr(choice, "ON_PROBES", (*exact, SEARCH, LabelInference()))


def rows_of(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    values = SETTINGS | {"output-dir": str(folder)} | {key.replace("_", "-"): value for key, value in changes.items()}
    run_experiment(LocalGrid(2), Experiment.from_mapping(values))
    return read_lines(folder / "rows.jsonl")


def statuses(rows: list[dict[str, Any]], defense: str, observation: str) -> dict[str, str]:
    """Attack -> status of its row without a score, or "scored"."""
    mine = [row for row in rows if row["role"] == "attack" and row["defense"] == defense]
    mine = [row for row in mine if row["card"].get("observation") == observation]
    return {row["attack"]: row["status"] if row["metric"] == "attack" else "scored" for row in mine}


def test_a_kind_is_a_value_that_another_process_finds_by_its_name() -> None:
    assert all(pickle.loads(pickle.dumps(kind)) is kind for kind in kinds().values())
    with pytest.raises(TypeError, match=r"Own derives from Kind; declare a kind as a value: Kind\(name=\.\.\."):
        type("Own", (Kind,), {"name": "own"})


def test_an_mlp_is_solved_and_the_search_runs_on_as_many_images_as_a_control_takes(tmp_path: Path) -> None:
    changes = {"probe_images": 2, "probe_targets": 12, "update_attacks": ""}
    rows = rows_of(tmp_path / "run", model="mlp", defenses=MIXER, **changes)
    solver, search = repr(EXACT[0]), repr(SEARCH)
    plain, mixed = (statuses(rows, defense, "one-step probe") for defense in ("", MIXER))
    assert plain[solver] == mixed[solver] == "scored"
    assert (plain[search], mixed[search]) == ("scored", "not-needed")
    best = {(r["defense"], r["attack"]): r for r in rows if (r["metric"], r["reference"]) == ("psnr", "transformed")}
    assert (best["", solver]["n"], best["", search]["n"], best["", search]["clients"]) == (48, 16, 2)
    assert best["", solver]["value"] > 60
    assert best[MIXER, solver]["value"] > 60, "the mixed image is exact"
    # The refinements of the defence stand behind the attack that found something, and behind no other.
    chains = {attack for attack in mixed if " | " in attack}
    assert f"{solver} | WindowMean()" in chains
    assert all(chain.startswith(solver) for chain in chains)


def test_without_a_linear_layer_on_pixels_attacks_say_so_and_the_search_runs(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "run", model="lenet", defenses="", update_attacks="", rounds=1)
    found = statuses(rows, "", "one-step probe")
    assert found["SpearPlusPlus(max_starts=3)"] == found["PatchEmbeddingInversion()"] == "not-applicable"
    assert found[repr(SEARCH)] == found["LabelInference()"] == "scored"
    assert {row["failures"] for row in rows if row["status"] == "not-applicable"} == {0}
    assert failed_attacks(tmp_path / "run") == []


def test_of_a_guess_in_part_the_missing_images_alone_are_failures() -> None:
    seen, shape = [Seen(0, at, 3) for at in range(3)], (1, 2, 2)
    whole, nothing = Reconstruction.grey(3, shape, ""), Reconstruction.grey(3, shape, "found 0 of 3")
    part = Reconstruction.grey(1, shape, "").but_missing(3, "found 1 of 3")
    guesses = [whole, part, nothing]
    assert (_failed_values(guesses, seen, 9), _failed_values(guesses, seen, 3)) == (2 + 3, 1)


def test_turns() -> None:
    exact = EXACT[0]
    whole, part = Reconstruction.grey(2, (1, 2, 2), ""), Reconstruction.grey(2, (1, 2, 2), "found 1 of 2", {})
    solved = Reconstruction(whole.images, whole.labels, {"gradient_distance": 1e-6})
    stuck = replace(solved, diagnostics={"gradient_distance": 0.01, "sparsity_match": 1.0, "feature_loss": 1e-3})
    steps = replace(solved, diagnostics={"gradient_distance": 0.04, "sparsity_match": 0.98, "outside_share": 0.0})
    for guesses, needed, refined in (
        ([solved, stuck], True, True), ([solved, steps], False, True),
        ([solved, solved], False, True), ([solved, whole], True, True), ([solved, part], True, True), ([part, part], True, False),
    ):  # fmt: skip
        turns = Turns()
        turns.note(exact, guesses)
        assert (turns.needless(SEARCH) is None) == needed
        assert (turns.needless(Chain((exact, WindowMean()))) is None) == refined
        assert turns.needless(Chain((SEARCH, WindowMean()))) == ""
        assert turns.needless(LabelInference()) is None, "labels are another question"


def test_auto_is_the_default_and_explicit_attacks_never_take_turns() -> None:
    usual = Experiment.of(defenses=MIXER)
    plain, mixed = usual.pipelines
    for kind in (PROBE, UPDATE):
        assert usual.attacks[kind] == kind.usual("")
        assert (usual.needless(plain, kind), usual.needless(mixed, kind)) == (Needless.SAMPLE, Needless.SKIP)
    named = Experiment.of(defenses=MIXER, probe_attacks="; ".join(map(repr, choice.ON_PROBES)))
    assert named.attacks[PROBE] == list(choice.ON_PROBES)
    assert named.needless(mixed, PROBE) is Needless.RUN
    assert Experiment.of(defenses="").needless(plain, PROBE) is Needless.SKIP, "no other pipeline needs a control"
