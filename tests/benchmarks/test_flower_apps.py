"""The matrix of Flower's apps: its table, its edits on made-up apps, and its check of claims on made-up pictures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import APPS, apply_all
from claims import Claims, Holding, Pictures, read_claims
from PIL.Image import fromarray

pytestmark = pytest.mark.long


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
    lines: dict[str, list[str]] = {}
    for edit in (*APPS[name].variant, *APPS[name].audit):
        lines.setdefault(edit.file, []).append(edit.old or edit.place)
    for file, wanted in lines.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(dict.fromkeys(wanted)) + "\n")
    return folder


def test_the_edits_of_each_app_apply_and_an_audit_adds_ten_lines(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for name in APPS:
        with subtests.test(name=name):
            folder, app = made_up(tmp_path / name, name), APPS[name]
            apply_all(folder, app.variant, "")
            added = apply_all(folder, app.audit, "/there/audit")
            assert 1 <= added <= 10
            code = "".join(path.read_text() for path in folder.rglob("*.py"))
            assert code.count("answer_audits(") == code.count("= audited(") == 1
            assert '"/there/audit"' in code
            assert "@" not in code.replace("@SEED@", "0")


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


def test_claims_are_held_against_the_pictures(tmp_path: Path) -> None:
    folder = audit(tmp_path / "audit")
    assert Pictures(folder, HELD).false_claims(page(folder), ["augmentation"]) == []
    for verdict, count, reason in (
        ("readable", "10 of 16", "10 of 16 recovered; the pictures give 9 to 9 of 16"),
        ("readable", "9 of 17", "9 of 17 recovered"),
        ("unknown", "9 of 16", "does not follow"),
        ("not recovered", "9 of 16", "does not follow"),
        ("unknown", "", "counts no recovered images; the pictures show 9"),
    ):
        assert any(reason in one for one in Pictures(folder, HELD).false_claims(page(folder, verdict, count))), (
            verdict,
            count,
        )
    wrong = Pictures(folder, {0: Holding(IMAGES[1:12], IMAGES[12:])}).false_claims(page(folder))
    assert "0-original.png shows no image that client 0 trained on" in wrong
    assert Pictures(folder, HELD).false_claims(page(folder), ["BatchNorm"]) == ["the page does not mention 'BatchNorm'"]
    for name, changed, reason in (
        ("score", {"psnr": 20.0}, "not 20.00"),
        ("null", {"null_psnr": 3.0}, "null baseline"),
    ):
        bent = audit(tmp_path / name, **changed)
        (wrong,) = Pictures(bent, HELD).false_claims(page(bent))
        assert reason in wrong
    few = audit(tmp_path / "few", guesses=12)
    (wrong,) = Pictures(few, HELD).false_claims(page(few, "readable", "9 of 12"))
    assert "'readable' does not follow from 9 of 12" in wrong
