"""The piece of benchmarks/reliability/reliability.py about spoilt replies: one reply of a whole run, its resume and its report.

A case is drawn from the seed and its number: the scenario, the reply that is spoilt (any message of any client), how, and
whether the run is killed some messages later. What holds of every case is in ``Case.check``.
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
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import Message
from reliability_runs import ROOT, require, rows_of, table, untimed
from reliability_spoilt import Drawn, spoilt
from reliability_wire import MARK, Watch

from simulations.experiment.experiment import Experiment
from simulations.report import write_report
from simulations.runtime.local_grid import FIRST_NODE, LocalGrid
from simulations.server_app import run_experiment

COMMON: dict[str, Any] = {
    "dataset": "mnist-5k",
    "train_limit": 80,
    "test_limit": 20,
    "num_clients": 2,
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 16,
    "attack_workers": 0,
    "adaptive": False,
    "probe_targets": 1,
    "probe_images": 2,
    "learning_rate": 0.1,
    "share_images": True,
}
SPLIT: dict[str, Any] = {
    "scenario": "split",
    "model": "vit",
    "patch_size": 7,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "defenses": "PatchShuffle()",
    "attack_rounds": "last",
    "smashed_attacks": "TokenDecoder(iterations=2, width=16, depth=1, heads=2); ServerPrediction()",
}
RUNS: dict[str, dict[str, Any]] = {
    "federated": {
        "model": "lenet",
        "defenses": "DPSGD(target_epsilon=8.0)",
        "attack_rounds": "first,final",
        "update_attacks": "LossThreshold()",
        "probe_attacks": "InvertingGradients(iterations=2); LabelInference()",
    },
    "canaries": {
        "model": "lenet",
        "defenses": "DPSGD(target_epsilon=8.0)",
        "dp_canaries": 8,
        "attack_rounds": "last",
        "update_attacks": "",
        "probe_attacks": "LabelInference()",
    },
    "sums": {
        "model": "lenet",
        "defenses": "GaussianNoise(std=0.01)",
        "attack_rounds": "first",
        "update_attacks": "",
        "labels": "known",
        "probe_attacks": "LabelInference()",
        "aggregate_clients": "2",
        "aggregate_attacks": "InvertingGradients(iterations=2)",
        "active_attacks": "ClassFishing()",
    },
    "split": SPLIT | {"batches_per_message": 2},
    "split-trained": SPLIT
    | {"train_edge": True, "batches_per_message": 1, "smashed_attacks": "EdgeUpdateInversion(iterations=2)"},
    "inference": {
        "scenario": "inference",
        "model": "vgg_small",
        "auxiliary_fraction": 0.8,
        "query_batches": 2,
        "defenses": "FeaturePCA(components=8)",
        "query_attacks": "QueryInversion(iterations=2)",
        "train_limit": 100,
    },
    "outsourced": {
        "scenario": "outsourced",
        "model": "lenet",
        "upload_batches": 2,
        "attack_rounds": "first,final",
        "defenses": "VisualMixer(window_lower=4, window_upper=4)",
    },
}
"""Kind of run -> its settings."""
SECONDS, GIB, ROWS, BYTES = 120, 2.0, 60, 200_000
"""At most, of one case: seconds of one run; memory above what there was; rows and bytes of rows above those of the unspoilt run."""
SHARES = (
    "test-accuracy",
    "label-accuracy",
    "retrieval",
    "recognition",
    "membership-auc",
    "ms-ssim-success",
    "attribute-accuracy",
)
"""Metrics from 0 to 1."""


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the run may catch it and tidy up."""


class Stuck(BaseException):
    """A run takes longer than it may."""


