"""Tables of studies over several seeds, from runs and results whose numbers are known."""

import json
import re
from pathlib import Path

import ats_scores
import numpy as np
import over_seeds
import pytest
from scipy import stats
from seeded_results import Column, Numbers, Results, differences, means

from attacks.metrics.names import Role
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import ThreatCard

PLAIN, MIXED = (0.80, 0.84, 0.79), (0.78, 0.80, 0.79)
MIXER = "VisualMixer()"
SETTINGS = {"images": 8, "defense": "VisualMixer()", "out_of": (1, 2)}
COLUMNS = [Column("top1", "top-1, %", 2, 100)]


def run(path: Path, seed: int, rate: float = 0.1, bound: str = "") -> Path:
    """A finished run of two defences, eight rounds, one attack beside the mean image."""
    path.mkdir()
    rows = []
    for defense, final in (("", PLAIN[seed]), (MIXER, MIXED[seed])):
        about = {"experiment": "e", "dataset": "photos", "model": "cnn", "scenario": "federated", "seed": seed}
        shared = {**about, "defense": defense}
        rows += [
            Row(metric="test-accuracy", reference="original", value=final - 0.01 * (8 - at), n=100, round=at, **shared)
            for at in range(1, 9)
        ]
        rows += [
            Row(
                metric="psnr", reference=reference, value=value + seed + (defense != ""), n=8, attack=attack, round=1,
                role=Role.NULL_BASELINE if attack == "mean" else Role.TRAINING,
                card=ThreatCard(observation="one-step probe", upper_bound="" if attack == "mean" else bound), **shared,
            )
            for attack, reference, value in (
                ("DLG()", "original", 20.0), ("DLG()", "transformed", 22.0),
                ("mean", "original", 10.0), ("mean", "transformed", 12.0),
            )
        ]  # fmt: skip
    (path / "rows.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    config = {"config": {"seed": seed, "learning-rate": rate}, "pipelines": ["", MIXER], "defenses": {}}
    (path / "config.json").write_text(json.dumps(config))
    return path


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_differences_between_defences_are_paired_and_their_interval_is_student_s(tmp_path: Path) -> None:
    ((study, lines),) = over_seeds.read([run(tmp_path / str(seed), seed) for seed in range(3)])
    _, mixed = cells(over_seeds.defences(study, lines))
    each = 100 * (np.array(MIXED) - np.array(PLAIN))
    low, high = stats.t.interval(0.95, 2, each.mean(), stats.sem(each))
    assert mixed[3] == f"{each.mean():+.1f} ({low:+.1f} to {high:+.1f})"
    assert mixed[2].startswith(f"{100 * np.mean(MIXED):.1f} (")
    assert mixed[4] == "+2.0 (of 2.0)"  # a point a round, rounds 6 to 8
    assert mixed[7] == "24"
    # Policies make hard and easy targets: to the transformed image the mean image has another score under each.
    plain, mixed, blind = cells(over_seeds.attacks(study))
    assert [mixed[4].split()[0], mixed[5], mixed[6].split()[0], mixed[7]] == ["22.0", "12.0", "24.0", "14.0"]
    assert [plain[4].split()[0], plain[5], plain[6].split()[0], plain[7]] == ["21.0", "11.0", "23.0", "13.0"]
    assert [blind[1], blind[4].split()[0], blind[5]] == ["mean", "11.0", "-"]


def test_upper_bounds_are_marked_and_runs_of_other_settings_refused(tmp_path: Path) -> None:
    ((study, lines),) = over_seeds.read([run(tmp_path / str(seed), seed, bound="told labels") for seed in range(3)])
    _, mixed = cells(over_seeds.defences(study, lines))
    assert mixed[5] == "`DLG()`^, initial model"
    with pytest.raises(SystemExit, match="differ in learning-rate"):
        over_seeds.read([run(tmp_path / "a", 0), run(tmp_path / "b", 1, rate=0.2)])


def test_a_privacy_score_that_is_what_attacks_find_is_told_from_one_that_has_nothing_to_do_with_it() -> None:
    generator = np.random.default_rng(0)
    tables = []
    for scale in (1.0, 50.0):  # a seed's own level and scale must not count as agreement
        known = generator.normal(size=40)
        tables.append(np.stack([scale * known + scale, generator.normal(size=40), known, known, -known]))
    transformed, gain, original = (
        [float(value) for value in re.findall(r"[+-]\d+\.\d\d", line)] for line in ats_scores.compared(tables)
    )
    chance = np.mean([np.corrcoef(table[1], table[2])[0, 1] for table in tables])
    assert transformed == gain
    assert (transformed[:3], original[:3]) == ([1, 1, 1], [-1, -1, -1])
    assert transformed[3] == pytest.approx(chance, abs=0.005)
    assert transformed[6] == pytest.approx(1 - chance, abs=0.005)


def results(path: Path, **other: object) -> Results:
    return Results(path / "runs" / "study.jsonl", "a_study", {**SETTINGS, **other})


def test_what_is_known_is_not_computed_again_and_a_line_that_was_cut_off_is(tmp_path: Path) -> None:
    computed: list[int] = []

    def compute() -> Numbers:
        computed.append(1)
        return {"top1": 0.5, "losses": [1.0, 0.25]}

    first = results(tmp_path)
    assert first.known(0, "TO", compute) == first.known(0, "TO", compute)
    assert results(tmp_path).known(0, "TO", compute) == {"top1": 0.5, "losses": [1.0, 0.25]}
    assert computed == [1]
    first.known(0, "TV", compute)
    first.path.write_text(first.path.read_text()[:-5])
    again = results(tmp_path)
    assert again.find(0, "TV") is None
    again.add(0, "TV", {"top1": 0.75})
    assert results(tmp_path).find(0, "TV") == {"top1": 0.75}


def test_a_file_of_other_settings_or_of_something_else_is_refused_and_stays(tmp_path: Path) -> None:
    results(tmp_path).add(0, "TO", {"top1": 0.5})
    with pytest.raises(SystemExit, match=r"other settings: images was 8 and is 9; name another file$"):
        results(tmp_path, images=9)
    with pytest.raises(SystemExit, match="is of a_study, not of another"):
        Results(results(tmp_path).path, "another", SETTINGS)
    for text in ("a letter\n", '["a list"]\n', '{"seed": 1}\n'):
        path = tmp_path / "letter"
        path.write_text(text)
        with pytest.raises(SystemExit, match="holds no results"):
            Results(path, "a_study", SETTINGS)
        assert path.read_text() == text


def test_differences_are_paired_by_seed_as_in_a_paired_t_test(tmp_path: Path) -> None:
    protected, plain, found = [0.61, 0.55, 0.70, 0.66], [0.72, 0.63, 0.71, 0.80], results(tmp_path)
    for seed, (one, other) in enumerate(zip(protected, plain, strict=True)):
        found.add(seed, "TV", {"top1": one})
        found.add(seed, "TO", {"top1": other})
    expected = stats.ttest_rel(protected, plain).confidence_interval(0.95)
    mean = 100 * (sum(protected) - sum(plain)) / 4
    line = differences(found, range(4), [("TV", "TO")], COLUMNS).splitlines()[-1]
    assert line == f"| TV - TO | 4 | {mean:+.2f} ({100 * expected.low:+.2f} to {100 * expected.high:+.2f}) |"
    assert means(found, range(4), ["TO"], COLUMNS).splitlines()[-1] == f"| TO | 4 | {25 * sum(plain):.2f} |"
    found.add(9, "TV", {})
    found.add(9, "TO", {"top1": 0.75})
    # A seed without the number leaves no mean behind; one seed has a difference and no interval.
    assert means(found, [9], ["TO", "TV", "SO"], COLUMNS).splitlines()[2:] == [
        "| TO | 1 | 75.00 |",
        "| TV | 1 | - |",
        "| SO | 0 | - |",
    ]
    assert differences(found, [0, 9], [("TV", "TO")], COLUMNS).splitlines()[-1] == "| TV - TO | 2 | - |"
    assert differences(found, [0], [("TV", "TO")], COLUMNS).splitlines()[-1] == "| TV - TO | 1 | -11.00 |"
