"""The folder of a run, written so that a killed run keeps its results and can resume.

    rows.jsonl          one number a line
    pictures/           PNG files and index.jsonl, which describes each
    config.json         the resolved experiment, versions and progress
    checkpoints/        the global model and the clients' ledgers of each pipeline, after its last complete round; what
                        clients uploaded is in files of its own, written once
    jobs/               attacks that have no rows yet, with the updates they attack
    history/            observed updates that attacks on all rounds still need
    report.html, rows.csv

Every file is written beside its place and then moved there, so a reader never meets half of one.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar, Unpack

import numpy as np
from flwr.common import log
from torch import Tensor

from attacks.metrics.metric import Values
from attacks.metrics.names import Role
from attacks.metrics.registry import metric_of
from clients.task.task import Task
from defenses.pipeline import Pipeline
from simulations.run_folder.checkpoints import Checkpoints
from simulations.run_folder.folder_lock import take_lock
from simulations.run_folder.line_files import json_line
from simulations.run_folder.rows import NAMES, PLACE, Row, kept
from simulations.run_folder.run_config import IN_PROCESS, RunStudy, RunTimes, about_run, check_same
from simulations.settings.errors import ConfigError, undamaged
from strategies.audit.jobs import AttackJob
from strategies.audit.kinds import Observed
from strategies.audit.whole_files import whole
from strategies.exchange.columns import Columns
from strategies.training.checkpoint import Checkpoint

S = TypeVar("S", bound=RunStudy)
_ROLES = list(Role)
"""In the order of their rows."""
OF_STUDY = ("experiment", "scenario", "dataset", "model", "seed")
"""Fields of a row that are those of its study."""
FOLDERS = ("pictures", "checkpoints", "jobs", "history")
"""Made before the first round, and so before ``config.json``."""
LINES_LOST = "lines-lost"
"""Metric of a row about a line of the run's files that could not be read on resume."""


