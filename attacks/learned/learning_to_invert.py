"""A network that maps an update to the images that it was computed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from attacks.assignment import assigned
from attacks.attributes.update_sketch import (
    FEWEST,
    StandardiseSketches,
    UpdateReader,
    UpdateSketch,
    made_by,
    simulated,
    sketched,
)
from attacks.base import Attack, Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.image_measures import mean_psnr
from attacks.observations import AttackError, ClientUpdate
from attacks.queries.training import split_rows, train_network
from attacks.refinement.restoration import HOLDOUT
from defenses.checks import algorithm, examples_field, steps_field, width_field
from defenses.random_draws import drawing_from
from defenses.tensors import Numbers, Update

AT_A_STEP = 64
"""Simulated updates that a step of training sees."""


@algorithm
class LearningToInvert(
    Attack[ClientUpdate, Reconstruction],
    needs_auxiliary=True,
    begins_chains=True,
    learns_prior=True,
    learns_from_model=True,
    effort={"iterations": "training_iterations"},
    quick={"updates": 32, "size": 32, "hidden": 32, "iterations": 20},
):
    """Map updates to images by a perceptron, trained on updates that the server simulates with its own images.

    The server simulates updates of the attacked global model by the clients' own code, defences included, with new draws for every
    update, so that the network adapts to noise, pruning or clipping. An update has no order of images, so that the loss of a batch
    is that of the best matching,

        min over permutations pi of  mean_b |guess_b - truth_pi(b)|^2 / (C H W).

    The network's input is ``UpdateSketch``. It is trained anew for every attacked round and pipeline, because gradients depend on
    the model. Batches need many simulated updates and many auxiliary images: see the diagnostics.

    One auxiliary image in eight is held out, and one simulated update in eight uses only held-out images. Diagnostics, means in dB
    over these updates: ``holdout_psnr``; ``holdout_psnr_mean_image``, of the mean of the other images; and
    ``holdout_psnr_noise``, of the network's output for normal noise, each tensor as long as that of the update. If the first
    is not above the others, the network learned nothing from updates and is no evidence about the defence.

    Differs from the paper: tensors are projected one by one and scaled to length 1, with their lengths as further inputs (there one
    projection of the whole update); each update has one draw of the defences for all passes; fewer units and steps (the released
    LeNet runs have 3,000 units and 200 epochs of 256). No defence names it as its adaptive attack, because every pipeline and round
    costs its training; name it in the configuration to run it.

    Attributes:
        updates: Number of simulated updates, including those of held-out images.
        size: Length of the projection of a tensor; smaller tensors are kept as they are.
        hidden: Width of both hidden layers.
        iterations: Steps of Adam on 64 sketches; the learning rate falls from 1e-3 to zero along a half cosine.
    """

    source = (
        "Wu, Chen, Liu, Guo, Weinberger, Learning To Invert: Simple Adaptive Attacks for Gradient Inversion in Federated Learning, "
        "UAI 2023 (permutation-invariant loss, feature hashing)"
    )
    threat = (
        "global model, one update, its number of examples, the client's training procedure and its defences' algorithm; auxiliary "
        "images like the clients', with labels"
    )

    updates: int = examples_field(800, FEWEST)
    size: int = width_field(512)
    hidden: int = width_field(512)
    iterations: int = steps_field(1000)
    learned: UpdateReader = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Simulate updates and train the network."""
        images, place = knowledge.auxiliary.images.cpu(), knowledge.auxiliary.images.device
        kept, held = split_rows(knowledge, generator)
        count = self.updates // HOLDOUT
        sketch, sketches, truths = simulated(
            knowledge, kept, self.updates - count, self.size, images[kept].__getitem__, generator
        )
        network = self._trained(sketches.to(place), truths.to(place), generator)
        tests = list(made_by(knowledge, held, count, generator))
        scores = _judged(network, sketch, tests, images[held], images[kept].mean(0), generator)
        return replace(self, learned=UpdateReader(network, sketch, tuple(truths.shape[1:]), scores))

    def _trained(self, sketches: Tensor, truths: Tensor, generator: torch.Generator) -> nn.Module:
        with drawing_from(generator):
            network = nn.Sequential(
                StandardiseSketches(sketches),
                nn.Linear(sketches.shape[1], self.hidden), nn.ReLU(),
                nn.Linear(self.hidden, self.hidden), nn.ReLU(),
                nn.Linear(self.hidden, truths[0].numel()), nn.Sigmoid(), nn.Unflatten(1, truths.shape[1:]),
            ).to(sketches.device)  # fmt: skip

        def loss(rows: Tensor) -> Tensor:
            guess: Tensor = network(sketches[rows])
            return (guess - matched(guess, truths[rows])).square().mean()

        train_network(
            network, loss, torch.arange(len(sketches)), generator,
            iterations=self.iterations, batch_size=AT_A_STEP, learning_rate=1e-3,
        )  # fmt: skip
        return network

    def attack_one(self, observation: ClientUpdate, generator: torch.Generator) -> Reconstruction:
        """Guess the images; deterministic after ``fit``. Classes are not guessed: -1."""
        observation.require_one_step()
        shape = (observation.num_examples, *observation.input_shape)
        if shape != self.learned.shape:
            raise AttackError(f"the update's images have shape {shape}; allowed: {self.learned.shape}, as in training")
        images = self.learned(observation.update)[0]
        return Reconstruction.unlabelled(images, dict(self.learned.diagnostics))


def matched(guess: Tensor, truth: Tensor) -> Tensor:
    """The true images (M, B, C, H, W) in the order that is nearest to the guessed ones, for each batch by itself."""
    if truth.shape[1] == 1:
        return truth
    with torch.no_grad():
        order = assigned(torch.cdist(guess.flatten(2), truth.flatten(2)).square())
    return torch.stack([one[rows] for one, rows in zip(truth, order, strict=True)])


def _judged(
    network: nn.Module, sketch: UpdateSketch, tests: Sequence[tuple[Tensor, Update]], held: Tensor, mean: Tensor,
    generator: torch.Generator,
) -> Numbers:  # fmt: skip
    """PSNR on what was held out: of the network's guesses, of the mean image, and of what it makes of noise."""
    sketches, truths = sketched(sketch, tests, held.__getitem__)
    silent = torch.stack([sketch(noise_like(update, generator)) for _, update in tests])
    like = next(network.parameters())
    with torch.no_grad():
        read, nothing = (network(one.to(like)).cpu() for one in (sketches, silent))
    guesses = {"": read, "_mean_image": mean.expand_as(truths), "_noise": nothing}
    pairs = {name: (guess.flatten(0, 1), matched(guess, truths).flatten(0, 1)) for name, guess in guesses.items()}
    return {f"holdout_psnr{name}": mean_psnr(*pair) for name, pair in pairs.items()}


def noise_like(update: Update, generator: torch.Generator) -> Update:
    """Normal noise in place of an update, each tensor as long as before: what a guess that reads nothing is made from."""
    noise = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in update.items()}
    return {
        name: (noise[name] * (tensor.detach().float().cpu().norm() / noise[name].norm().clamp(min=1e-12))).to(tensor)
        for name, tensor in update.items()
    }
