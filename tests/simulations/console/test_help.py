import shlex

import typer
from typer.testing import CliRunner

from simulations.cli import app
from simulations.console.command_line import paragraphs

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


def test_every_command_with_results_says_what_its_json_holds() -> None:
    for name in ("run", "attack", "compare", "search", "protect"):
        options = {option for one in COMMANDS[name].params for option in one.opts}
        assert {"--json", "--quiet", "-q"} <= options
        assert '--json prints "' in COMMANDS[name].help
    assert paragraphs("First line.\n\n    Second\n    paragraph.\n    ") == "First line.\n\nSecond paragraph."


def test_a_folder_to_resume_is_not_nothing() -> None:
    result = CliRunner().invoke(app, ["run", "--resume", ""])
    assert result.exit_code == 2
    assert "--resume" in result.output
    assert "it is empty; expected a folder" in result.output
