"""Configurations by name, and the version."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from simulations.cli import app
from simulations.run.requested import requested
from simulations.settings.errors import ConfigError
from simulations.settings.presets import chosen, description, of_size, presets


def fedveil(*words: str) -> Result:
    return CliRunner().invoke(app, [*words], env={"COLUMNS": "400"})


def test_the_version_is_that_of_the_installed_package() -> None:
    result = fedveil("--version")
    assert (result.exit_code, result.output) == (0, f"fedveil {version('fedveil')}\n")


def test_a_name_is_the_file_of_that_name(tmp_path: Path) -> None:
    assert requested(chosen(None, "quick"), {}, tmp_path).experiment == "quick"
    assert (chosen(tmp_path, ""), chosen(None, "")) == (tmp_path, None)


def test_a_description_is_the_first_sentence_of_what_a_configuration_shows(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    shows = "# Shows: what Gao et al. 2021 show (Table 1), of batches that\n#     are small. More.\n"
    file.write_text(f"# Own.\n{shows}# Costs: 1 s. Much.\nrounds = 1\n")
    assert description(file) == "What Gao et al. 2021 show (Table 1), of batches that are small."
    file.write_text("# A comment.\nrounds = 1\n")
    assert description(file) == ""


def test_the_list_has_every_preset_with_a_line_about_it() -> None:
    result = fedveil("list", "presets")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if line]
    assert lines[0] == "presets"
    names = [line for line in lines[1:] if not line.startswith("    ")]
    assert names[0] == "quick"
    assert sorted(names) == sorted(presets())
    assert lines[2] == "    Start here."
    for name in names:
        about = lines[lines.index(name) + (2 if name == "quick" else 1)]
        assert about.startswith("    ")
        assert len(about) > 30, name
    assert "    Costs: 40 s on two idle cores with --in-process (127 s beside other work)." in lines
    assert lines.count("    Also at the paper's size: --size paper.") == len(of_size("paper")) > 5


@pytest.mark.parametrize("name", presets())
def test_every_name_is_an_experiment(name: str, tmp_path: Path) -> None:
    assert requested(chosen(None, name), {}, tmp_path).experiment


def test_a_wrong_name_and_two_configurations_are_told_before_anything_starts(tmp_path: Path) -> None:
    result = fedveil("run", "--preset", "quik", "--out", str(tmp_path / "run"))
    assert result.exit_code == 2
    assert "did you mean 'quick'?" in result.output
    plain = fedveil("run", "quick", "--out", str(tmp_path / "run"))
    assert "; a configuration of fedveil has this name: --preset quick" in " ".join(plain.output.split())
    with pytest.raises(ConfigError, match=r"unknown preset 'zzzzzz'; `fedveil list presets` shows all$"):
        chosen(None, "zzzzzz")
    both = fedveil("run", str(tmp_path / "own.toml"), "--preset", "quick", "--out", str(tmp_path / "run"))
    assert both.exit_code == 2
    assert "leave one out" in both.output
    assert not (tmp_path / "run").exists()


def test_a_preset_is_checked_with_what_stands_over_it(tmp_path: Path) -> None:
    words = ("--preset", "quick", "--dry-run", "--out", str(tmp_path / "run"))
    result = fedveil("run", *words, "-s", "rounds=3")
    assert result.exit_code == 0, result.output
    wrong = fedveil("run", *words, "-s", "rounds=0")
    assert wrong.exit_code == 2
    assert "rounds" in wrong.output


def test_a_size_stands_over_the_settings_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('rounds = 2\nexperiment = "small"\n[paper]\nrounds = 60\n')
    assert requested(file, {}, tmp_path).rounds == 2
    large = requested(file, {}, tmp_path, size="paper")
    assert (large.rounds, large.experiment) == (60, "small")
    assert requested(file, {"rounds": 3}, tmp_path, size="paper").rounds == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--size", "paper"], "size is 'paper', without a configuration that has sizes"),
        (["--preset", "quick", "--size", "paper"], "none, as it has no table of a size"),
        (["--preset", "split_table2", "--size", "papr"], "error: size is 'papr'; allowed for"),
        (["--resume", "nowhere", "--size", "paper"], "leave it out with --resume"),
    ],
)
def test_a_size_that_nothing_has_is_refused(words: list[str], told: str, tmp_path: Path) -> None:
    result = fedveil("run", *words, *([] if "--resume" in words else ["--out", str(tmp_path / "run")]))
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def test_a_table_that_is_no_size_is_an_unknown_setting(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("[papre]\nrounds = 60\n")
    with pytest.raises(ConfigError, match="unknown setting 'papre'"):
        requested(tmp_path / "own.toml", {}, tmp_path)


@pytest.mark.parametrize(("line", "told"), [("rouns = 60", "rouns"), ('rounds = "x"', "rounds is 'x'")])
def test_a_size_is_checked_before_it_is_asked_for(line: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(f"rounds = 2\n[paper]\n{line}\n")
    result = fedveil("run", str(tmp_path / "own.toml"), "--dry-run")
    assert result.exit_code == 2
    assert told in result.output


def test_a_search_has_no_sizes(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("candidates = 5\n[paper]\ncandidates = 1500\n")
    result = fedveil("search", str(tmp_path / "own.toml"), "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "paper" in result.output
