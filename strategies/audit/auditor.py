"""Send guesses to the clients for scoring, and turn the scores into rows.

The truth stays with the clients; the server keeps means, intervals and counts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Message, RecordDict

from attacks.base import AnyAttack
from attacks.choice import Needless
from attacks.guesses import Attributes, Cells, Labels, found_nothing
from attacks.membership.loss_threshold import Membership
from attacks.metrics.costs import ATTACK_SECONDS
from attacks.metrics.guesses import MEMBER_SCORE, MEMBERSHIP_AUC, OTHER_SCORE
from attacks.metrics.images import ORACLE_ACCURACY
from attacks.metrics.names import GuessName, Role, ScoreName, Scores
from clients.scoring.audit import ALONE, COUNTS, MOST_SHARED
from clients.scoring.guesses import guess_tensors, kind_of_guess
from clients.task.task import Task
from clients.wire.records import tensors_of, to_record
from defenses.tensors import Tensors
from strategies.audit.audit_pictures import keep_guesses, keep_pictures
from strategies.audit.audit_replies import BASELINES, fault_in_scores, scores_of
from strategies.audit.jobs import AttackJob, Outcome, Recorder, attack_card, without_score
from strategies.audit.kinds import Kind, Observed, Seen
from strategies.audit.pool import AttackPool
from strategies.audit.score_rows import joined, membership_rows, rows_of_clients, score_rows
from strategies.audit.threat_card import FROM_SEED, ThreatCard
from strategies.exchange.exchange import Exchange
from strategies.exchange.guard import Answers, GuardedExchange


class Auditor:
    """Queue attacks, and have the clients concerned score each finished one.

    Attributes:
        shows_training: The recorder also keeps pictures of guesses about training updates of many images.

    Args:
        share_images: Clients send pictures of their images for the report.
        randomness: Entry of all threat cards about the clients' random draws; see ``Clients.randomness``.
    """

    shows_training = False

    def __init__(
        self, exchange: Exchange, pool: AttackPool, recorder: Recorder, *, share_images: bool, randomness: str = ""
    ) -> None:
        self.exchange = exchange
        self.pool = pool
        self.recorder = recorder
        self.share_images = share_images
        self.randomness = randomness
        # Who does not answer leaves a row, and its scores are missing: attacks never end a run.
        self._guarded = GuardedExchange(exchange, recorder)
        self._counted: set[str] = set()

    @property
    def repeats_draws(self) -> bool:
        """Whether all clients draw from the seed, so that each reply's draws can be repeated after any number of later replies."""
        return self.randomness in ("", FROM_SEED)

    def submit(self, job: AttackJob) -> None:
        """Queues a job; ``collect`` finishes it."""
        self.recorder.open_job(job)
        self.pool.submit(job)

    def submit_groups(
        self,
        name: str,
        groups: Iterable[tuple[AnyAttack, ...]],
        kind: Kind,
        observed: Observed,
        card: ThreatCard,
        *,
        needless: Needless = Needless.RUN,
    ) -> None:
        """Queues a job for each group of attacks on one observation, numbered behind ``name``."""
        for at, group in enumerate(groups):
            self.submit(AttackJob(f"{name}-{at:02d}", group, kind, observed, card, needless=needless))

    def collect(self, *, wait: bool = False) -> None:
        """Audit the finished jobs; with ``wait``, continue until no job is left."""
        while True:
            for result in self.pool.finished(wait=wait):
                for outcome in result.outcomes:
                    self._audit(result.job, outcome)
                self.recorder.close_job(result.job)
            if not wait or not len(self.pool):
                return

    def card(self, task: Task, kind: Kind, seen: Sequence[Seen], accuracy: float | None, **facts: Any) -> ThreatCard:
        """The threat card of one round's observations, with further ``facts`` about the server's view and knowledge.

        ``accuracy`` is what clients measured on clean test images; None where it was not measured.
        """
        return ThreatCard(
            observation=kind.title,
            round=task.round,
            model_accuracy=None if accuracy is None or task.plan.defenses.keeps_statistics else round(accuracy, 4),
            num_classes=task.plan.data_card().num_classes,
            images=max(view.num_examples for view in seen),
            auxiliary_data="none",
            randomness=self.randomness,
        ).but(neighbours=task.plan.defenses.neighbours or None, **facts)

    def baselines(self, task: Task, kind: Kind, seen: Iterable[Seen], card: ThreatCard, images: int = 0) -> list[int]:
        """Add rows of the guesses that used no observation, and the original and protected pictures.

        Of each observation ``images`` are guessed, as many as the attacks guess; 0: as the client thinks fit.

        Returns:
            The partitions that do not refuse to score guesses: attacks on the others' messages would find no judge.
        """
        most = Counter[int]()
        for view in seen:
            most.update(dict.fromkeys(view.judges, max(1, view.num_examples)))
        partitions = sorted(most)
        replies = self._ask(task, kind, BASELINES, dict.fromkeys(partitions, RecordDict()), most, images)
        by_guess = _gather(replies)
        counts = joined(by_guess.pop(COUNTS, {}).values())
        if counts and task.plan.pipeline not in self._counted:
            self._counted.add(task.plan.pipeline)
            for count, numbers in counts.items():
                self.recorder.row(task, metric=count.metric, value=sum(numbers), n=len(numbers))
        for guess, scores in by_guess.items():
            self._rows(task, guess, card, scores)
        for partition, reply in replies.items():
            for name, shared in tensors_of(reply, "pictures").items():
                shown, target, place = name.split("-")
                keep_pictures(
                    self.recorder, task, shared[None], card, numbers=[int(place)],
                    attack="", client=partition, target=int(target), kind=shown,
                )  # fmt: skip
        return [partition for partition in partitions if partition not in replies.refused]

    def blind_guess(
        self, task: Task, kind: Kind, name: str, candidates: Sequence[Mapping[int, Sequence[Any]]], card: ThreatCard
    ) -> list[int]:
        """Add rows of a null baseline of the server: of guesses without an observation, the one that is right most often.

        A candidate has for each partition a guess about each of the client's observations, in order of target. Returns the
        partitions that do not refuse to score guesses.
        """
        scored, refused = list[dict[int, Scores]](), set[int]()
        for guesses in candidates:
            records: dict[int, RecordDict] = {}
            for partition, theirs in guesses.items():
                parts = (guess_tensors(guess, target, None) for target, guess in enumerate(theirs))
                merged = {key: tensor for part in parts for key, tensor in part.items()}
                records[partition] = RecordDict({"guesses": to_record(merged)})
            first = next(iter(guesses.values()))
            most = {partition: sum(map(_images_of, theirs)) for partition, theirs in guesses.items()}
            replies = self._ask(task, kind, kind_of_guess(first[0]), records, most, len(first))
            scored.append(_gather(replies).get(ALONE, {}))
            refused.update(replies.refused)
        best = max(scored, key=lambda scores: sum(map(sum, joined(scores.values()).values())))
        self._rows(task, GuessName(Role.NULL_BASELINE, name), card, best)
        return [partition for partition in candidates[0] if partition not in refused]

    def _audit(self, job: AttackJob, outcome: Outcome) -> None:
        card = attack_card(job, outcome.attack)
        if outcome.part is not None:
            of = f"{len(outcome.part)} of {len(job.observed.seen)} messages, as a control: an exact attack has every image"
            job, card = job.part(outcome.part), card.but(attacked=of)
        seen = job.observed.seen
        if why := outcome.why_none:
            about: dict[str, Any] = {"attack": repr(outcome.attack), "role": card.role, "card": card}
            self.recorder.row(job.task, **about, **without_score(why, len(seen)), **outcome.cost)
            return
        guesses: dict[int, list[tuple[int, Any]]] = defaultdict(list)
        records: dict[int, Tensors] = defaultdict(dict)
        most = Counter[int]()
        for at, (view, guess) in enumerate(zip(seen, outcome.guesses, strict=True)):
            recognised = outcome.recognised[at] if outcome.recognised else None
            for judge in view.judges:
                guesses[judge].append((view.target, guess))
                most[judge] += view.scored(_images_of(guess)) // len(view.judges)
                records[judge] |= guess_tensors(guess, view.target, recognised)
        guessed = kind_of_guess(outcome.guesses[0])
        shared = {"oracle": to_record(outcome.oracle)} if outcome.oracle else {}
        contents = {p: RecordDict({"guesses": to_record(theirs), **shared}) for p, theirs in records.items()}
        replies = self._ask(job.task, job.kind, guessed, contents, most, len({each.target for each in seen}))
        failed = [guess for guess in outcome.guesses if guess.failure]
        in_vain = any(getattr(guess, "found", None) == 0 for guess in failed)
        card = card.but(attack_failures=tuple(sorted({guess.failure for guess in failed})), in_vain=in_vain)
        scores = _gather(replies).get(ALONE, {})
        if guessed == "membership":
            self._membership(job.task, outcome, card, scores, replies, failures=len(failed))
        else:
            lost = sum(most[partition] for partition in replies.failed)
            self._rows(job.task, _guess(outcome, card), card, scores, outcome=outcome, seen=seen, unscored=lost)
        self._diagnostics(job.task, outcome, card)
        few = not job.kind.pooled and max(each.num_examples for each in seen) <= MOST_SHARED
        shown = job.kind.chosen or few or self.shows_training or guessed == "representatives"
        if guessed in ("images", "representatives") and self.share_images and shown:
            keep_guesses(self.recorder, job, outcome, guesses, replies)

    def _membership(
        self,
        task: Task,
        outcome: Outcome,
        card: ThreatCard,
        scores: Mapping[int, Scores],
        replies: Answers,
        *,
        failures: int,
    ) -> None:
        """One ROC curve over the records of all clients whose test did not fail; a failed row where there is none.

        ``failures`` of a row counts tests that failed, and records whose score is NaN.
        """
        common: dict[str, Any] = {"attack": repr(outcome.attack), **outcome.cost}
        rows = rows_of_clients(membership_rows, scores, card)
        for columns in rows:
            columns["failures"] += failures
            self.recorder.row(task, **columns, **common)
        if not rows:
            every = joined(scores.values())
            members, others = (len(every.get(metric.of(), [])) for metric in (MEMBER_SCORE, OTHER_SCORE))
            unscored = sorted((replies.failed | replies.refused).items())
            named = [f"client {partition}: {reason}" for partition, reason in unscored[:1] if not replies]
            self.recorder.row(
                task, metric=MEMBERSHIP_AUC.name, value=None, card=card, status="failed", n=len(outcome.guesses),
                failures=failures or len(outcome.guesses),
                message="; ".join(card.attack_failures or named)
                or f"scores of {members} members and {others} others make no curve", **common,
            )  # fmt: skip

    def _diagnostics(self, task: Task, outcome: Outcome, card: ThreatCard) -> None:
        for name in sorted({name for guess in outcome.guesses for name in guess.diagnostics}):
            values = [guess.diagnostics[name] for guess in outcome.guesses if name in guess.diagnostics]
            self._rows(task, _guess(outcome, card), card, {0: {ScoreName(name): [float(value) for value in values]}})
        if outcome.oracle_accuracy is not None or outcome.oracle_error:
            self.recorder.row(
                task, metric=ORACLE_ACCURACY.name, value=outcome.oracle_accuracy, attack=repr(outcome.attack), card=card,
                status="failed" if outcome.oracle_error else "ok", message=outcome.oracle_error,
            )  # fmt: skip
        self.recorder.row(
            task, metric=ATTACK_SECONDS.name, value=outcome.seconds, attack=repr(outcome.attack), card=card,
            n=len(outcome.guesses), **outcome.cost,
        )  # fmt: skip

    def _ask(
        self,
        task: Task,
        kind: Kind,
        guessed: str,
        contents: Mapping[int, RecordDict],
        most: Mapping[int, int],
        guesses: int = 0,
    ) -> Answers:
        """One audit message to each partition; ``most`` is the most values that a client may return of one score."""
        request: dict[str, Any] = {
            "observation": kind.name,
            "kind": guessed,
            "guesses": guesses,
            "share-images": self.share_images,
            "totals": task.plan.pipeline not in self._counted,
        }
        config = self.exchange.config(task, **request)
        messages = {partition: RecordDict({**content, "config": config}) for partition, content in contents.items()}

        def fault_in(partition: int, reply: Message) -> str:
            return fault_in_scores(reply, guessed, task, most[partition], self.exchange.most(partition), guesses)

        return self._guarded.ask(task, "query.audit", messages, fault_in)

    def _rows(
        self,
        task: Task,
        guess: GuessName,
        card: ThreatCard,
        scores: Mapping[int, Scores],
        *,
        outcome: Outcome | None = None,
        seen: Sequence[Seen] = (),
        unscored: int = 0,
    ) -> None:
        """One row for each score; of an attack, with its time and how many of the values come from guesses that failed."""
        for columns in rows_of_clients(score_rows, scores, card, unscored):
            columns["attack"], columns["role"] = guess.name, guess.role
            columns["failures"] = _failed_values(outcome.guesses, seen, columns["n"]) if outcome else 0
            columns["seconds"], columns["computed_on"] = (
                (outcome.seconds, outcome.computed_on) if outcome else (0.0, "")
            )
            self.recorder.row(task, **columns)


