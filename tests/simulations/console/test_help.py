"""``--help`` of every command: each argument and option is described, and there is an example that the command reads."""

from __future__ import annotations

import shlex

import pytest
import typer
from typer.testing import CliRunner

from simulations.cli import app
from simulations.console.command_line import paragraphs

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_is_described_and_an_example_is_there(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert [one.name for one in command.params if len(one.help or "") < 15] == [], "too short to be a description"
    assert command.epilog.startswith(f"Example: fedveil {name} ")
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    for one in command.params:
        assert " ".join((one.help or "").split()[:3]) in " ".join(shown.replace("│", " ").split()), one.name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_of_an_example_are_options_of_the_command(name: str) -> None:
    _, _, *words = shlex.split(COMMANDS[name].epilog.removeprefix("Example: "))
    context = COMMANDS[name].make_context(name, list(words), resilient_parsing=True)
    assert context.params


@pytest.mark.parametrize("name", ["run", "attack", "compare", "search", "protect"])
def test_every_command_with_results_says_what_its_json_holds(name: str) -> None:
    options = {option for one in COMMANDS[name].params for option in one.opts}
    assert {"--json", "--quiet", "-q"} <= options
    assert '--json prints "' in COMMANDS[name].help


def test_a_paragraph_of_a_docstring_is_one_line() -> None:
    assert paragraphs("First line.\n\n    Second\n    paragraph.\n    ") == "First line.\n\nSecond paragraph."
