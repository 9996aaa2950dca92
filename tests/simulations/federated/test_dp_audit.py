"""Canaries in a federated run: correct mechanisms stay below their claims, broken ones are refuted by what crossed the wire."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import simulations
from defenses.base import DEFENSES
from defenses.neighbours import ADD_OR_REMOVE, REPLACE_ONE
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.spec import parse
from simulations.report.analysis.budget import REFUTED
from simulations.report.analysis.run import read_run
from simulations.run.in_process import Audited
from strategies.federated.shown_epsilon import AUDIT, ShownEpsilon
from tests.simulations.run.test_in_process import TINY

ROOT = Path(__file__).resolve().parents[3]
SMALL: dict[str, Any] = {
    "dataset": "mnist-5k", "model": "mlp", "width": 4, "train_limit": 400, "test_limit": 60, "rounds": 2, "num_clients": 24,
    "local_epochs": 1, "batch_size": 128, "learning_rate": 0.1, "momentum": 0.0, "learning_rate_milestones": "",
    "dp_canaries": 20, "probe_attacks": "", "update_attacks": "", "attack_rounds": "", "attack_workers": 0, "adaptive": False,
}  # fmt: skip
CORRECT, BARE, REUSED = (f"{name}(target_epsilon=2.0)" for name in ("DPSGD", "BareLayer", "ReusedNoise"))
CLIENTS, BARE_CLIENTS = (f"{name}(max_norm=1.0, target_epsilon=2.0, rounds=2)" for name in ("ClientDP", "BareTensor"))
FLOWER = "FlowerLocalDP(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-05)"
HIDDEN = "noise_multiplier=20.0, neighbours='add-or-remove', sample_rate=1.0"
NUMBER, CLEAR = f"DPSGD({HIDDEN})", f"ClearNumber({HIDDEN})"


@pytest.fixture(scope="module")
def broken_defenses() -> Iterator[None]:
    """Configurations may name the broken defences of benchmarks/, which are in no catalogue."""
    known = dict(DEFENSES._own)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks" / "dp_audit"))
        import broken
        import broken_clients

        assert not {"BareLayer", "ClearNumber", "ReusedNoise", "BareTensor"} & set(DEFENSES)
        broken.register()
        broken_clients.register()
        yield
        DEFENSES._own = known


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory, broken_defenses: None) -> Audited:
    """Guarantees for examples and for clients, kept and broken, in one run."""
    defenses = "; ".join((CORRECT, BARE, REUSED, CLIENTS, BARE_CLIENTS, FLOWER))
    return simulations.audit(out=tmp_path_factory.mktemp("canaries") / "run", **SMALL, defenses=defenses)


def shown_of(run: Audited) -> dict[str, ShownEpsilon]:
    rows = [row for row in run.rows if row.metric == "epsilon-shown"]
    found = {row.defense: ShownEpsilon.from_json(row.extra[AUDIT]) for row in rows}
    return {defense: one for defense, one in found.items() if one is not None}


def spent(run: Audited, defense: str) -> dict[int, float]:
    """Round -> epsilon."""
    return {row.round: row.value for row in run.rows if (row.defense, row.metric) == (defense, "epsilon") and row.value}


def test_accounts_grow_by_one_exact_release_a_round_whatever_the_defence_claims(audited: Audited) -> None:
    (clients,), (flower,) = parse(CLIENTS).defenses, parse(FLOWER).defenses
    account = spent(audited, CLIENTS)
    assert account[2] == pytest.approx(2.0, rel=1e-6)
    assert account[1] == pytest.approx(gaussian_epsilon(2 / clients.noise, 1e-5), rel=1e-6)  # type: ignore[attr-defined]
    rows = [row for row in audited.rows if row.defense == CLIENTS and row.metric == "epsilon"]
    assert {row.neighbours for row in rows} == {"replace-client"}
    # Flower's own epsilon is 1, of one message and without neighbours.
    account, std = spent(audited, FLOWER), math.sqrt(2 * math.log(1.25e5))
    assert account[1] == pytest.approx(gaussian_epsilon(2 / std, 1e-5), rel=1e-6)
    assert account[2] == pytest.approx(gaussian_epsilon(2 * math.sqrt(2) / std, 1e-5), rel=1e-6)
    assert account[1] > flower.epsilon  # type: ignore[attr-defined]
    # A client that hides its examples reports no loss of its training.
    losses = {row.defense for row in audited.rows if row.metric == "train-loss"}
    assert "" in losses
    assert CLIENTS not in losses


@pytest.mark.essential
@pytest.mark.numeric
def test_correct_mechanisms_are_not_refuted_and_bugs_are_by_the_view_that_shows_them(audited: Audited) -> None:
    shown = shown_of(audited)
    assert set(shown) == {CORRECT, BARE, REUSED, CLIENTS, BARE_CLIENTS, FLOWER}  # no defence has nothing to audit
    assert {defense for defense, one in shown.items() if one.refuted} == {BARE, REUSED, BARE_CLIENTS}
    for defense, level, canaries in ((CORRECT, "example-level", 24 * 20), (CLIENTS, "client-level", 20)):
        found = shown[defense]
        assert (found.level, found.canaries) == (level, canaries)
        assert found.claimed == pytest.approx(2.0, rel=2e-3)
        assert 0 <= found.plain <= found.gaussian < found.claimed
        assert 1 < found.largest < math.inf
    assert (shown[FLOWER].canaries, shown[FLOWER].neighbours) == (20, "replace-client")
    assert shown[FLOWER].claimed == pytest.approx(spent(audited, FLOWER)[2], rel=1e-6)
    last = next(part.part for part in reversed(shown[BARE].parts) if part.part.endswith("bias"))
    assert last in shown[BARE].refuted_by
    assert any(part.endswith("bias") for part in shown[BARE_CLIENTS].refuted_by)
    assert shown[REUSED].part == "canaries of alternating sign"
    assert "canaries of alternating sign" in shown[REUSED].refuted_by
    assert shown[REUSED].plain > shown[REUSED].claimed


def test_findings_have_level_claim_bound_and_gap(audited: Audited) -> None:
    found, shown = {one["defense"]: one for one in read_run(audited.directory).to_json()}, shown_of(audited)
    assert json.dumps(found)
    assert audited.report.is_file()
    assert found[""]["epsilon"] is None
    for defense, one in shown.items():
        mine = found[defense]["epsilon"]
        assert (mine["level"], mine["neighbours"]) == (one.level, one.neighbours)
        assert (mine["shown"], mine["shown_gaussian"]) == (one.plain, one.gaussian)
        assert mine["gap"] == pytest.approx(one.claimed - one.plain)
        assert mine["gap_gaussian"] == pytest.approx(one.claimed - one.gaussian)
        assert ("The claim is refuted" in mine["audit"]) == one.refuted
        assert any(text.startswith(REFUTED) for text in found[defense]["warnings"]) == one.refuted
        assert one.refuted or f"Gap: {one.gap:.2f} without an assumption" in mine["audit"]


@pytest.mark.long
@pytest.mark.numeric
def test_a_private_number_sent_in_the_clear_is_found(tmp_path: Path, broken_defenses: None) -> None:
    few = {"num_clients": 40, "rounds": 1, "dp_canaries": 4, "defenses": f"{NUMBER}; {CLEAR}"}
    shown = shown_of(simulations.audit(out=tmp_path / "run", **SMALL | few))
    found = shown[CLEAR]
    assert found.refuted_by == ("reported num-examples",)
    assert found.claimed == shown[NUMBER].claimed < 0.2
    assert found.plain > found.claimed
    assert found.canaries == 20  # clients of odd partitions have one canary each
    assert not shown[NUMBER].refuted
    assert ("reported num-examples", 20) in [(part.part, part.canaries) for part in shown[NUMBER].parts]


def test_no_attack_says_anything_of_the_data_of_a_canary_client(tmp_path: Path) -> None:
    defense, attacked = "ClientDP(max_norm=1.0, noise_multiplier=4.0)", {"update_attacks": "LossThreshold()"}
    few = SMALL | attacked | {"attack_rounds": "first", "num_clients": 4, "dp_canaries": 3, "rounds": 1}
    run = simulations.audit(out=tmp_path / "run", **few, defenses=defense)
    found = {row.defense: row.card.members for row in run.rows if row.metric == "membership-auc"}
    assert 0 < (found[defense] or 0) < (found[""] or 0) / 3


@pytest.mark.long
def test_rows_and_cards_name_the_neighbours_of_an_epsilon(tmp_path: Path) -> None:
    """Some 80 examples a client; with batches of 16 the second pipeline reports 320."""
    replaced = "DPSGD(noise_multiplier=2.0)"
    hidden = "DPSGD(noise_multiplier=2.0, neighbours='add-or-remove', sample_rate=0.05)"
    audited = simulations.audit(out=tmp_path / "run", **{**TINY, "rounds": 1, "defenses": f"{replaced}; {hidden}"})
    for defense, neighbours in ((replaced, REPLACE_ONE), (hidden, ADD_OR_REMOVE), ("", "")):
        rows = [row for row in audited.rows if row.defense == defense]
        private = [row for row in rows if row.metric in ("epsilon", "epsilon-with-probes", "delta")]
        assert {row.neighbours for row in private} == ({neighbours} if neighbours else set())
        assert {row.neighbours for row in rows if row.metric == "test-accuracy"} == {""}
        assert {row.card.more.get("neighbours", "") for row in rows if row.is_attack} == {neighbours}
    # A client that hides its number reports a public one and no times.
    assert {row.defense for row in audited.rows if row.metric == "train-seconds"} == {"", replaced}
    assert not audited.failures
    assert 0 < spent(audited, hidden)[1] < spent(audited, replaced)[1]
    assert '"neighbours"' in (audited.directory / "rows.csv").read_text().splitlines()[0].split(",")
