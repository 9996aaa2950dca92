"""The command ``fedveil protect`` as tests call it, and what it leaves."""

import hashlib
from pathlib import Path

from typer.testing import CliRunner

from simulations.cli import app

MIXER = "VisualMixer(window_lower=2, window_upper=16)"
NOISE = "ImageNoise(std=0.1)"


def protect(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["protect", *map(str, words)])
    return result.exit_code, result.output


def files(folder: Path) -> dict[str, str]:
    """Path -> digest."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def refused(told: tuple[int, str], message: str) -> None:
    assert told[0] == 2, told[1]
    assert message in " ".join(told[1].split())
    assert "Traceback" not in told[1]
