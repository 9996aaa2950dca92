"""Without training: pages of 10,000 rows, the command's first words, and the check of a Flower app.

Rows are drawn at random in the form of a run's: four seeds of 22 rounds, four chains of defences, eight clients. Seconds are
processor seconds; those of commands are with all imports, those of pages without.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import product
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

from speed import ROOT, Took, Work

DEFENCES = ("", "GaussianNoise(std=0.01)", "Clip(max_norm=1.0)", "Pruning(sparsity=0.9)")
SEEDS, ROUNDS, IMAGES, CLIENTS = 4, 22, 16, 8
ATTACKS = ("InvertingGradients()", "AdamCosine()", "DLG()")
SCORES = ("psnr", "ssim", "mse", "attack-seconds")
TRAINING = ("test-accuracy", "test-loss", "train-loss", "train-seconds", "update-bytes", "clients-failed")
KNOWN = {"experiment": "speed", "scenario": "federated", "dataset": "mnist", "model": "lenet"}


def lines(seed: int) -> Iterator[dict[str, Any]]:
    """Rows of one run: numbers of training in each round, and three attacks with their null baselines."""
    draws = random.Random(seed)
    for defense, at in product(DEFENCES, range(1, ROUNDS + 1)):
        here: dict[str, Any] = KNOWN | {"defense": defense, "round": at, "seed": seed}
        card = {"observation": "one-step probe", "round": at, "images": 1, "local_steps": 1, "chance": 0.01}
        for metric in TRAINING:
            reference = "original" if metric.startswith("test") else ""
            yield here | {"metric": metric, "reference": reference, "value": draws.random(), "n": 1000}
        here |= {"card": card, "n": IMAGES, "reference": "original"}
        for name, metric in product(("grey", "mean"), SCORES[:2]):
            yield here | {"attack": name, "role": "null baseline", "metric": metric, "value": draws.random()}
        for attack, metric in product(ATTACKS, SCORES):
            of = {} if metric in SCORES[:3] else {"reference": ""}
            yield here | {"attack": attack, "metric": metric, "value": 1 + draws.random(), "worst": 2.0} | of
        for attack, metric in product(ATTACKS, ("identified", "recognisable")):
            yield here | {"attack": attack, "metric": metric} | found(draws)


def found(draws: random.Random) -> dict[str, Any]:
    """The columns of a share of images, and what it would be without each client: another's images are in the place of its own."""
    each, own = [draws.randint(0, 1) for _ in range(IMAGES)], IMAGES // CLIENTS
    others = [[*each[: own * at], *each[-own:], *each[own * (at + 1) :]] for at in range(CLIENTS)]
    without = {str(at): {"each": of, "value": sum(of) / IMAGES} for at, of in enumerate(others)}
    places = [[at // own, at % own] for at in range(IMAGES)]
    return {"value": sum(each) / IMAGES, "each": each, "each_of": places, "clients": CLIENTS, "without_client": without}


def pages(write: Callable[[list[Path]], Path], *, apart: bool) -> Took:
    """Write a page of new folders: one for each seed, or one for all."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / f"seed-{at}" for at in range(SEEDS if apart else 1)]
        for at, folder in enumerate(folders):
            folder.mkdir()
            rows = lines(at) if apart else (row for seed in range(SEEDS) for row in lines(seed))
            (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            config = {"config": {"seed": at}, "pipelines": DEFENCES, "progress": {"finished": True}}
            (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        begun = time.process_time()
        written = write(folders)
        return Took(time.process_time() - begun, f"{written.stat().st_size / 1e6:.1f} MB")


def page(_: str) -> Took:
    import simulations.report.page.page
    from simulations.report import write_report

    del simulations  # Its import is no part of the page.
    return pages(lambda folders: write_report(folders[0]), apart=False)


def comparison(_: str) -> Took:
    from simulations.compare.groups import grouped
    from simulations.compare.page import write_comparison

    def compare(folders: list[Path]) -> Path:
        write_comparison(grouped(folders), folders[0] / "comparison.html")
        return folders[0] / "comparison.html"

    return pages(compare, apart=True)


def command(*words: str, code: int = 0) -> Callable[[str], Took]:
    """Processor seconds of Python with these words and its children, the median of three; its exit code must be ``code``."""

    def side(_: str) -> Took:
        taken = list[float]()
        for _ in range(3):
            before = getrusage(RUSAGE_CHILDREN)
            done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
            after = getrusage(RUSAGE_CHILDREN)
            if done.returncode != code:
                raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-300:]}")
            taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return Took(sorted(taken)[1])

    return side


FEDVEIL = ("-m", "simulations.cli")
TORCH, IMPORT = (f"import of torch {version('torch')}", 0.2), command("-c", "import torch")
WORKS = [
    Work("page of 10,000 rows", "nothing", 5.0, page, None),
    Work("comparison of 10,000 rows", "nothing", 5.0, comparison, None),
    Work("fedveil --help", *TORCH, command(*FEDVEIL, "--help"), IMPORT),
    Work("refusal of a typo", *TORCH, command(*FEDVEIL, "run", "-s", "ruonds=3", code=2), IMPORT),
    Work("check-app", "nothing", 15.0, command(*FEDVEIL, "check-app", "examples/quickstart_pytorch"), None),
]
