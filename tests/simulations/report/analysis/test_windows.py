from typing import Any

from simulations.report.analysis.windows import WindowCounts, window_counts
from tests.simulations.report.report_run import PIPELINES, attack_rows, row, study_of

MIXER = PIPELINES[1]


def counted(windows: dict[int, int], vfe: tuple[float, float] | None = None, **given: Any) -> list[dict[str, Any]]:
    numbers: dict[str, float] = {"counted-images": 240}
    numbers |= {f"windows-of-{size}": number for size, number in windows.items()}
    numbers |= {} if vfe is None else dict(zip(("vfe-sum-before", "vfe-sum-after"), vfe, strict=True))
    return [row(defense=MIXER, metric=name, value=number, n=4, **given) for name, number in numbers.items()]


def test_counts_are_read_of_one_seed_and_weighed_by_area() -> None:
    rows = [*counted({4: 1}, seed=1, vfe=(1, 2)), *counted({8: 7, 2: 9}, seed=0, round=3, vfe=(3, 4)), *attack_rows("")]
    study = study_of(rows)
    assert window_counts(study, MIXER) == WindowCounts(240, {8: 7, 2: 9}, (3, 4))
    assert window_counts(study, "") is None
    found = WindowCounts(240, {8: 10, 4: 20, 2: 80}, (66.0, 2090.0))
    assert found.shares == {8: 0.5, 4: 0.25, 2: 0.25}
    assert "0.6 before, 19 after" in " ".join(found.clauses)  # of 110 windows
    assert "VFE" not in " ".join(WindowCounts(3, {4: 0}, (0.0, 0.0)).clauses)
    for windows, warned in (({8: 10, 4: 20}, False), ({4: 100}, True), ({4: 0, 2: 77}, True), ({4: 3, 2: 500}, True)):
        assert bool(WindowCounts(240, windows).caveat) == warned, windows
    # Nothing moves in flat images.
    flat = WindowCounts(3, {4: 0, 2: 0})
    assert (flat.shares, flat.caveat, flat.clauses[0].endswith("none")) == ({}, "", True)
