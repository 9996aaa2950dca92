"""What others hand over reaches the terminal as text, and nothing in it is obeyed."""

from __future__ import annotations

import io
import logging
import re
from typing import get_type_hints

import pytest
from flwr.app import Error, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text
from typer.models import CommandInfo
from typer.testing import CliRunner

from clients.flower_private import act_as_task
from clients.wire.records import MAX_REASON, reason_of
from clients.wire.texts import log_plainly, one_line, plain, shortened
from simulations.cli import app
from simulations.console.command_line import errors
from simulations.console.terminal import Terminal

HOSTILE = "a\x1b[2J\x1b]8;;http://x\x07b\x9b31mc\ud800d\u2028e\u202ef\rg\x7f"
SHOWN = r"a\x1b[2J\x1b]8;;http://x\x07b\x9b31mc\ud800d\u2028e\u202ef\rg\x7f"


@given(st.text(st.characters(codec=None)))
def test_plain_text_holds_nothing_that_a_terminal_obeys(text: str) -> None:
    found = plain(text)
    found.encode()  # no half of a pair
    assert not [one for one in found if (one < " " and one not in "\n\t") or "\x7f" <= one < "\xa0"]
    assert plain(found) == found


def test_what_is_harmless_stays() -> None:
    for text in ("error: x\n\tat é, 漢字, 👩‍👩‍👧, -3 dB, ∞", "", "C:\\new"):
        assert plain(text) == text
    assert plain(HOSTILE) == SHOWN


@pytest.mark.parametrize("markup", [False, True])
def test_the_console_shows_it_and_keeps_its_own_colours(markup: bool) -> None:
    file = io.StringIO()
    terminal = Terminal(file=file, force_terminal=True, color_system="standard", highlight=False, width=200)
    table = Table("one")
    table.add_row("in a table \x1b[31m")
    terminal.print(f"[red]error:[/red] {HOSTILE}" if markup else HOSTILE, markup=markup, soft_wrap=True)
    terminal.print(table)
    printed = file.getvalue()
    if markup:
        assert printed.startswith("\x1b[31merror:\x1b[0m ")
        printed = printed.removeprefix("\x1b[31merror:\x1b[0m ")
    assert printed.startswith(SHOWN + "\n")
    assert r"in a table \x1b[31m" in printed
    assert not {"\x1b[2J", "\x1b]", "\x1b[31m"} & set(re.findall(r"\x1b(?:\[[0-9;]*.|.)", printed))
    assert not {"\x9b", "\x07", "\r", "\u202e"} & set(printed)


def test_text_objects_and_progress_bars_are_plain_too() -> None:
    file = io.StringIO()
    terminal = Terminal(file=file, force_terminal=True, color_system=None, highlight=False, width=200)
    terminal.print(Text("one \x1b[2J"))
    with Progress(TextColumn("{task.description}"), console=terminal, transient=True) as bar:
        bar.add_task("two \x9b31m")
        bar.refresh()
    printed = file.getvalue()
    assert r"one \x1b[2J" in printed
    assert r"two \x9" in printed  # cut to the width that the bar had reckoned with
    assert not {"\x9b"} & set(printed)
    assert "\x1b[2K" in printed  # rich's own, which clears the line of the bar
    assert "\x1b[2J" not in printed


def test_the_console_of_errors_is_such_a_one() -> None:
    assert isinstance(errors, Terminal)


def test_a_clients_error_is_text() -> None:
    act_as_task()
    question = Message(RecordDict(), 1, "train")
    reply = Message(Error(code=0, reason=f"line\n{HOSTILE}"), reply_to=question)
    assert reason_of(reply) == one_line(HOSTILE, MAX_REASON)
    assert shortened(ValueError("\x1b[2J")) == r"\x1b[2J"


def test_the_log_that_flower_writes_to_the_terminal_is_text() -> None:
    log, file = logging.getLogger("flwr"), io.StringIO()
    handler = logging.StreamHandler(file)
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
    assert SHOWN in file.getvalue()
    assert r"ValueError: \x1b[2J" in file.getvalue()
    assert "\x1b" not in file.getvalue()


@pytest.mark.parametrize("command", app.registered_commands, ids=lambda one: one.callback.__name__)
def test_the_help_of_every_command_says_what_each_argument_is(command: CommandInfo) -> None:
    """The typer that Flower allows lost it with click 8.5."""
    assert command.callback is not None
    name = (command.name or command.callback.__name__).replace("_", "-")
    shown = " ".join(CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "400", "TERM": "dumb"}).output.split())
    for hint in get_type_hints(command.callback, include_extras=True).values():
        for told in getattr(hint, "__metadata__", ()):
            assert told.help
            assert told.help in shown


def test_a_folder_to_resume_is_not_nothing() -> None:
    """As of a shell's variable that is not set: the folder that one stands in would be meant."""
    result = CliRunner().invoke(app, ["run", "--resume", ""])
    assert result.exit_code == 2
    assert "--resume" in result.output
    assert "it is empty; expected a folder" in result.output
