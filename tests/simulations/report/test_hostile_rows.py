import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simulations.cli import app
from simulations.report import read_rows, write_report
from tests.simulations.report.report_run import (
    CONFIG,
    PICTURES,
    Page,
    attack_rows,
    drawing_rows,
    member_rows,
    row,
    training_rows,
    write_run,
)

HOSTILE = {
    "inf": "Infinity", "-inf": "-Infinity", "nan": "NaN", "text-inf": '"inf"', "text-nan": '"nan"', "1e308": "1e308",
    "-1e308": "-1e308", "1e300": "1e300", "1e-320": "1e-320", "int-30": "1" + "0" * 30, "int-400": "9" * 400,
    "int-5000": "9" * 5000,
    "int-64": str(2**63), "negative": "-5", "true": "true", "false": "false", "null": "null", "list": "[1, [2, []]]",
    "dict": '{"a": {"b": [{}], "": null}}', "surrogate": '"\\ud800x\\udfff"', "empty": '""', "long": json.dumps("x" * 100_000),
    "formula": '"=1+1"', "breaks": '"a\\u2028b\\u0085c\\r\\nd"', "control": '"\\u0000\\u001b[31m\\uffff"', "zero": "0",
    "half": "0.5", "markup": '"<script>alert(1)</script>{{ 7 * 7 }}"', "quote": '"\\"\' onload=alert(1) x="',
}  # fmt: skip
"""Name -> a JSON text that stands where a field's value was."""
FIELDS = [
    "experiment", "scenario", "dataset", "model", "cut", "seed", "defense", "attack", "card", "round", "final", "metric", "role",
    "reference", "value", "n", "status", "seconds", "ci_low", "ci_high", "worst", "failures", "message", "client", "roc", "odd",
    "card.observation", "card.num_classes", "card.images", "card.batch", "card.local_steps", "card.chance", "card.members",
    "card.others", "card.clients", "card.rounds_observed", "card.model_accuracy", "card.attack_failures", "card.undefended",
    "card.upper_bound", "card.odd", "each", "each_of",
]  # fmt: skip
AS_FOUND = (Phase.explicit, Phase.reuse, Phase.generate)
"""A page takes long, and simpler files that fail as well would be looked for in hundreds of them."""
OF = ("", "DPSGD(target_epsilon=8.0)")
ROWS = [
    *(one for text in OF for one in (*training_rows(text, rounds=1), *attack_rows(text)) if one["round"] == 1),
    *(one for text in OF for one in member_rows(text, 0.7, (0.6, 0.8))),
    *drawing_rows("", 0.5),
]
"""Every kind of number, undefended and under one defence."""


def changed(of: Mapping[str, Any], fields: Mapping[str, str | None]) -> str:
    made = {**of, "card": dict(of.get("card", {}))}
    for number, (field, text) in enumerate(fields.items()):
        inner, _, name = field.rpartition(".")
        place = made["card"] if inner and isinstance(made.get("card"), dict) else made
        place[name] = f"@{number}@"
        if text is None:
            del place[name]
    found = json.dumps(made)
    for number, text in enumerate(fields.values()):
        found = found.replace(f'"@{number}@"', text or "null")
    return found


values = st.sampled_from(list(HOSTILE.values())) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(10**20), 10**20) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
).map(json.dumps)
in_rows = st.tuples(
    st.none() | st.integers(0, len(ROWS) - 1), st.sampled_from(FIELDS), st.one_of(values, values, values, st.none())
)
"""One row or all rows, a field, and what stands there."""
files = st.tuples(
    st.lists(in_rows, max_size=40),
    st.dictionaries(st.sampled_from([*CONFIG, "run", "odd"]), values),
    st.dictionaries(st.sampled_from([*PICTURES[2], "final", "observation", "caption", "experiment", "seed"]), values),
    st.booleans(),
)


