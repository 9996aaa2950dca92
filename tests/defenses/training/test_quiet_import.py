"""Opacus, imported by a defence, must not change what the other loggers of a process print."""

from __future__ import annotations

import subprocess
import sys

import pytest

from defenses.training.quiet_import import opacus_module

CODE = """
import logging, sys
mine = logging.StreamHandler(sys.stdout)
mine.setFormatter(logging.Formatter("root: %(message)s"))
if {own}: logging.getLogger().addHandler(mine)
logging.getLogger("flwr").addHandler(logging.StreamHandler(sys.stderr))
from defenses.training.quiet_import import opacus_module
opacus_module("accountants.analysis.rdp")
assert "opacus" in sys.modules
logging.getLogger("flwr").error("a line of Flower")
"""


@pytest.mark.long
def test_opacus_leaves_one_line_of_flower_and_every_root_handler_that_was_there() -> None:
    """In a process of its own, as Opacus sets the handler once, when it is imported."""
    for own, expected in ((False, ""), (True, "root: a line of Flower\n")):
        done = subprocess.run([sys.executable, "-c", CODE.format(own=own)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (done.stderr.splitlines().count("a line of Flower"), done.stdout) == (1, expected)
        assert not [line for line in done.stderr.splitlines() if ":ERROR:" in line]


def test_a_missing_part_of_opacus_is_an_import_error() -> None:
    with pytest.raises(ImportError, match=r"opacus\.no_such_part"):
        opacus_module("no_such_part")
