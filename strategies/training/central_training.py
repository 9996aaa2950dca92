"""A server's training of a whole model, on what clients uploaded or on images of its own."""

import time
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from attacks.local_model import shared_tensors
from clients.task.batches import chunks, join
from clients.task.task import Task, WholeModelPlan, load_weights
from clients.training.evaluation import device
from clients.training.sgd import batches, flat_state, load_flat_state, plain_training, train_on
from defenses.base import Batch, TrainingDefense
from defenses.random_draws import Key, generator_for
from defenses.tensors import Tensors, on_cpu, part_of, under

MODEL, OPTIMIZER = "model/", "optimizer/"
"""Prefixes of what a checkpoint keeps."""


class DivergedError(RuntimeError):
    """Training whose weights are no longer finite."""


class CentralTraining:
    """One model, trained round by round on images in [0, 1] and class probabilities; the order of examples starts at ``key``."""

    def __init__(self, plan: WholeModelPlan, examples: Batch, key: Key) -> None:
        self.plan, self.examples, self.key = plan, examples, key
        self.model = plan.build_model().to(device())
        training = plain_training(plan, self.model, self._loader(0), plan.learning_rate, len(examples))
        self.training = plan.defenses.protect_training(training, (*key, "training"))
        # A training defence that brings its own optimizer brings its learning rate as well.
        self._decays = not any(isinstance(defense, TrainingDefense) for defense in plan.defenses.defenses)

    def run_round(self, task: Task) -> tuple[float, float]:
        """Train for a round; returns the mean loss per example and the seconds. ``DivergedError`` for weights not finite."""
        start = time.perf_counter()
        self.training.model.train()
        if self._decays:
            for group in self.training.optimizer.param_groups:
                group["lr"] = task.learning_rate
        drawn = batches(replace(self.training, loader=self._loader(task.round)), self.plan.local_steps)
        loss, _ = train_on(self.training, drawn, self.plan.data_card())
        if bad := [name for name, tensor in self.weights().items() if not torch.isfinite(tensor).all()]:
            raise DivergedError(
                f"round {task.round}: training diverged, {bad[0]!r} is not finite; lower learning-rate (now {task.learning_rate:g})"
            )
        return loss, time.perf_counter() - start

    def _loader(self, server_round: int) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(
            TensorDataset(self.examples.images, self.examples.targets),
            batch_size=self.plan.batch_size,
            shuffle=True,
            generator=generator_for(*self.key, "order", server_round),
        )

    def weights(self) -> Tensors:
        """Weights of the model, on the CPU."""
        return on_cpu(shared_tensors(self.model))

    def tensors(self) -> Tensors:
        """State that a later round depends on, under flat names."""
        return under(MODEL, self.weights()) | under(OPTIMIZER, flat_state([self.training.optimizer]))

    def restore(self, tensors: Tensors) -> None:
        """Resume from the output of ``tensors``; other names are ignored."""
        load_weights(self.model, part_of(tensors, MODEL))
        load_flat_state([self.training.optimizer], part_of(tensors, OPTIMIZER))


def train_alone(plan: WholeModelPlan, batch: Batch, seed: int) -> nn.Module:
    """Train a model on the server's own examples as on uploads, with the clients' input defences; in eval mode.

    Weights, protection and training follow from ``seed``; the run's own seeds are not touched.
    """
    own_seed = int(torch.randint(2**31, (), generator=generator_for("alone", plan.seed, seed)))
    alone, pipeline, key = replace(plan, seed=own_seed), plan.defenses, ("alone", own_seed)
    pieces = []
    for at, positions in enumerate(chunks(len(batch), plan.batch_size)):
        piece = Batch(batch.images[positions], batch.targets[positions])
        pieces.append(pipeline.protect_batch(pipeline.protect_once(piece, (*key, at)), (*key, at)))
    training = CentralTraining(alone, join(pieces), key)
    for server_round in range(1, plan.rounds + 1):
        training.run_round(alone.at(server_round))
    return training.model.eval()
