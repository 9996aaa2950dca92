"""Inverts what the clients of Flower's PyTorch quickstart send, at the settings under which others could not (docs/how_to).

10 clients, 5 rounds of 3 local epochs, batches of 32, SGD with momentum: the settings of the tutorial of Flower, with other images,
as there is no network. The server attacks one-step probes and the updates of real rounds, in the first and the last round.

    python benchmarks/flower_apps/invert_quickstart.py CHECKOUT --out FOLDER
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from apps import APPS
from matrix import line_of
from parts import server, wrapped
from running import run
from table import Line
from variants import QUICKSTART

CLIENTS = 10
ROUNDS, EPOCHS = 5, 3
ATTACKS = "InvertingGradients(iterations=300); SurrogateMatching(iterations=300); LabelInference()"
"""On the updates of real rounds."""


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout of github.com/adap/flower")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for the app, its log and its audit")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which the app is stopped")
    given = parser.parse_args()
    if given.out.exists():
        sys.exit(f"--out is {given.out}, which exists; name a new folder")
    options = f'momentum=0.9, settings=context.run_config, rounds=(1, {ROUNDS}), update_attacks="{ATTACKS}"'
    lines = server("pytorchexample", wrapped(options))
    config = {"num-server-rounds": ROUNDS, "local-epochs": EPOCHS, "fraction-evaluate": 0.0}
    app = replace(APPS["quickstart-pytorch"], audit=(*lines, *QUICKSTART[len(lines) :]), config=config)
    out = given.out.resolve()
    scratch = out / "quickstart"
    scratch.mkdir(parents=True)
    line: Line = line_of(
        "quickstart-pytorch", app, run(app, given.checkout.resolve(), out, scratch, given.limit, CLIENTS), CLIENTS
    )
    print(" | ".join(line.cells()), line.failure, *(line.wrong or ()))
    print(f"page: {scratch / 'audit' / 'report.html'}")
    sys.exit(bool(line.wrong))


if __name__ == "__main__":
    main()
