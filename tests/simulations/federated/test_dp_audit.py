"""Canaries in a federated run: a correct DP-SGD stays below its claim, broken ones are refuted by what crossed the wire."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import simulations
from defenses.registry import DEFENSES
from simulations.console.terminal import Terminal
from simulations.report.analysis.outcome import as_json
from simulations.report.analysis.shown import REFUTED
from simulations.run.in_process import Audited
from simulations.runtime.findings import print_findings
from simulations.settings.errors import ConfigError
from strategies.federated.shown_epsilon import AUDIT, ShownEpsilon

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "dp_audit"))
from broken import BareLayer, ClearNumber, ReusedNoise, register

HIDDEN = "noise_multiplier=20.0, neighbours='add-or-remove', sample_rate=1.0"
SMALL: dict[str, Any] = {
    "dataset": "mnist-5k", "model": "mlp", "width": 4, "train_limit": 400, "test_limit": 60, "rounds": 2, "num_clients": 16,
    "local_epochs": 1, "batch_size": 128, "learning_rate": 0.1, "momentum": 0.0, "learning_rate_milestones": "",
    "dp_canaries": 48, "probe_attacks": "", "update_attacks": "", "attack_rounds": "", "attack_workers": 0, "adaptive": False,
}  # fmt: skip
CORRECT, BARE, REUSED = "DPSGD(target_epsilon=2.0)", "BareLayer(target_epsilon=2.0)", "ReusedNoise(target_epsilon=2.0)"
NUMBER, CLEAR = f"DPSGD({HIDDEN})", f"ClearNumber({HIDDEN})"


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    return with_broken(
        out=tmp_path_factory.mktemp("canaries") / "run", **SMALL, defenses="; ".join((CORRECT, BARE, REUSED))
    )


@pytest.fixture(scope="module")
def shown(audited: Audited) -> dict[str, ShownEpsilon]:
    return shown_of(audited)


def with_broken(**settings: Any) -> Audited:
    """A run whose configuration may name broken defences."""
    known = dict(DEFENSES._own)
    register()
    try:
        return simulations.audit(**settings)
    finally:
        DEFENSES._own = known


def shown_of(run: Audited) -> dict[str, ShownEpsilon]:
    rows = [row for row in run.rows if row.metric == "epsilon-shown"]
    found = {row.defense: ShownEpsilon.from_json(row.extra[AUDIT]) for row in rows}
    return {defense: one for defense, one in found.items() if one is not None}


def test_a_correct_dp_sgd_is_not_refuted_and_shows_what_its_canaries_can(shown: dict[str, ShownEpsilon]) -> None:
    assert set(shown) == {CORRECT, BARE, REUSED}  # no defence has nothing to audit
    found = shown[CORRECT]
    assert found.claimed == pytest.approx(2.0, rel=2e-3)
    assert 0 <= found.plain <= found.gaussian < found.claimed
    assert not found.refuted
    assert found.largest > 2
    assert found.canaries == 16 * 48


def test_bugs_are_refuted_by_the_view_that_shows_them(shown: dict[str, ShownEpsilon]) -> None:
    last = next(reversed([part.part for part in shown[BARE].parts if part.part.endswith("bias")]))
    assert last in shown[BARE].refuted_by
    assert "canaries of alternating sign" in shown[REUSED].refuted_by
    assert shown[REUSED].part == "canaries of alternating sign"
    assert shown[REUSED].plain > shown[REUSED].claimed


def test_a_private_number_sent_in_the_clear_is_found(tmp_path: Path) -> None:
    few = {"num_clients": 40, "rounds": 1, "dp_canaries": 4, "defenses": f"{NUMBER}; {CLEAR}"}
    shown = shown_of(with_broken(out=tmp_path / "run", **SMALL | few))
    found = shown[CLEAR]
    assert found.refuted_by == ("reported num-examples",)
    assert found.claimed == shown[NUMBER].claimed < 0.2
    assert found.plain > found.claimed
    assert found.canaries == 20  # clients of odd partitions have one canary each
    assert not shown[NUMBER].refuted
    assert ("reported num-examples", 20) in [(part.part, part.canaries) for part in shown[NUMBER].parts]


def test_the_findings_have_claim_bound_and_gap(audited: Audited, shown: dict[str, ShownEpsilon]) -> None:
    found = {one["defense"]: one for one in as_json(audited.directory)}
    assert json.dumps(found)
    for defense, one in shown.items():
        assert (found[defense]["epsilon_shown"], found[defense]["epsilon_shown_gaussian"]) == (one.plain, one.gaussian)
        assert found[defense]["epsilon_gap"] == pytest.approx(one.claimed - one.plain)
        assert found[defense]["epsilon_gap_gaussian"] == pytest.approx(one.claimed - one.gaussian)
        assert ("The claim is refuted" in found[defense]["audit"]) == one.refuted
        bound = (
            f"Shown: at least {one.plain:.2f} without an assumption, at least {one.gaussian:.2f} if noise is Gaussian"
        )
        assert bound in found[defense]["audit"]
        assert any(text.startswith(REFUTED) for text in found[defense]["warnings"]) == one.refuted
    gaps = (
        f"Gap: {shown[CORRECT].gap:.2f} without an assumption, {shown[CORRECT].gap_gaussian:.2f} if noise is Gaussian."
    )
    assert gaps in found[CORRECT]["audit"]
    assert found[""]["epsilon_shown"] is None
    assert found[""]["audit"] == ""


def test_the_terminal_has_the_bound_without_an_assumption_first(
    audited: Audited, shown: dict[str, ShownEpsilon]
) -> None:
    out = StringIO()
    print_findings(Terminal(file=out, width=140, highlight=False), audited.directory)
    table = " ".join(out.getvalue().split())
    assert f"shown ≥ {shown[CORRECT].plain:.2f}" in table
    assert f"shown ≥ {shown[CORRECT].gaussian:.2f}" not in table
    assert f"≥ {shown[CORRECT].gaussian:.2f}" in table
    assert table.count("if noise is Gaussian") >= 6  # in the table and below it


def test_the_page_has_claim_and_bounds_in_the_headline_and_a_section(
    audited: Audited, shown: dict[str, ShownEpsilon]
) -> None:
    page = " ".join(audited.report.read_text().split())
    one = shown[CORRECT]
    assert (
        f"ε claimed 2.00, ε shown at least {one.plain:.2f} without an assumption (gap {one.gap:.2f}), at least" in page
    )
    for bound in (f"shown ≥ {one.plain:.2f}", f"≥ {one.gaussian:.2f} if noise is Gaussian"):
        assert f"<small>{bound}</small>" in page
    assert f"shown ≥ {one.gaussian:.2f}" not in page
    assert '<section id="audited_epsilon">' in page
    weak = [part for part in one.parts if part.largest <= one.claimed]
    assert weak  # 16 lone canaries cannot show 2
    assert "could not have refuted the claim" in page
    condition = "" if shown[BARE].plain > 2.0 else " if noise is Gaussian"
    assert f"the claimed epsilon is refuted{condition}: claimed 2.00" in page


def test_a_resumed_run_ends_with_the_same_bounds(tmp_path: Path, audited: Audited) -> None:
    settings = SMALL | {"num_clients": 4, "defenses": CORRECT}
    whole = simulations.audit(out=tmp_path / "whole", **settings)
    begun = tmp_path / "begun"

    class StoppedError(RuntimeError):
        pass

    from simulations.run_folder.run_directory import RunDirectory

    complete = RunDirectory.complete_round

    def stop(self: Any, pipeline: Any, checkpoint: Any) -> None:
        complete(self, pipeline, checkpoint)
        if str(pipeline) == CORRECT and checkpoint.round == 1:
            raise StoppedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "complete_round", stop)
        with pytest.raises(StoppedError):
            simulations.audit(out=begun, **settings)
    resumed = simulations.audit(resume=begun)
    first, second = (
        [(row.value, row.extra[AUDIT]) for row in run.rows if row.metric.startswith("epsilon-shown")]
        for run in (whole, resumed)
    )
    assert first == second
    assert len(first) == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"defenses": "ImageNoise(std=0.1)"}, "no pipeline has DPSGD"),
        ({"dp_canaries": 60_000}, "more than the"),
        ({"defenses": "DPSGD(target_quantile=0.5)"}, "a clipping norm that changes"),
        ({"defenses": "DPSGD(clip_decay=0.9)"}, "set target_quantile=None and clip_decay=1"),
    ],
)
def test_canaries_without_a_claim_or_a_place_are_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=f"dp-canaries.*{why}"):
        simulations.audit(out=tmp_path / "run", **{**SMALL, "defenses": CORRECT, **changes})


def test_broken_defences_are_in_no_catalogue() -> None:
    assert not {kind.__name__ for kind in (BareLayer, ClearNumber, ReusedNoise)} & set(DEFENSES)
