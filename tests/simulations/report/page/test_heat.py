"""The sentence above the table of attacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from simulations.report.page.heat import Heat, HeatRow, lead

NAMES = {one: one.removesuffix("()") for one in ("A()", "B()", "C()", "Bound()")}
FACES: dict[str, Any] = {"": SimpleNamespace(name="No defence"), "M()": SimpleNamespace(name="M")}


def row(attack: str, *, of: str = "images", doubt: str = "", **cells: tuple[int, int, str]) -> HeatRow:
    found = {
        name: Heat(f"{hits} of {n}", hits / n, None, at, doubt)
        for name, (hits, n, at) in (("M()" if key == "m" else "", cell) for key, cell in cells.items())
    }
    return HeatRow(attack, "", of, found)


def sentence(*rows: HeatRow) -> str:
    return lead(rows, NAMES, FACES, {"Bound()"})


def test_one_attack_leads_alone() -> None:
    rows = (row("A()", plain=(16, 16, "round 1")), row("B()", plain=(15, 16, "round 1")))
    assert sentence(*rows) == "A recovered most images: 16 of 16 under No defence (round 1)."


def test_all_attacks_with_the_same_count_are_named() -> None:
    first, *others = (row(name, plain=(16, 16, "round 1")) for name in ("A()", "B()", "C()"))
    assert sentence(first, others[0]) == "A and B recovered most images: 16 of 16 each under No defence (round 1)."
    assert sentence(first, *others).startswith("A, B and C recovered most images: 16 of 16 each under")


def test_ties_at_different_places_each_have_their_own() -> None:
    rows = (row("A()", plain=(16, 16, "round 1"), m=(3, 16, "round 1")), row("B()", m=(4, 4, "round 3")))
    assert (
        sentence(*rows)
        == "A (16 of 16 under No defence, round 1) and B (4 of 4 under M, round 3) recovered most images."
    )


def test_bounds_doubted_attacks_and_other_data_do_not_tie() -> None:
    first = row("A()", plain=(16, 16, "round 1"), m=(16, 16, "round 1"))
    others = (
        row("Bound()", plain=(16, 16, "round 1")),
        row("B()", doubt=" †", plain=(16, 16, "round 1")),
        row("C()", of="labels", plain=(16, 16, "round 1")),
    )
    assert sentence(first, *others) == "A recovered most images: 16 of 16 under No defence (round 1)."
    assert sentence(*others) == sentence(row("A()", plain=(0, 16, "round 1"))) == ""
