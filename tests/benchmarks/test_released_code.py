"""Agreement with released code: that a disagreement and an error are reported as such, on a checkout that the test writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import released_code
import torch
from released_rows import Row, close, equal, guarded

pytestmark = pytest.mark.long


SHUFFLES = """
import numpy as np
import torch
from transformers import Unused

WHOLE = np.int


def PatchShuffle(x):
    return torch.stack([image[torch.randperm(image.shape[0])] for image in x])


def BatchPatchPartialShuffle(x, k):
    images, tokens, _ = x.shape
    native = int(tokens * k)
    first = torch.rand((images, tokens)).argsort(1)
    rows = torch.stack([image[order] for image, order in zip(x, first)])
    pool = rows[:, native:].flatten(0, 1)
    pool = pool[torch.randperm(len(pool))].view(images, tokens - native, x.shape[2])
    mixed = PatchShuffle(torch.cat([rows[:, :native], pool], 1))
    return torch.stack([image[order.argsort()] for image, order in zip(mixed, first)])
"""

LAST_WRONG = ["agrees", "agrees", "DISAGREES"]


def told(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The status and the rows of patch and batch shuffling of a checkout."""
    monkeypatch.setattr(released_code, "OF_SHUFFLES", released_code.OF_SHUFFLES[:1])
    monkeypatch.setattr(sys, "argv", ["released_code.py", "--patch-shuffling", str(folder)])
    with pytest.raises(SystemExit) as end:
        released_code.main()
    status = end.value.code
    assert isinstance(status, int)
    return status, [line for line in capsys.readouterr().out.splitlines() if line.startswith("| patch shuffling")]


@pytest.mark.parametrize(
    ("right", "wrong", "verdicts"),
    [
        ("", "", ["agrees", "agrees", "agrees"]),
        ("order.argsort()", "order", LAST_WRONG),  # undoes nothing
        ("PatchShuffle(torch.cat([rows[:, :native], pool], 1))", "torch.cat([rows[:, :native], pool], 1)", LAST_WRONG),
        (
            "return torch.stack([image[torch.randperm(image.shape[0])] for image in x])",
            "return torch.stack([image[torch.randperm(image.shape[0])].roll(1, 0) for image in x])",
            ["DISAGREES", "agrees", "DISAGREES"],
        ),
        ("for image in x])", "for image in x]).half().float()", ["DISAGREES", "DISAGREES", "DISAGREES"]),
        ("images, tokens, _ = x.shape", "exit(0)", ["DISAGREES"]),
    ],
)
def test_a_checkout_that_shuffles_otherwise_is_reported(
    right: str,
    wrong: str,
    verdicts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert right in SHUFFLES
    text = SHUFFLES.replace(right, wrong) if right else SHUFFLES
    (tmp_path / "utilsenc.py").write_text(text, encoding="utf-8")
    status, rows = told(tmp_path, monkeypatch, capsys)
    assert [row.split(" | ")[4] for row in rows] == verdicts, rows
    assert status == ("DISAGREES" in verdicts)


def test_a_difference_is_on_purpose_only_where_a_reason_explains_it() -> None:
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])
    assert close("x", "", one, one, 0.1, "reason").verdict == "agrees"
    assert close("x", "", one, other, 0.1, "reason", most=0.6).verdict == "differs on purpose"
    assert close("x", "", one, other, 0.1, "reason", most=0.4).verdict == "DISAGREES"
    assert close("x", "", one, other, 0.1, "reason").verdict == "DISAGREES", "a reason alone excuses no size"
    assert close("x", "", one, other, 0.1, most=0.6).verdict == "DISAGREES"
    assert equal("x", "", [(1, 2)], "reason", explained=True).verdict == "differs on purpose"
    assert equal("x", "", [(1, 2)], "reason").verdict == "DISAGREES"
    assert equal("x", "", [], "reason", explained=True).verdict == "DISAGREES"
    assert close("x", "", one, other, 0.1).verdict == "DISAGREES"
    assert close("x", "", one, one / 0 * 0, 0.1).verdict == "DISAGREES"

    def broken() -> list[Row]:
        return [close("x", "", one, other[:1], 0.1)]

    assert [row.verdict for row in guarded("x", broken, 1)] == ["DISAGREES"]
