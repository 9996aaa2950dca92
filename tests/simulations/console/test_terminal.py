import io
import logging
import re

from flwr.app import Error, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from clients.flower_private import act_as_task
from clients.wire.records import MAX_REASON, reason_of
from clients.wire.texts import log_plainly, one_line, plain, shortened
from simulations.console.command_line import errors
from simulations.console.terminal import Terminal

HOSTILE = "a\x1b[2J\x1b]8;;http://x\x07b\x9b31mc\ud800d\u2028e\u202ef\rg\x7f"
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
        terminal = Terminal(
            file=(out := io.StringIO()), force_terminal=True, color_system="standard", highlight=False, width=200
        )
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
    terminal = Terminal(file=(out := io.StringIO()), force_terminal=True, color_system=None, highlight=False, width=200)
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
