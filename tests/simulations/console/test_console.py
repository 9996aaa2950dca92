import io
import json
import logging
import math
import re
import shlex
import subprocess
import sys

import pytest
import typer
from flwr.app import Error, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from clients.flower_private import act_as_task
from clients.wire.records import MAX_REASON, reason_of
from clients.wire.texts import log_plainly, one_line, plain, shortened
from simulations.cli import app
from simulations.console import progress
from simulations.console.command_line import errors
from simulations.console.progress import Display
from simulations.console.results import print_json, table, terminal_for
from simulations.console.terminal import Terminal
from tests.simulations.commands import refused

COMMANDS = typer.main.get_command(app).commands


def test_every_argument_is_described_and_an_example_is_there() -> None:
    for name, command in COMMANDS.items():
        assert command.help
        assert [one.name for one in command.params if len(one.help or "") < 15] == [], "too short to be a description"
        shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "400", "TERM": "dumb"}).output
        for one in command.params:
            assert " ".join((one.help or "").split()) in " ".join(shown.replace("│", " ").split()), (name, one.name)
        assert command.epilog.startswith(f"Example: fedveil {name} ")
        _, _, *words = shlex.split(command.epilog.removeprefix("Example: "))
        assert command.make_context(name, list(words), resilient_parsing=True).params


def test_a_folder_to_resume_is_not_nothing() -> None:
    assert "it is empty; expected a folder" in refused("run", "--resume", "")


def test_json_is_one_line_and_what_is_not_finite_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"psnr": [math.inf, 2.5, {"low": math.nan}], "n": (1, -math.inf), "name": "ü\n[red]"})
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed) == {"psnr": [None, 2.5, {"low": None}], "n": [1, None], "name": "ü\n[red]"}


def test_a_table_prints_its_cells_as_they_are_and_breaks_no_short_word() -> None:
    console = Terminal(file=(out := io.StringIO()), width=80)
    console.print(table(["attack"], ["share"], [["Odd(values=[red])", "1 %"]]))
    head, row = [line.split() for line in out.getvalue().splitlines() if "attack" in line or "Odd" in line]
    assert (head, row) == (["attack", "share"], ["Odd(values=[red])", "1", "%"])
    narrow = Terminal(file=(out := io.StringIO()), width=60)
    row = ["Mixer(window=4,rate=0.5,other=3)", "identified", "16 of 16 (79.4 to 100.0 %)", "90.0 %", "12.25"]
    narrow.print(table(["defence", "verdict", "images"], ["accuracy", "epsilon"], [row]))
    assert all(word in out.getvalue() for word in ("identified", "90.0 %", "12.25", "accuracy", "epsilon"))
    assert max(map(len, out.getvalue().splitlines())) <= 60
    assert terminal_for(console, quiet=False) is console
    assert terminal_for(console, quiet=True).quiet


def test_a_pipe_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    console = Terminal(file=(out := io.StringIO()), width=200)
    with Display(console) as display:
        display.show("training")
        for done in range(5):
            display.show("scoring", done, 100, "; [3-1-7] 0.5" if done == 4 else "")
            now[0] += 3
        display.show("another", 10, 20)
        display.show("another", 20, 20)
        for done in (90, 91, 95, 5):
            display.show("matching", done, 100)
            now[0] += 11 if done > 90 else 3
    assert out.getvalue().splitlines() == [
        "training", "scoring: 0 of 100", "scoring: 4 of 100; [3-1-7] 0.5", "another: 10 of 20", "another: 20 of 20",
        "matching: 90 of 100", "matching: 95 of 100", "matching: 5 of 100",
    ]  # fmt: skip


def test_a_terminal_has_a_bar_and_no_lines() -> None:
    console = Terminal(file=(out := io.StringIO()), width=200, force_terminal=True)
    with Display(console) as display:
        display.show("[scoring]", 3, 10)
    assert "[scoring]" in out.getvalue(), "brackets of a name are no markup"
    assert "3 of 10" in out.getvalue()


