"""How split learning goes through a client's examples: sizes of batches, passes, and how often an example is sent."""

from __future__ import annotations

import math

from clients.task.task import Task


class SplitPasses:
    """The passes over the training examples of one client. Batches of a round go on where the round before ended."""

    def __init__(self, task: Task, num_examples: int) -> None:
        self.task, self.num_examples = task, num_examples

    def batches(self) -> list[int]:
        """Sizes of the batches of this round.

        They go on where the round before ended, so that no example is sent again before the others of the pass were sent.
        """
        once, first = self._pass(), self._first_batch()
        return [once[at % len(once)] for at in range(first, first + self._batches_per_round())]

    def _first_batch(self) -> int:
        return (self.task.round - 1) * self._batches_per_round()

    def place(self, number: int) -> tuple[int, int]:
        """The pass, and the batch within it, of batch ``number`` of this round."""
        return divmod(self._first_batch() + number, len(self._pass()))

    def transmissions(self, until: int, since: int = 1) -> int:
        """How often training sends any one example in rounds ``since`` to ``until``, at most: once in each pass, without audits."""
        return len(self.within(since, until))

    def within(self, since: int, until: int) -> list[tuple[int, int, int]]:
        """The passes of which rounds ``since`` to ``until`` send anything: number, first of its batches in these rounds, end of
        them.
        """
        per_round, per_pass = self._batches_per_round(), len(self._pass())
        first, end = (since - 1) * per_round, until * per_round
        passes = range(first // per_pass, math.ceil(end / per_pass)) if first < end else range(0)
        return [(at, max(first - at * per_pass, 0), min(end - at * per_pass, per_pass)) for at in passes]

    def _batches_per_round(self) -> int:
        return self.task.plan.local_steps or self.task.plan.local_epochs * len(self._pass())

    def _pass(self) -> list[int]:
        """Sizes of the batches of one pass; a single image that is left over waits for another one."""
        full, left = divmod(self.num_examples, self.task.plan.batch_size)
        return [self.task.plan.batch_size] * full + ([left] if left > 1 or not full else [])
