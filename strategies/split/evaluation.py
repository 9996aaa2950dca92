"""Evaluation of a split model: clients send test images as smashed data, the server returns logits, clients count right answers."""

from collections import defaultdict

import numpy as np
import torch
from flwr.app import Message, RecordDict
from torch import Tensor, nn

from attacks.metrics.training import (
    EDGE_MACS,
    EDGE_PARAMETERS,
    EDGE_PEAK_BYTES,
    EDGE_TRAINING_MACS,
    MCC_MACRO,
    MCC_MICRO,
    TEST_ACCURACY,
    TEST_AUC,
    TEST_LOSS,
)
from attacks.scoring.objective import macro_mcc, micro_mcc, objective_of
from attacks.sender import smash
from clients.data.card import DataCard
from clients.models.split.halves import EdgeHalf, RawPatches
from clients.split.plan import SplitPlan
from clients.task.batches import chunks
from clients.task.task import Task
from clients.training.evaluation import device
from clients.training.step_cost import StepCost, measure_step
from clients.wire.records import tensors_of, to_record, values_of
from clients.wire.texts import shortened
from defenses.random_draws import generator_for
from strategies.exchange.faults import fault, like
from strategies.exchange.guard import Rows
from strategies.split.server import SplitServer

COUNTS = ("true-positives", "false-positives", "false-negatives")


def evaluate(task: Task, server: SplitServer) -> float:
    """Write rows of the test accuracy, the loss and Matthews' correlation, and return the accuracy.

    The counts of all clients are pooled before anything is divided. Test images are protected as in use; without a defence
    the same numbers stand for clean images.

    Raises:
        TooFewReplies: When too few clients take part.
    """
    contents: dict[int, RecordDict] = {}
    config = server.exchange.config(task)
    for partition, parts in _logits(task, server).items():
        contents[partition] = RecordDict({"config": config, "logits": to_record({"0": torch.cat(parts)})})
    good = server.exchange.ask(
        task, "evaluate", contents,
        lambda partition, reply: _fault_in(reply, task.plan.data_card(), server.holders[partition].num_test),
    )  # fmt: skip
    tabular, objective = task.plan.data_card().is_table, task.plan.objective
    pooled = {
        name: sum((np.asarray(values_of(reply, "metrics")[name]) for reply in good.values()), np.zeros(1))
        for name in (*COUNTS, "examples", "loss", *(["pairs"] if tabular else []))
    }
    total = int(pooled["examples"][0])
    tp, fp, fn = ([int(count) for count in pooled[name]] for name in COUNTS)
    scores = {
        TEST_ACCURACY.name: objective.accuracy(tp, fp, fn, total),
        TEST_LOSS.name: float(pooled["loss"][0]) / total,
        MCC_MICRO.name: micro_mcc(tp, fp, fn, total),
        MCC_MACRO.name: macro_mcc(tp, fp, fn, total),
    }
    if tabular and pooled["pairs"][1]:
        # Of pairs within a client: the server has no labels of test rows, and no client another's scores.
        scores[TEST_AUC.name] = float(pooled["pairs"][0] / pooled["pairs"][1])
    for reference in ("transformed",) if task.plan.defenses.at_inference else ("original", "transformed"):
        for metric, value in scores.items():
            server.auditor.recorder.row(task, metric=metric, reference=reference, value=value, n=total)
    return scores[TEST_ACCURACY.name]


def _logits(task: Task, server: SplitServer) -> dict[int, list[Tensor]]:
    """Partition -> the server half's logits of its test images, in parts; only of clients that sent all of them."""
    half, usual = server.server.eval(), task.plan.batch_size * server.batches_per_message
    edge = {"edge": to_record(server.edge)} if server.plan.trains_edge else {}
    logits: dict[int, list[Tensor]] = defaultdict(list)
    # One image that would be left alone, without company to be shuffled with, comes along.
    work = {
        partition: chunks(holder.num_test, usual) for partition, holder in server.holders.items() if holder.num_test
    }
    for at in range(max(map(len, work.values()))):
        parts = {partition: pieces[at] for partition, pieces in work.items() if at < len(pieces)}
        contents = {
            p: RecordDict({"config": server.exchange.config(task, first=int(part[0]), count=len(part)), **edge})
            for p, part in parts.items()
        }

        def fault_in(partition: int, reply: Message, parts: dict[int, Tensor] = parts) -> str:
            return fault(reply, {"0": like(len(parts[partition]), *server.token_shape)}, "features")

        good = server.exchange.ask(task, "evaluate.smash", contents, fault_in)
        for partition, reply in good.items():
            tokens = tensors_of(reply, "features")["0"]
            with torch.no_grad():
                logits[partition].append(half(tokens.to(device())).cpu())
        for partition in parts.keys() - good.keys():
            # Logits of a part of the images would be scored as if they were all.
            logits.pop(partition, None)
            del work[partition]
    return logits


