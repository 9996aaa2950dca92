"""The benchmark of mutants: which tests are a module's own, and the same changes in another tree."""

from pathlib import Path

import mutants
import pytest

pytestmark = pytest.mark.long


def test_a_kept_mutant_is_made_in_the_module_to_which_its_line_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its file is called there, and however far it is indented; of two places, neither."""
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    old, moved, kept = tmp_path / "old.py", tmp_path / "moved.py", tmp_path / "kept.jsonl"
    old.write_text("x = 1\ny = a + b\nz = 0\n")
    made = [("Add_Sub", "x = 1\ny = a - b\nz = 0\n"), ("NumberReplacer", "x = 2\ny = a + b\nz = 0\n")]
    mutants.keep(kept, [mutants.Mutant(old, operator, text) for operator, text in made])
    old.unlink()
    moved.write_text("def f():\n    x = 1\n    y = a + b\n    x = 1\n")
    (found,) = mutants.kept(kept, [moved])
    assert (found.path, found.operator) == (moved, "Add_Sub")
    assert found.text == "def f():\n    x = 1\n    y = a - b\n    x = 1\n"
    assert "+x = 2" in capsys.readouterr().out
