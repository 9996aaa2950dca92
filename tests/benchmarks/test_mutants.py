"""The benchmark of mutants: which tests are a module's own, and the same changes in another tree."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {
    "attacks/gradient/test_memory.py", "attacks/gradient/test_labels.py", "clients/test_training.py",
    "clients/split/test_training.py", "strategies/test_exchange.py", "strategies/split/test_split_fed.py",
    "strategies/split/inner/test_deep.py", "strategies/split/wire.py",
}  # fmt: skip


@pytest.fixture
def mutants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, in a tree with the tests of ``ROOMS``."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "benchmarks" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutants", module)  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    for name in ROOMS:
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text("")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


@pytest.mark.parametrize(
    ("module", "tests"),
    [
        # Rooms have modules of the same name: each has its own tests, not the other's.
        ("clients.training", ["clients/test_training.py"]),
        ("clients.split.training", ["clients/split/test_training.py"]),
        ("strategies.exchange", ["strategies/test_exchange.py"]),
        # Without a file of its own, the tests of the room, but of no room inside it.
        ("strategies.split.exchange", ["strategies/split/test_split_fed.py"]),
        ("attacks.gradient.kinks", ["attacks/gradient/test_labels.py", "attacks/gradient/test_memory.py"]),
        ("attacks.gradient.__init__", ["attacks/gradient/test_labels.py", "attacks/gradient/test_memory.py"]),
        ("attacks.networks.unet", []),
    ],
)
def test_own_tests_are_those_of_the_mirrored_path(
    mutants: ModuleType, tmp_path: Path, module: str, tests: list[str]
) -> None:
    assert mutants.own_tests(module) == [tmp_path / "tests" / name for name in tests]


def test_a_kept_mutant_is_made_in_the_module_to_which_its_line_went(
    mutants: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its file is called there, and however far it is indented; of two places, neither."""
    old, moved, kept = tmp_path / "old.py", tmp_path / "moved.py", tmp_path / "kept.jsonl"
    old.write_text("x = 1\ny = a + b\nz = 0\n")
    mutants.keep(kept, mutants.Mutant(old, "Add_Sub", "x = 1\ny = a - b\nz = 0\n"), mutants.CAUGHT)
    mutants.keep(kept, mutants.Mutant(old, "NumberReplacer", "x = 2\ny = a + b\nz = 0\n"), mutants.CAUGHT)
    old.unlink()
    moved.write_text("def f():\n    x = 1\n    y = a + b\n    x = 1\n")
    (found,) = mutants.again(kept, [moved])
    assert (found.path, found.operator) == (moved, "Add_Sub")
    assert found.text == "def f():\n    x = 1\n    y = a - b\n    x = 1\n"
    assert "+x = 2" in capsys.readouterr().out