@dataclass
class RunDirectory(Generic[S]):
    """Rows, pictures, checkpoints and open jobs of one run (the ``Recorder`` of ``strategies.audit.jobs``).

    Attributes:
        path: The folder.
        experiment: Its settings.
        in_process: Whether its clients work in this process, without Flower's runtime.
        image_size: Height and width of the clients' images, once they are known.
    """

    path: Path
    experiment: S
    in_process: bool = False
    image_size: tuple[int, int] | None = None
    _rows: list[Row] = field(default_factory=list)
    _pictures: dict[str, str] = field(default_factory=dict)
    _attacks: dict[tuple[str, str], int] = field(default_factory=dict)
    _lock: IO[str] | None = None
    _progress: dict[str, Any] = field(default_factory=dict)
    _on_change: Callable[[Path], Any] | None = None
    _open: dict[str, int] = field(default_factory=dict)
    _begun: int = 0
    _done: int = 0
    _round_started: float = field(default_factory=time.perf_counter)
    _times: RunTimes = field(default_factory=RunTimes)

    def __post_init__(self) -> None:
        self._checkpoints = Checkpoints(self.path / "checkpoints")
        self._order = {str(pipeline): at for at, pipeline in enumerate(self.experiment.pipelines)}
        # Numbers for the names of picture files: the same after a resume.
        for pipeline in self.experiment.pipelines:
            for kind in self.experiment.kinds:
                for attack in self.experiment.attacks_on(pipeline, kind):
                    self._attack_number(Role.ATTACK, repr(attack))

    # Opening ----------------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: Path, experiment: S, *, in_process: bool = False) -> Self:
        """Start a new run in ``path``, or resume the one there; ``ConfigError`` where there is one, or none, or it is damaged."""
        run = cls(path, experiment, in_process)
        run._lock = take_lock(path, busy(path))
        try:
            run._take_up()
        except BaseException:
            run.close()  # else the folder stays taken while this process lives
            raise
        for folder in FOLDERS:
            (path / folder).mkdir(parents=True, exist_ok=True)
        return run

    def _take_up(self) -> None:
        """Reads what is there of the run that goes on, or makes sure that nothing is there of another."""
        config = self.path / "config.json"
        if self.experiment.resume:
            if not config.is_file():
                raise ConfigError(f"resume: {self.path} holds no run (no config.json)")
            with undamaged(config):
                before = json.loads(config.read_text(encoding="utf-8"))
                check_same(self.experiment, before)
                self._times = RunTimes.resumed(before["run"])
            self._load()
        elif config.exists() or (self.path / "rows.jsonl").exists():
            raise ConfigError(f"{self.path} already holds a run; resume it, or name another folder")

    def close(self) -> None:
        """Release the folder for another process."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _load(self) -> None:
        """Reads rows and pictures, without those of rounds that were not complete and of jobs that were not closed."""
        reached = {text: self._checkpoints.reached(at) for text, at in self._order.items()}
        complete = {text: at for text, (at, _) in reached.items()}
        rows_file = self.path / "rows.jsonl"
        if max(complete.values(), default=-1) >= 0 and not rows_file.is_file():
            raise ConfigError(
                f"resume: {rows_file} is no file, and checkpoints say that rounds were complete; restore it from a copy, or begin "
                "a run in another folder"
            )
        for path in (self.path / "jobs").glob("*.safetensors"):
            job = _job(path)
            if job.task.round > complete[job.task.plan.pipeline]:
                path.unlink()
        open_jobs = {
            (job.task.plan.pipeline, job.task.round, attack, job.card.observation, job.card.rung)
            for job in self.open_jobs()
            for attack in map(repr, job.attacks)
        }

        def keep(defense: str, at: int, *of: str) -> bool:
            return at <= complete.get(defense, -1) and (defense, at, *of) not in open_jobs

        rows, pictures, cut = kept(self.path)
        lost = dict.fromkeys(cut, 1)
        done = [row for row in rows if row.round <= complete.get(row.defense, -1) and row.metric != LINES_LOST]
        counts = Counter(row.defense for row in done)
        fewer = {text: before - counts[text] for text, (_, before) in reached.items() if counts[text] < before}
        if gone := [text for text in fewer if not counts[text]]:
            raise ConfigError(
                f"resume: {rows_file} has no row of complete rounds {of_defense(gone[0])}; restore the file from a copy, or begin "
                "a run in another folder"
            )
        told = len(lost) + sum(row.n for row in rows if row.metric == LINES_LOST)
        if (missing := sum(fewer.values()) - told) > 0:
            why = f"{rows_file.name}: lines are missing, at least {missing} of those that complete rounds had written"
            lost[why] = missing
        of = ((row, (row.attack, row.card.observation, row.card.rung)) for row in rows)
        self._rows = [row for row, place in of if keep(row.defense, row.round, *place)]
        kept_pictures = [entry for entry in pictures if keep(*(entry[key] for key in PLACE), entry.get("rung", ""))]
        self._pictures = {entry["file"]: json_line(entry) for entry in kept_pictures}
        self._add_lost(lost)

    def _add_lost(self, lost: Mapping[str, int]) -> None:
        """A row for each loss of so many lines; none where no complete round can have lost anything."""
        for message, n in lost.items():
            log(WARNING, "resume: %s", message)
            if self._rows:
                last = self._rows[-1]
                about = {name: getattr(last, name) for name in (*OF_STUDY, "cut", "defense", "round", "final")}
                self._rows.append(Row(metric=LINES_LOST, n=n, status="failed", message=message, **about))

    # Recording --------------------------------------------------------------------------------------------------------

    def row(self, task: Task, *, metric: str, value: float | None, **columns: Unpack[Columns]) -> None:
        """Add one number."""
        entries: dict[str, Any] = {
            "metric": metric,
            "n": 1,
            "seconds": round(time.perf_counter() - self._round_started, 3),
        }
        if metric_of(metric).values is Values.BOUND:
            entries["neighbours"] = task.plan.defenses.neighbours
        entries |= {"value": value, **columns}
        odd = [name for name, number in entries.items() if isinstance(number, float) and not math.isfinite(number)]
        if "value" in odd:
            # JSON has no infinity, and a client may report anything: the row records it, and the run goes on.
            entries["message"] = f"{metric} is {value}"
        entries |= dict.fromkeys(odd)
        extra = {name: entries.pop(name) for name in columns if name not in NAMES}
        if unknown := extra.keys() - Columns.__annotations__:
            raise TypeError(f"{metric}: no row has the columns {', '.join(sorted(unknown))}")
        about = {name: getattr(self.experiment, name) for name in OF_STUDY}
        about |= {"cut": task.cut, "defense": task.plan.pipeline, "round": task.round, "final": task.is_final}
        self._rows.append(Row(**entries, **about, extra=extra))

    def picture(self, task: Task, image: Tensor, *, image_number: int, **fields: Any) -> None:
        """Adds one image (C, H, W) in [0, 1] as a PNG file."""
        place = {"defense": task.plan.pipeline, "round": task.round, "final": task.is_final, "image": image_number}
        attack = fields["attack"]
        kind = fields["kind"] if not attack else f"attack{self._attack_number(fields.get('role', ''), attack)}"
        # One attack may run on several kinds of observation of a round, and on several sizes of probes.
        of = "-".join(f"{fields['observation']} {fields.get('rung', '')}".split())
        shown = f"r{task.round:04d}-c{fields['client']}-t{fields['target']}-i{image_number}"
        name = f"{self.label(task.plan.pipeline)}-{shown}-{of}-{kind}.png"
        from PIL import Image

        pixels = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
        grey_or_colour = pixels[:, :, 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels)
        with whole(self.path / "pictures" / name) as partial:
            Image.fromarray(grey_or_colour).save(partial, format="PNG", optimize=True)
        self._pictures[name] = json_line({**place, **fields, "psnr": fields.get("psnr"), "file": name})

    def _attack_number(self, role: str, attack: str) -> int:
        return self._attacks.setdefault((role, attack), len(self._attacks))

    def label(self, pipeline: str) -> str:
        """Short name of a pipeline in file names."""
        return f"p{self._order[pipeline]:02d}"

    # Attack jobs ------------------------------------------------------------------------------------------------------

    def open_job(self, job: AttackJob) -> None:
        """Keep a job until its rows are written."""
        job.save(self.path / "jobs")
        self._open[job.name] = len(job.attacks)
        self._begun += len(job.attacks)

    def close_job(self, job: AttackJob) -> None:
        """Write the rows, then delete the job: killed in between, a resumed run repeats it."""
        self.flush()
        (self.path / "jobs" / f"{job.name}.safetensors").unlink(missing_ok=True)
        self._done += self._open.pop(job.name, 0)
        if self._progress:  # before the first round, a run that goes on still shows what it had reached
            self.write_progress(self._progress, self._on_change)

    def keep_history(self, job: AttackJob) -> None:
        """Keep a round's observations until the pipeline's attacks on all rounds begin."""
        job.save(self.path / "history")

    def history(self, job: AttackJob) -> tuple[Observed, ...]:
        """Observations of the same pipeline and kind in earlier rounds, oldest first."""
        stem = f"{self.label(job.task.plan.pipeline)}-r*-{job.kind.name}-history.safetensors"
        kept = [_job(path).observed for path in sorted((self.path / "history").glob(stem))]
        return tuple(observed for observed in kept if observed.task.round < job.task.round)

    def open_jobs(self) -> list[AttackJob]:
        """Jobs without rows, in order of name."""
        return [_job(path) for path in sorted((self.path / "jobs").glob("*.safetensors"))]

    # Rounds -----------------------------------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """Starts the clock that utility rows carry."""
        self._round_started = time.perf_counter()

    def complete_round(self, pipeline: Pipeline, checkpoint: Checkpoint) -> None:
        """Makes a round final: rows first, then the checkpoint that counts them as complete."""
        self.flush()
        rows = sum(row.defense == str(pipeline) and row.round <= checkpoint.round for row in self._rows)
        self._checkpoints.save(self._order[str(pipeline)], checkpoint, rows)

    def checkpoint(self, pipeline: Pipeline) -> Checkpoint | None:
        """The pipeline's last complete round, or None."""
        return self._checkpoints.load(self._order[str(pipeline)])

    def flush(self) -> None:
        """Writes rows and the pictures' index, in an order that does not depend on which attack ended first."""
        self._rows.sort(key=self._sort_key)
        write_atomically(self.path / "rows.jsonl", "".join(row.line for row in self._rows))
        write_atomically(
            self.path / "pictures" / "index.jsonl", "".join(self._pictures[file] for file in sorted(self._pictures))
        )

    def _sort_key(self, row: Row) -> tuple[Any, ...]:
        role = _ROLES.index(Role.ATTACK if row.is_attack else row.role)
        what = (row.card.observation, row.card.rung, role, row.attack, row.metric, row.reference, row.message)
        return (self._order[row.defense], row.round, *what, -1 if row.client is None else row.client)

    def judge(self, judged: Callable[[Sequence[Row]], list[Row]]) -> None:
        """Replaces the rows by judged ones, such as those of ``simulations.report.validate``; call it when all rows are there."""
        self._rows = judged(self._rows)

    def write_failure(self, reason: str) -> None:
        """Keep all results so far, and write the reason of the run's end into config.json."""
        self.flush()
        self.write_progress({**self._progress, "finished": False, "failed": reason})

    def write_progress(self, progress: Mapping[str, Any], on_change: Callable[[Path], Any] | None = None) -> None:
        """Writes config.json with the attacks that this process began and finished.

        ``on_change`` then rebuilds the report, as it does whenever a job is closed until the next progress.
        """
        self._progress, self._on_change = dict(progress), on_change
        counted = {**progress, "attacks": self._begun, "attacks_done": self._done}
        run = {"run": self._times.about() | {IN_PROCESS: self.in_process}}
        about = about_run(self.experiment, self.path, counted, self.image_size) | run
        write_atomically(self.path / "config.json", json.dumps(about, indent=1))
        if on_change:
            on_change(self.path)


def of_defense(pipeline: str) -> str:
    """Which part of a run a pipeline names, for errors."""
    return f"of {pipeline}" if pipeline else "of the part without a defence"


def busy(path: Path) -> str:
    """Error text for a folder that another run holds; a killed command may leave its simulation running for a while."""
    return f"another run is still writing to {path}; wait for it, or end it"


def _job(path: Path) -> AttackJob:
    with undamaged(path):
        return AttackJob.load(path)


def write_atomically(path: Path, text: str) -> None:
    """Writes beside ``path`` and moves the result there."""
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
