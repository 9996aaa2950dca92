"""Whether the default configuration of ``fedveil search --objective measured`` suits its question: accuracy over passes; labels.

The first table trains without a defence for more and more rounds: at the plateau, twice the rounds gain nothing. The second trains
under one transform of grey values alone, beside no defence: labels that survive it cost few points. Validation images are clean.

    uv run python benchmarks/ats_measured.py
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from defenses.images.transforms import LIBRARY
from simulations.search.measured.judging import Judgement, judge
from simulations.search.measured.pools import SEARCH, write_pools
from simulations.search.measured.settings import Measured, Rung
from simulations.search.measured.verdict import MeanInterval

ROUNDS = (3, 6, 12, 24)
GREY_VALUES = {
    "equalize": "9", "autocontrast": "8", "invert": "0", "solarize": "37", "posterize": "11", "contrast": "18", "brightness": "15",
}  # fmt: skip
"""Operation on grey values alone -> its place in the library; the strongest of each."""


def judged(search: Measured, hybrid: str, rounds: int, seeds: Sequence[int]) -> list[Judgement]:
    """One hybrid on each seed, on the images of the search."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_pools(Path(folder), search.pools())[SEARCH]
        rung = Rung(rounds, "first", 1, restorer=False)
        return [judge(search, data, hybrid, rung, seed, Path(folder) / f"run-{seed}") for seed in seeds]


def told(values: Sequence[float]) -> str:
    """Mean and 95 % interval over seeds, in percent or points."""
    one = MeanInterval.over_seeds(values)
    return f"{100 * one.mean:.1f} ({100 * one.low:.1f} to {100 * one.high:.1f})"


def lines(search: Measured, seeds: Sequence[int]) -> Iterator[str]:
    """Both tables."""
    yield "| passes | accuracy without a defence, % |\n|---|---|"
    plain: dict[int, list[float]] = {}
    for rounds in ROUNDS:
        plain[rounds] = [one.accuracy for one in judged(search, "", rounds, seeds)]
        yield f"| {rounds * search.local_epochs} | {told(plain[rounds])} |"
    yield "\n| transform of all training images | accuracy, % | points lost |\n|---|---|---|"
    for name, hybrid in GREY_VALUES.items():
        assert LIBRARY[int(hybrid)].name == name
        found = [one.accuracy for one in judged(search, hybrid, search.rounds, seeds)]
        lost = [a - b for a, b in zip(plain[search.rounds], found, strict=True)]
        yield f"| {name} ({hybrid}) | {told(found)} | {told(lost)} |"


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    search = Measured()
    print(
        f"{search.dataset}, {search.model}, {search.train_limit} images, {search.num_clients} clients, seeds {chosen.seeds}\n"
    )
    for line in lines(search, chosen.seeds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
