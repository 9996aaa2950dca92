"""Corrupted replies in whole runs: one reply of a run, its resume and its report.

A case follows from the seed and its number: the scenario, the reply (any message of any client), the corruption, and whether the
run is killed some messages later.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import Message
from reliability_runs import ROOT, Case, CaseError, Watch, is_finished, require, rows_of, untimed
from reliability_spoilt import Drawn, spoilt
from reliability_wire import MARK

from simulations.experiment.experiment import Experiment
from simulations.report import write_report
from simulations.runtime.local_grid import FIRST_NODE, LocalGrid
from simulations.server_app import run_experiment

COMMON: dict[str, Any] = {
    "dataset": "mnist-5k", "train_limit": 80, "test_limit": 20, "num_clients": 2, "rounds": 2, "local_epochs": 1,
    "batch_size": 16, "attack_workers": 0, "adaptive": False, "probe_targets": 1, "probe_images": 2, "learning_rate": 0.1,
    "share_images": True,
}  # fmt: skip
LENET: dict[str, Any] = {"model": "lenet", "update_attacks": "", "probe_attacks": "LabelInference()"}
SPLIT: dict[str, Any] = {
    "scenario": "split", "model": "vit", "patch_size": 7, "width": 16, "depth": 2, "heads": 2, "defenses": "PatchShuffle()",
    "attack_rounds": "last", "smashed_attacks": "TokenDecoder(iterations=2, width=16, depth=1, heads=2); ServerPrediction()",
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "federated": LENET | {
        "defenses": "DPSGD(target_epsilon=8.0)", "attack_rounds": "first,final", "update_attacks": "LossThreshold()",
        "probe_attacks": "InvertingGradients(iterations=2); LabelInference()",
    },
    "canaries": LENET | {"defenses": "DPSGD(target_epsilon=8.0)", "dp_canaries": 8, "attack_rounds": "last"},
    "sums": LENET | {
        "defenses": "GaussianNoise(std=0.01)", "attack_rounds": "first", "labels": "known", "aggregate_clients": "2",
        "aggregate_attacks": "InvertingGradients(iterations=2)", "active_attacks": "ClassFishing()",
    },
    "split": SPLIT | {"batches_per_message": 2},
    "split-trained": SPLIT | {
        "train_edge": True, "batches_per_message": 1, "smashed_attacks": "EdgeUpdateInversion(iterations=2)",
    },
    "inference": {
        "scenario": "inference", "model": "vgg_small", "auxiliary_fraction": 0.8, "batches_per_message": 2, "train_limit": 100,
        "defenses": "FeaturePCA(components=8)", "query_attacks": "QueryInversion(iterations=2)",
    },
    "outsourced": {
        "scenario": "outsourced", "model": "lenet", "batches_per_message": 2, "attack_rounds": "first,final",
        "defenses": "VisualMixer(window_lower=4, window_upper=4)",
    },
}  # fmt: skip
"""Kind of run -> its settings."""
SECONDS, GIB, ROWS, BYTES = 120, 2.0, 60, 200_000
"""At most, of one case: seconds of a run, more memory, and more rows and bytes of rows than those of the uncorrupted run."""
SHARES = (
    "test-accuracy", "label-accuracy", "identified", "recognisable", "recognition", "membership-auc", "ms-ssim-success",
    "attribute-accuracy",
)  # fmt: skip
"""Metrics from 0 to 1."""


class Killed(BaseException):
    """Stands for SIGKILL: no code of the run may catch it and clean up."""


class Stuck(BaseException):
    """A case takes longer than it may."""


class Watching(LocalGrid):
    """Corrupts one reply of a run, and may kill the run some messages later; notes every message, and keeps replies to replay.

    Args:
        clients: Number of nodes.
        at: The number of the message whose reply is corrupted; -1: none.
        drawn: Says how.
        kill: Messages after it until the run is killed; 0: never.
    """

    def __init__(self, clients: int, at: int = -1, drawn: Drawn | None = None, kill: int = 0) -> None:
        super().__init__(clients)
        self.at, self.drawn, self.kill = at, drawn, kill
        self.seen: list[tuple[str, int]] = []
        self.task = ""

    def answer(self, message: Message) -> Message | None:
        """The reply, corrupted if it is its turn."""
        number, kind = len(self.seen), message.metadata.message_type
        partition = message.metadata.dst_node_id - FIRST_NODE
        self.seen.append((kind, partition))
        if self.kill and number == self.at + self.kill:
            raise Killed
        reply = super().answer(message)
        if self.drawn is None or reply is None:
            return reply
        if number == self.at:
            config: Any = message.content.get("config") or {}
            self.task = str(config.get("task", ""))
            return spoilt(self.drawn, reply, message)
        if number < self.at and reply.has_content():
            self.drawn.others.append((f"the reply of client {partition} to {kind}, message {number}", reply.content))
        return reply


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise ``Stuck`` after so many seconds."""

    def late(*_: object) -> None:
        raise Stuck(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def experiment(kind: str, out: Path, **changes: Any) -> Experiment:
    """The settings of a kind of run."""
    return Experiment.of(**COMMON | RUNS[kind] | changes, output_dir=str(out))


@cache
def unspoilt(kind: str) -> tuple[tuple[tuple[str, int], ...], list[dict[str, Any]]]:
    """Messages (type, partition) and rows of a run without a corrupted reply."""
    with tempfile.TemporaryDirectory() as folder:
        grid, out = Watching(COMMON["num_clients"]), Path(folder) / "run"
        run_experiment(grid, experiment(kind, out))
        return tuple(grid.seen), rows_of(out)


class Spoilt:
    """One corrupted reply: case ``number`` of a seed, in one of these kinds of runs."""

    def __init__(self, seed: int, number: int, kinds: tuple[str, ...] = tuple(RUNS)) -> None:
        self.name, self.draw = f"seed {seed}, case {number}", random.Random(f"{seed} {number}")
        self.run = self.draw.choice(kinds)
        self.messages, self.reference = unspoilt(self.run)
        self.kind = self.draw.choice(sorted({kind for kind, _ in self.messages}))
        self.at = self.draw.choice([at for at, (kind, _) in enumerate(self.messages) if kind == self.kind])
        self.client = self.messages[self.at][1]
        self.kill = self.draw.randint(1, 12) if self.draw.random() < 0.25 else 0
        self.drawn = Drawn(self.draw)

    def __str__(self) -> str:
        killed = f", killed {self.kill} messages later" if self.kill else ""
        where = f"{self.name}: {self.run}, client {self.client}'s reply to {self.kind} (message {self.at})"
        return f"{where}: {'; '.join(self.drawn.said)}{killed}"

    def check(self) -> str:
        """Run the case; the outcome.

        The run ends with a report or one clear error; the reply has its row; no other row changes; honest clients bring the
        resumed run to its end; its report is built again; memory, time and files are bounded.
        """
        with tempfile.TemporaryDirectory() as folder, Watch() as watch:
            self.out = Path(folder) / "run"
            grid = Watching(COMMON["num_clients"], self.at, self.drawn, self.kill)
            error = self._ends(grid, resume=False)
            self.plan = json.loads(grid.task) if grid.task else {}
            rows, finished = self._rows(), is_finished(self.out)
            self._require_untouched(rows)
            outcome = self._outcome(rows, error)
            require(bool(self.kill or error) or finished, "the run ended without an error, and is not finished")
            self._require_report()
            again = self._ends(LocalGrid(COMMON["num_clients"]), resume=True)
            # What a round made of the model before the run broke off may leave too little to go on with: the error says so.
            require(not again or bool(error and "usable" in again), f"not resumed: {again[:300]}")
            after = self._rows()
            require(not finished or untimed(after) == untimed(rows), "resuming a finished run changed its rows")
            self._require_untouched(after)
        require(watch.gib < GIB, f"{watch.gib:.1f} GiB more")
        require(not MARK.exists(), "a pickled object was executed")
        return outcome

    def _ends(self, grid: LocalGrid, *, resume: bool) -> str:
        """Run it; the error, or ""."""
        settings = experiment(self.run, self.out, resume=resume and (self.out / "config.json").is_file())
        try:
            with within(SECONDS):
                run_experiment(grid, settings)
        except Killed:
            return "killed"
        except Stuck as error:
            raise CaseError(f"stuck: {error}") from None
        except Exception as error:
            return _clear(error)
        return ""

    def _rows(self) -> list[dict[str, Any]]:
        try:
            rows = rows_of(self.out)
        except ValueError as error:
            raise CaseError(f"rows.jsonl cannot be read line by line: {error}") from None
        more = len(json.dumps(rows)) - len(json.dumps(self.reference))
        require(len(rows) <= len(self.reference) + ROWS and more <= BYTES, f"{len(rows)} rows, {more} bytes more")
        for row in (row for row in rows if row["metric"] in SHARES and row["value"] is not None):
            require(0 <= row["value"] <= 1, f"{row['metric']} is {row['value']}")
        return rows

    def _require_untouched(self, rows: list[dict[str, Any]]) -> None:
        """Rows of other pipelines, and of earlier rounds of the same one, are those of the uncorrupted run."""
        pipeline = self.plan["plan"]["pipeline"] if self.plan else None
        finished = is_finished(self.out)
        # Whether an attack is validated is decided at the end, by the run without a defence.
        judged = pipeline == "" or not finished

        def others(found: list[dict[str, Any]]) -> set[str]:
            at = self.plan.get("round", -1)
            kept = [row for row in found if row["defense"] != pipeline or row["round"] < at]
            return set(untimed([row | {"status": ""} if judged else row for row in kept]))

        mine, theirs = others(rows), others(self.reference)
        odd = sorted(mine - theirs)
        require(not odd, f"{len(odd)} rows that the reply does not concern differ, such as {odd[:1]}")
        ended = any(row["final"] or row["round"] == COMMON["rounds"] for row in rows if row["defense"] == pipeline)
        missing = len(theirs - mine) if not self.kill and ended and finished else 0
        require(not missing, f"{missing} rows that the reply does not concern are missing")

    def _outcome(self, rows: list[dict[str, Any]], error: str) -> str:
        """The reply has a row, ends the run or changes nothing; a reply that looks valid may be used."""
        if any(
            row["client"] == self.client
            and row["status"] in ("failed", "refused")
            and row["message"].startswith(f"{self.kind}: ")
            for row in rows
        ):
            return "refused"
        if error and error != "killed":
            return "ends the run"
        if self.kill:
            return "killed"
        if untimed(rows) == untimed(self.reference):
            return "changes nothing"
        require(not self.drawn.bad, "an unusable reply was used")
        return "used"

    def _require_report(self) -> None:
        if not (self.out / "config.json").is_file():
            return
        start = time.process_time()
        try:
            with within(SECONDS):
                require(write_report(self.out).stat().st_size > 1000, "an empty report")
        except (Exception, Stuck) as error:
            raise CaseError(f"no report: {type(error).__name__}: {str(error)[:300]}") from error
        require(time.process_time() - start < SECONDS / 4, "the report took too long")


def _clear(error: Exception) -> str:
    """The text of an error, which fedveil itself must raise, and which its commands show as a line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error}"
    own = last.filename.startswith(tuple(f"{ROOT}/{package}/" for package in ("simulations", "strategies", "clients")))
    named = isinstance(error, RuntimeError | OSError) or type(error).__name__ == "ConfigError"
    clear = own and named and len(text) <= 1500 and len(text.splitlines()) == 1
    require(clear, f"ends with {text[:300]!r} at {Path(last.filename).name}:{last.lineno}")
    return text


def replies(arguments: argparse.Namespace) -> Iterator[Case]:
    """One corrupted reply in each of ``--cases`` whole runs, of ``--kinds`` of runs."""
    logging.disable(logging.CRITICAL)
    with suppress(FileNotFoundError):
        MARK.unlink()
    kinds = tuple(arguments.kinds.split(",")) if arguments.kinds else tuple(RUNS)
    for number in range(arguments.first, arguments.first + arguments.cases):
        case = Spoilt(arguments.seed, number, kinds)
        yield Case(case.kind, case, case.check)