class Watching(LocalGrid):
    """Spoils one reply of a run, and may kill it some messages later; notes every message, and keeps replies to replay.

    Args:
        clients: Number of nodes.
        at: The number of the message whose reply is spoilt; -1: none.
        drawn: Says how.
        kill: Messages after it until the run is killed; 0: never.
    """

    def __init__(self, clients: int, at: int = -1, drawn: Drawn | None = None, kill: int = 0) -> None:
        super().__init__(clients)
        self.at, self.drawn, self.kill = at, drawn, kill
        self.seen: list[tuple[str, int]] = []
        self.target = ""

    def answer(self, message: Message) -> Message | None:
        """The reply, spoilt where it is its turn."""
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
            self.target = str(config.get("task", ""))
            return spoilt(self.drawn, reply, message)
        if number < self.at and reply.has_content():
            self.drawn.others.append((f"the reply of client {partition} to {kind}, message {number}", reply.content))
        return reply


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Ends what takes longer."""

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
    return replace(Experiment.of(**COMMON | RUNS[kind], output_dir=str(out)), **changes)


@cache
def unspoilt(kind: str) -> tuple[tuple[tuple[str, int], ...], list[dict[str, Any]]]:
    """Messages (type, partition) and rows of a run whose replies are as they should be."""
    with tempfile.TemporaryDirectory() as folder:
        grid, settings = Watching(COMMON["num_clients"]), experiment(kind, Path(folder) / "run")
        run_experiment(grid, settings)
        return tuple(grid.seen), rows_of(Path(folder) / "run")


@dataclass
class Case:
    """One spoilt reply.

    Attributes:
        seed: Of all cases.
        number: Of this one.
        only: Kinds of runs to draw from.
    """

    seed: int
    number: int
    only: tuple[str, ...] = tuple(RUNS)
    faults: list[str] = field(default_factory=list)
    outcome: str = ""

    def __post_init__(self) -> None:
        self.draw = random.Random(f"{self.seed} {self.number}")
        self.run = self.draw.choice(self.only)
        self.messages, self.reference = unspoilt(self.run)
        self.kind = self.draw.choice(sorted({kind for kind, _ in self.messages}))
        self.at = self.draw.choice([at for at, (kind, _) in enumerate(self.messages) if kind == self.kind])
        self.client = self.messages[self.at][1]
        self.kill = self.draw.randint(1, 12) if self.draw.random() < 0.25 else 0
        self.drawn = Drawn(self.draw, [])

    def __str__(self) -> str:
        killed = f", killed {self.kill} messages later" if self.kill else ""
        done = "; ".join(self.drawn.said)
        where = f"seed {self.seed}, case {self.number}: {self.run}, client {self.client}"
        return f"{where}'s reply to {self.kind} (message {self.at}): {done}{killed}"

    def fails(self, what: str) -> None:
        """Notes what does not hold."""
        self.faults.append(what)

    def check(self) -> Case:
        """Runs the case: the run ends with a report or one clear error, the reply has its row, no other row is touched, the
        run can be resumed to the end by clients who mean well, its report is built again, and memory, time and files are bounded.
        """
        with tempfile.TemporaryDirectory() as folder, Watch() as watch:
            self.out = Path(folder) / "run"
            self.grid = Watching(COMMON["num_clients"], self.at, self.drawn, self.kill)
            error = self._ends(self.grid, resume=False)
            self.plan = json.loads(self.grid.target) if self.grid.target else {}
            rows = self._rows()
            self._untouched(rows)
            self._told(rows, error)
            self._reported()
            self._resumed(error, rows)
        if watch.gib > GIB:
            self.fails(f"{watch.gib:.1f} GiB more")
        if MARK.exists():
            self.fails("something was executed")
        return self

    def _ends(self, grid: LocalGrid, *, resume: bool) -> str:
        """Runs it; the error, "" where there is none."""
        settings = experiment(self.run, self.out, resume=resume and (self.out / "config.json").is_file())
        try:
            with within(SECONDS):
                run_experiment(grid, settings)
        except Killed:
            return "killed"
        except Stuck as error:
            self.fails(f"stuck: {error}")
        except Exception as error:
            return self._clear(error)
        return ""

    def _clear(self, error: Exception) -> str:
        """An error must be one that the project raises by itself, of a kind that its commands show as a line."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {error}"
        own = any(part in last.filename for part in ("/simulations/", "/strategies/", "/clients/"))
        named = isinstance(error, RuntimeError | OSError) or type(error).__name__ == "ConfigError"
        inner = own and str(ROOT) in last.filename and "site-packages" not in last.filename
        if not (inner and named) or len(told) > 1500 or len(told.splitlines()) > 1:
            self.fails(f"ends with {told[:300]!r} at {Path(last.filename).name}:{last.lineno}")
        return told

    def _rows(self) -> list[dict[str, Any]]:
        path = self.out / "rows.jsonl"
        try:
            rows = rows_of(self.out)
        except ValueError as error:
            self.fails(f"rows.jsonl cannot be read line by line: {error}")
            rows = [json.loads(line, parse_int=float) for line in path.read_bytes().decode().split("\n") if line]
        more = sum(len(json.dumps(row)) for row in rows) - sum(len(json.dumps(row)) for row in self.reference)
        if len(rows) > len(self.reference) + ROWS or more > BYTES:
            self.fails(f"{len(rows)} rows in place of {len(self.reference)}, {more} bytes more")
        return rows

    @property
    def _pipeline(self) -> str | None:
        return self.plan["plan"]["pipeline"] if self.plan else None

    def _untouched(self, rows: list[dict[str, Any]]) -> None:
        """Rows of other pipelines, and of earlier rounds of the same one, are those of the unspoilt run."""

        def others(found: list[dict[str, Any]]) -> set[str]:
            at = self.plan.get("round", -1)
            kept = [row for row in found if row["defense"] != self._pipeline or row["round"] < at]
            # Whether an attack is shown to work is judged at the end, by the run without a defence.
            judged = self._pipeline == "" or not self._finished()
            return set(untimed([row | {"status": ""} if judged else row for row in kept]))

        mine, theirs = others(rows), others(self.reference)
        # A run that ended early has fewer.
        if odd := sorted(mine - theirs):
            self.fails(f"{len(odd)} rows that the reply does not concern are others, such as {odd[0][:400]}")
        ended = any(
            row["final"] or row["round"] == COMMON["rounds"] for row in rows if row["defense"] == self._pipeline
        )
        if not self.kill and ended and len(theirs - mine) and self._finished():
            self.fails(f"{len(theirs - mine)} rows that the reply does not concern are missing")
        for row in rows:
            value = row["value"]
            if row["metric"] in SHARES and value is not None and not 0 <= value <= 1:
                self.fails(f"{row['metric']} is {value}")

    def _finished(self) -> bool:
        with suppress(OSError, ValueError, KeyError):
            return bool(json.loads((self.out / "config.json").read_text())["progress"]["finished"])
        return False

    def _told(self, rows: list[dict[str, Any]], error: str) -> None:
        """A spoilt reply has its row, or the run its error, or nothing has changed; others may be used where they look like one."""
        said = [
            row
            for row in rows
            if row["client"] == self.client
            and row["status"] in ("failed", "refused")
            and row["message"].startswith(f"{self.kind}: ")
        ]
        if said:
            self.outcome = "refused"
        elif error and error != "killed":
            self.outcome = "ends the run"
        elif self.kill:
            self.outcome = "killed"
        elif untimed(rows) == untimed(self.reference):
            self.outcome = "changes nothing"
        else:
            self.outcome = "used"
            if self.drawn.bad:
                self.fails("was used, and nobody could use it")
        if not self.kill and not error and not self._finished():
            self.fails("the run ended without an error, and is not finished")

    def _reported(self) -> None:
        if not (self.out / "config.json").is_file():
            return
        start = time.process_time()
        try:
            with within(SECONDS):
                page = write_report(self.out)
            require(page.stat().st_size > 1000, "an empty report")
        except (Exception, Stuck) as error:
            self.fails(f"no report: {type(error).__name__}: {str(error)[:300]}")
        if time.process_time() - start > SECONDS / 4:
            self.fails(f"a report took {time.process_time() - start:.0f} s")

    def _resumed(self, error: str, before: list[dict[str, Any]]) -> None:
        """Clients who mean well bring it to its end; what was complete stays as it is."""
        was_finished = self._finished()
        again = self._ends(LocalGrid(COMMON["num_clients"]), resume=True)
        # What a round has made of the model before the run was broken off may leave too little to go on with: that is told.
        if again and not (error and "usable" in again):
            self.fails(f"not resumed: {again[:300]}")
            return
        rows = self._rows()
        if was_finished and untimed(rows) != untimed(before):
            self.fails("resuming a finished run changed its rows")
        self._untouched(rows)


