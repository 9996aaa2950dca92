"""The judgement of one hybrid: a federated training with clean validation, and attacks, as ``fedveil run`` does both."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from defenses.pipeline import Pipeline
from simulations.report.analysis.run import read_run
from simulations.report.throttle import Throttle
from simulations.run_folder.run_directory import RunDirectory
from simulations.runtime.flower_log import flower_log
from simulations.runtime.guardian import scratch_folder
from simulations.runtime.local_grid import LocalGrid
from simulations.search.measured.settings import Measured, Rung
from simulations.server_app import auditing, run_pipeline

MOST_GAIN = 150.0
"""dB: an exact copy has an infinite PSNR, and rounding to single precision alone gives some 144 dB."""


@dataclass(frozen=True)
class Judgement:
    """Results of one hybrid on one rung.

    Attributes:
        accuracy: Of the trained model on clean images that no client trained on, in [0, 1].
        tested: Number of these images.
        recovered: Images that the strongest attack recovered, by the report's rule (``report.studies.recovery``).
        attacked: Images that it attacked.
        gain: Mean PSNR above the best null baseline in dB, of the attack where it is highest; at most ``MOST_GAIN`` either way.
        strongest: The attack that recovered most images.
        seconds: Of training and attacks.

    Raises:
        ValueError: When accuracy or gain is not a number.
    """

    accuracy: float
    tested: int
    recovered: int
    attacked: int
    gain: float
    strongest: str
    seconds: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.accuracy) or math.isnan(self.gain):
            raise ValueError(f"accuracy {self.accuracy} or gain {self.gain} is not a number")
        object.__setattr__(self, "gain", min(max(self.gain, -MOST_GAIN), MOST_GAIN))

    @property
    def share(self) -> float:
        """Share of the attacked images that were recovered."""
        return self.recovered / self.attacked

    def to_json(self) -> dict[str, Any]:
        """As JSON writes it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Judgement:
        """Read decoded JSON."""
        return cls(**values)


def judge(search: Measured, dataset: str, hybrid: str, rung: Rung, seed: int, folder: Path) -> Judgement:
    """Train with a hybrid, and attack it.

    Args:
        search: The settings.
        dataset: The part of the data (``pools.write_pools``) that clients hold.
        hybrid: Policies such as ``3-1-7+43-18-18``; "" for none.
        rung: What to spend.
        seed: Of models, draws, partition and attacked images.
        folder: For the run; it is deleted at the end.

    Raises:
        ConfigError: When the run is refused.
        RuntimeError: When training fails, or no attack has a score.
    """
    start = time.perf_counter()
    experiment = search.experiment(dataset, hybrid, rung, seed, folder)
    pipeline = experiment.pipelines[-1]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with flower_log(folder.with_suffix(".log")), scratch_folder():
        run = RunDirectory.open(folder, experiment, in_process=True)
        try:
            with auditing(LocalGrid(experiment.num_clients), run) as (auditor, clients):
                for job in run.open_jobs():
                    auditor.submit(job)
                run_pipeline(run, auditor, pipeline, len(experiment.pipelines) - 1, clients, Throttle(write=_no_page))
                auditor.collect(wait=True)
            run.flush()
        finally:
            run.close()
    found = read_judgement(folder, pipeline, time.perf_counter() - start)
    shutil.rmtree(folder)
    folder.with_suffix(".log").unlink(missing_ok=True)
    return found


def _no_page(folder: Path) -> Path:
    """In place of the page of a run that is deleted when it has been read."""
    return folder


def read_judgement(folder: Path, pipeline: Pipeline, seconds: float) -> Judgement:
    """Read the results of a finished run; ``RuntimeError`` where accuracy or attacks have no score."""
    run = read_run(folder)
    lines = [line for study in run.studies for line in run.lines(study) if line.defense == str(pipeline)]
    clean = lines[0].clean if lines else None
    if len(lines) != 1 or clean is None or clean.mean is None:
        raise RuntimeError(f"{pipeline or 'no defence'}: the run has no accuracy")
    (line,) = lines
    cells = [cell for cell in line.tried if cell.recovered is not None and cell.gap is not None]
    if not cells:
        raise RuntimeError(f"{pipeline or 'no defence'}: no attack has a score")
    best = max(cells, key=lambda cell: (cell.recovered or (0, 0), cell.gap or 0.0))
    recovered, attacked = best.recovered or (0, 0)
    where = "final" if best.final else "initial" if best.round <= 1 else f"round {best.round}"
    return Judgement(
        clean.mean, clean.n, recovered, attacked, max(cell.gap or 0.0 for cell in cells),
        f"{best.attack}, {where} model", seconds,
    )  # fmt: skip
