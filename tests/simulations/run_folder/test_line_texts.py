"""Whatever text a client sends, a run that wrote it can be read and resumed: lines of its files end at line feeds alone."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from defenses.pipeline import Pipeline
from simulations.experiment.experiment import Experiment
from simulations.forecast.preflight import preflight
from simulations.report import read_rows
from simulations.report.drawing.picture_index import read_index
from simulations.run_folder.rows import Row
from simulations.run_folder.run_directory import RunDirectory
from simulations.settings.errors import ConfigError
from strategies.training.checkpoint import Checkpoint

BREAKS = ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r", "\n", "\r\n"]
"""Every text at which ``str.splitlines`` ends a line."""
ODD = [*BREAKS, "\x00", "\x1b[31m", "\x7f", "\ud800", "\udcff", "\ufeff", "\u202e", "\U0001f600", '"', "\\", "e\u0301"]


def begin(folder: Path, *, resume: bool = False) -> RunDirectory[Experiment]:
    values: dict[str, Any] = {"dataset": "mnist-5k", "model": "lenet", "defenses": "", "rounds": 2, "attack_rounds": ""}
    return RunDirectory.open(folder, Experiment.of(**values, output_dir=str(folder), resume=resume))


def run_with(folder: Path, *messages: str) -> Path:
    """A run that was killed after its first round, whose rows hold these texts."""
    run = begin(folder)
    task = run.experiment.plan().at(1)
    for message in messages:
        run.row(task, metric="client", value=None, status="refused", client=0, message=message)
        about = {"client": 0, "target": 0, "attack": "", "kind": "original", "observation": message}
        if not any(half in message for half in ("\x00", "\ud800", "\udcff")):  # it becomes the name of a file
            run.picture(task, torch.zeros(1, 2, 2), image_number=0, **about)
    run.complete_round(Pipeline(), Checkpoint(1, {"weight": torch.ones(3)}, {0: "{}"}, 0.5))
    run.write_progress({"finished": False})
    run.close()
    return folder


def test_the_list_of_breaks_is_that_of_python() -> None:
    found = {chr(code) for code in range(0x110000) if len(f"a{chr(code)}b".splitlines()) == 2}
    assert found | {"\r\n"} == set(BREAKS)


def test_a_run_goes_on_whatever_its_texts_hold(tmp_path: Path) -> None:
    told = [f"not{odd}told" for odd in ODD]
    folder = run_with(tmp_path / "run", *told)
    data = (folder / "rows.jsonl").read_bytes()
    assert data.isascii(), "any reader of lines finds one row a line"
    assert len(data.decode().splitlines()) == len(ODD)
    run = begin(folder, resume=True)
    assert sorted(row.message for row in run._rows) == sorted(told)
    run.close()
    # A page is UTF-8, which has no halves of characters.
    shown = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in told]
    assert {row.message for row in read_rows(folder / "rows.jsonl")[0]} == set(shown)
    row = Row(metric="client", message="\ud800")
    assert Row.from_json(json.loads(row.to_json())) == row


def test_a_run_goes_on_that_an_earlier_version_wrote_without_escapes(tmp_path: Path) -> None:
    told = [f"not{odd}told" for odd in ("\x85", "\u2028", "\u2029")]
    folder = run_with(tmp_path / "run", *told)
    for name in ("rows.jsonl", "pictures/index.jsonl"):
        lines = [json.loads(line) for line in (folder / name).read_text().split("\n") if line]
        (folder / name).write_text(
            "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines), encoding="utf-8"
        )
    run = begin(folder, resume=True)
    assert sorted(row.message for row in run._rows) == told
    assert len(run._pictures) == len(read_index(folder)[0]) == 3
    run.close()


def test_a_last_line_that_is_cut_off_does_not_end_a_run_and_is_reported(tmp_path: Path) -> None:
    for name, cut in product(("rows.jsonl", "pictures/index.jsonl"), (1, 2, 20)):
        folder = run_with(tmp_path / f"{name[:4]}{cut}", "first", "second")
        path, whole = folder / name, cut == 1  # only the line feed is missing
        path.write_bytes(path.read_bytes()[:-cut])
        run = begin(folder, resume=True)
        kept = [row.message for row in run._rows if row.metric == "client"] if "rows" in name else run._pictures
        assert len(kept) == (2 if whole else 1), (name, cut)
        lost = [(row.status, row.round, row.message) for row in run._rows if row.metric == "lines-lost"]
        assert [(status, at) for status, at, _ in lost] == ([] if whole else [("failed", 1)])
        assert whole or f"{path.name}: line 2 is cut off" in lost[0][2]
        run.flush()
        run.close()
        again = begin(folder, resume=True)  # the loss stays on record, and is counted once
        assert sum(row.metric == "lines-lost" for row in again._rows) == (not whole)
        again.close()


def test_a_damaged_line_in_the_middle_is_named_and_following_the_advice_helps(tmp_path: Path) -> None:
    damages = (b"{", b"[]", b'{"metric": 3}', b"\xff\xfe")
    for name, (number, damage) in product(("rows.jsonl", "pictures/index.jsonl"), enumerate(damages)):
        folder = run_with(tmp_path / f"{name[:4]}{number}", "first", "second", "third")
        path = folder / name
        lines = path.read_bytes().split(b"\n")
        path.write_bytes(b"\n".join([lines[0], damage, *lines[2:]]))
        with pytest.raises(ConfigError, match=rf"line 2 of .*{path.name} is damaged") as refused:
            begin(folder, resume=True)
        assert "delete that line" in str(refused.value)
        assert "--resume" not in str(refused.value), "the same command again would end in the same way"
        path.write_bytes(b"\n".join([lines[0], *lines[2:]]))  # as the error says
        run = begin(folder, resume=True)
        assert len(run._rows) == (2 if "rows" in name else 3)
        run.close()


def test_damage_is_found_before_anything_starts_and_lost_lines_are_announced(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", "first", "second", "third")
    path = folder / "rows.jsonl"
    whole = path.read_bytes()
    experiment = Experiment.of(dataset="folder", data_dir=str(tmp_path / "none"), output_dir=str(folder), resume=True)
    path.write_bytes(whole.replace(b'"metric"', b'"metric', 1))
    with pytest.raises(ConfigError, match=r"line 1 of .*rows\.jsonl is damaged"):
        preflight(experiment, lambda told: None)
    path.write_bytes(whole[:-3])
    told: list[str] = []
    with pytest.raises(ConfigError, match="data-dir"):  # the next check
        preflight(experiment, told.append)
    assert told[0].startswith("warning: rows.jsonl: line 3 is cut off")


def test_rows_of_which_nothing_can_be_read_are_no_empty_run_and_a_refused_folder_is_free_again(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", "first")
    with pytest.raises(ConfigError, match="already holds a run"):
        begin(folder)
    begin(folder, resume=True).close()
    (folder / "rows.jsonl").write_bytes(b"\0" * 64)
    with pytest.raises(ConfigError, match=r"rows\.jsonl"):
        begin(folder, resume=True)
