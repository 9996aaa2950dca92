"""Scripts as they are run, at a small size and twice; and a slice of the replies that those of docs/reliability.md spoil."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from reliability_replies import RUNS, Spoilt, unspoilt

from clients.task.scenarios import COMMON, client_sides

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
OUT = "out.jsonl"
RESUMED = {
    "inversion/leak_map.py": (
        f"--networks base --columns 1 --seeds 0 --images 2 --iterations 2 --out {OUT} --picture map.png", 1, "| base |",
    ),
    "exact/spear_scaling.py": (f"{OUT} --batches 2 --widths 60 --seeds 0 --attacks SpearPlusPlus", 1, ""),
}  # fmt: skip
"""Script -> its arguments, the lines of its file, and what it prints."""


def ran(script: str, arguments: list[str], folder: Path) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, f"{script}: {done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.slow
def test_scripts_measure_what_is_asked_and_nothing_twice(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for script, (arguments, lines, printed) in RESUMED.items():
        with subtests.test(script=script):
            folder = tmp_path / Path(script).stem
            folder.mkdir()
            first = ran(script, arguments.split(), folder)
            measured = (folder / OUT).read_text()
            assert len(measured.splitlines()) == lines
            assert printed in first
            ran(script, arguments.split(), folder)
            assert (folder / OUT).read_text() == measured


@pytest.mark.slow
def test_a_spoilt_reply_has_its_row_and_touches_no_other(subtests: pytest.Subtests) -> None:
    """Of other seeds than the script's usual ones; the script runs hundreds."""
    logging.disable(logging.CRITICAL)
    try:
        for run, number in (("split", 0), ("split-trained", 2), ("inference", 3), ("outsourced", 5), ("sums", 7)):
            with subtests.test(run=run):
                assert Spoilt(9, number, (run,)).check()
        handlers = {kind for side in client_sides().values() for kind in side.handlers}
        assert {kind for run in RUNS for kind, _ in unspoilt(run)[0]} == COMMON | handlers
    finally:
        logging.disable(logging.NOTSET)
