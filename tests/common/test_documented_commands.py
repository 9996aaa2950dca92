"""Pages: their commands are ones that fedveil has, with options, configurations and settings; their sentences are short."""

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

from clients.wire.schema import fields_of
from simulations.cli import _pair, app
from simulations.console.command_line import read_toml
from simulations.experiment.experiment import Experiment, all_settings
from simulations.external_app.recorded.settings import AttackSettings
from simulations.search.settings import Search
from simulations.settings.presets import chosen
from tests.common.documents import ROOT, blocks, pages

OWN = re.compile(r"\.py:|\.json|folder|my_package|hf:|stripes|configs/split_table3")
"""What a reader brings, or installs."""
OWN_SETTINGS = {"attack": AttackSettings, "search": Search}
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def commands(page: str) -> list[list[str]]:
    """Arguments of every ``fedveil`` in the page's blocks for a shell."""
    found = []
    for block in blocks(page, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while "fedveil" in words:
                words = words[words.index("fedveil") + 1 :]
                end = next((at for at, word in enumerate(words) if word in ("&&", "|", ";")), len(words))
                found.append(words[:end])
    return found


def test_commands_on_the_pages_are_ones_that_there_are() -> None:
    """Parsed as typer parses them; nothing is run."""
    for words in (one for page in pages() for one in commands(page)):
        name, *arguments = words
        context = COMMANDS[name].make_context(name, arguments)
        for config in re.findall(r"simulations/configs/\w+\.toml", " ".join(arguments)):
            assert (ROOT / config).is_file(), words
        known = fields_of(OWN_SETTINGS[name]) if name in OWN_SETTINGS else all_settings()
        for text in context.params.get("setting") or ():
            key, equals, _ = text.partition("=")
            assert (equals, key in known) == ("=", True), words
    with pytest.raises(click.UsageError):
        COMMANDS["run"].make_context("run", ["--presett", "quick"])


def test_the_help_of_every_command_ends_with_an_example_that_it_takes() -> None:
    for name, command in COMMANDS.items():
        first, program, shown, *arguments = shlex.split(command.epilog or "")
        assert (first, program, shown) == ("Example:", "fedveil", name)
        command.make_context(name, arguments)
        assert not [one.name for one in command.params if not getattr(one, "help", "")], name


def test_settings_on_the_pages_have_values_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the configuration that the command names; without those that name files or packages of the reader's."""
    monkeypatch.chdir(ROOT)
    tried = 0
    for page in pages():
        for name, *arguments in commands(page):
            if name != "run" or OWN.search(" ".join(arguments)):
                continue
            given = COMMANDS[name].make_context(name, arguments).params
            if given["resume"] is None:
                file = chosen(Path(given["config"]) if given["config"] else None, given["preset"], given["size"])
                values = (read_toml(file, given["size"]) if file else {}) | dict(map(_pair, given["setting"] or ()))
                Experiment.from_mapping({**values, "output-dir": "/nowhere"})
                tried += 1
    assert tried >= 10


# ---- words
