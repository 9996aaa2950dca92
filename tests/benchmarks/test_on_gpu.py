"""The benchmark of graphics cards, where there is none: it times the processor, and names what it did not measure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from on_gpu import HIDDEN, PARTS, Part, Timed, line, timed

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_not_installed_has_no_time() -> None:
    found = timed(Part(("run",), needs=("flwr", "no_such_package")), {}, 60.0)
    assert found.failure == "not measured: no_such_package is not installed"
    assert timed(PARTS["quick"], {}, 0.0).failure == "not measured: no time was left"


def test_a_command_that_fails_or_takes_too_long_is_named() -> None:
    assert "No such command" in timed(Part(("nothing",)), HIDDEN, 60.0).failure
    assert timed(PARTS["quick"], HIDDEN, 0.5).failure.startswith("longer than")


def test_a_line_holds_times_ratio_and_device() -> None:
    found = line("quick", Timed(10.0, 4.0, "H100"), Timed(60.0, 40.0, "cpu"))
    assert found == "| quick | 10 | 60 | 6.0 | 4 / 40 | H100 |"
    assert (
        line("quick", Timed(failure="no card"), Timed(60.0, 40.0, "cpu"))
        == "| quick | no card | 60 | - | 0 / 40 | cpu |"
    )


@pytest.mark.slow
def test_it_runs_on_a_machine_without_a_card(tmp_path: Path) -> None:
    out = tmp_path / "on_gpu.md"
    command = [sys.executable, str(ROOT / "benchmarks" / "on_gpu.py"), "--processor-only", "--parts", "quick"]
    command += ["--cases", "lenet", "--targets", "1", "--minutes", "20", "--out", str(out)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    audit, lenet = (
        next(row for row in out.read_text().splitlines() if row.startswith(f"| {name} |"))
        for name in ("quick", "lenet")
    )
    cells = [cell.strip() for cell in audit.split("|")]
    assert float(cells[3]) > 0
    assert cells[6] == "cpu"
    assert float(lenet.split("|")[4]) > 0
