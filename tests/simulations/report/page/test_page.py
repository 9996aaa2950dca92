import base64
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulations.report import write_report
from tests.simulations.report.report_run import (
    CONFIG,
    INVERSION,
    LABELS,
    PICTURES,
    PIPELINES,
    ROUNDS,
    Page,
    attack_rows,
    build,
    demo_rows,
    each,
    member_rows,
    png,
    row,
    words,
    write_run,
)

SMALL = [one for defense in PIPELINES[:2] for one in attack_rows(defense)]
"""Rows whose page has few charts."""
FOUND = ("identified", "recognisable")


def number(text: str) -> float:
    return float(re.findall(r"[+\-]?\d+(?:\.\d+)?(?:e-?\d+)?", text.replace("\N{MINUS SIGN}", "-"))[0])


def values(rows: list[dict[str, Any]], **wanted: Any) -> list[float]:
    return [one["value"] for one in rows if all(one[key] == value for key, value in wanted.items())]


def test_every_number_of_the_first_tables_follows_from_the_rows(tmp_path: Path) -> None:
    rows, page = demo_rows(), build(tmp_path)
    for defense, shown, said in zip(PIPELINES, page.table("cost"), page.table("glance"), strict=True):
        mine = {"defense": defense, "attack": "", "round": ROUNDS, "metric": "test-accuracy"}
        deployed = clean = values(rows, reference="original", **mine)[0]
        assert number(shown["clean, %"][0]) == pytest.approx(100 * clean, abs=0.051)
        if "Mixer" in defense:
            deployed = values(rows, reference="transformed", **mine)[0]
            assert number(shown["protected, %"][0]) == pytest.approx(100 * deployed, abs=0.051)
        assert number(said["Accuracy"][0]) == pytest.approx(100 * deployed, abs=0.051)
        if defense:
            plain = values(rows, reference="original", **mine | {"defense": ""})[0]
            for change in (shown["change"][0], said["Accuracy"][2]):
                assert number(change) == pytest.approx(100 * (deployed - plain), abs=0.051)
        seen, hit = (max(values(rows, metric=one, defense=defense, attack=INVERSION)) for one in FOUND[::-1])
        verdict = "recognisable" if seen else "identifiable" if hit else "nothing found"
        word, count, *below = said["one-step probe"]
        assert (word, count.split(" (")[0]) == (
            verdict,
            f"{16 * (seen or hit):.0f} of 16 {'recognisable' if seen else 'identified'}",
        )
        assert below[0] == "by InvertingGradients"
        found = max(values(rows, metric="label-accuracy", defense=defense, attack=LABELS))
        assert number(shown["labels inferred"][0]) == pytest.approx(100 * found, abs=0.051)
        for metric, column in (("train-seconds", "time"), ("update-bytes", "bytes")):
            own, base = (np.mean(values(rows, metric=metric, defense=one)) for one in (defense, ""))
            if defense:
                assert number(shown[column][0]) == pytest.approx(own / base, abs=0.0051)
        budgets = ("epsilon", "epsilon-with-probes")
        spent = [max(values(rows, metric=one, defense=defense), default=0) for one in budgets]
        if "DPSGD" in defense:
            told = [number(one) for one in (*shown["ε"], *said["ε"])]
            assert told == pytest.approx([spent[0], 1e-5, *spent], abs=0.0051)
        else:
            assert (shown["ε"], said["ε"], spent) == (["\N{EN DASH}"], ["\N{EN DASH}"], [0, 0])


def test_many_sizes_of_messages_make_a_ladder_and_its_ends_the_first_table(tmp_path: Path) -> None:
    sizes = [(1, 1, "one-step probe"), (4, 1, "one-step probe"), (16, 4, "training update"), (64, 8, "training update")]
    rows = [
        one | {"card": one["card"] | {"images": images, "local_steps": steps, "observation": observation}}
        for images, steps, observation in sizes
        for one in SMALL
    ]
    page = build(tmp_path, rows)
    heads = ([" ".join(cell).split() for cell in page.tables[section][0][0]] for section in ("glance", "ladder"))
    first, ladder = ([(head[0], int(head[-2])) for head in of if head[-1][:5] == "image"] for of in heads)
    assert ladder == [("training", 16), ("training", 64), ("one-step", 1), ("one-step", 4)]
    assert first == [("training", 64), ("one-step", 1)]  # the largest real one and the smallest request
    assert "ladder" not in build(tmp_path / "few", SMALL).sections


def test_the_top_says_where_nothing_is_known_or_the_run_did_not_end(tmp_path: Path) -> None:
    where = {"pipeline": 3, "of": 6, "round": 2, "rounds": 8, "finished": False}
    training = row(metric="test-accuracy", reference="original", value=0.9)
    failed = [one | ({"value": 0.0} if one["metric"] in FOUND else {}) for one in SMALL]
    few = [one | each(0.0, 2) if one["metric"] in FOUND else one for one in SMALL]
    no_score = "No attack has a score. Nothing on this page shows how well a defence protects"
    progress = "round 2 of 8 of pipeline 3 of 6"
    unknown, waits, of = "it is unknown what attacks find", "LearnedRestorer waits", "; 5 of 8 attacks have finished"
    told = [no_score, unknown, "run in progress", "run stopped", waits, of]
    for at, (rows, state, expected) in enumerate([
        ([training], None, {no_score}),
        (failed, None, {unknown}),
        (few, None, {unknown}),
        (SMALL, where | {"finished": True}, set()),
        (SMALL, where, {"run in progress", waits}),
        (SMALL, where | {"attacks": 8, "attacks_done": 5}, {"run in progress", waits, of}),
        (SMALL, where | {"failed": "no nodes"}, {"run stopped"}),
    ]):  # fmt: skip
        config = CONFIG | {"progress": state, "config": {"output-dir": "out"}}
        text = words(build(tmp_path / str(at), rows, config=config).text)
        assert {one for one in told if one in text} == expected
        assert (progress in text) == any(one.startswith("run ") for one in expected)


