"""The command that runs an experiment again: with the settings of its run and other seeds."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from simulations.run_folder.run_config import began_in_process


def command_of(folder: object, config: Mapping[str, Any], seeds: str, out: str, *changed: str) -> str:
    """A command line that runs an experiment with other seeds.

    Args:
        folder: Of the run.
        config: The content of its ``config.json``.
        seeds: Such as "0..4".
        out: New folder.
        changed: Settings with other values, such as "probe-targets=32".
    """
    here = ["--in-process"] if began_in_process(config) else []
    words = [word for setting in changed for word in ("-s", setting)]
    return shlex.join(["fedveil", "run", f"{folder}/config.json", *here, *words, "--seeds", seeds, "--out", out])
