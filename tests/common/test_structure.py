"""The rules of the structure: order of imports, size of folders, and the drawing of both (docs/structure.py)."""

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
def test_the_source_and_its_drawing_obey_the_rules(structure: ModuleType) -> None:
    assert structure.circles() == []
    assert structure.arrows_up() == []
    assert structure.arrows_to_the_right() == []
    assert structure.who_may_not_judge() == []
    assert structure.crowded() == []
    product = [path for name, path in structure.modules().items() if name.startswith(structure.PACKAGES)]
    drawn = structure.page()
    assert not [path for path in product if path.name != "__init__.py" and f"\n- `{path.stem}`: " not in drawn]
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in product)
    classes = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, times in classes.items() if times > 1 and not name.startswith("_")] == []


def test_the_rules_see_what_breaks_them(structure: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = "attacks.scoring.metrics"
    for source in (
        "from attacks import score", "from attacks.scoring import *", "import attacks\nattacks.null_baselines",
        "from attacks.scoring.metrics import psnr", "def late():\n    from attacks import optimal_assignment",
    ):  # fmt: skip
        assert judge in set(structure.imported(ast.parse(source), structure.modules())), source
    # Of the two rooms, which need each other, no module reaches itself.
    graph = {
        "defenses.a": {"attacks.b"}, "attacks.b": {"attacks.c"}, "attacks.c": {"attacks.b", judge}, judge: set(),
        "clients.e": {judge}, "attacks": {judge}, "attacks.low.f": {"attacks.high.g"}, "attacks.high.g": set(),
        "attacks.high.h": {"attacks.low.i"}, "attacks.low.i": set(),
    }  # fmt: skip
    monkeypatch.setattr(structure, "imports", lambda: graph)
    monkeypatch.setattr(structure, "folders", lambda: ["attacks", "attacks.low", "attacks.high"])
    assert structure.circles() == [["attacks.b", "attacks.c"]]
    assert structure.arrows_to_the_right() == ["defenses.a imports attacks.b"]
    assert structure.who_may_not_judge() == ["attacks.c imports attacks.scoring.metrics"]
    assert "attacks: high, low need each other (attacks.high.h imports attacks.low.i;" in "".join(structure.arrows_up())
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    (tmp_path / "tests" / "room").mkdir(parents=True)
    for at in range(structure.MOST_FILES + 1):
        assert structure.crowded() == []
        (tmp_path / "tests" / "room" / f"file_{at}.py").touch()
    assert len(structure.crowded()) == 1
    assert structure.over_budget(structure.BUDGETS) == []
    more = {name: most + 1 for name, most in structure.BUDGETS.items()}
    assert len(structure.over_budget(more)) == len(more)
