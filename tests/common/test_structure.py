"""The rules of the house: who may import whom (docs/structure.py says why), and its drawing."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "docs" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nothing_is_imported_in_a_circle(house: ModuleType) -> None:
    assert house.circles() == []


def test_packages_import_to_the_left_only(house: ModuleType) -> None:
    assert house.arrows_to_the_right() == []


def test_only_scores_and_clients_compare_with_the_truth(house: ModuleType) -> None:
    assert house.who_may_not_judge() == []


def test_the_drawing_is_that_of_the_source(house: ModuleType) -> None:
    assert (ROOT / "docs" / "house.md").read_text() == house.page(), "run: python docs/structure.py"


@pytest.mark.parametrize(
    "source",
    [
        "from attacks import score", "from attacks.scoring import *", "import attacks\nattacks.null_baselines",
        "from attacks.scoring.metrics import psnr", "def late():\n    from attacks import optimal_assignment",
    ],
)  # fmt: skip
def test_whoever_reaches_for_a_judge_is_seen(house: ModuleType, source: str) -> None:
    assert "attacks.scoring.metrics" in set(house._imported(ast.parse(source), house.modules()))


def test_the_rules_see_what_breaks_them(house: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = {
        "defenses.a": frozenset({"attacks.b"}), "attacks.b": frozenset({"attacks.c"}), "attacks.c": frozenset({"attacks.d"}),
        "attacks.d": frozenset({"attacks.b", "attacks.scoring.metrics"}), "attacks.scoring.metrics": frozenset(),
        "clients.e": frozenset({"attacks.scoring.metrics"}), "attacks": frozenset({"attacks.scoring.metrics"}),
    }  # fmt: skip
    monkeypatch.setattr(house, "imports", lambda: graph)
    assert house.circles() == [["attacks.b", "attacks.c", "attacks.d"]]
    assert house.arrows_to_the_right() == ["defenses.a imports attacks.b"]
    assert house.who_may_not_judge() == ["attacks.d imports attacks.scoring.metrics"]