def ends_well(folder: Path, rows: list[Any], config: dict[str, str], picture: dict[str, str], nested: bool) -> None:
    lines = [changed(one, {field: text for at, field, text in rows if at in (None, n)}) for n, one in enumerate(ROWS)]
    write_run(folder / "a", [], CONFIG, PICTURES[:3])
    inner = '{{"seconds": {0}, "round": {0}, "failed": {0}, "": {0}}}' if nested else "{0}"
    (folder / "a" / "rows.jsonl").write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")
    (folder / "a" / "config.json").write_text(changed(CONFIG, {k: inner.format(v) for k, v in config.items()}), "utf-8")
    indexed = [changed(one, picture) for one in PICTURES[:3]]
    (folder / "a" / "pictures" / "index.jsonl").write_text("".join(f"{one}\n" for one in indexed), encoding="utf-8")
    write_run(folder / "b", [one | {"seed": 1} for one in ROWS[:3]])
    for name, words in (("a/report.html", ["report"]), ("x.html", ["compare", str(folder / "b"), "--out"])):
        page = folder / name
        done = CliRunner().invoke(app, [*words, *([str(page)] if "--out" in words else []), str(folder / "a")])
        assert done.exit_code in (0, 2), f"{done.output}\n{done.exception!r}"
        assert page.is_file() == (done.exit_code == 0)
        assert done.exit_code == 0 or "error" in done.output.lower()
        if page.is_file():
            text = page.read_text(encoding="utf-8")
            found = Page(text)
            assert found.open == []
            assert not [key for _, known in found.tags for key in known if key.startswith("on")]
            assert "<script>alert" not in text
    list(csv.reader(io.StringIO((folder / "a" / "rows.csv").read_text(encoding="utf-8"))))


@settings(max_examples=5, phases=AS_FOUND)
@given(files)
def test_files_may_hold_anything(tmp_path_factory: pytest.TempPathFactory, found: Any) -> None:
    ends_well(tmp_path_factory.mktemp("odd"), *found)


@pytest.mark.slow
@settings(max_examples=40, phases=AS_FOUND)
@given(files)
def test_more_files_may_hold_anything(tmp_path_factory: pytest.TempPathFactory, found: Any) -> None:
    ends_well(tmp_path_factory.mktemp("odd"), *found)


def test_a_value_that_cannot_be_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    share = row(metric="identified", reference="original", attack="A()")
    for name in ("inf", "1e308", "1e300", "int-400", "negative"):
        path.write_text(changed(share, {"value": HOSTILE[name]}))
        ((found,), _) = read_rows(path)
        assert (found.value, found.status, "value is" in found.message) == (None, "failed", True), name
    for field, name in (("round", "1e300"), ("n", "int-400"), ("n", "negative"), ("seed", "int-30")):
        path.write_text(changed(share, {field: HOSTILE[name]}) + "\n" + json.dumps(share))
        found, (note,) = read_rows(path)
        assert (len(found), "line 1 is not a row" in note) == (1, True), field
    # What can be measured stays a number; of keys that come twice, the last counts.
    measured = (("epsilon", math.inf), ("train-loss", 3.4e38), ("ssim", -0.5), ("psnr", 1e-300))
    path.write_text("".join(json.dumps(row(metric=m, value=v))[:-1] + ', "n": 7}\n' for m, v in measured))
    assert [(one.value, one.n) for one in read_rows(path)[0]] == [(v, 7) for _, v in measured]
    for metric, value in (("psnr", math.inf), ("psnr", -0.5), ("ssim", 1.5), ("train-loss", math.inf), ("delta", 2.0)):
        path.write_text(json.dumps(row(metric=metric, value=value)))
        ((found,), _) = read_rows(path)
        assert (found.value, found.status) == (None, "failed"), (metric, value)


def test_files_of_the_wrong_kind_are_refused_or_cost_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command, taken in (("report", "rows.jsonl"), ("compare", "rows.jsonl"), ("report", "report.html")):
        folder = write_run(tmp_path / f"{command}-{taken}", ROWS[:3])
        (folder / taken).unlink(missing_ok=True)
        (folder / taken).mkdir()
        done = CliRunner().invoke(app, [command, str(folder)])
        assert done.exit_code == 2, done.output
        assert (f"{taken} is no file" if taken == "rows.jsonl" else taken) in " ".join(done.output.split())
    for name in ("config.json", "pictures", "pictures/index.jsonl"):
        folder = write_run(tmp_path / name.replace("/", "-"), ROWS[:3], config=None)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).mkdir() if name != "pictures" else (folder / name).write_text("")
        assert Page(write_report(folder).read_text(encoding="utf-8")).open == []