def replies(arguments: argparse.Namespace) -> None:
    """Replies of clients, spoilt at random, through whole runs, their resumes and their reports."""
    MARK.unlink(missing_ok=True)
    logging.disable(logging.CRITICAL)
    begin, deadline = arguments.first, time.monotonic() + 60 * arguments.minutes
    found, faulty = Counter[tuple[str, str]](), list[Case]()
    for number in range(begin, begin + arguments.cases):
        if time.monotonic() > deadline:
            break
        case = Case(arguments.seed, number, tuple(arguments.runs.split(",")) if arguments.runs else tuple(RUNS)).check()
        found[case.kind, case.outcome] += 1
        if arguments.verbose:
            print(f"{case} -> {case.outcome}", flush=True)
        if case.faults:
            faulty.append(case)
            print(f"FAULT: {case} -> {case.outcome}\n" + "".join(f"    {fault}\n" for fault in case.faults), flush=True)
    outcomes = sorted({outcome for _, outcome in found})
    kinds = sorted({kind for kind, _ in found})
    table(
        f"Spoilt replies (seed {arguments.seed}, cases {begin} to {begin + sum(found.values()) - 1})",
        ["message", *outcomes],
        [[kind, *(found[kind, outcome] for outcome in outcomes)] for kind in kinds],
    )
    require(not faulty, f"{len(faulty)} of {sum(found.values())} cases")
