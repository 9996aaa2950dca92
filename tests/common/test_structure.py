"""The rules of the structure: order of imports, size of folders, and the drawing of both (docs/structure.py)."""

from __future__ import annotations

import ast
import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def structure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("structure", ROOT / "docs" / "structure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_nothing_is_imported_in_a_circle(structure: ModuleType) -> None:
    assert structure.circles() == []


def test_in_every_folder_imports_point_down_only(structure: ModuleType) -> None:
    assert structure.arrows_up() == []


def test_no_folder_holds_too_many_files(structure: ModuleType) -> None:
    assert structure.crowded() == []


def test_packages_import_to_the_left_only(structure: ModuleType) -> None:
    assert structure.arrows_to_the_right() == []


def test_only_scores_and_clients_compare_with_the_truth(structure: ModuleType) -> None:
    assert structure.who_may_not_judge() == []


def test_a_public_class_has_a_name_of_its_own() -> None:
    names = Counter(
        node.name
        for package in ("defenses", "attacks", "clients", "strategies", "simulations")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, times in names.items() if times > 1] == []


def test_the_drawing_is_that_of_the_source(structure: ModuleType) -> None:
    assert not structure.is_outdated(), "run: python docs/structure.py"


@pytest.mark.long
def test_a_new_file_needs_no_line_on_the_page_and_all_else_does(
    structure: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page as it was before a file, or a folder of files, was added; and pages that are wrong."""
    whole = structure.page()
    added = {"defenses.images.blur", *(name for name in structure.modules() if name.startswith("attacks.smashed"))}
    before = structure.page(left_out=added)
    assert "`blur`" in whole
    assert "attacks/smashed" in whole
    assert "`blur`" not in before
    assert "attacks/smashed" not in before
    assert structure.unnamed(before) == added
    assert structure.unnamed(whole) == frozenset()
    monkeypatch.setattr(structure, "PAGE", tmp_path / "structure.md")
    line = next(line for line in whole.splitlines(keepends=True) if line.startswith("- `instahide`"))
    gone = line.replace("instahide", "taken_away")
    for text, outdated in (
        (whole, False), (before, False), (whole.replace(line, ""), False), (whole.replace(line, line + gone), True),
        (whole.replace(line, "- `instahide`: Something else.\n"), True), (whole.replace("checks  module_calls", "checks"), True),
    ):  # fmt: skip
        (tmp_path / "structure.md").write_text(text)
        assert structure.is_outdated() == outdated, text


@pytest.mark.parametrize(
    "source",
    [
        "from attacks import score", "from attacks.scoring import *", "import attacks\nattacks.null_baselines",
        "from attacks.scoring.metrics import psnr", "def late():\n    from attacks import optimal_assignment",
    ],
)  # fmt: skip
def test_whoever_reaches_for_a_judge_is_seen(structure: ModuleType, source: str) -> None:
    assert "attacks.scoring.metrics" in set(structure._imported(ast.parse(source), structure.modules()))


def test_the_rules_see_what_breaks_them(structure: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = {
        "defenses.a": frozenset({"attacks.b"}), "attacks.b": frozenset({"attacks.c"}), "attacks.c": frozenset({"attacks.d"}),
        "attacks.d": frozenset({"attacks.b", "attacks.scoring.metrics"}), "attacks.scoring.metrics": frozenset(),
        "clients.e": frozenset({"attacks.scoring.metrics"}), "attacks": frozenset({"attacks.scoring.metrics"}),
    }  # fmt: skip
    monkeypatch.setattr(structure, "imports", lambda: graph)
    assert structure.circles() == [["attacks.b", "attacks.c", "attacks.d"]]
    assert structure.arrows_to_the_right() == ["defenses.a imports attacks.b"]
    assert structure.who_may_not_judge() == ["attacks.d imports attacks.scoring.metrics"]


def test_an_arrow_up_is_seen_where_no_modules_import_each_other_in_a_circle(
    structure: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rooms that need each other: of four modules, none reaches itself."""
    graph = {
        "attacks.low.a": frozenset({"attacks.high.b"}), "attacks.high.b": frozenset(),
        "attacks.high.c": frozenset({"attacks.low.d"}), "attacks.low.d": frozenset(),
    }  # fmt: skip
    monkeypatch.setattr(structure, "imports", lambda: graph)
    monkeypatch.setattr(structure, "folders", lambda: ["", "attacks", "attacks.low", "attacks.high"])
    assert structure.circles() == []
    assert structure.arrows_up() == [
        "attacks: high, low need each other (attacks.high.c imports attacks.low.d; attacks.low.a imports attacks.high.b)"
    ]


def test_floors_stand_on_those_below(structure: ModuleType) -> None:
    for folder in structure.folders():
        built: set[str] = set()
        for floor in structure.floors(folder):
            assert all(structure.within(folder)[name] <= built for name in floor)
            built |= set(floor)
        assert built == set(structure.within(folder))


def test_a_crowded_folder_is_seen(structure: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    room = tmp_path / "tests" / "room"
    room.mkdir(parents=True)
    for at in range(structure.MOST_FILES):
        (room / f"file_{at}.py").touch()
    (room / "__init__.py").touch()
    assert structure.crowded() == []
    (room / "one_more.py").touch()
    assert structure.crowded() == ["tests/room holds 16 files; allowed: 15"]
