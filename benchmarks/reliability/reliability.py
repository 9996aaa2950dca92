"""Faults: runs of fedveil under kills, full disks, damaged files and malicious messages.

    python benchmarks/reliability/reliability.py PIECE [--cases N] [--seed S] [--first K] [--kinds A,B] [--minutes M] [--verbose]

Pieces: ``breaks`` (signals, a full disk, a changed output folder, a second run; ``--real N`` on Flower's runtime), ``hostile``
(messages of a client and of a server), ``lies`` (one client sends false numbers), ``node`` (repeated and steered messages to a
deployed node, names of data sets), ``overflow`` (weights on which one example overflows), ``replies`` (corrupted at random),
``files`` (damaged). A piece is a list of cases, of which a random one follows from the seed and its number: ``--first K --cases 1``
repeats it. A case that does not meet its requirements is printed, and the script ends with an error. Results are on
docs/reliability.md.
"""

from __future__ import annotations

import argparse

from reliability_breaks import breaks
from reliability_files import files
from reliability_lies import lies
from reliability_node import node
from reliability_overflow import overflow
from reliability_replies import replies
from reliability_runs import CaseError, try_all
from reliability_wire import hostile

PIECES = {one.__name__: one for one in (breaks, hostile, lies, node, overflow, replies, files)}


def main() -> None:
    """Run one piece."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("piece", choices=list(PIECES))
    parser.add_argument("--cases", type=int, default=50, help="random cases")
    parser.add_argument(
        "--real", type=int, default=0, help="further cases of breaks on Flower's runtime, a minute each"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--kinds", default="", help="kinds of breaks, runs or commands, by commas; all without it")
    parser.add_argument("--minutes", type=float, default=600.0, help="no further case begins after them")
    parser.add_argument("--verbose", action="store_true", help="a line for each case")
    arguments = parser.parse_args()
    piece = PIECES[arguments.piece]
    try:
        try_all((piece.__doc__ or "").splitlines()[0], piece(arguments), arguments)
    except CaseError as fault:
        raise SystemExit(f"FAILED: {fault}") from None


if __name__ == "__main__":
    main()
