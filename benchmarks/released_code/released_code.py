"""Agreement with released code: this project beside the repositories of the papers' authors, on the same inputs.

Each option names a checkout; nothing is downloaded. The repositories are those of ATS (gaow0007/ATSPrivacy), of patch shuffling
(dixiyao/Patch-Shuffling-Transformer) and of inverting gradients (JonasGeiping/invertinggradients). Prints one Markdown table and
ends with status 1 where a difference has no stated reason or is not what that reason explains. Patch shuffling needs the package
einops.

    uv run --with einops python benchmarks/released_code/released_code.py --ats ATSPrivacy
    uv run --with einops python benchmarks/released_code/released_code.py --patch-shuffling A --inverting-gradients B
"""

from __future__ import annotations

import argparse
import functools
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL
import released_costs
import released_edges
import released_scores
import released_searches
import released_shuffles
import released_transforms
import torch
from released_checkouts import Importer, checkout
from released_rows import Row, guarded, table

Comparison = Callable[[Importer], Iterable[Row]]

# Each comparison with its number of rows, so that one that yields fewer is reported.
OF_GRADIENTS: tuple[tuple[Comparison, int], ...] = (
    (released_costs.costs, 6),
    (released_costs.measures, 2),
    (released_costs.labels, 1),
    (released_costs.local_training, 2),
    (released_searches.schedule, 3),
    (released_searches.attacks, 5),
)
OF_ATS: tuple[tuple[Comparison, int], ...] = (
    (released_transforms.transforms, len(released_transforms.LIBRARY) + 1),
    (released_transforms.policies, 2),
    (released_transforms.grey, 1),
    (released_scores.privacy, 2),
    (released_scores.privacy_of_policies, 1),
    (released_scores.accuracy, 2),
    (released_costs.costs, 6),
    (released_costs.labels, 1),
    (released_searches.attacks, 5),
    (released_searches.lbfgs, 2),
    (released_searches.configurations, len(released_searches.PRESETS)),
)
OF_SHUFFLES = (
    (released_shuffles.shuffles, 3),
    (released_shuffles.laws, 2),
    (released_shuffles.spectral, 4),
    (released_edges.edges, 5),
)


def imported(comparisons: Iterable[tuple[Comparison, int]], folder: Path) -> Iterator[Row]:
    """The rows of comparisons that import from one folder, each in a checkout that is opened for it alone."""
    for compare, expected in comparisons:

        def rows(compare: Comparison = compare) -> list[Row]:
            with checkout(folder, released_scores.COMMAND) as modules:
                return list(compare(modules))

        yield from guarded(compare.__name__, rows, expected)


def shuffled(folder: Path) -> Iterator[Row]:
    """The rows of patch shuffling, whose comparisons open the folders that they need."""
    for compare, expected in OF_SHUFFLES:
        yield from guarded(compare.__name__, lambda compare=compare: compare(folder), expected)


REPOSITORIES: dict[str, Callable[[Path], Iterator[Row]]] = {
    "ats": functools.partial(imported, OF_ATS),
    "patch-shuffling": shuffled,
    "inverting-gradients": functools.partial(imported, OF_GRADIENTS),
}


def commit_of(folder: Path) -> str:
    """The commit that is checked out, or a remark."""
    told = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return told.stdout.strip() or "of no known commit"


def main() -> None:
    """Print the table of the checkouts that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in REPOSITORIES:
        parser.add_argument(f"--{name}", type=Path, metavar="PATH", help="a checkout")
    chosen = {name: path for name, path in zip(REPOSITORIES, vars(parser.parse_args()).values(), strict=True) if path}
    if not chosen:
        parser.error(f"name at least one checkout: {', '.join(f'--{name}' for name in REPOSITORIES)}")
    torch.set_num_threads(1)
    found = Counter[str]()

    def rows() -> Iterator[Row]:
        for name, folder in chosen.items():
            for row in REPOSITORIES[name](folder.resolve()):
                found[row.verdict] += 1
                yield replace(row, code=name.replace("-", " "))

    for line in table(rows()):
        print(line, flush=True)
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in found.items()) + ".")
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, Pillow {PIL.__version__}, NumPy {np.__version__}."
    )
    for name, folder in chosen.items():
        print(f"{name}: {commit_of(folder)}")
    sys.exit(int(bool(found["DISAGREES"])))


if __name__ == "__main__":
    main()
