"""``audited``: a Flower app's strategy, watched by a curious server, with rows and a report like a run's."""

import fcntl
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from logging import INFO, WARNING
from pathlib import Path
from typing import IO, Any

from flwr.common import log
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from attacks.metrics.training import EPSILON_SHOWN
from clients.external_app.plan import AppPlan, ModelFactory
from clients.task.task import Task
from simulations.compare.groups import Group
from simulations.gate.check import Decision
from simulations.gate.checks import checks_of
from simulations.gate.limits import FREE, GateLimits
from simulations.report import validate, write_report
from simulations.report.analysis.budget import audit_text
from simulations.report.analysis.run import ReadRun, read_run
from simulations.report.analysis.sentences import sentence
from simulations.run_folder.folder_lock import require_free, take_lock
from simulations.run_folder.rows import Row
from simulations.run_folder.run_directory import RunDirectory
from simulations.runtime.main_guard import require_guard
from simulations.settings.errors import ConfigError
from strategies.external_app.claim import CLAIMED, Claim
from strategies.external_app.record import Results
from strategies.external_app.settings import AppStudy, AuditSettings
from strategies.external_app.strategy import AuditingStrategy
from strategies.federated.shown_epsilon import AUDIT, ShownEpsilon
from strategies.recording.wrapper import require_strategy

RESULTS = ("rows.jsonl", "config.json", "report.html")
"""Files by which a folder holds the results of a run."""


class TakenFolder:
    """A folder that no other run may write to, until it is released.

    Args:
        path: The folder.
        lock: Its lock.
    """

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path, self._lock = path, lock

    def release(self) -> None:
        """Let a writer of results lock the folder, even if a forked process still has the file open."""
        if not self._lock.closed:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._lock.close()

    __del__ = release


