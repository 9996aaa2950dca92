import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.simulations.runtime.runtimes import BINARIES

OLD = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""As a locale that is not UTF-8: Python opens files, and prints, in ASCII."""


def fedveil(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG"))} | environment
    return subprocess.run([str(BINARIES / "fedveil"), *arguments], env=env, capture_output=True, check=False)


@pytest.mark.long
def test_files_are_utf_8_and_paths_are_shown_whatever_the_locale_and_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "Büder—in").mkdir()
    Image.new("RGB", (32, 32), (200, 10, 10)).save(tmp_path / "Büder—in" / "a.png")
    out = tmp_path / "Büder—out"
    done = fedveil("protect", str(out.with_name("Büder—in")), str(out), "--defense", "Blur(std=1.0)",
                   PYTHONIOENCODING="ascii", HOME=str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert rb"B\xfcder\u2014out" in done.stdout.replace(b"\n", b"")
    assert (out / "a.png").is_file()
    found = {"policies": "3-1-7", "channels": 3, "of": "Müller—1"}
    (tmp_path / "policies.json").write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    (tmp_path / "run.toml").write_text('experiment = "Größe"\nrounds = 1\n', encoding="utf-8")
    policies = f'defenses=ATS(policies="{tmp_path / "policies.json"}")'
    for environment in (OLD, {}):
        done = fedveil("run", str(tmp_path / "run.toml"), "--dry-run", "-s", policies, **environment)
        assert done.returncode == 0, done.stderr
        assert b"ATS(policies='3-1-7'" in done.stdout


def test_the_module_of_the_command_line_is_a_command_too() -> None:
    shown = subprocess.run([sys.executable, "-m", "simulations.cli", "--version"], capture_output=True, check=True)
    assert shown.stdout.startswith(b"fedveil ")
    refused = subprocess.run([sys.executable, "-m", "simulations.cli", "nothing"], capture_output=True, check=False)
    assert (refused.returncode, b"No such command" in refused.stderr) == (2, True)
