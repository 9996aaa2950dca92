from simulations.report.columns import Column, Shown, Table


def test_marks_of_headings_are_looks_and_open_groups() -> None:
    first, number, text = Column("a", str), Column("|#b", str), Column("c", str, "wide")
    assert [one.look for one in (first, number, text, text.opening)] == ["", "edge num", "wide", "edge wide"]
    table = Table("t", (first, number, text, text.opening), [1], ("", "Numbers", "Texts"))
    assert table.spans == [("", 1), ("Numbers", 2), ("Texts", 1)]
    assert Table("t", (first, number), [1]).spans == []
    assert (first.of(1), Column("a", lambda _: Shown("x", ("y",))).of(1).below) == (Shown("1"), ("y",))