def take_folder(wanted: Path) -> TakenFolder:
    """Take a folder, or FOLDER-2, FOLDER-3 and so on where it holds results or another run writes to it.

    Raises:
        ConfigError: When the path is relative or a file, or the folder cannot be made or written.
    """
    if not wanted.is_absolute():
        raise ConfigError(f"folder is {str(wanted)!r}; it must be absolute: a simulation runs elsewhere")
    for number in count(1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        if path.exists() and not path.is_dir():
            raise ConfigError(f"folder {path} is a file; name a folder")
        with suppress(ConfigError):
            require_free(path, "")
            if not any((path / name).exists() for name in RESULTS):
                break
    taken = TakenFolder(path, take_lock(path, f"folder {path}: another run is still writing to it"))
    if path != wanted:
        log(WARNING, "Audit: %s holds the results of another run; the results of this run go to %s", wanted, path)
    return taken


NOT_REPORTED = "not reported"


class AppResults(RunDirectory[AppStudy]):
    """Results folder of an external app's audit, live or recorded."""

    _claimed: tuple[str, ...] = ()
    """What the app says about its differential privacy, as far as it is known."""

    def picture(self, task: Task, image: Tensor, *, image_number: int, **fields: Any) -> None:
        """Adds one image; PNG files have one channel or three."""
        if len(image) in (1, 3):
            super().picture(task, image, image_number=image_number, **fields)

    def claim(self, task: Task, claims: Sequence[Claim]) -> None:
        """Put the app's own privacy claim in the place of an earlier one: a row of ``task``, and an entry of every threat card."""
        if not claims:
            return
        self._claimed = tuple(claim.text for claim in claims)
        self.judge(lambda rows: [row for row in rows if row.metric != CLAIMED])
        self.row(task, metric=CLAIMED, value=float(len(claims)), n=len(claims), claims=list(map(asdict, claims)))
        self._carry_claims()

    def _carry_claims(self) -> None:
        texts = self._claimed
        self.judge(lambda rows: [replace(row, card=row.card.but(claimed_privacy=texts)) for row in rows])

    def flush(self) -> None:
        """Writes rows and the pictures' index; every row carries the claims that are known so far."""
        if self._claimed:
            self._carry_claims()
        super().flush()

    def attacked(self) -> bool:
        """Whether an attack has a score, or an epsilon was audited."""
        scored = (row for row in self._rows if row.value is not None)
        return any(row.is_attack or row.metric == EPSILON_SHOWN.name for row in scored)

    def so_far(self) -> tuple[Row, ...]:
        """The rows as their file would hold them, judged as at the end."""
        return tuple(validate([Row.from_json(json.loads(row.line)) for row in self._rows]))

    def untried(self) -> list[str]:
        """Attacks that do not apply, with the reasons."""
        return list(
            dict.fromkeys(f"{row.attack} {row.message}" for row in self._rows if row.status == "not-applicable")
        )

    def keep_progress(self, *, finished: bool) -> None:
        """Writes how far the audit is."""
        rounds = max((row.round for row in self._rows), default=0)
        self.write_progress({"pipeline": 1, "of": 1, "round": rounds, "rounds": rounds, "finished": finished})

    def conclude(self, *, finished: bool = True) -> list[Row]:
        """Judges the rows and writes the report."""
        self.judge(validate)
        self.flush()
        self.keep_progress(finished=finished)
        write_report(self.path)
        self.close()
        for name in ("checkpoints", "history", "jobs"):  # of runs that go on, which an audit of an app does not
            with suppress(OSError):
                (self.path / name).rmdir()
        return list(self._rows)

    def finish(self) -> None:
        """Ends the audit of an app that ran; the log ends with the verdict on each defence."""
        self.conclude()
        page = self.path / "report.html"
        log(INFO, "Audit: report written to %s", page)
        for summary in read_run(self.path).summaries:
            for line in summary.findings:
                log(INFO, "Audit verdict: %s: %s See %s", line.defense or summary.plain.name, sentence(line), page)
        for row in self._rows:
            if row.metric == EPSILON_SHOWN.name and (shown := ShownEpsilon.from_json(row.extra.get(AUDIT))):
                log(INFO, "Audit: %s", audit_text(shown))


def broken(limits: GateLimits, results: Results | None, claims: Sequence[Claim]) -> list[str]:
    """The limits that an app's claims or its results so far break, each a sentence."""
    most = limits.every.max_epsilon
    limited = claims if most > FREE else ()
    over = [f"max-epsilon {most:g}: {of.text}" for of in limited if of.unusable or (of.epsilon or 0.0) > most]
    if isinstance(results, AppResults) and (rows := results.so_far()):
        group = Group((results.path,), ReadRun(rows, {}), {})
        over += [check.text for check in checks_of(group, limits) if check.outcome is Decision.FAILED]
    return over


def audited(
    strategy: Strategy,
    folder: str | Path,
    model: ModelFactory,
    gate: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Strategy:
    """A strategy whose clients are attacked beside the rounds: ``audited(FedAvg(), "/absolute/folder", Net)``.

    Writes ``rows.jsonl``, ``rows.csv``, pictures and ``report.html`` into the folder. The clients' app calls
    ``clients.answer_audits``.

    Args:
        strategy: Any strategy of Flower's message API.
        folder: Absolute path. Where it holds the results of another run, these go to FOLDER-2, FOLDER-3 and so on, and the log
            says so. "" audits nothing and gives the strategy back.
        model: Builds the model, without arguments; a class or function at the top level of a module of the app.
        gate: Limits as in the table ``[gate]`` of `fedveil gate`, such as {"max-recognisable": 0.1, "max-epsilon": 8.0}. Before
            each round, attacks on the rounds before it are waited for, and where one limit is broken, no further round begins.
            An epsilon is then what the app claims; what canaries show counts after the last round.
        settings: See ``strategies.external_app.settings.AuditSettings``.

    Raises:
        ConfigError: When the folder is relative or a file, or cannot be made or written.
        ValueError: Naming the setting, what came and what is allowed.
        AttackError: When an attack is not one on that kind of observation.
        AuditError: In ``start`` of what is returned: before the first round with all that is missing, before another where a limit
            of the gate is broken, after the last where nothing was attacked. A page is written in all cases.
            ``go_on=True`` turns it off.
        RuntimeError: When a script calls this outside of ``if __name__ == "__main__":``, and attacks run in workers.
    """
    audit = AuditSettings(model, **settings)  # refused without a folder, too
    limits = None if gate is None else GateLimits.read(gate)
    if limits and limits.every.min_accuracy != FREE:
        raise ConfigError("min-accuracy is in gate; leave it out: the audit of an app measures no accuracy")
    if not str(folder):
        if limits:
            raise ConfigError("folder is '', which audits nothing; leave out gate, or name a folder")
        return strategy
    if audit.workers:
        require_guard("audited", "workers=0")
    require_strategy(strategy)
    taken = take_folder(Path(folder))

    def open_results(plan: AppPlan) -> AppResults:
        taken.release()
        shown = {
            "scenario": plan.scenario, "model": plan.model, "defenses": plan.pipeline, "seed": plan.seed,
            "probe-attacks": audit.probe_attacks, "update-attacks": "" if audit.canaries else audit.update_attacks,
            "attack-rounds": ",".join(map(str, sorted(audit.rounds))), "probe-images": audit.probe_images,
            "probe-targets": plan.probe_targets, "learning-rate": plan.learning_rate,
            "local-epochs": plan.local_epochs or NOT_REPORTED, "batch-size": plan.batch_size or NOT_REPORTED,
            "momentum": plan.momentum, "nesterov": plan.nesterov, "weight-decay": plan.weight_decay,
            "share-images": audit.share_images, "canaries": audit.canaries,
        }  # fmt: skip
        study = AppStudy(plan, audit.attacks(), shown, plan.scenario, plan.dataset, plan.model, plan.seed)
        return AppResults.open(taken.path, study)

    return AuditingStrategy(strategy, open_results, audit, partial(broken, limits) if limits else None)
