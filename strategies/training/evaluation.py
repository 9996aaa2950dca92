"""Rows of what clients report of a whole model's accuracy, and of the privacy budget that noise on smashed data has spent."""

from collections.abc import Mapping, Sequence

from flwr.app import Message

from attacks.metrics.metric import Metric
from attacks.metrics.names import ScoreName
from attacks.metrics.training import DELTA, EPSILON
from clients.task.task import Task
from clients.training.evaluation import REPORTED
from clients.wire.records import values_of
from clients.wire.texts import shortened
from defenses.neighbours import BUDGET
from strategies.exchange.faults import fault_in_count, fault_in_number
from strategies.exchange.guard import GuardedExchange, Rows


def record_reports(
    exchange: GuardedExchange,
    task: Task,
    requested: Sequence[int],
    replies: Mapping[int, Message],
    shares: Sequence[str] = (),
) -> dict[str, float]:
    """Check replies to an evaluation, and write means over the test examples of all clients, a row for each.

    ``shares`` names further reported metrics. The run continues if a client cannot evaluate.
    """
    names = {**REPORTED, **{name: ScoreName(name) for name in shares}}

    def fault_in(partition: int, reply: Message) -> str:
        metrics = values_of(reply, "metrics")
        if set(metrics) != {*names, "num-examples"}:
            return f"metrics: {shortened(sorted(metrics)[:20])}; expected num-examples, {', '.join(names)}"
        faults = (fault_in_number(name, metrics[name], score.metric) for name, score in names.items())
        return fault_in_count(metrics, exchange.exchange.most(partition)[1]) or next(filter(None, faults), "")

    good = exchange.check(task, "evaluate", requested, replies, fault_in, at_least=0.0)
    every = [values_of(reply, "metrics") for reply in good.values()]
    total = sum(int(own["num-examples"]) for own in every)
    means = {name: sum(float(own[name]) * int(own["num-examples"]) for own in every) / total for name in names if total}
    for name in sorted(means):
        metric, reference = names[name]
        exchange.rows.row(task, metric=metric, reference=reference, value=means[name], n=total)
    return means


def record_privacy(task: Task, rows: Rows, releases: int, more: Mapping[Metric, int]) -> None:
    """Write rows "epsilon" and "delta" of clipped and noised smashed data, and rows that include further transmissions.

    Each budget is exact for independent Gaussian noise on the number of transmissions of an example in the column "releases". The
    underlying noise ratio grows with the square root of that number. ``releases`` is the number for the training or test image
    that the run has sent most often; ``more`` maps a metric to the number with further transmissions, without a row if there are
    none.
    """
    for defense in task.plan.defenses.smashed_defenses:
        if spent := defense.privacy(releases):
            for metric, times in {EPSILON: releases, **more}.items():
                if metric is EPSILON or times > releases:
                    epsilon = defense.privacy(times)["epsilon"]
                    rows.row(task, metric=metric.name, value=epsilon, worst=epsilon, releases=times)
            for name in (DELTA.name, *(name for name in spent if name.startswith(BUDGET))):
                rows.row(task, metric=name, value=spent[name], worst=spent[name])
