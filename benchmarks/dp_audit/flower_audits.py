"""What the tables of audits of Flower's own classes share: a line of bounds and refutations for each setting, over seeds."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from flwr.app import Array, ArrayRecord

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for a script of the folder above

from studies import spread

from attacks.dp_audit.verdict import Audit
from attacks.scoring.intervals import binomial_interval
from clients.flower_private import act_as_task

DELTA, CONFIDENCE, CLIPPING = 1e-5, 0.95, 1.0
BOUNDS = (
    "audits",
    "shown, no assumption",
    "shown, Gaussian",
    "refuted (95 % interval)",
    "refuted without an assumption",
    "by",
)
Setting = TypeVar("Setting")


def record_of(arrays: Mapping[str, Any]) -> ArrayRecord:
    """Arrays as a message carries them."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def bounds(found: Sequence[Audit]) -> list[str]:
    """Cells of ``BOUNDS``."""
    refuted = sum(one.refuted for one in found)
    plainly = sum(one.shown.epsilon > one.claimed for one in found)
    _, low, high = binomial_interval(refuted, len(found))
    by = Counter(part for one in found for part in one.refuted_by)
    return [
        str(len(found)),
        spread([one.shown.epsilon for one in found]),
        spread([one.shown_gaussian.epsilon for one in found]),
        f"{refuted} ({100 * low:.0f} to {100 * high:.0f} %)",
        str(plainly),
        ", ".join(f"{part} ({count})" for part, count in by.most_common(2)) or "none",
    ]


def print_table(
    about: str,
    header: Sequence[str],
    settings: Sequence[Setting],
    audit: Callable[[Setting, int], Audit],
    facts: Callable[[Setting, Audit], Sequence[str]],
) -> None:
    """Parse the command line, audit each setting over the seeds, and print a line for each as soon as it is known.

    Args:
        about: Printed above the table.
        header: Of the columns before ``BOUNDS``.
        settings: Which can be chosen by number.
        audit: Of a setting and a seed.
        facts: Cells of ``header``, from a setting and its first audit.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5, help="audits of each setting")
    parser.add_argument("--settings", type=int, nargs="+", default=range(len(settings)), help="which, from 0")
    chosen = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    act_as_task()
    started = time.perf_counter()
    print(f"{about}\n\n| {' | '.join((*header, *BOUNDS))} |\n|{'---|' * len((*header, *BOUNDS))}")
    for setting in (settings[number] for number in chosen.settings):
        found = [audit(setting, seed) for seed in range(chosen.seeds)]
        print(f"| {' | '.join((*facts(setting, found[0]), *bounds(found)))} |", flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s")
