"""What a client sends of a round: checks before it is averaged, attacked or kept (a client may send anything), and rows."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import nn
from torch.utils.data import DataLoader

from attacks.metrics.training import CLIENT, EPSILON_WITH_PROBES, UPDATE_BYTES
from clients.federated.budget import budget_spent
from clients.federated.plan import FederatedPlan
from clients.task.task import Task
from clients.training.sgd import plain_training
from clients.wire.records import tensors_of, values_of
from clients.wire.texts import shortened
from defenses.base import DefenseError
from defenses.neighbours import BUDGET
from defenses.pipeline import Pipeline
from strategies.audit.jobs import Recorder
from strategies.audit.score_rows import mean_and_interval
from strategies.exchange.faults import fault

COUNTED = {"num-examples", "local-steps"}
"""What every update reports beside its metrics."""
MOST_REPORTED, LONGEST_NAME = 64, 200
"""Numbers that most clients report of a round's training, and characters of their names."""
MOST_LEDGER = 2**20
"""Characters of a client's ledger: longer ones are not kept."""


def fault_in_update(
    reply: Message, reference: Mapping[str, np.ndarray], records: Iterable[str], most: float = math.inf
) -> str:
    """Reason why a reply's updates, in the given records, do not fit the current model ``reference``, or "".

    ``most`` is how many examples the client may report that it trained on: the number is its weight in the average.
    """
    if why := next((why for record in records if (why := fault(reply, reference, record, most))), ""):
        return why
    steps = values_of(reply, "metrics").get("local-steps")
    fits = isinstance(steps, int) and steps > 0
    return "" if fits else f"metrics: local-steps is {shortened(steps)}, expected 1 or more"


def fault_in_probe(reply: Message, reference: Mapping[str, np.ndarray], task: Task) -> str:
    """Reason why the updates of probes, one for each target of the task, or their labels cannot be used, or ""."""
    plan = FederatedPlan.narrow(task.plan)
    names, images = task.target_records, plan.probe_size
    if why := fault_in_update(reply, reference, names, images):
        return why
    if (steps := values_of(reply, "metrics").get("local-steps")) != plan.probe_steps:
        return f"metrics: local-steps is {shortened(steps)}, expected {plan.probe_steps}, as the probe has"
    classes = plan.data_card().num_classes
    for name, labels in tensors_of(reply, "labels").items():
        whole = not labels.is_floating_point() and labels.shape == (images,)
        if name not in names or not whole or not ((labels >= 0) & (labels < classes)).all():
            return f"labels: {shortened(name)} is {shortened(labels)}, expected {images} whole numbers below {classes}"
    return ""


def fault_in_budget(reply: Message, task: Task, examples: int) -> str:
    """Reason why a client of so many examples cannot have spent the budget that it reports, in any number of rounds, or ""."""
    metrics, plan = values_of(reply, "metrics"), task.plan
    bound = Pipeline(tuple(part for part in plan.defenses.defenses if part.bounds_examples or part.bounds_client))
    loader: DataLoader[int] = DataLoader(range(examples), plan.batch_size)  # type: ignore[arg-type]
    try:
        training = bound.protect_training(plain_training(plan, nn.Linear(1, 1), loader, 1.0, examples), ("budget",))
    except DefenseError:  # of one that needs another model, as an own defence may
        return ""
    for _ in range(plan.local_steps or training.epochs * len(training.loader)):
        getattr(training.optimizer, "step_hook", id)(training.optimizer)  # which books the step
    for entry in bound.recorded(training.state).get("accountant", {"steps": []})["steps"]:
        entry[2] *= int(min(max(metrics.get(f"{BUDGET}steps", 1) // entry[2], 1), task.round))
        for name, value in budget_spent(bound, task, {"accountant": {"steps": [entry]}}).items():
            if not math.isclose(metrics.get(name, math.nan), value, rel_tol=0.01):
                return f"metrics: {name} is {shortened(metrics.get(name))}, expected {value:g} by the plan"
    return ""


def reported_by_most(good: Mapping[int, Message]) -> tuple[list[str], int]:
    """Names of the numbers that more than half of the clients report, and how many names are left out beside them.

    All clients of a pipeline report the same numbers. A name that one client makes up would otherwise be a row of the study, or
    the end of the round. Where most clients make up the same names, as a single client can, their length and number are bounded.
    """
    counts = Counter(name for reply in good.values() for name in values_of(reply, "metrics"))
    most = sorted(name for name in counts.keys() - COUNTED if 2 * counts[name] > len(good))
    names = [name for name in most if len(name) <= LONGEST_NAME and name.isprintable()][:MOST_REPORTED]
    return names, len(most) - len(names)


def alike(reply: Message, names: Sequence[str]) -> Message:
    """The parts of a reply to average. Flower's FedAvg ends the run where one reply holds more records or numbers than others."""
    metrics, updates = values_of(reply, "metrics"), reply.content["arrays"]
    assert isinstance(updates, ArrayRecord)
    # A number that this client alone does not report stands for none.
    numbers = {"num-examples": metrics["num-examples"]} | {name: metrics.get(name, math.nan) for name in names}
    content = RecordDict({"arrays": updates, "metrics": MetricRecord(numbers)})
    return Message(content, dst_node_id=reply.metadata.src_node_id, message_type="train")


def record_training(recorder: Recorder, task: Task, good: Mapping[int, Message]) -> list[str]:
    """Write a row for each number that most clients report, and one for the size of an update; the names of these numbers.

    Where numbers are left out, because there are too many or their names are too long, a failed row says so.
    """
    names, left_out = reported_by_most(good)
    if left_out:
        most = f"at most {MOST_REPORTED} with short names are recorded"
        why = f"train: {left_out} numbers that clients report are left out; {most}"
        recorder.row(task, metric=CLIENT.name, value=None, n=len(good), status="failed", message=why)
    for name in names:
        reported = (values_of(reply, "metrics") for reply in good.values())
        values = [float(numbers[name]) for numbers in reported if name in numbers]
        recorder.row(task, metric=name, worst=float(np.max(values)), **mean_and_interval(values))
    size = sum(delta.nbytes for delta in tensors_of(next(iter(good.values())), "arrays").values())
    recorder.row(task, metric=UPDATE_BYTES.name, value=size, n=len(good))
    return names


def record_probe(recorder: Recorder, task: Task, good: Mapping[int, Message]) -> None:
    """Write a row for the budget that clients spent with probes, where they report one."""
    spent = [values_of(reply, "metrics").get(EPSILON_WITH_PROBES.name) for reply in good.values()]
    values = [float(epsilon) for epsilon in spent if epsilon is not None]
    if values:
        recorder.row(task, metric=EPSILON_WITH_PROBES.name, worst=max(values), **mean_and_interval(values))
