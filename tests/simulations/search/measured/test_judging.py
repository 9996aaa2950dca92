"""A judgement is what ``fedveil run`` reports of the same run."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations import audit
from simulations.report.analysis.run import read_run
from simulations.report.studies.recovery import RECOVERED
from simulations.search.measured.judging import Judgement, judge
from simulations.search.measured.pools import HELD_OUT, SEARCH, write_pools
from simulations.search.measured.settings import Measured, Rung

pytestmark = pytest.mark.usefixtures("as_its_own_process")

SEARCH_OF_DIGITS = Measured(dataset="mnist-5k", train_limit=60, test_limit=50, num_clients=2, batch_size=16)
RUNG = Rung(rounds=1, attack_rounds="first", images=2, restorer=False)
HYBRID = "3-1-7+43-18-18"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_pools(tmp_path_factory.mktemp("pools"), SEARCH_OF_DIGITS.pools())


@pytest.mark.long
def test_it_is_that_of_a_run_and_its_report(tmp_path: Path, places: dict[str, str]) -> None:
    found = judge(SEARCH_OF_DIGITS, places[SEARCH], HYBRID, RUNG, 5, tmp_path / "judged")
    settings = SEARCH_OF_DIGITS.experiment(places[SEARCH], HYBRID, RUNG, 5, tmp_path / "run").to_mapping()
    named = {key.replace("-", "_"): value for key, value in settings.items() if key not in ("output-dir", "resume")}
    run = audit(out=tmp_path / "run", **named)
    (study,) = read_run(run.directory).studies
    line = next(one for one in read_run(run.directory).lines(study) if one.defense)
    assert line.clean is not None
    assert (found.accuracy, found.tested) == (line.clean.mean, 50)
    shares = [
        row.value
        for row in study.all_rows
        if row.defense and (row.metric, row.reference) == RECOVERED and row.is_attack
    ]
    assert found.share == max(share for share in shares if share is not None)
    assert found.attacked == 4
    assert found.gain == pytest.approx(max(cell.gap for cell in line.tried if cell.gap is not None))


def test_an_exact_attack_recovers_all_images_without_a_defence(tmp_path: Path, places: dict[str, str]) -> None:
    found = judge(SEARCH_OF_DIGITS, places[HELD_OUT], "", RUNG, 6, tmp_path / "judged")
    assert (found.recovered, found.attacked) == (4, 4)
    assert not any(tmp_path.iterdir())
    assert Judgement.from_json(found.to_json()) == found
