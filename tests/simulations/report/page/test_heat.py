"""The sentence above the table of attacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from simulations.report.page.heat import Heat, HeatRow, lead

NAMES = {one: one.removesuffix("()") for one in ("A()", "B()", "C()", "Bound()")}
FACES: dict[str, Any] = {"": SimpleNamespace(name="No defence"), "M()": SimpleNamespace(name="M")}
ALL = (16, 16, "round 1")


def row(attack: str, *, of: str = "images", doubt: str = "", **cells: tuple[int, int, str]) -> HeatRow:
    found = {
        name: Heat(f"{hits} of {n}", hits / n, None, at, doubt)
        for name, (hits, n, at) in (("M()" if key == "m" else "", cell) for key, cell in cells.items())
    }
    return HeatRow(attack, "", of, found)


def test_the_lead_names_every_attack_with_the_largest_share_and_no_bound_doubt_or_other_data() -> None:
    a, b, c = (row(name, plain=ALL) for name in ("A()", "B()", "C()"))
    bound, doubted, labels = (
        row("Bound()", plain=ALL),
        row("B()", doubt=" †", plain=ALL),
        row("C()", of="labels", plain=ALL),
    )
    alone = "A recovered most images: 16 of 16 under No defence (round 1)."
    for rows, expected in (
        ((a, row("B()", plain=(15, 16, "round 1"))), alone),
        ((a, bound, doubted, labels), alone),
        ((row("A()", plain=ALL, m=ALL), bound), alone),
        ((a, b), "A and B recovered most images: 16 of 16 each under No defence (round 1)."),
        ((a, b, c), "A, B and C recovered most images: 16 of 16 each under No defence (round 1)."),
        (
            (row("A()", plain=ALL, m=(3, 16, "round 1")), row("B()", m=(4, 4, "round 3"))),
            "A (16 of 16 under No defence, round 1) and B (4 of 4 under M, round 3) recovered most images.",
        ),
        ((bound, doubted, labels), ""),
        ((row("A()", plain=(0, 16, "round 1")),), ""),
    ):
        assert lead(rows, NAMES, FACES, {"Bound()"}) == expected
