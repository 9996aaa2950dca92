"""Commands of fedveil in this process, where torch is loaded already."""

from typer.testing import CliRunner

from simulations.cli import app


def fedveil(*words: object) -> tuple[int, str]:
    """Exit code of a command, and all that it printed, on one line."""
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result.exit_code, " ".join(result.output.replace("│", " ").split())  # errors of options stand in a box


def refused(*words: object) -> str:
    """What a command says that ends with exit code 2."""
    code, told = fedveil(*words)
    assert code == 2, (words, told)
    return told
