"""Attack jobs: attacks on the observations of one round, their outcomes, and what keeps them and their results."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from attacks.base import AnyAttack
from attacks.choice import Needless
from attacks.metrics.costs import ATTACK
from attacks.metrics.metric import LEAST_IMAGES
from attacks.observations import Untried, untried
from attacks.spec import parse_attacks, stages_of
from clients.task.task import Task
from defenses.tensors import Tensors, part_of
from strategies.audit.kinds import Kind, Observed, kind_of
from strategies.audit.threat_card import KEPT_STATISTICS, ThreatCard
from strategies.audit.whole_files import load_tensors, save_tensors
from strategies.exchange.guard import Rows

LEAST_MESSAGES = 4
"""Of a positive control, so that it has an interval."""


@dataclass(frozen=True)
class AttackJob:
    """Attacks on every observation of one kind in one round.

    Attributes:
        name: Unique in the run, and usable as a file name.
        attacks: Chains that begin with the same attack belong into one job, which runs that attack once.
        card: The threat card so far.
        earlier: The same kind of observation in earlier rounds, oldest first, for attacks on a history.
        needless: What becomes of attacks that the first ones have made needless (``Turns``).
    """

    name: str
    attacks: tuple[AnyAttack, ...]
    kind: Kind
    observed: Observed
    card: ThreatCard
    earlier: tuple[Observed, ...] = ()
    needless: Needless = Needless.RUN

    @property
    def task(self) -> Task:
        """The clients' orders in the attacked round."""
        return self.observed.task

    @property
    def learned_stages(self) -> list[str]:
        """Lessons of the attacks, and stages of chains, that are fitted to auxiliary data first."""
        stages = (stage for attack in self.attacks for stage in stages_of(attack))
        return list(dict.fromkeys(stage.lesson for stage in stages if stage.needs_auxiliary))

    @property
    def sample(self) -> tuple[int, ...]:
        """Places of observations, the first ones of each client, that hold enough images for a positive control."""
        seen = self.observed.seen
        count = max(LEAST_MESSAGES, math.ceil(LEAST_IMAGES / max(1, seen[0].num_examples)))
        each = math.ceil(count / len({view.partition for view in seen}))
        return tuple(place for place, view in enumerate(seen) if view.target < each)

    def part(self, places: Sequence[int]) -> AttackJob:
        """The job on some of its observations."""
        return replace(self, observed=replace(self.observed, seen=[self.observed.seen[at] for at in places]))

    def save(self, directory: Path) -> None:
        """Write the job to ``directory``: after a kill, its observations need not be collected again."""
        rounds = [self.observed, *self.earlier]
        tensors = {f"{at}/{name}": t.contiguous() for at, one in enumerate(rounds) for name, t in one.tensors().items()}
        about = {
            "attacks": [repr(attack) for attack in self.attacks],
            "kind": self.kind.name,
            "card": self.card.to_json(),
            "needless": self.needless,
        }
        text = json.dumps(about | {"rounds": [each.about() for each in rounds]})
        # safetensors refuses tensors that share memory, as the global weights of two jobs' rounds may.
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        save_tensors(directory / f"{self.name}.safetensors", copies, {"job": text})

    @classmethod
    def load(cls, path: Path) -> AttackJob:
        """Read a job that ``save`` wrote."""
        tensors, metadata = load_tensors(path)
        about = json.loads(metadata["job"])
        kind = kind_of(about["kind"])
        rounds = [Observed.of(entry, part_of(tensors, f"{at}/"), kind.seen) for at, entry in enumerate(about["rounds"])]
        attacks = tuple(parse_attacks("; ".join(about["attacks"])))
        card = ThreatCard.from_json(about["card"])
        return cls(path.stem, attacks, kind, rounds[0], card, tuple(rounds[1:]), Needless(about["needless"]))


