"""Runs one prepared app with simulated nodes in this process: without Ray, and with randomness that a seed repeats.

    python benchmarks/flower_apps/in_process.py APP PACKAGE --rounds 3 --seed 0

``epsilon.py`` starts it once for each app and seed, as an app's modules can be imported only once.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, RecordDict

from simulations.runtime.local_grid import LocalGrid


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the edited copy of the app")
    parser.add_argument("package", help="of its code")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of torch, NumPy and Python; the app names that of coins")
    given = parser.parse_args()
    os.chdir(given.folder)
    sys.path.insert(0, str(given.folder))
    random.seed(given.seed)
    np.random.seed(given.seed)
    torch.manual_seed(given.seed)
    settings = tomllib.loads((given.folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    config = {**settings["config"], "num-server-rounds": given.rounds}
    client = import_module(f"{given.package}.client_app").app
    server = import_module(f"{given.package}.server_app").app
    grid = LocalGrid(given.clients, app=client, run_config=config)
    server(grid, Context(1, 1, {}, RecordDict(), config))


if __name__ == "__main__":
    main()
