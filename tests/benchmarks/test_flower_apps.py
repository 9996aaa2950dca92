"""The matrix of Flower's apps: its table, its edits on made-up apps, and its check of claims on made-up pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL.Image import fromarray

sys.path.insert(
    0, str(Path(__file__).parents[2] / "benchmarks" / "flower_apps")
)  # scripts import each other as siblings
from apps import APPS
from claims import Claims, Holding, false_claims, glance_caveats, read_claims
from edits import Append, Before, EditError, Replace, apply_all, redirect_data
from table import Line, rendered

RNG = np.random.default_rng(0)
IMAGES = (RNG.integers(0, 256, (20, 3, 8, 8)) / 255).astype(np.float64)
HELD = {0: Holding(IMAGES[:12], IMAGES[12:])}
PAGE = (
    "<table><caption>At a glance</caption><tbody><tr><td><b class='word'>{verdict}</b>"
    "<small>strongest: X</small><small>beware of augmentation</small></td>"
    '<td class="num">{count}</td></tr></tbody></table>'
).replace("'", '"')


def made_up(folder: Path, name: str) -> Path:
    """The lines of an app that its edits look for, and nothing else."""
    lines: dict[str, dict[str, int]] = {}
    app = APPS[name]
    for edit in (*app.data, *app.variant, *app.audit):
        wanted = lines.setdefault(edit.file, {})
        if isinstance(edit, Replace):
            wanted[edit.old] = edit.count
        elif isinstance(edit, Before):
            wanted[edit.anchor] = 1
    for file, wanted in lines.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{one}\n" * count for one, count in wanted.items()))
    return folder


@pytest.mark.parametrize("name", APPS)
def test_the_edits_of_each_app_apply_and_its_audit_adds_at_most_ten_lines(name: str, tmp_path: Path) -> None:
    folder, app = made_up(tmp_path, name), APPS[name]
    apply_all(folder, (*app.data, *app.variant), {})
    added = apply_all(folder, app.audit, {"OUT": "/there/audit"})
    assert 1 <= added <= 10
    code = "".join(path.read_text() for path in folder.rglob("*.py"))
    assert code.count("answer_audits(") == code.count("= audited(") == 1
    assert '"/there/audit"' in code
    assert "@" not in code


def test_an_edit_fails_where_its_line_is_missing_or_not_alone(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    for edit in (Replace("a.py", "y", "z"), Before("a.py", "x = 1", "y"), Replace("b.py", "x", "y")):
        with pytest.raises(EditError, match=r"[ab]\.py"):
            apply_all(tmp_path, [edit], {})


def test_only_new_lines_that_are_not_empty_count(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("if x:\n    go()\n")
    edits = [Before("a.py", "go()", "one()\ntwo()"), Append("a.py", "three()\n\nfour()")]
    assert apply_all(tmp_path, edits, {}) == 4
    assert (tmp_path / "a.py").read_text() == "if x:\n    one()\n    two()\n    go()\n\n\nthree()\n\nfour()\n"


def test_imports_of_data_sets_are_redirected(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from datasets import Dataset, load_dataset\nfrom flwr_datasets import FederatedDataset\n"
    )
    redirect_data(tmp_path, "app")
    found = (tmp_path / "a.py").read_text().splitlines()
    assert found == [
        "from datasets import Dataset",
        "from app.offline_data import load_dataset",
        "from app.offline_data import FederatedDataset",
    ]


def test_the_table_has_a_line_for_each_app_and_names_each_failure() -> None:
    good = Line("a|b", "Flower's", "SGD", 8, 41.6, ("X on one-step probe",), 16, 9, "readable", "beware", [])
    false = Line("c", "ours", "Adam", 9, 50.0, (), 16, 3, "unknown", wrong=["the page says 3"])
    lost = Line("d", "ours", "heads", 9, failure="it broke")
    text = rendered([good, false, lost], [("baselines/old", "Flower's older API")])
    lines = text.splitlines()
    assert lines[2] == "| a\\|b | Flower's | SGD | 8 | 42 | X on one-step probe | 16 | 9 | readable | beware | yes |"
    assert lines[3].endswith("| 16 | 3 | unknown | none | no |")
    assert lines[4] == "| d | ours | heads | 9 | no page | nothing | none | none | none | none | no page |"
    assert {one.count("|") - one.count("\\|") for one in lines[:5]} == {12}
    assert "- c: the page says 3" in lines
    assert "- d: it broke" in lines
    assert "| baselines/old | Flower's older API |" in lines


def audit(folder: Path, guesses: int = 16, good: int = 9, **changes: Any) -> Path:
    """An audit whose ``good`` first guesses lie one level beside their images, and whose others are grey."""
    (folder / "pictures").mkdir(parents=True)
    index = []
    for target in range(guesses):
        truth = IMAGES[target % 12]
        guess = np.clip(truth * 255 - 1, 0, 255) / 255 if target < good else np.full_like(truth, 128 / 255)
        for kind, image in (("original", truth), ("reconstruction", guess)):
            file = f"{target}-{kind}.png"
            fromarray((image.transpose(1, 2, 0) * 255).round().astype(np.uint8)).save(folder / "pictures" / file)
            score = float(-10 * np.log10(((guess - truth) ** 2).mean())) if kind == "reconstruction" else None
            place = {"round": 1, "observation": "one-step probe", "client": 0, "target": target, "image": 0}
            index.append({**place, "kind": kind, "file": file, "attack": "X()", "role": "attack", "psnr": score})
    index[-1] |= changes
    (folder / "pictures" / "index.jsonl").write_text("".join(json.dumps(one) + "\n" for one in index))
    return folder


def page(folder: Path, verdict: str = "readable", count: str = "9 of 16") -> Claims:
    (folder / "report.html").write_text(PAGE.format(verdict=verdict, count=count))
    return read_claims(folder / "report.html")


def test_true_claims_pass(tmp_path: Path) -> None:
    folder = audit(tmp_path / "audit")
    claims = page(folder)
    assert (claims.verdict, claims.recovered, claims.attacked) == ("readable", 9, 16)
    assert glance_caveats(folder / "report.html") == "beware of augmentation"
    assert false_claims(folder, claims, HELD, ["augmentation"]) == []


@pytest.mark.parametrize(
    ("verdict", "count", "reason"),
    [
        ("readable", "10 of 16", "10 of 16 recovered; the pictures give 9 to 9 of 16"),
        ("readable", "9 of 17", "9 of 17 recovered"),
        ("unknown", "9 of 16", "does not follow"),
        ("not recovered", "9 of 16", "does not follow"),
        ("unknown", "", "counts no recovered images; the pictures show 9"),
    ],
)
def test_a_wrong_count_or_verdict_is_found(verdict: str, count: str, reason: str, tmp_path: Path) -> None:
    folder = audit(tmp_path / "audit")
    wrong = false_claims(folder, page(folder, verdict, count), HELD)
    assert any(reason in one for one in wrong), wrong


def test_a_wrong_score_is_found(tmp_path: Path) -> None:
    folder = audit(tmp_path / "audit", psnr=20.0)
    (wrong,) = false_claims(folder, page(folder), HELD)
    assert "not 20.00" in wrong


def test_a_wrong_null_baseline_is_found(tmp_path: Path) -> None:
    folder = audit(tmp_path / "audit", null_psnr=3.0)
    (wrong,) = false_claims(folder, page(folder), HELD)
    assert "null baseline" in wrong


def test_an_original_that_the_client_did_not_train_on_is_found(tmp_path: Path) -> None:
    folder = audit(tmp_path / "audit")
    wrong = false_claims(folder, page(folder), {0: Holding(IMAGES[1:12], IMAGES[12:])})
    assert "0-original.png shows no image that client 0 trained on" in wrong


def test_a_caveat_that_the_page_leaves_out_is_found(tmp_path: Path) -> None:
    folder = audit(tmp_path / "audit")
    assert false_claims(folder, page(folder), HELD, ["BatchNorm"]) == ["the page does not mention 'BatchNorm'"]


def test_a_verdict_of_too_few_images_is_found(tmp_path: Path) -> None:
    folder = audit(tmp_path / "audit", guesses=12)
    assert false_claims(folder, page(folder, "unknown", "9 of 12"), HELD) == []
    (wrong,) = false_claims(folder, page(folder, "readable", "9 of 12"), HELD)
    assert "'readable' does not follow from 9 of 12" in wrong
