import io
import json
import math

import pytest

from simulations.console.results import print_json, table, terminal_for
from simulations.console.terminal import Terminal


def test_json_is_one_line_and_what_is_not_finite_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"psnr": [math.inf, 2.5, {"low": math.nan}], "n": (1, -math.inf), "name": "ü\n[red]"})
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed) == {"psnr": [None, 2.5, {"low": None}], "n": [1, None], "name": "ü\n[red]"}


def test_a_table_prints_its_cells_as_they_are_and_breaks_no_short_word() -> None:
    console = Terminal(file=(out := io.StringIO()), width=80)
    console.print(table(["attack"], ["share"], [["Odd(values=[red])", "1 %"]], title="[bold]"))
    head, row = [line.split() for line in out.getvalue().splitlines() if "attack" in line or "Odd" in line]
    assert (head, row) == (["attack", "share"], ["Odd(values=[red])", "1", "%"])
    assert "[bold]" in out.getvalue()
    narrow = Terminal(file=(out := io.StringIO()), width=60)
    row = ["Mixer(window=4,rate=0.5,other=3)", "readable", "16 of 16 (79.4 to 100.0 %)", "90.0 %", "12.25"]
    narrow.print(table(["defence", "verdict", "recovered"], ["accuracy", "epsilon"], [row]))
    assert all(word in out.getvalue() for word in ("readable", "90.0 %", "12.25", "accuracy", "epsilon"))
    assert max(map(len, out.getvalue().splitlines())) <= 60
    assert terminal_for(console, quiet=False) is console
    assert terminal_for(console, quiet=True).quiet