HOSTILE = "a\x1b[2J\x1b]8;;http://x\x07b\x9b31mc\ud800d\u2028e\u202ef\rg\x7f"
WIDE = {"force_terminal": True, "highlight": False, "width": 200}
HARMLESS = "error: x\n\tat é, 漢字, 👩‍👩‍👧, -3 dB, ∞ C:\\new"
SHOWN = r"a\x1b[2J\x1b]8;;http://x\x07b\x9b31mc\ud800d\u2028e\u202ef\rg\x7f"


@given(st.text(st.characters(codec=None)))
def test_plain_text_holds_nothing_that_a_terminal_obeys(text: str) -> None:
    found = plain(text)
    found.encode()  # no half of a pair
    assert not [one for one in found if (one < " " and one not in "\n\t") or "\x7f" <= one < "\xa0"]
    assert plain(found) == found
    assert plain(HARMLESS) == HARMLESS
    assert plain(HOSTILE) == SHOWN


def test_the_console_shows_it_and_keeps_its_own_colours() -> None:
    assert isinstance(errors, Terminal)
    for markup, red in ((False, ""), (True, "\x1b[31merror:\x1b[0m ")):
        terminal = Terminal(file=(out := io.StringIO()), color_system="standard", **WIDE)
        table = Table("one")
        table.add_row("in a table \x1b[31m")
        terminal.print(f"[red]error:[/red] {HOSTILE}" if markup else HOSTILE, markup=markup, soft_wrap=True)
        terminal.print(table)
        terminal.print(Text("one \x1b[2J"))
        assert out.getvalue().startswith(f"{red}{SHOWN}\n")
        printed = out.getvalue().removeprefix(red)
        assert r"in a table \x1b[31m" in printed
        assert r"one \x1b[2J" in printed
        assert not {"\x1b[2J", "\x1b]", "\x1b[31m"} & set(re.findall(r"\x1b(?:\[[0-9;]*.|.)", printed))
        assert not {"\x9b", "\x07", "\r", "\u202e"} & set(printed)
    terminal = Terminal(file=(out := io.StringIO()), color_system=None, **WIDE)
    with Progress(TextColumn("{task.description}"), console=terminal, transient=True) as bar:
        bar.add_task("two \x9b31m")
        bar.refresh()
    assert r"two \x9" in out.getvalue()  # cut to the width that the bar had reckoned with
    assert "\x9b" not in out.getvalue()
    assert "\x1b[2K" in out.getvalue()  # rich's own, which clears the line of the bar


def test_errors_of_clients_and_the_log_that_flower_writes_are_text() -> None:
    act_as_task()
    reply = Message(Error(code=0, reason=f"line\n{HOSTILE}"), reply_to=Message(RecordDict(), 1, "train"))
    assert reason_of(reply) == one_line(HOSTILE, MAX_REASON)
    assert shortened(ValueError("\x1b[2J")) == r"\x1b[2J"
    log, handler = logging.getLogger("flwr"), logging.StreamHandler(out := io.StringIO())
    log.addHandler(handler)
    try:
        log_plainly()
        log_plainly()
        log.warning("fedveil: %s\n", HOSTILE)
        try:
            raise ValueError("\x1b[2J")
        except ValueError:
            log.exception("failed")
    finally:
        log.removeHandler(handler)
    assert SHOWN in out.getvalue()
    assert r"ValueError: \x1b[2J" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_the_module_of_the_command_line_is_a_command_too() -> None:
    shown = subprocess.run([sys.executable, "-m", "simulations.cli", "--version"], capture_output=True, check=True)
    assert shown.stdout.startswith(b"fedveil ")
    done = subprocess.run([sys.executable, "-m", "simulations.cli", "nothing"], capture_output=True, check=False)
    assert (done.returncode, b"No such command" in done.stderr) == (2, True)
