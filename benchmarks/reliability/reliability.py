"""Load and faults: what a run of fedveil does when much, or everything, goes wrong. Prints the tables of docs/reliability.md.

Usage: ``python benchmarks/reliability/reliability.py PIECE``, with these pieces:

    load       1,000 clients, 10 a round, 50 rounds, beside Flower's own FedAvg; --real on Flower's simulation runtime.
    clients    a fifth of all answers fails, in five ways; --real with killed workers, too.
    kills      kill -9 at 20 random moments of a run; --real N on Flower's runtime.
    signals    the same by any signal, and of the processes that it starts; --real N likewise.
    disk       a disk that fills up (a tmpfs, so root; Linux).
    folder     the output folder of a living run is deleted, replaced, or made unwritable.
    two        two runs at once, in one folder and in two.
    hostile    what a client and a server of ill will may send.
    replies    clients' replies, spoilt at random, in whole runs; --first N --cases 1 repeats one.
    files      damaged files, and the commands that read them.

Every piece asserts what its table says, and ends with an error when that does not hold. All but ``load`` depend on no clock.
"""

from __future__ import annotations

import argparse

# The way in ---------------------------------------------------------------------------------------------------------


def main() -> None:
    """Runs one piece."""
    from reliability_clients import clients
    from reliability_disk import disk, folder, two
    from reliability_files import files
    from reliability_kills import kills
    from reliability_load import load
    from reliability_replies import replies
    from reliability_signals import signals
    from reliability_wire import hostile

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pieces = parser.add_subparsers(dest="piece", required=True)
    for piece in (load, clients, kills, disk, two, hostile, replies, files, signals, folder):
        one = pieces.add_parser(piece.__name__, help=(piece.__doc__ or "").splitlines()[0])
        one.set_defaults(run=piece)
        one.add_argument("--seed", type=int, default=0)
        if piece in (kills, signals):
            one.add_argument("--times", type=int, default=20)
            one.add_argument(
                "--real", type=int, default=0, help="further kills on Flower's runtime; about a minute each"
            )
        if piece is load:
            one.add_argument("--clients", type=int, default=1000)
            one.add_argument("--rounds", type=int, default=50)
        if piece in (replies, files, signals):
            one.add_argument("--cases", type=int, default=300)
            one.add_argument("--first", type=int, default=0, help="number of the first case")
            one.add_argument("--minutes", type=float, default=60.0, help="no further case begins after them")
            one.add_argument("--verbose", action="store_true", help="a line for each case")
        if piece is replies:
            one.add_argument("--runs", default="", help="kinds of runs, by commas; all without it")
        if piece is files:
            one.add_argument("--readers", default="", help="commands, by commas; all without it")
        if piece in (load, clients):
            one.add_argument("--real", action="store_true", help="on Flower's simulation runtime")
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