def _fault_in(reply: Message, card: DataCard, examples: int) -> str:
    """Why a client's counts cannot be those of so many examples, or ""."""
    metrics = values_of(reply, "metrics")
    wanted = [*((name, card.num_classes) for name in COUNTS), ("examples", 1), ("loss", 1)]
    for name, length in [*wanted, ("pairs", 2)] if card.is_table else wanted:
        values = metrics.get(name)
        if not isinstance(values, list) or len(values) != length or not np.isfinite(values).all() or min(values) < 0:
            return f"metrics: {name} is {shortened(values)}, expected {length} numbers from 0"
    if metrics["examples"] != [examples]:
        return f"metrics: examples is {shortened(metrics['examples'])}, expected [{examples}]"
    tp, fp, fn = (metrics[name] for name in COUNTS)
    if not objective_of(card.multi_label).fits(tp, fp, fn, examples):
        return f"metrics: {', '.join(COUNTS)} are not those of {examples} examples"
    if card.is_table and not metrics["pairs"][0] <= metrics["pairs"][1] <= examples**2 / 4:
        return f"metrics: pairs is {shortened(metrics['pairs'])}, not those of {examples} examples"
    return ""


def record_costs(plan: SplitPlan, rows: Rows) -> None:
    """Rows "edge-parameters", "edge-macs", "edge-training-macs" and "edge-peak-bytes"; for shuffles the decimal logarithms
    "log10-orders" (Eq. 7 of Yao et al., ICDM 2022) and "log10-target-share" (Eq. 8 over Eq. 7).

    Multiply-accumulates are counted, per image, through the client half and its defences. Memory is that of parameters,
    gradients and activations of one image (two where images are shuffled with each other), not of a process.
    """
    task, (edge, _) = plan.at(0), plan.build_halves()
    images = 2 if any(defense.mixes_examples for defense in plan.defenses.smashed_defenses) else 1
    cost = _measure(plan, edge, images)
    costs = {
        EDGE_PARAMETERS.name: cost.parameters,
        EDGE_MACS.name: cost.macs / images,
        EDGE_TRAINING_MACS.name: cost.training_macs / images,
        EDGE_PEAK_BYTES.name: cost.peak_bytes,
    }
    for metric, value in costs.items():
        rows.row(task, metric=metric, value=float(value), n=images)
    if edge.keeps_slots:  # tokens leave in order: no order is hidden
        return
    for defense in plan.defenses.smashed_defenses:
        for metric, value in defense.hidden_orders(plan.batch_size, edge.num_tokens).items():
            rows.row(task, metric=metric, value=value)


def _measure(plan: SplitPlan, edge: EdgeHalf, images: int) -> StepCost:
    """Of one step on grey images; with what an edge-training defence trains beside the client half."""
    card, pipeline = plan.data_card(), plan.defenses
    edge.requires_grad_(plan.trains_edge)
    batch = torch.full((images, *card.input_shape), 0.5)
    defense, modules = pipeline.edge_training, list[nn.Module]([edge])
    network, patches = None, batch
    if defense is not None:
        patches = RawPatches(plan.patch_size)(batch)
        width = pipeline.widening * edge.dim
        network = defense.build_network(edge.num_tokens, width, patches.shape[2], generator_for("cost"))
        modules.append(network)

    def step() -> Tensor:
        features = smash(edge, pipeline, batch, card, ("cost",))
        if defense is None or network is None:
            return features
        return features.sum() + sum(defense.losses(network, features, patches))

    return measure_step(step, modules, trained=plan.trains_edge)
