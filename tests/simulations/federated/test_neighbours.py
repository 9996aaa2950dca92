"""An epsilon says in rows, on threat cards and on the page for which neighbours it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

import simulations
from defenses.neighbours import ADD_OR_REMOVE, MEANING, REPLACE_ONE
from simulations.run.in_process import Audited
from tests.simulations.run.test_in_process import TINY

pytestmark = pytest.mark.long

REPLACED = "DPSGD(noise_multiplier=2.0)"
HIDDEN = "DPSGD(noise_multiplier=2.0, neighbours='add-or-remove', sample_rate=0.05)"


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """Some 80 examples a client; with batches of 16 the second pipeline reports 320."""
    out = tmp_path_factory.mktemp("neighbours") / "run"
    return simulations.audit(out=out, **{**TINY, "rounds": 1, "defenses": f"{REPLACED}; {HIDDEN}"})


def test_rows_and_cards_name_the_neighbours(audited: Audited) -> None:
    for defense, neighbours in ((REPLACED, REPLACE_ONE), (HIDDEN, ADD_OR_REMOVE), ("", "")):
        rows = [row for row in audited.rows if row.defense == defense]
        assert {row.neighbours for row in rows if row.metric in ("epsilon", "epsilon-with-probes", "delta")} == (
            {neighbours} if neighbours else set()
        )
        assert {row.neighbours for row in rows if row.metric == "test-accuracy"} == {""}
        attacked = [row for row in rows if row.is_attack]
        assert attacked
        assert {row.card.more.get("neighbours", "") for row in attacked} == {neighbours}


def test_the_page_says_it_in_words(audited: Audited) -> None:
    page = " ".join(audited.report.read_text().split())
    for name in (REPLACE_ONE, ADD_OR_REMOVE):
        assert f"neighbours of ε: {MEANING[name]}" in page


def test_a_client_that_hides_its_number_reports_a_public_one_and_no_times(audited: Audited) -> None:
    seconds = {row.defense for row in audited.rows if row.metric == "train-seconds"}
    assert seconds == {"", REPLACED}
    assert not audited.failures
    spent = {row.defense: row.value for row in audited.rows if row.metric == "epsilon"}
    assert 0 < spent[HIDDEN] < spent[REPLACED]  # type: ignore[operator]


def test_a_table_of_rows_has_the_column(audited: Audited) -> None:
    header = Path(audited.directory / "rows.csv").read_text().splitlines()[0]
    assert '"neighbours"' in header.split(",")