def test_tests_at_chance_are_folded_and_few_members_named_almost_without_error_are_not(tmp_path: Path) -> None:
    at_chance, hidden = member_rows(PIPELINES[1], 0.51, (0.45, 0.57)), member_rows(PIPELINES[2], 0.53, (0.48, 0.58))
    at_chance[1] |= {"value": 0.015, "ci_low": 0.007, "ci_high": 0.028}
    hidden[1] |= {"value": 0.3, "ci_low": 0.24, "ci_high": 0.37}
    build(tmp_path, [*SMALL, *member_rows("", 0.7, (0.65, 0.75)), *at_chance, *hidden])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    above, _, folded = page.split('<section id="membership">')[1].split("</section>")[0].partition("<details>")
    assert ["0.70" in above, "30.0 %" in above, "0.51" in above, "1.5 %" in above] == [True, True, False, False]
    assert ["0.51" in folded, "30.0 %" in folded] == [True, False]


def test_pictures_come_most_similar_first_byte_for_byte(tmp_path: Path) -> None:
    report = build(tmp_path, SMALL, pictures=PICTURES)
    # The best two targets of one round of each defence.
    names = ("original", "protected", "InvertingGradients")
    best = [f"{name}, client {c}, target 0, image 0" for c in (1, 0) for name in names]
    assert [str(known["alt"]) for known in report.images["pictures"]] == best * 2
    text = words(report.sections["pictures"])
    order = ["No defence round 1", "30.5 dB", "10.0 dB"]
    assert sorted(order, key=text.index) == order
    # The first screen has the recognisable image, without a defence.
    first = [re.split(r"[,:] | \(", str(known["alt"]).removesuffix(")")) for known in report.images["glance"]]
    assert [one[0] for one in first] == ["original", "protected", "guess"]
    assert {(one[1], *one[-4:]) for one in first} == {("No defence", "recognisable", "client 1", "target 0", "image 0")}
    embedded = {str(known["src"]).partition(",")[2] for tag, known in report.tags if tag == "img"}
    assert embedded < {base64.b64encode(path.read_bytes()).decode() for path in (tmp_path / "pictures").glob("*.png")}


def test_only_png_files_of_the_run_are_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.png").write_bytes(png(7))
    bad = [PICTURES[0] | {"file": name} for name in ("../../secret.png", str(tmp_path / "secret.png"), "gone.png")]
    directory = write_run(tmp_path / "run", SMALL, pictures=[*bad, PICTURES[1] | {"file": "text.png"}])
    (directory / "pictures" / "text.png").write_text("<svg onload=alert(1)>")
    (directory / "pictures" / "gone.png").unlink()
    found = Page(write_report(directory).read_text(encoding="utf-8"))
    assert not [tag for tag, _ in found.tags if tag == "img"]
    assert "pictures are missing or no PNG" in found.text
    monkeypatch.setattr("simulations.report.drawing.pictures.MOST_BYTES", 5 * len(png(0)))
    found = build(tmp_path / "large", SMALL, pictures=PICTURES)
    assert len({known["src"] for tag, known in found.tags if tag == "img"}) == 5
    assert "did not fit on this page" in found.text


def test_a_missing_part_costs_only_itself(tmp_path: Path) -> None:
    parts = ("config.json", "rows.jsonl", "pictures")
    for at, missing in enumerate([*((one,) for one in parts), parts]):
        directory = write_run(tmp_path / str(at), SMALL, pictures=PICTURES[:3])
        for name in missing:
            shutil.rmtree(directory / name) if name == "pictures" else (directory / name).unlink()
        found = Page(write_report(directory).read_text(encoding="utf-8"))
        assert "configuration" in found.sections
        assert ("glance" in found.sections) == ("rows.jsonl" not in missing), missing
        assert [f"{name} is missing" in found.text for name in parts[:2]] == [name in missing for name in parts[:2]]


def test_a_configuration_that_is_no_json_costs_a_note(tmp_path: Path) -> None:
    directory = write_run(tmp_path, SMALL)
    (directory / "config.json").write_text("{")
    assert "config.json is not JSON" in Page(write_report(directory).read_text(encoding="utf-8")).text


def test_a_report_is_the_same_each_time_and_written_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_run(tmp_path, SMALL, pictures=PICTURES[:3])

    def files() -> dict[str, bytes]:
        return {str(one.relative_to(directory)): one.read_bytes() for one in directory.rglob("*") if one.is_file()}

    before = files()
    assert write_report(directory) == directory / "report.html"
    first = files()
    assert first.keys() == before.keys() | {"report.html", "rows.csv"}
    assert before.items() <= first.items()
    write_report(directory)
    assert files() == first

    def full(self: Path, page: bytes) -> int:
        with self.open("wb") as file:
            file.write(page[:100])
        raise OSError(28, "No space left on device")

    (directory / "rows.jsonl").write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space"):
            write_report(directory)
    assert files() == first | {"rows.jsonl": b""}
