"""Attacks on a recording or on one update: the auditor of a live app, with updates from disk and originals in place of clients.

All is checked before any work, and written down round by round.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message
from safetensors.torch import save_file

from attacks import ClientUpdate, Labels, Reconstruction
from attacks.base import AnyAttack
from attacks.choice import Needless, Turns
from attacks.guesses import found_nothing
from attacks.local_model import shared_tensors
from attacks.metrics.names import scores_to_texts
from clients.data.card import DataCard
from clients.external_app.plan import AppPlan
from clients.messages.node import reply_to
from clients.scoring.audit import ALONE
from clients.scoring.guesses import read_guesses
from clients.task.task import Task
from clients.wire.records import metrics, tensors_of, to_record, values_of
from defenses.tensors import Tensors
from simulations.external_app.recorded.attack_file import (
    attacks_of,
    file_names,
    fit,
    guess_safely,
    guess_tensors,
    knowledge_of,
    pipeline_of,
    without_rate,
    without_truth,
)
from simulations.external_app.recorded.missing import steps_to_scores
from simulations.external_app.recorded.originals import Truth, read_originals
from simulations.external_app.recorded.replies import Attackable, Replay, read_updates
from simulations.external_app.recorded.reply_numbers import OF_ROUND
from simulations.external_app.recorded.settings import Request
from simulations.external_app.study import AppResults
from simulations.report.sections.external_app import RECORDED
from simulations.run_folder.rows import Row
from simulations.runtime.local_grid import FIRST_NODE, LocalGrid
from simulations.settings.defaults import AUTO
from simulations.settings.errors import naming
from strategies.audit.audit_replies import BASELINES, MOST_PICTURES
from strategies.audit.auditor import Auditor
from strategies.audit.jobs import AttackJob, Outcome, attack_card, without_score
from strategies.audit.kinds import Kind, Seen
from strategies.audit.pool import AttackPool
from strategies.audit.threat_card import KnownLabels, ThreatCard
from strategies.exchange.columns import Scored
from strategies.exchange.exchange import Exchange
from strategies.external_app.settings import AppStudy
from strategies.federated.audit import UpdateAudit
from strategies.federated.observations import UPDATE, SeenUpdate

SCENARIO = "recording"


@dataclass(frozen=True)
class PreparedAudit:
    """Updates that can be attacked. Attacks see nothing of the truth.

    Attributes:
        request: The request.
        replayed: The replies.
        attacks: In order; those that learn have learned.
        truth: (round, client) -> its true examples; empty without.
        auxiliary: What the attacks learned from, in words.
    """

    request: Request
    replayed: Replay
    attacks: Sequence[AnyAttack]
    truth: Mapping[tuple[int, int], Truth]
    auxiliary: str

    def plan(self) -> AppPlan:
        """A plan of the known facts about the app before its first round."""
        first = self.replayed.attackable[0]
        settings = first.settings
        return AppPlan.known(
            scenario=SCENARIO, dataset="", model=settings.model, width=settings.width, norm=settings.norm,
            pipeline=str(pipeline_of(settings)), seed=settings.seed, rounds=self.replayed.attackable[-1].round,
            momentum=settings.momentum, nesterov=settings.nesterov, weight_decay=settings.weight_decay,
            auxiliary_data=self.auxiliary, card=DataCard(settings.num_classes, settings.shape, *settings.statistics),
        )  # fmt: skip


class Owners(LocalGrid):
    """Nodes in this process that score guesses as clients do; where there are no originals, their answers hold no score."""

    def __init__(self, clients: int, num_classes: int) -> None:
        super().__init__(clients)
        self.num_classes = num_classes
        self.truths: dict[int, Truth] = {}
        """Client -> the examples behind its reply of this round."""

    def answer(self, message: Message) -> Message:
        """Scores, and of baselines the originals."""
        truth = self.truths.get(message.metadata.dst_node_id - FIRST_NODE)
        if truth is None:
            return reply_to(message, {"metrics": metrics({})})
        kind = str(values_of(message, "config")["kind"])
        if kind == BASELINES:
            scores = scores_to_texts(truth.baselines(self.num_classes))
            pictures = to_record({f"original-0-{at}": image for at, image in enumerate(truth.images[:MOST_PICTURES])})
            return reply_to(message, {"metrics": metrics({**scores}), "pictures": pictures})
        ((guess, _),) = read_guesses(kind, tensors_of(message, "guesses"), 1, None)
        assert isinstance(guess, Reconstruction | Labels)
        return reply_to(message, {"metrics": metrics({**scores_to_texts({ALONE: truth.score(guess)})})})


class RecordedAuditor(Auditor):
    """Runs attacks at once, in this process, and keeps every guess and its picture."""

    shows_training = True

    def __init__(
        self, prepared: PreparedAudit, results: AppResults, owners: Owners, begin: Callable[[str], object]
    ) -> None:
        nodes = dict(enumerate(owners.get_node_ids()))
        super().__init__(Exchange(owners, nodes, 0.0), AttackPool(0), results, share_images=True)
        self.prepared, self.owners, self.begin = prepared, owners, begin
        self.folder = results.path / "guesses"
        self.folder.mkdir(exist_ok=True)
        self.recorded = prepared.request.update.is_dir()
        self.names = dict(zip(map(repr, prepared.attacks), file_names(prepared.attacks), strict=True))
        self.replies: Mapping[int, Attackable] = {}
        self.observed: Mapping[int, ClientUpdate] = {}
        self._guesses: dict[int, Tensors] = defaultdict(dict)

    def turn_to(self, replies: Sequence[Attackable]) -> list[SeenUpdate]:
        """Take up a round: its truths, its observations and its updates."""
        truth = self.prepared.truth
        self.owners.truths = {reply.client: truth[reply.round, reply.client] for reply in replies} if truth else {}
        self.replies, self._guesses = {reply.client: reply for reply in replies}, defaultdict(dict)
        self.observed = {reply.client: reply.observe() for reply in replies}
        return [
            SeenUpdate(client, 0, seen.num_examples, seen.update, seen.local_steps, train_mode=seen.train_mode)
            for client, seen in self.observed.items()
        ]

    def card(self, task: Task, kind: Kind, seen: Sequence[Seen], accuracy: float | None, **facts: Any) -> ThreatCard:
        """The threat card of a recording, which does not say whether a defence acted on the replies."""
        card = super().card(task, kind, seen, accuracy, **facts)
        defense = task.plan.pipeline or "none: whether one acted on the replies before they were sent is unknown"
        statistics = "none" if card.batch_norm_statistics == "none" else "sent, as recorded"
        # A rate that one reply takes from the settings is no more certain for the others.
        rate = next((reply.rate_source for reply in self.replies.values() if reply.rate_source != OF_ROUND), OF_ROUND)
        # That the server knows the classes is the user's word on this server, and no bound on others.
        labels = KnownLabels.KNOWN if self.prepared.request.settings.labels else KnownLabels.UNKNOWN
        return card.but(reported_defence=defense, learning_rate=rate, batch_norm_statistics=statistics, labels=labels)

    def submit(self, job: AttackJob) -> None:
        """Runs the attacks of a job one by one: an interrupted job keeps what earlier attacks found."""
        task = job.task
        turns = Turns()
        for attack in job.attacks:
            if job.needless is Needless.SKIP and (why := turns.needless(attack)):
                self._audit(job, Outcome(attack, [], 0.0, why))
                continue
            self.begin(f"round {task.round}: {attack!r}")
            start = time.perf_counter()
            guesses = [
                guess_safely(
                    attack,
                    self.observed[update.partition],
                    task.plan.seed,
                    # As ``attack_update`` draws for the one update in a file.
                    *((task.round, update.partition) if self.recorded else ()),
                )
                for update in job.observed.seen
            ]
            turns.note(attack, guesses)
            self._audit(job, Outcome(attack, guesses, round(time.perf_counter() - start, 3)))
        self.recorder.close_job(job)

    def _audit(self, job: AttackJob, outcome: Outcome) -> None:
        """Keeps the guesses, has them scored, and adds a row where all of them failed as a whole."""
        for update, guess in zip(job.observed.seen, outcome.guesses, strict=not outcome.error):
            kept, name = self._guesses[update.partition], self.names[repr(outcome.attack)]
            kept |= {f"{name}/{kind}": tensor for kind, tensor in guess_tensors(guess).items()}
            file = f"round-{job.task.round:04d}-client-{update.partition}.safetensors"
            save_file(kept, self.folder / file)
        super()._audit(job, outcome)
        if not outcome.why_none and all(map(found_nothing, outcome.guesses)):
            why = tuple(sorted({guess.failure for guess in outcome.guesses}))
            card = attack_card(job, outcome.attack).but(attack_failures=why)
            failed = without_score("; ".join(why), len(outcome.guesses))
            self.recorder.row(job.task, attack=repr(outcome.attack), card=card, **failed, **outcome.cost)


def attack_rounds(prepared: PreparedAudit, plan: AppPlan, results: AppResults, begin: Callable[[str], object]) -> None:
    """Attacks every reply; after each round its rows are in the folder."""
    owners = Owners(len(prepared.replayed.nodes), prepared.request.settings.num_classes)
    auditor = RecordedAuditor(prepared, results, owners, begin)
    rounds = {
        server_round: list(ones) for server_round, ones in groupby(prepared.replayed.attackable, lambda one: one.round)
    }
    needless = {UPDATE: Needless.SKIP} if prepared.request.settings.update_attacks == AUTO else {}
    audit = UpdateAudit(auditor, {UPDATE: tuple(prepared.attacks)}, rounds, max(rounds), "p00", needless)
    for server_round, replies in rounds.items():
        batch = max(reply.settings.batch_size for reply in replies)
        task = replace(plan, batch_size=batch).at(server_round, replies[0].settings.learning_rate)
        results.row(task, **_recorded(prepared, server_round, replies))
        seen = auditor.turn_to(replies)
        audit.attack(task, UPDATE, shared_tensors(auditor.observed[replies[0].client].model), None, seen)
        results.keep_progress(finished=False)


def _recorded(prepared: PreparedAudit, server_round: int, replies: Sequence[Attackable]) -> Scored:
    replayed, recorded = prepared.replayed, prepared.request.update.is_dir()
    return {
        "metric": RECORDED,
        "value": float(len(replies)),
        "n": len(replies),
        "clients": {str(reply.client): str(reply.node) for reply in replies if recorded},
        "examples": [reply.settings.num_examples for reply in replies],
        "local_steps": [reply.settings.local_steps for reply in replies],
        "unusable": [f"node {node}: {why}" for at, node, why in replayed.unusable if at == server_round],
        "assumed": list(replayed.assumed),
        "warnings": list(replayed.warnings),
        "scored": bool(prepared.truth),
        "steps": steps_to_scores(prepared.request.settings) if recorded and not prepared.truth else [],
    }


BEYOND = "Whether auxiliary data hold images of clients whose originals are not here: "


def prepare(request: Request) -> PreparedAudit:
    """Reads and checks everything before any attack starts, and lets attacks learn from auxiliary data.

    Raises:
        ConfigError: Naming the setting or the file, what came and what is allowed.
    """
    settings, replayed = request.settings, read_updates(request)
    knowledge = knowledge_of(settings)
    truth = {}
    if settings.originals:
        truth = read_originals(Path(settings.originals), replayed.attackable, knowledge.auxiliary)
        images = torch.cat([original.images for original in truth.values()])
        knowledge, overlap = without_truth(knowledge, images, settings.auxiliary_data)
        replayed = replace(replayed, assumed=[*replayed.assumed, *(f"{BEYOND}{text}" for text in overlap)])
    attacks = attacks_of(settings)
    if not all(reply.settings.learning_rate for reply in replayed.attackable):
        attacks, left_out = without_rate(attacks)
        replayed = replace(replayed, assumed=[*replayed.assumed, *left_out])
    with naming("update-attacks"):
        fitted = [fit(attack, settings.seed, knowledge) for attack in attacks]
    kept = f", {len(knowledge.auxiliary)} images of it, none of them an original" if truth else ""
    return PreparedAudit(request, replayed, fitted, truth, settings.auxiliary_data + kept)


def run(prepared: PreparedAudit, out: Path, begin: Callable[[str], object] = str) -> list[Row]:
    """Attacks every reply and writes ``rows.jsonl``, pictures, guesses, ``config.json`` and the report into a folder.

    Rows are written after every round: a killed process leaves those of the rounds before. An interrupted one keeps the results
    of every attack that ended, with a report. ``begin`` takes what begins, such as "round 3: DLG()".

    Returns:
        The validated rows.
    """
    plan, last, claims = prepared.plan(), prepared.replayed.attackable[-1], prepared.replayed.claims
    shown = {"scenario": SCENARIO, "update": str(prepared.request.update), **prepared.request.settings.to_mapping()}
    study = AppStudy(
        plan, {UPDATE: tuple(prepared.attacks)}, shown, SCENARIO, plan.dataset, plan.model, plan.seed, "recorded"
    )
    results, task = AppResults.open(out, study), plan.at(last.round, last.settings.learning_rate)
    results.claim(task, claims)  # at once, so that what a killed process leaves has it
    try:
        attack_rounds(prepared, plan, results, begin)
    except KeyboardInterrupt:
        results.conclude(finished=False)
        raise
    return results.conclude()
