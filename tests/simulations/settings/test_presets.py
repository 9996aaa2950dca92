"""Configurations by name, their sizes, and the version."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from clients.data.datasets import reads_data_dir
from simulations.cli import app
from simulations.run.requested import requested
from simulations.settings.errors import ConfigError
from simulations.settings.presets import chosen, description, of_size, presets
from tests.simulations.commands import refused


def test_every_name_is_an_experiment_that_says_which_files_it_needs(tmp_path: Path) -> None:
    assert (chosen(tmp_path, ""), chosen(None, "")) == (tmp_path, None)
    assert requested(chosen(None, "quick"), {}, tmp_path).experiment == "quick"
    for name, path in presets().items():
        for size in ("", "paper") if name in of_size("paper") else ("",):
            read = reads_data_dir(requested(path, {}, tmp_path, size=size).dataset)
            assert bool(description(path, "Needs", size)) == read, (name, size)


def test_the_list_has_every_preset_with_the_first_sentence_about_it(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    shows = "# Shows: what Gao et al. 2021 show (Table 1), of batches that\n#     are small. More.\n"
    file.write_text(f"# Own.\n{shows}# Costs: 1 s. Much.\nrounds = 1\n")
    assert description(file) == "What Gao et al. 2021 show (Table 1), of batches that are small."
    shown = CliRunner().invoke(app, ["list", "presets"], env={"COLUMNS": "400"})
    lines = [line for line in shown.output.splitlines() if line]
    names = [line for line in lines[1:] if not line.startswith("    ")]
    assert names[0] == "quick"
    assert sorted(names) == sorted(presets())
    for name in names:
        assert lines[lines.index(name) + 1].startswith("    "), name
    assert lines.count("    Also at the paper's size: --size paper.") == len(of_size("paper")) > 5


def test_a_size_stands_over_the_settings_of_its_file_and_both_under_those_that_are_given(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('rounds = 2\nexperiment = "small"\n[paper]\nrounds = 60\n')
    assert requested(file, {}, tmp_path).rounds == 2
    large = requested(file, {}, tmp_path, size="paper")
    assert (large.rounds, large.experiment) == (60, "small")
    assert requested(file, {"rounds": 3}, tmp_path, size="paper").rounds == 3


WRONG = [
    ("run --preset quik", "did you mean 'quick'?"),
    ("run quick", "; a configuration of fedveil has this name: --preset quick"),
    ("run {own} --preset quick", "leave one out"), ("run --preset quick -s rounds=0", "rounds is 0; allowed"),
    ("run --size paper", "size is 'paper', without a configuration that has sizes"),
    ("run --preset quick --size paper", "none, as it has no table of a size"),
    ("run --preset split_table2 --size papr", "size is 'papr'; allowed for"),
    ("run --resume nowhere --size paper", "leave it out with --resume"), ("search {searched}", "paper"),
]  # fmt: skip
"""Words of a command, and what its one error names."""


def test_wrong_names_and_sizes_are_refused_before_anything_starts(tmp_path: Path) -> None:
    files = {"own": tmp_path / "own.toml", "searched": tmp_path / "searched.toml"}
    files["searched"].write_text("candidates = 5\n[paper]\ncandidates = 1500\n")
    for text, message in WRONG:
        words = [word.format(**files) for word in text.split()]
        told = refused(*words, *([] if "--resume" in words else ["--out", tmp_path / "out"]))
        assert message in told, text
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match=r"unknown preset 'zzzzzz'; `fedveil list presets` shows all$"):
        chosen(None, "zzzzzz")
    for table, told in (
        ("[papre]\nrounds = 60", "unknown setting 'papre'"),
        ("[paper]\nrouns = 60", "rouns"),  # checked although the size is not asked for
        ('[paper]\nrounds = "x"', "rounds is 'x'"),
    ):
        files["own"].write_text(f"rounds = 2\n{table}\n")
        assert told in refused("run", files["own"], "--dry-run")
