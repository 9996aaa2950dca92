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
CLASSES = np.arange(20) % 2
HELD = {0: Holding(IMAGES[:12], CLASSES[:12], IMAGES[12:], CLASSES[12:])}
PAGE = (
    "<table><caption>At a glance</caption><tbody><tr><td data-from='training update'><b class='word'>unknown</b></td>"
    "<td data-from='one-step probe, 1 image'><b class='word'>{verdict}</b><small>{count} (20.0 to 80.0 %)</small>"
    "<small>beware of augmentation</small></td></tr></tbody></table>"
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


def page(folder: Path, verdict: str = "recognisable", count: str = "9 of 16", of: str = "recognisable") -> Claims:
    text = PAGE.format(verdict=verdict, count=f"<b>{count}</b> {of}" if count else "")
    (folder / "report.html").write_text(text)
    return read_claims(folder / "report.html")


def test_claims_are_held_against_the_pictures(tmp_path: Path) -> None:
    folder = audit(tmp_path / "audit")
    assert Pictures(folder, HELD).false_claims(page(folder), ["augmentation"]) == []
    assert Pictures(folder, HELD).false_claims(page(folder, "identifiable", of="identified")) == []
    for verdict, count, of, reason in (
        ("recognisable", "10 of 16", "recognisable", "10 of 16 recognisable; the pictures give 9 to 9 of 16"),
        ("recognisable", "9 of 17", "recognisable", "9 of 17 recognisable"),
        ("recognisable", "9 of 16", "identified", "does not follow"),
        ("identifiable", "1 of 16", "identified", "does not follow"),
        ("unknown", "", "", "counts no images; the pictures show 9"),
    ):
        found = Pictures(folder, HELD).false_claims(page(folder, verdict, count, of))
        assert any(reason in one for one in found), (verdict, count, of, found)
    fewer = {0: Holding(IMAGES[1:12], CLASSES[1:12], IMAGES[12:], CLASSES[12:])}
    wrong = Pictures(folder, fewer).false_claims(page(folder))
    assert "0-original.png shows no image that client 0 trained on" in wrong
    assert Pictures(folder, HELD).false_claims(page(folder), ["BatchNorm"]) == ["the page does not mention 'BatchNorm'"]
    bent = audit(tmp_path / "score", psnr=20.0)
    (wrong,) = Pictures(bent, HELD).false_claims(page(bent))
    assert "not 20.00" in wrong
    few = audit(tmp_path / "few", guesses=12, good=0)
    (wrong,) = Pictures(few, HELD).false_claims(page(few, "nothing found", "0 of 12", "identified"))
    assert "'nothing found' does not follow from 0 of 12" in wrong
