"""A whole model in eval mode, and judged on a client's test examples; no Flower here."""

import functools

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.metrics.images import REFERENCES
from attacks.metrics.training import TEST_ACCURACY, TEST_LOSS
from attacks.normalisation import normalise
from attacks.placement import Placement
from clients.task.batches import CHUNK, chunks
from clients.task.local_data import LocalData
from clients.task.task import Plan, load_weights
from defenses.base import Batch
from defenses.tensors import NamedTensors, Numbers
from defenses.updates.local_statistics import statistic_layers

REPORTED = {
    f"{metric.name}-{reference}": metric.of(reference)
    for metric in (TEST_ACCURACY, TEST_LOSS)
    for reference in REFERENCES
}
"""Name in a reply's metrics -> metric and reference, of what ``evaluate`` gives beside the number of examples."""
CLEAN_ACCURACY = f"{TEST_ACCURACY.name}-original"
"""Name of the accuracy on clean test images."""


GPU = "cuda"
"""Type of the devices that torch calls a GPU here; tests name a stand-in."""


def device() -> torch.device:
    """The GPU when this process may use one, else the CPU."""
    return torch.device(GPU if torch.get_device_module(GPU).is_available() else "cpu")


def device_name() -> str:
    """Name of ``device()``, such as "NVIDIA H100" or "cpu"."""
    current = device()
    return torch.cuda.get_device_name(current) if current.type == "cuda" else current.type


def place() -> Placement:
    """Placement of the attacks of this process: the GPU if the process may use one, else the processor."""
    return Placement(device())


@functools.lru_cache(maxsize=1)
def _judged(plan: Plan) -> nn.Module:
    """The model into which evaluations load their weights: building one for each of a thousand clients takes longer."""
    return plan.build_model().to(device())


def evaluate_weights(data: LocalData, weights: NamedTensors) -> Numbers:
    """Evaluate the global weights on the local test share; where a defence keeps running averages local, with the client's own.

    ``weights`` are all parameters and floating-point buffers; ``TaskError`` where one is missing or of another shape.
    """
    model = load_weights(_judged(data.task.plan), weights)
    if data.pipeline.keeps_statistics:
        own_statistics(data, model)
    return evaluate(data, model)


def evaluate(data: LocalData, model: nn.Module) -> Numbers:
    """Accuracy and mean loss of a model (normalised images -> logits) on the local test share; the model is put into eval mode.

    Returns:
        "test-accuracy-original", "test-loss-original" and the same for "transformed" (test images protected where the
            pipeline asks for it at inference; else equal), with the digits that ``LocalData.reported`` leaves, and
            "num-examples".
    """
    model.eval()
    shown = ["original"] + ["transformed"] * data.pipeline.at_inference
    measured = {f"test-{what}-{name}": 0.0 for name in shown for what in ("accuracy", "loss")}
    for positions in chunks(data.num_test, CHUNK):
        clean = data.test_plain(positions)
        for name in shown:
            batch = clean if name == "original" else data.protected_test("test", clean, int(positions[0]))
            correct, loss = _judge(data, model, batch)
            measured[f"test-accuracy-{name}"] += correct / data.num_test
            measured[f"test-loss-{name}"] += loss / data.num_test
    for what in ("accuracy", "loss"):
        measured.setdefault(f"test-{what}-transformed", measured[f"test-{what}-original"])
    return {"num-examples": data.num_test, **{name: data.reported(value) for name, value in measured.items()}}


@torch.no_grad()
def _judge(data: LocalData, model: nn.Module, batch: Batch) -> tuple[float, float]:
    truth = batch.targets.argmax(1).to(device())
    logits = model(normalise(batch.images.to(device()), data.card))
    return float((logits.argmax(1) == truth).sum()), float(F.cross_entropy(logits, truth, reduction="sum"))


@torch.no_grad()
def own_statistics(data: LocalData, model: nn.Module) -> None:
    """Replace the running averages of ``statistic_layers`` by the mean of the statistics of a client's training batches, in place.

    Images are as the client keeps them for its training, in their order, in batches of the plan's size. The last batch may be
    smaller and counts as much as the others. Means and variances (C,) are one per channel, variances unbiased.

    Args:
        data: The client's examples; without training examples the averages become 0 and 1.
        model: Normalised images (B, C, H, W) -> logits (B, K); ends in eval mode, with the momenta that it had.

    Raises:
        ValueError: When a batch has one value per channel, such as one example before a ``BatchNorm1d`` layer: it has no variance.

    Source: Li et al., "Revisiting Batch Normalization for Practical Domain Adaptation" (AdaBN), 2016, section 3.
    """
    layers = list(statistic_layers(model).values())
    momenta = [layer.momentum for layer in layers]
    set_eval(model)
    for layer in layers:
        layer.reset_running_stats()
        layer.train()
        layer.momentum = None  # A plain mean over all calls.
    others = [layer for layer in layers if not isinstance(layer, _BatchNorm)]
    for batch, positions in enumerate(chunks(data.num_train, data.task.plan.batch_size), 1):
        for layer in others:
            layer.momentum = 1 / batch  # InstanceNorm takes None as 0; it is called once a batch.
        model(normalise(data.kept(positions).images.to(device()), data.card))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    set_eval(model)


def set_eval(model: nn.Module, *, keep_hooked: bool = False) -> None:
    """Put a model into eval mode in place: BatchNorm uses its running statistics, dropout is off.

    With ``keep_hooked``, layers with weights of their own stay in train mode, because Opacus collects gradients per example
    in no other; none of those that it knows computes anything else there.
    """
    for module in [model, *model.modules()]:
        own = next(module.parameters(recurse=False), None) is not None
        module.training = keep_hooked and own and not isinstance(module, _BatchNorm)