def _failed_values(guesses: Sequence[Any], seen: Sequence[Seen], n: int) -> int:
    """How many of n values failures gave: some metrics have one value for a guess, others one for each of its images."""
    if n <= len(guesses):
        return sum(map(found_nothing, guesses))
    failed = [(guess, view) for guess, view in zip(guesses, seen, strict=True) if guess.failure]
    return sum(max(0, view.scored(_images_of(guess)) - (getattr(guess, "found", 0) or 0)) for guess, view in failed)


_ONE_EACH: dict[type, str] = {Labels: "classes", Attributes: "logits", Cells: "categories"}
"""Kind of guess -> its field with an entry for each image; "images" for any other."""


def _images_of(guess: Any) -> int:
    if isinstance(guess, Membership):
        return int(not guess.failure)
    return len(getattr(guess, _ONE_EACH.get(type(guess), "images")))


def _guess(outcome: Outcome, card: ThreatCard) -> GuessName:
    return GuessName(card.role, repr(outcome.attack))


def _gather(replies: Mapping[int, Message]) -> dict[GuessName, dict[int, Scores]]:
    by_guess: dict[GuessName, dict[int, Scores]] = defaultdict(dict)
    for partition, reply in replies.items():
        for guess, scores in scores_of(reply).items():
            by_guess[guess][partition] = scores
    return dict(by_guess)
