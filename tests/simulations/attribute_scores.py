"""Scores of a guessed attribute, by hand: guesses from the messages, true values from the data set."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from scipy.stats import binomtest
from torch import Tensor

from clients.task.scenarios import read_task
from clients.task.task import Task
from clients.wire.records import tensors_of, values_of
from tests.simulations.short_runs import Wire

Truth = Callable[[int, Task, int], Tensor]
"""(partition, task, target) -> the values of the target's images."""


def assert_scored_by_owners(
    rows: list[dict[str, Any]], wire: Wire, observed: tuple[str, str], attacks: Sequence[str], n: int, truth: Truth
) -> list[dict[str, Any]]:
    """Compares rows with hits and exact intervals; returns them. ``observed``: the observation in messages and on cards."""
    right, asked = Counter[tuple[int, str, str]](), Counter[tuple[int, int, str]]()
    for partition, request, reply in wire.of("query.audit"):
        config, task = values_of(request, "config"), read_task(request.content["config"]["task"])  # type: ignore[arg-type, call-overload, index]
        assert (config["observation"], config["kind"], reply.content.keys()) == (observed[0], "attributes", {"metrics"})
        place = (partition, task.round, task.plan.pipeline)
        # The server asks about each value for all images first, then about the attacks in their order.
        attack = ("0", "1", *attacks)[asked[place]]
        asked[place] += 1
        for target in range(int(config["guesses"])):
            guess, values = tensors_of(request, "guesses")[f"attributes-{target}"], truth(partition, task, target)
            assert guess.shape == (len(values), 2)
            right[task.round, task.plan.pipeline, attack] += int((guess.argmax(1) == values).sum())
    audited = [row for row in rows if row["metric"] == "attribute-accuracy"]
    assert len(audited) == 3 * len({key[:2] for key in right})
    for row in audited:
        place = row["round"], row["defense"]
        blind = max(right[*place, value] for value in "01")
        hits = blind if row["attack"] == "majority" else right[*place, row["attack"]]
        exact = binomtest(hits, n).proportion_ci(0.95, "exact")
        assert (row["value"], row["n"]) == (pytest.approx(hits / n), n)
        assert (row["ci_low"], row["ci_high"]) == (pytest.approx(exact.low), pytest.approx(exact.high))
        assert row["card"]["observation"] == observed[1]
    return audited
