"""README's test command leaves out long tests, and never what it must run."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simulations.runtime.launch import ROOT
from tests.durations import LONG, SLOW, keep, mark_long, measured, read_kept


class Item:
    """A collected test with fixtures of its module."""

    def __init__(self, nodeid: str, shared: tuple[str, ...] = (), essential: bool = False) -> None:
        self.nodeid, self.marks = nodeid, {"essential"} if essential else set[str]()
        definition = [SimpleNamespace(baseid="tests/a.py", scope="module")]
        everywhere = [SimpleNamespace(baseid="tests", scope="session")]
        fixtures = {**dict.fromkeys(shared, definition), "one_thread": everywhere}
        self._fixtureinfo = SimpleNamespace(name2fixturedefs=fixtures)

    def get_closest_marker(self, name: str) -> Any:
        return name if name in self.marks else None

    def add_marker(self, name: str) -> None:
        self.marks.add(name)


def long(items: list[Item], kept: dict[str, dict[str, float]], mark: str = "long") -> list[str]:
    mark_long(items, kept)  # type: ignore[arg-type]
    return [item.nodeid for item in items if mark in item.marks]


def test_a_test_is_long_by_its_own_seconds() -> None:
    items = [Item("a"), Item("b"), Item("c", essential=True), Item("new")]
    kept = {"a": {"setup": 0.0, "call": LONG}, "b": {"call": LONG - 0.1}, "c": {"call": 99.0}, "gone": {"call": 99.0}}
    assert long(items, kept) == ["a"]


def test_tests_that_share_a_long_preparation_are_long_together() -> None:
    items = [Item("a", ("run",)), Item("b", ("run",)), Item("c", ("other",)), Item("d")]
    assert long(items, {"a": {"setup": LONG, "call": 0.1}}) == ["a", "b"]


def test_what_an_essential_test_has_prepared_costs_the_others_nothing() -> None:
    items = [Item("a", ("run",)), Item("b", ("run",), essential=True), Item("c", ("run",))]
    kept = {"a": {"setup": 99.0, "call": 0.1}, "c": {"call": LONG}}
    assert long(items, kept) == ["c"]


def test_slow_tests_are_long_as_well() -> None:
    items = [Item("a"), Item("b"), Item("c", ("run",)), Item("d", ("run",)), Item("e", essential=True), Item("marked")]
    items[-1].marks.add("slow")
    kept = {"a": {"call": SLOW}, "b": {"call": SLOW - 0.1}, "c": {"setup": SLOW}, "e": {"call": 99.0}}
    assert long(items, kept, "slow") == ["a", "c", "d", "marked"]
    assert long(items, kept) == ["a", "b", "c", "d", "marked"]


def test_durations_are_kept_without_short_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.durations.FILE", tmp_path / "durations.json")
    assert read_kept() == {}
    reports = [
        SimpleNamespace(nodeid="b", when="setup", duration=0.62),
        SimpleNamespace(nodeid="b", when="call", duration=0.51),
        SimpleNamespace(nodeid="b", when="teardown", duration=70.0),
        SimpleNamespace(nodeid="a", when="call", duration=0.2),
        SimpleNamespace(message="a warning"),
    ]
    here = "tests/common/test_durations.py::test_other"
    keep(measured(reports, {here: {"call": 9.0}, "tests/gone.py::test": {"call": 9.0}, "b": {"call": 50.0}}))
    assert read_kept() == {"b": {"setup": 0.6, "call": 0.5}, here: {"call": 9.0}}


def test_every_scenario_and_one_of_flowers_runtimes_are_essential() -> None:
    essential = {
        path.relative_to(ROOT / "tests").as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"^@pytest\.mark\.essential$", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert any(name.endswith("test_flower_run.py") for name in essential)
    for scenario in ("split", "outsourced", "inference"):
        assert f"simulations/{scenario}/test_run.py" in essential
    assert any("test_federation.py" in name for name in essential)


def test_ci_leaves_out_slow_tests() -> None:
    assert '-m "not slow"' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_readme_leaves_out_long_tests() -> None:
    assert 'uv run pytest -n 4 --dist loadfile -m "not long"' in (ROOT / "README.md").read_text(encoding="utf-8")
