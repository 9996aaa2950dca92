"""Training a whole model by stochastic gradient descent: the same steps at a client, and at a server that holds the images."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from attacks.normalisation import normalise
from clients.data.card import DataCard
from clients.task.task import Plan
from clients.training.evaluation import device
from defenses.base import Batch, Training
from defenses.pipeline import Pipeline
from defenses.random_draws import Key
from defenses.tensors import NamedTensors, Tensors, Update


def soft_cross_entropy(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy between the model's logits and soft targets (B, K)."""
    return F.cross_entropy(model(images), targets)


def plain_training(
    plan: Plan, model: nn.Module, loader: DataLoader[Any], learning_rate: float, num_examples: int
) -> Training:
    """A round of training, with ``num_examples`` in a pass, before any training defence changes it.

    ``loader`` yields images in [0, 1] and soft targets; the model is put into train mode.
    """
    return Training(
        model=model.train(),
        optimizer=torch.optim.SGD(
            model.parameters(), lr=learning_rate, momentum=plan.momentum, weight_decay=plan.weight_decay, nesterov=plan.nesterov
        ),
        loader=loader,
        loss=soft_cross_entropy,
        epochs=plan.passes(num_examples),
        total_epochs=plan.passes(num_examples, in_all_rounds=True),
        total_steps=plan.rounds * plan.local_steps or None,  # None where passes are counted
    )  # fmt: skip


def batches(training: Training, local_steps: int) -> Iterator[tuple[Tensor, ...]]:
    """The batches of all passes; at most ``local_steps`` of them, unless that is 0."""
    passes = itertools.chain.from_iterable(training.loader for _ in range(training.epochs))
    return itertools.islice(passes, local_steps or None)


def train_on(
    training: Training,
    drawn: Iterable[tuple[Tensor, ...]],
    card: DataCard,
    *,
    enter: Callable[[Batch, int], Batch] = lambda batch, _: batch,
    protect: Callable[[int], None] = lambda _: None,
) -> tuple[float, int]:
    """Take a step for each batch of images (B, C, H, W) in [0, 1] and soft targets (B, K); one without examples is a step as
    well.

    ``enter`` maps a batch and the number of the step to what enters the model, ``protect`` changes the gradient of a step in
    place. Returns the mean loss per example, and the number of steps.
    """
    total, seen, step = 0.0, 0, 0
    for images, targets in drawn:
        batch = Batch(images, targets)
        if len(batch):
            batch = enter(batch, step)
        loss = training.loss(training.model, normalise(batch.images.to(device()), card), batch.targets.to(device()))
        training.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        protect(step)
        training.optimizer.step()
        total, seen, step = total + float(loss.detach()) * len(batch), seen + len(batch), step + 1
    return total / max(seen, 1), step


def protect_gradient(pipeline: Pipeline, model: nn.Module, key: Key) -> None:
    """Apply the defences per step in place: the optimizer sees nothing else."""
    held = {name: weight for name, weight in model.named_parameters() if weight.grad is not None}
    gradient = {name: weight.grad for name, weight in held.items() if weight.grad is not None}
    for name, protected in pipeline.protect_gradient(gradient, key).items():
        held[name].grad = protected


def protect_update(pipeline: Pipeline, model: nn.Module, update: Update, key: Key) -> Update:
    """Apply the defences per update to all that a client sends, except for what must not move.

    The difference 0 is sent, without clipping and noise, for:

    - a frozen parameter (``requires_grad`` is False) that did not move;
    - any frozen parameter under a bound for clients or examples, or beside a defence per step. It may follow the data without a
      gradient (a moving average, a codebook). A defence per step never sees it. A difference that is always 0 reveals nothing, and
      noise on it would only make a frozen network drift.
    - every buffer under a bound for examples, which covers gradients alone.

    Defences per update protect all else, frozen parameters that moved included.
    """
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    if any(defense.bounds_examples for defense in pipeline.defenses):
        fixed = frozen | {name for name, _ in model.named_buffers()}
    elif any(defense.bounds_client or defense.per == "step" for defense in pipeline.update_defenses):
        fixed = frozen
    else:
        fixed = {name for name in frozen & update.keys() if not update[name].any()}
    protected = pipeline.protect_update({name: tensor for name, tensor in update.items() if name not in fixed}, key)
    return {name: torch.zeros_like(tensor) if name in fixed else protected[name] for name, tensor in update.items()}


def flat_state(optimizers: Sequence[torch.optim.Optimizer]) -> Tensors:
    """State of optimizers, as CPU tensors under "OPTIMIZER/PARAMETER/NAME"; empty before the first step."""
    return {
        f"{which}/{at}/{name}": value.detach().cpu().clone()
        for which, optimizer in enumerate(optimizers)
        for at, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def load_flat_state(optimizers: Sequence[torch.optim.Optimizer], flat: NamedTensors) -> None:
    """Restore optimizers from the result of ``flat_state``."""
    for which, optimizer in enumerate(optimizers):
        state: dict[int, Tensors] = {}
        for path, value in flat.items():
            owner, at, name = path.split("/")
            if int(owner) == which:
                # An optimizer takes tensors as they are and steps them in place; what is given stays the caller's.
                state.setdefault(int(at), {})[name] = value.clone()
        if state:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
