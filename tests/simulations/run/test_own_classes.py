"""Defences whose classes a program defines itself, as a notebook does: audited in the process that knows them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import simulations
from clients.process.own_code import own_code
from defenses.base import DEFENSES, Batch, InputDefense
from simulations.run.in_process import _forget
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.simulations.run.test_in_process import TINY
from tests.simulations.short_runs import untimed

pytestmark = pytest.mark.usefixtures("as_its_own_process")


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As at the beginning of a program; other tests look at all defences."""
    monkeypatch.setattr(DEFENSES, "here", {})
    yield
    _forget()


def darkening(share: float) -> type[InputDefense]:
    @dataclass(frozen=True, repr=False)
    class Darken(InputDefense):
        """Keeps a share of the brightness that its text does not say."""

        level: int = 1
        resamples: ClassVar[bool] = False  # protected once, and kept by each process

        def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
            return replace(batch, images=batch.images * share)

    return Darken


def rows(out: Path, defenses: Any) -> list[dict[str, Any]]:
    with pytest.warns(UserWarning, match="each attacked round"):
        simulations.audit(out=out, **{**TINY, "probe_targets": 1, "rounds": 1, "defenses": defenses})
    return untimed(read_lines(out / "rows.jsonl"))


@pytest.mark.long
def test_a_class_of_the_program_is_audited_and_its_next_version_replaces_it(tmp_path: Path) -> None:
    same, dark = darkening(1.0), darkening(0.1)
    first = rows(tmp_path / "1", same(level=2))
    assert {row["defense"] for row in first} == {"", "Darken(level=2)"}
    assert list(DEFENSES)[-1] == "Darken"
    second = rows(tmp_path / "2", ["ImageNoise(std=0.1)", dark(level=2)])
    plain, own = (
        [[one for one in of if one["defense"] == text] for of in (first, second)] for text in ("", "Darken(level=2)")
    )
    assert plain[0] == plain[1]
    assert own[0] != own[1], "what was kept of the earlier class is forgotten"


def test_what_cannot_be_audited_is_refused_before_any_work(tmp_path: Path) -> None:
    own = darkening(0.5)

    class Blur(InputDefense):
        pass

    for given, why, changes in (
        (3, "defenses: int: expected a dataclass of a new name that derives from Defense", {}),
        (own, "defenses: type: expected a dataclass", {}), ([own(), None], "defenses: NoneType: expected", {}),
        (Blur(), "defenses: Blur: expected a dataclass of a new name", {}),
        (type("Odd", (InputDefense,), {})(), "defenses: Odd: expected a dataclass", {}),
        (own(), "attack-workers is 2; allowed: 0, as only this program has Darken", {"attack_workers": 2}),
        ("Darken()", "attack-workers is 1; allowed: 0", {"attack_workers": 1}),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            simulations.audit(out=tmp_path / "run", **{**TINY, "defenses": given, **changes})
        assert not (tmp_path / "run").exists()


def test_a_file_that_was_edited_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    for number in (1, 2):
        file.write_text(f"def net():\n    return {number}\n")
        _forget()
        assert own_code(f"{file}:net")() == number
