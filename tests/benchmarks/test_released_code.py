"""Agreement with released code: that a disagreement and an error are reported as such, on a checkout that the test writes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import released_code
import released_searches
import released_transforms
import torch
from PIL import Image
from released_checkouts import checkout
from released_costs import COST_NAMES
from released_rows import Row, close, equal, guarded
from released_searches import PRESETS, configurations
from released_transforms import _within, policies, random_policies, to_images, to_levels

from defenses.images.transforms import apply_transform

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


def test_a_comparison_with_fewer_rows_than_expected_is_reported() -> None:
    row = Row("x", "", "", agrees=True)
    assert [one.verdict for one in guarded("x", lambda: [row], 1)] == ["agrees"]
    last = list(guarded("x", lambda: [row], 2))[-1]
    assert (last.verdict, last.difference) == ("DISAGREES", "gave 1 of 2 rows")
    assert [one.difference for one in guarded("x", list, 1)] == ["gave 0 of 1 rows"]


def test_a_call_without_a_checkout_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["released_code.py"])
    with pytest.raises(SystemExit) as end:
        released_code.main()
    assert end.value.code == 2
    assert "name at least one checkout: --ats" in capsys.readouterr().err


def configured(name: str, **changed: object) -> Callable[[str], Any]:
    """A checkout whose configurations are ours, but for some settings of one."""

    def create(asked: SimpleNamespace) -> dict[str, object]:
        ours = PRESETS[asked.optim]()
        found = {
            "cost_fn": COST_NAMES[ours.cost], "optim": ours.optimizer, "signed": ours.signed, "boxed": ours.boxed,
            "lr": ours.learning_rate, "max_iterations": ours.iterations, "restarts": ours.restarts,
            "total_variation": ours.total_variation, "init": ours.init, "lr_decay": ours.step_decay,
        }  # fmt: skip
        return found | (changed if asked.optim == name else {})

    return lambda _: SimpleNamespace(create_config=create)


@pytest.mark.parametrize(
    ("name", "changed", "verdict"),
    [
        ("zhu", {}, "agrees"),
        ("zhu", {"max_iterations": 50, "restarts": 2}, "differs on purpose"),
        ("zhu", {"max_iterations": 50}, "DISAGREES"),
        ("zhu", {"max_iterations": 50, "restarts": 2, "boxed": True}, "DISAGREES"),
        ("inversed", {"max_iterations": 50, "restarts": 2}, "DISAGREES"),
    ],
)
def test_the_papers_numbers_explain_only_the_attack_that_has_them(
    name: str, changed: dict[str, object], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(released_searches, "_sgd_rate", lambda _: PRESETS["inversed-sgd-sim"]().learning_rate)
    rows = dict(zip(PRESETS, configurations(configured(name, **changed)), strict=True))
    assert rows.pop(name).verdict == verdict
    assert {row.verdict for row in rows.values()} == {"agrees"}


@pytest.mark.parametrize(
    ("name", "levels", "share", "within"),
    [
        ("color", 1, 0.1, True),
        ("color", 1, 0.5, False),
        ("color", 2, 0.1, False),
        ("rotate", 200, 0.001, True),
        ("rotate", 200, 0.1, False),
        ("invert", 1, 0.001, False),
        ("invert", 0, 0.0, True),
    ],
)
def test_a_transform_may_differ_by_few_levels_in_few_values(name: str, levels: int, share: float, within: bool) -> None:
    difference = np.zeros(1000, dtype=int)
    difference[: round(1000 * share)] = levels
    assert _within(name, difference) is within


def rounding(darker: int) -> Callable[[str], Any]:
    """A checkout with our transforms, each rounded to whole grey levels; ``darker`` is subtracted after each."""
    random = SimpleNamespace()

    def transform(index: int) -> Callable[[Any], Any]:
        def apply(image: Any) -> Any:
            sign = torch.tensor([float(random.random.choice(None))])
            levels = to_levels(apply_transform(to_images(np.asarray(image)[None]), index, sign))[0]
            return Image.fromarray((levels - darker).clip(0).astype(np.uint8))

        return apply

    known = {"autoaugment": random, "policy": SimpleNamespace(policies=[transform(index) for index in range(50)])}
    return known.__getitem__


@pytest.mark.parametrize(
    ("darker", "reverse", "verdicts"),
    [
        (0, False, ["differs on purpose", "agrees"]),
        (3, False, ["DISAGREES", "DISAGREES"]),  # no rounding
        (0, True, ["DISAGREES", "agrees"]),
    ],
)
def test_rounding_between_steps_explains_a_difference_of_policies_only_where_each_step_agrees(
    darker: int, reverse: bool, verdicts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few, drawn = released_transforms.pictures()[::8], random_policies(20)
    monkeypatch.setattr(released_transforms, "pictures", lambda: few)
    monkeypatch.setattr(released_transforms, "random_policies", lambda _: drawn)
    if reverse:
        ours = released_transforms.apply_policy

        def reversed_policy(images: torch.Tensor, policy: tuple[int, ...], signs: torch.Tensor) -> torch.Tensor:
            return ours(images, policy[::-1], signs.flip(0))

        monkeypatch.setattr(released_transforms, "apply_policy", reversed_policy)
    assert [row.verdict for row in policies(rounding(darker))] == verdicts


def test_a_checkout_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = type(sys)("utilsenc")
    monkeypatch.setitem(sys.modules, "utilsenc", own)
    (tmp_path / "utilsenc.py").write_text(SHUFFLES + "\nprint('noise')\n", encoding="utf-8")
    before, state, path = set(sys.modules), torch.get_rng_state(), list(sys.path)
    with checkout(tmp_path) as modules:
        module = modules("utilsenc")
        assert module is not own
        assert module.WHOLE is int
        with pytest.raises(RuntimeError, match="stand-in"):
            module.Unused()
        torch.rand(3)
    assert sys.modules["utilsenc"] is own
    assert set(sys.modules) == before
    assert not hasattr(np, "int")
    assert torch.equal(torch.get_rng_state(), state)
    assert sys.path == path
