"""The null baseline of attribute inference: one constant value, the one that is right most often.

Which one that is the attacked images decide, and no attacker knows: where these happen to be unbalanced, a guess without looking
must not pass for one that reads.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch.nn import functional as F

from attacks.base import AnyAttack
from attacks.guesses import Attributes
from clients.task.auxiliary import Auxiliary
from clients.task.task import Task
from defenses.tensors import Tensors
from strategies.audit.auditor import Auditor
from strategies.audit.kinds import Kind, Observed, Seen
from strategies.audit.threat_card import ThreatCard

MAJORITY = "majority"
"""Name of the baseline."""


def attack_judged(
    auditor: Auditor,
    task: Task,
    kind: Kind,
    weights: Tensors,
    seen: Sequence[Seen],
    card: ThreatCard,
    groups: Iterable[tuple[AnyAttack, ...]],
    label: str,
) -> None:
    """Queue groups of attacks on the observations whose clients score guesses; a request to score null baselines finds these.

    ``label`` is the pipeline's short name in file names.
    """
    judges = (_majority_judges if kind.of_attributes else Auditor.baselines)(auditor, task, kind, seen, card)
    if seen := [view for view in seen if view.partition in judges]:
        name = f"{label}-r{task.round:04d}-{kind.name}"
        auditor.submit_groups(name, groups, kind, Observed(task, weights, seen), card)


def _majority_judges(auditor: Auditor, task: Task, kind: Kind, seen: Sequence[Seen], card: ThreatCard) -> list[int]:
    """Clients that score guesses of a sensitive attribute, found by a request to score this baseline."""
    values = Auxiliary(task.plan).sensitive()
    assert values is not None  # or there would be no attacks on it
    counts: dict[int, list[int]] = defaultdict(list)
    for view in sorted(seen, key=lambda each: (each.partition, each.target)):
        counts[view.partition].append(view.num_examples)
    candidates = []
    for answer in F.one_hot(torch.arange(int(values.max()) + 1)).float():
        candidates.append({p: [Attributes(answer.repeat(count, 1)) for count in of] for p, of in counts.items()})
    return auditor.blind_guess(task, kind, MAJORITY, candidates, card)
