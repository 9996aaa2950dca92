"""The null baseline of attribute inference: always the same value, whichever is right most often.

Which one that is the attacked images decide, and no attacker knows: where these happen to be unbalanced, a guess without looking
must not pass for one that reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from attacks.guesses import Attributes
from clients.task.auxiliary import Auxiliary
from clients.task.task import Task
from strategies.audit.auditor import Auditor
from strategies.audit.kinds import Kind, Seen
from strategies.audit.threat_card import ThreatCard

MAJORITY = "majority"
"""Name of the baseline."""


def majority_judges(
    auditor: Auditor, task: Task, kind: Kind, seen: Sequence[Seen], card: ThreatCard, each: int | None = None
) -> list[int]:
    """Who scores guesses of a sensitive attribute, asked by having this baseline scored.

    Args:
        auditor: Asks.
        task: Orders of the round.
        kind: What is attacked.
        seen: The observations.
        card: The threat card.
        each: Values that are guessed of an observation; None: one for each image behind it.
    """
    values = Auxiliary(task.plan).sensitive()
    assert values is not None  # or there would be no attacks on it
    counts: dict[int, list[int]] = defaultdict(list)
    for one in sorted(seen, key=lambda one: (one.partition, one.target)):
        counts[one.partition].append(one.num_examples if each is None else each)
    candidates = []
    for answer in F.one_hot(torch.arange(int(values.max()) + 1)).float():
        candidates.append({p: [Attributes(answer.repeat(count, 1)) for count in of] for p, of in counts.items()})
    return auditor.blind_guess(task, kind, MAJORITY, candidates, card)