@dataclass(frozen=True)
class Outcome:
    """Result of one attack of a job.

    Attributes:
        guesses: One per observed update; none when it ended with an error, or does not apply.
        seconds: Its share of the time.
        computed_on: Device of its worker, such as "cpu" or "NVIDIA H100".
        error: What ended it, or "".
        recognised: Per guess, the class that the oracle sees in each image (B,); none without auxiliary data.
        oracle_accuracy: The oracle's accuracy on auxiliary examples that it was not trained on.
        oracle: The oracle's weights, for the clients; only where guesses are paired with the images (smashed data).
        oracle_error: Why there is no oracle although the server has auxiliary data, or "".
        part: Places of the observations that were attacked; None: all.
    """

    attack: AnyAttack
    guesses: Sequence[Any]
    seconds: float
    error: str = ""
    recognised: Sequence[Tensor] = ()
    oracle_accuracy: float | None = None
    oracle: Tensors = field(default_factory=dict)
    oracle_error: str = ""
    part: tuple[int, ...] | None = None
    computed_on: str = ""

    @property
    def cost(self) -> dict[str, Any]:
        """Columns of the outcome's rows: seconds, and what computed them."""
        return {"seconds": self.seconds, "computed_on": self.computed_on}

    @property
    def why_none(self) -> str:
        """What ended it, or why it applies to no observation; "" where there are guesses to score."""
        reasons = list(dict.fromkeys(guess.failure for guess in self.guesses))
        if self.error or not all(map(untried, reasons)):
            return self.error
        more = f" (and {len(reasons) - 1} more with other reasons)" if reasons[1:] else ""
        return Untried(f"{reasons[0]}{more}", untried(reasons[0]))


@dataclass(frozen=True)
class AttackResult:
    """A finished job: the outcomes of its attacks, in their order, without those of which there is nothing to say."""

    job: AttackJob
    outcomes: list[Outcome] = field(default_factory=list)


def grouped(
    chosen: Iterable[AnyAttack], *, in_turn: bool = False
) -> tuple[list[tuple[AnyAttack, ...]], tuple[AnyAttack, ...]]:
    """Attacks on one round, chains beside the attack that they begin with; and attacks on all rounds.

    ``in_turn``: those that guess images are one group, chains last. Groups that train many models come first: the end of a run
    waits for the last job.
    """
    groups: dict[str, list[AnyAttack]] = {}
    over_rounds = []
    for attack in chosen:
        if attack.profile.observes_history:
            over_rounds.append(attack)
        else:
            first = stages_of(attack)[0]
            groups.setdefault("" if in_turn and first.profile.begins_chains else repr(first), []).append(attack)
    longest_first = sorted(groups.values(), key=lambda group: not any(a.profile.trains_shadows for a in group))
    return list(map(tuple, longest_first)), tuple(over_rounds)


AUXILIARY = {
    "held-out": "disjoint from all clients",
    "private": "the clients' training images (worst case); attacked are test images",
}
"""Value of the setting -> text about auxiliary data on threat cards."""


def attack_card(job: AttackJob, attack: AnyAttack) -> ThreatCard:
    """Extend a threat card by the facts that the attack adds."""
    bounds = " and ".join(bound for bound in (job.card.upper_bound, attack.upper_bound) if bound)
    card = job.card.but(**attack.card() | {"upper_bound": bounds, "threat_class": attack.threat_class or None})
    # Running averages that a step in train mode moved give the statistics of its batch.
    sent = card.batch_norm_statistics not in ("", "none", KEPT_STATISTICS) and card.mode == "train"
    matches = (getattr(stage, "matches_statistics", None) for stage in stages_of(attack))
    if sent and any(matcher and matcher(card.local_steps or 1) for matcher in matches):
        card = card.but(batch_norm_statistics=f"{card.batch_norm_statistics}; matched by the attack")
    card = card.but(knows_defenses=attack.knows_defenses)
    if not attack.needs_auxiliary:
        return card
    data = job.task.plan.auxiliary_data
    return card.but(auxiliary_data=AUXILIARY.get(data, f"data set {data}"))


def without_score(reason: str, count: int) -> dict[str, Any]:
    """Columns of the row of an attack without a score on this many observations; one that was not tried did not fail."""
    status = untried(reason)
    about = {"status": status or "failed", "n": count, "failures": (0 if status else count), "message": reason}
    return {"metric": ATTACK.name, "value": None, **about}


FIT = "fit"
"""Metric of defences that could not learn; there is a row only where they failed."""


class Recorder(Rows, Protocol):
    """Receiver of rows, pictures and unfinished jobs."""

    def picture(self, task: Task, image: Tensor, *, image_number: int, **fields: Any) -> None:
        """Adds one image (C, H, W) in [0, 1]."""

    def open_job(self, job: AttackJob) -> None:
        """Keeps a job that has no result yet."""

    def close_job(self, job: AttackJob) -> None:
        """Forgets a job whose rows are written."""

    def keep_history(self, job: AttackJob) -> None:
        """Keep a round's observations for attacks on all rounds."""

    def history(self, job: AttackJob) -> tuple[Observed, ...]:
        """Observations from ``keep_history`` of the job's pipeline and kind, oldest first."""
