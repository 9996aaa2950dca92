"""``audited``: a Flower app's strategy, watched by a curious server, with rows and a report like a run's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.common.logger import log
from flwr.serverapp.strategy import Strategy

from attacks.base import Attack
from clients.external_app.plan import OWN_DATA, SCENARIO, AppPlan, ModelFactory
from defenses.pipeline import Pipeline
from simulations.report import validate, write_report
from simulations.run_folder.run_directory import RunDirectory
from simulations.runtime.main_guard import require_guard
from simulations.settings.errors import ConfigError
from strategies.audit.kinds import Kind
from strategies.external_app.settings import AuditSettings
from strategies.external_app.strategy import AuditingStrategy
from strategies.federated.observations import PROBE, UPDATE

NOT_TOLD = "not told"


@dataclass(frozen=True)
class ForeignPipeline(Pipeline):
    """Mods that fedveil does not know, by their names; acts on nothing.

    Attributes:
        text: The names.
    """

    text: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class AppStudy:
    """An audit as a run directory wants it."""

    plan: AppPlan
    settings: AuditSettings
    experiment: str = "audit"
    scenario: str = SCENARIO
    dataset: str = OWN_DATA
    auxiliary_data: str = ""
    resume: bool = False
    on_tables: bool = False

    @property
    def model(self) -> str:
        """By name."""
        return self.plan.model

    @property
    def seed(self) -> int:
        """Of the attacks."""
        return self.plan.seed

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What the server observes."""
        return (PROBE, UPDATE)

    def pipelines(self) -> Sequence[Pipeline]:
        """What protects the clients' replies."""
        known = self.plan.defenses()
        return [known if str(known) == self.plan.pipeline else ForeignPipeline(text=self.plan.pipeline)]

    def attacks_on(self, pipeline: Pipeline, kind: Kind) -> Sequence[Attack[Any, Any]]:
        """As asked."""
        del pipeline
        return self.settings.attacks_on_probes() if kind is PROBE else self.settings.attacks_on_updates()

    def to_mapping(self) -> dict[str, Any]:
        """For the page."""
        asked = self.settings
        return {
            "scenario": self.scenario, "model": self.model, "defenses": self.plan.pipeline, "seed": self.seed,
            "probe-attacks": asked.probe_attacks, "update-attacks": asked.update_attacks,
            "attack-rounds": ",".join(map(str, sorted(asked.rounds))), "probe-images": asked.probe_images,
            "probe-targets": asked.probe_targets, "learning-rate": self.plan.learning_rate,
            "local-epochs": self.plan.local_epochs or NOT_TOLD, "batch-size": self.plan.batch_size or NOT_TOLD,
            "momentum": asked.momentum, "nesterov": asked.nesterov, "weight-decay": asked.weight_decay,
            "share-images": asked.share_images,
        }  # fmt: skip


class AppResults(RunDirectory[AppStudy]):
    """The folder of an audit."""

    def finish(self) -> None:
        """Judges the rows and writes the report."""
        self.judge(validate)
        self.flush()
        rounds = max((row.round for row in self._rows), default=0)
        self.write_progress({"pipeline": 1, "of": 1, "round": rounds, "rounds": rounds, "finished": True})
        log(INFO, "Audit: report written to %s", write_report(self.path))
        self.close()
        for name in ("checkpoints", "history", "jobs"):  # of runs that go on, which an audit of an app does not
            with suppress(OSError):
                (self.path / name).rmdir()


def audited(strategy: Strategy, folder: str | Path, model: ModelFactory, **settings: Any) -> Strategy:
    """A strategy whose clients are attacked beside the rounds: ``audited(FedAvg(), "/absolute/folder", Net)``.

    Writes ``rows.jsonl``, ``rows.csv``, pictures and ``report.html`` into the folder. The clients' app calls
    ``clients.answer_audits``.

    Args:
        strategy: Any strategy of Flower's message API.
        folder: Absolute path of a new folder; "" audits nothing and gives the strategy back.
        model: Builds the model, without arguments; a class or function at the top level of a module of the app.
        settings: See ``strategies.external_app.settings.AuditSettings``.

    Raises:
        ConfigError: When the folder is relative, or holds results.
        ValueError: Naming the setting, what came and what is allowed.
        AttackError: When an attack is not one on that kind of observation.
        RuntimeError: When a script calls this outside of ``if __name__ == "__main__":``, and attacks run in workers.
    """
    path, asked = Path(folder), AuditSettings(model, **settings)  # what is wrong is told without a folder, too
    if not str(folder):
        return strategy
    if asked.workers:
        require_guard("audited", "workers=0")
    if not path.is_absolute():
        raise ConfigError(f"folder is {str(folder)!r}; it must be absolute: a simulation runs elsewhere")
    if (path / "rows.jsonl").exists() or (path / "config.json").exists():
        raise ConfigError(f"folder {path} already holds results; name another one")

    def open_results(plan: AppPlan) -> AppResults:
        path.mkdir(parents=True, exist_ok=True)
        return AppResults.open(path, AppStudy(plan, asked))

    return AuditingStrategy(strategy, open_results, asked)
