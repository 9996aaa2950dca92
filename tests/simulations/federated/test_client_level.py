"""Client-level differential privacy in a federated run: the account, the canary clients, and the label of its epsilon."""

from __future__ import annotations

import math
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import simulations
from defenses.registry import DEFENSES
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.spec import parse
from simulations.console.terminal import Terminal
from simulations.report.analysis.outcome import as_json
from simulations.run.in_process import Audited
from simulations.runtime.findings import print_findings
from simulations.settings.errors import ConfigError
from strategies.federated.shown_epsilon import AUDIT, ShownEpsilon

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "dp_audit"))
from broken_clients import BareTensor, register

SMALL: dict[str, Any] = {
    "dataset": "mnist-5k", "model": "mlp", "width": 4, "train_limit": 400, "test_limit": 60, "rounds": 2, "num_clients": 24,
    "local_epochs": 1, "batch_size": 128, "learning_rate": 0.1, "momentum": 0.0, "learning_rate_milestones": "",
    "dp_canaries": 20, "probe_attacks": "", "update_attacks": "", "attack_rounds": "", "attack_workers": 0, "adaptive": False,
}  # fmt: skip
CORRECT, BARE = (f"{name}(max_norm=1.0, target_epsilon=2.0, rounds=2)" for name in ("ClientDP", "BareTensor"))
EXAMPLES = "DPSGD(noise_multiplier=20.0)"
FLOWER = "FlowerLocalDP(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-05)"


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    known = dict(DEFENSES._own)
    register()
    try:
        out = tmp_path_factory.mktemp("client-level") / "run"
        return simulations.audit(out=out, **SMALL, defenses="; ".join((CORRECT, BARE, EXAMPLES, FLOWER)))
    finally:
        DEFENSES._own = known


def numbers(run: Audited, defense: str, metric: str) -> dict[int, float]:
    """Round -> value."""
    return {row.round: row.value for row in run.rows if (row.defense, row.metric) == (defense, metric) and row.value}


def test_the_account_grows_by_one_exact_release_a_round(audited: Audited) -> None:
    spent = numbers(audited, CORRECT, "epsilon")
    assert spent[2] == pytest.approx(2.0, rel=1e-6)
    (defense,) = parse(CORRECT).defenses
    multiplier = defense.noise  # type: ignore[attr-defined]
    assert spent[1] == pytest.approx(gaussian_epsilon(2 / multiplier, 1e-5), rel=1e-6)
    rows = [row for row in audited.rows if row.defense == CORRECT and row.metric == "epsilon"]
    assert {row.neighbours for row in rows} == {"replace-client"}


def test_the_account_of_flowers_mod_is_exact_and_of_all_rounds(audited: Audited) -> None:
    """Flower's own epsilon is 1, of one message and without neighbours."""
    (defense,) = parse(FLOWER).defenses
    spent = numbers(audited, FLOWER, "epsilon")
    std = math.sqrt(2 * math.log(1.25e5))
    assert spent[1] == pytest.approx(gaussian_epsilon(2 / std, 1e-5), rel=1e-6)
    assert spent[2] == pytest.approx(gaussian_epsilon(2 * math.sqrt(2) / std, 1e-5), rel=1e-6)
    assert spent[1] > defense.epsilon  # type: ignore[attr-defined]
    (row,) = [row for row in audited.rows if (row.defense, row.metric) == (FLOWER, "epsilon-shown")]
    shown = ShownEpsilon.from_json(row.extra[AUDIT])
    assert shown is not None
    assert (shown.canaries, shown.level, shown.neighbours) == (20, "client-level", "replace-client")
    assert shown.claimed == pytest.approx(spent[2], rel=1e-6)
    assert not shown.refuted


def test_clients_report_no_loss_of_their_training(audited: Audited) -> None:
    assert not [row for row in audited.rows if (row.defense, row.metric) == (CORRECT, "train-loss")]
    assert [row for row in audited.rows if not row.defense and row.metric == "train-loss"]


def test_canary_clients_bound_each_claim_and_refute_a_tensor_without_noise(audited: Audited) -> None:
    found = {
        row.defense: ShownEpsilon.from_json(row.extra[AUDIT]) for row in audited.rows if row.metric == "epsilon-shown"
    }
    correct, bare = found[CORRECT], found[BARE]
    assert correct is not None
    assert bare is not None
    assert (correct.canaries, correct.refuted) == (20, False)
    assert correct.claimed == bare.claimed == pytest.approx(2.0, rel=1e-6)
    assert bare.refuted
    assert any(part.endswith("bias") for part in bare.refuted_by)
    assert 1 < correct.largest < math.inf


def test_reports_name_the_level_of_each_epsilon(audited: Audited) -> None:
    levels = {one["defense"]: one["level"] for one in as_json(audited.directory)}
    assert (levels[CORRECT], levels[EXAMPLES]) == ("client-level", "example-level")
    page = audited.report.read_text()
    for level in ("client-level", "example-level"):
        assert level in page
    assert "client-level ε claimed 2.00" in page
    assert "the two cannot be compared, whichever is smaller" in " ".join(page.split())
    neighbours = {one["defense"]: one["neighbours"] for one in as_json(audited.directory)}
    assert (neighbours[CORRECT], neighbours[FLOWER], neighbours[""]) == ("replace-client", "replace-client", "")
    out = StringIO()
    print_findings(Terminal(file=out, width=140, highlight=False), audited.directory)
    assert "client-level" in out.getvalue()


def test_a_run_of_more_rounds_than_the_target_is_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="over 2 rounds, not 3; allowed: rounds=3"):
        simulations.audit(out=tmp_path / "run", **SMALL | {"defenses": CORRECT, "rounds": 3})


def test_split_learning_sends_more_than_the_claim_covers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its epsilon does not cover"):
        simulations.audit(out=tmp_path / "run", scenario="split", defenses="ClientDP()", train_edge=True)


def test_the_broken_defence_is_in_no_catalogue() -> None:
    assert BareTensor.__name__ not in DEFENSES


def test_no_attack_says_anything_of_the_data_of_a_canary_client(tmp_path: Path) -> None:
    few = SMALL | {
        "num_clients": 4,
        "dp_canaries": 3,
        "rounds": 1,
        "update_attacks": "LossThreshold()",
        "attack_rounds": "first",
    }
    defense = "ClientDP(max_norm=1.0, noise_multiplier=4.0)"
    run = simulations.audit(out=tmp_path / "run", **few, defenses=defense)
    found = {row.defense: row.card.members for row in run.rows if row.metric == "membership-auc"}
    assert found[""] is not None
    assert found[defense] is not None
    assert 0 < found[defense] < found[""] / 3
