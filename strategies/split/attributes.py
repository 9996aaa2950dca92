"""Attacks on a sensitive attribute: the server keeps the tokens of test images from each round's evaluation.

No message is added. Every evaluation sends each test image once, under draws of its own, and one evaluation is what an attack sees.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from attacks.base import Attack
from clients.split.plan import SplitPlan
from clients.task.task import Task
from strategies.audit.auditor import Auditor
from strategies.audit.jobs import AttackJob
from strategies.audit.kinds import Observed
from strategies.audit.majority import judged
from strategies.audit.threat_card import KnownLabels
from strategies.split.evaluation import Listener
from strategies.split.observations import TOKEN_ATTRIBUTE, SeenTestTokens
from strategies.split.server import SplitServer


class AttributeAudit:
    """Queue the attacks on the sensitive attribute in the tokens of evaluations.

    What is attacked is the evaluation behind an attacked round, of the model that it leaves; for the model after the last round it
    is the last evaluation, as no other follows.
    """

    def __init__(
        self, auditor: Auditor, attacks: Iterable[Attack[Any, Any]], rounds: Iterable[int], last_round: int, label: str
    ) -> None:
        self.auditor, self.attacks, self.label = auditor, tuple(attacks), label
        self.rounds = frozenset(min(at, last_round) for at in rounds)
        self._sent: dict[int, list[Tensor]] = defaultdict(list)

    def listener(self, task: Task) -> Listener | None:
        """The listener of the evaluation in the task's round; None where the round is not attacked."""
        self._sent.clear()
        if not self.attacks or task.round not in self.rounds:
            return None
        return lambda partition, tokens: self._sent[partition].append(tokens)

    def observe(self, task: Task, server: SplitServer) -> None:
        """Queue the attacks on this round's evaluation; clients whose tokens are incomplete are left out."""
        plan, seen = SplitPlan.narrow(task.plan), []
        for partition, parts in sorted(self._sent.items()):
            count, tokens = server.holders[partition].num_test, torch.cat(parts)
            if len(tokens) >= count:
                seen.append(SeenTestTokens(partition, 0, count, tokens[:count].clone()))
        self._sent.clear()
        if not seen:
            return
        card = self.auditor.card(
            task,
            TOKEN_ATTRIBUTE,
            seen,
            server.accuracy,
            attacked="test images",
            tokens=f"{server.token_shape[0]} of length {server.token_shape[1]}",
            client_half="trained" if plan.trains_edge else "frozen",
            labels=KnownLabels.UNKNOWN,
            transmissions=1,
        )
        if seen := judged(self.auditor, task, TOKEN_ATTRIBUTE, seen, card):
            observed = Observed(task, server.weights(), seen)
            # One piece of work: what the attacks see is large, and kept in a file until they are done.
            name = f"{self.label}-r{task.round:04d}-{TOKEN_ATTRIBUTE.name}-00"
            self.auditor.submit(AttackJob(name, self.attacks, TOKEN_ATTRIBUTE, observed, card))
