from simulations.report.columns import Column, Shown, Table, number


def test_columns_of_numbers_and_of_groups_have_looks() -> None:
    first, second, text = Column("a", str), number("b", str).opening, Column("c", str, "wide")
    assert [one.look for one in (first, second, text, text.opening)] == ["", "edge num", "wide", "edge wide"]
    table = Table("t", (first, second, text, text.opening), [1], ("", "Numbers", "Texts"))
    assert table.spans == [("", 1), ("Numbers", 2), ("Texts", 1)]
    assert Table("t", (first, second), [1]).spans == []
    assert (first.of(1), Column("a", lambda _: Shown("x", ("y",))).of(1).below) == (Shown("1"), ("y",))
