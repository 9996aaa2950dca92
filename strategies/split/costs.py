"""The client's cost of split learning, and the number of orders that its shuffles leave open."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attacks.metrics.training import EDGE_MACS, EDGE_PARAMETERS, EDGE_PEAK_BYTES, EDGE_TRAINING_MACS
from attacks.sender import smash
from clients.models.split.halves import EdgeHalf, RawPatches
from clients.split.plan import SplitPlan
from clients.training.step_cost import StepCost, measure_step
from defenses.random_draws import generator_for
from strategies.exchange.guard import Rows


def record_costs(plan: SplitPlan, rows: Rows) -> None:
    """Rows "edge-parameters", "edge-macs", "edge-training-macs" and "edge-peak-bytes"; for shuffles the decimal logarithms
    "log10-orders" (Eq. 7 of Yao et al., ICDM 2022) and "log10-target-share" (Eq. 8 over Eq. 7).

    Multiply-accumulates are counted, per image, through the client half and its defences. Memory is that of parameters,
    gradients and activations of one image (two where images are shuffled with each other), not of a process.
    """
    task, (edge, _) = plan.at(0), plan.build_halves()
    images = 2 if any(defense.mixes_examples for defense in plan.defenses().smashed_defenses) else 1
    cost = _measure(plan, edge, images)
    found = {
        EDGE_PARAMETERS.name: cost.parameters,
        EDGE_MACS.name: cost.macs / images,
        EDGE_TRAINING_MACS.name: cost.training_macs / images,
        EDGE_PEAK_BYTES.name: cost.peak_bytes,
    }
    for metric, value in found.items():
        rows.row(task, metric=metric, value=float(value), n=images)
    if edge.keeps_slots:  # tokens leave in order: no order is hidden
        return
    for defense in plan.defenses().smashed_defenses:
        for metric, value in defense.hidden_orders(plan.batch_size, edge.num_tokens).items():
            rows.row(task, metric=metric, value=value)


def _measure(plan: SplitPlan, edge: EdgeHalf, images: int) -> StepCost:
    """Of one step on grey images; with what an edge-training defence trains beside the client half."""
    card, pipeline = plan.data_card(), plan.defenses()
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
