"""What attacks share that learn to invert smashed data: auxiliary transmissions, the training, the held-out score, the guess."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from attacks.base import Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.image_measures import holdout_scores
from attacks.networks.decoder import Layout
from attacks.observations import AttackError
from attacks.refinement.restoration import kept_and_held
from attacks.sender import Sender
from attacks.smashed.base import SmashedAttack, SmashedData, check_features
from defenses.checks import Scale, Several, Steps, Width, algorithm, require
from defenses.tensors import Numbers, Shape, TensorMap

Pool = TensorMap
"""Transmissions (R, B, N, D) of the same images -> inputs of the network (B, N, D')."""
Draw = Callable[[], tuple[Tensor, Tensor]]
"""Draws inputs of the network (B, N, D') and the clean images (B, C, H, W) that belong to them."""


@dataclass(frozen=True)
class LearnedDecoder:
    """What ``fit`` learned.

    Attributes:
        network: Inputs (B, N, D') -> images (B, C, H, W) in [0, 1]; in eval mode, where it learned.
        pool: Makes the network's inputs of transmissions (R, B, N, D).
        token_shape: (N, D) of what is sent.
        diagnostics: See ``DecoderAttack``.
    """

    network: nn.Module
    pool: Pool
    token_shape: Shape
    diagnostics: Numbers


@algorithm
class DecoderAttack(
    SmashedAttack[Reconstruction],
    needs_auxiliary=True,
    effort={"iterations": "training_iterations"},
    quick={"iterations": 12, "width": 16, "batch_size": 8},
):
    """Base of attacks that train a network on (smashed data, clean image) pairs of auxiliary images.

    A subclass defines the pooling of several transmissions to one input (``pool_of``), and the network and training (``train``).
    One auxiliary image in eight is held out of the training; the diagnostics of every guess are ``holdout_psnr``, the mean in dB
    over these, and ``holdout_psnr_mean_image``, the value for guessing the mean of the other images. If the first is not above the
    second, the network is no evidence about the defence.

    Attributes:
        iterations: Steps of the optimizer.
        width: Of the network.
        batch_size: Auxiliary images per step, and per transmission, even; also the group that a defence mixes.
        learning_rate: The largest.
    """

    threat = "smashed data; the client half as a black box; the defences' algorithm; auxiliary images like the clients'"

    iterations: Steps = 600
    width: Width = 64
    batch_size: Several = 32
    learning_rate: Scale = 1e-3
    learned: LearnedDecoder = learned_field()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.batch_size % 2 == 0, self, "batch_size", "an even number")

    def pool_of(self, sender: Sender, images: Tensor, generator: torch.Generator) -> Pool:
        """How the ``transmissions`` of the same images become one input; by default the first transmission alone."""
        return operator.itemgetter(0)

    def draws(self, sender: Sender, images: Tensor, pool: Pool, generator: torch.Generator) -> Draw:
        """Training pairs of auxiliary images; by default every batch is sent afresh."""

        def draw() -> tuple[Tensor, Tensor]:
            clean = images[torch.randperm(len(images), generator=generator)[: self.batch_size].to(images.device)]
            return pool(sender.send(clean, generator).unsqueeze(0)), clean

        return draw

    def train(self, sender: Sender, draw: Draw, layout: Layout, generator: torch.Generator) -> nn.Module:
        """Trains a new network on what ``draw`` draws."""
        raise NotImplementedError

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Trains the network."""
        sender, images = knowledge.require_sender(), knowledge.auxiliary.images
        device = next(sender.edge.parameters()).device
        rows = kept_and_held(len(images), generator)
        kept, held = (images[some.to(images.device)].detach().float().to(device) for some in rows)
        pool = self.pool_of(sender, kept, generator)
        draw = self.draws(sender, kept, pool, generator)
        layout = Layout(sender.edge.grid, sender.edge.patch_size, kept.shape[1])
        network = self.train(sender, draw, layout, generator).eval().requires_grad_(False)
        sent = independent_transmissions(sender, held, self.transmissions, self.batch_size, generator)
        with torch.no_grad():
            guess = network(pool(sent))
        scores = holdout_scores(guess, held, kept)
        return replace(self, learned=LearnedDecoder(network, pool, tuple(sent.shape[2:]), scores))

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Reconstruction:
        """Decodes the target images."""
        if (there := len(observation.features)) < self.transmissions:
            raise AttackError(
                f"{self} needs the {self.transmissions} transmissions that it was fitted for, there are {there}; "
                f"fit limited_to({there})"
            )
        network = self.learned.network
        features = observation.features[: self.transmissions, : observation.num_targets].detach().float()
        features = features.to(next(network.parameters()).device)
        check_features(features, self.learned.token_shape)
        with torch.no_grad():
            images = network(self.learned.pool(features))
        return Reconstruction.unlabelled(images, dict(self.learned.diagnostics))


def mean_of_transmissions(features: Tensor) -> Tensor:
    """(R, B, N, D) -> (B, N, D), slot by slot."""
    return features.mean(0)


def tells_slots(sender: Sender, images: Tensor, generator: torch.Generator) -> bool:
    """Whether the clients' defences leave tokens where they are, as the attacker sees when it sends images of its own."""
    order = sender.send_with_order(images, generator)[1]
    return torch.equal(order.flatten(), torch.arange(order.numel()))


def independent_transmissions(
    sender: Sender, images: Tensor, transmissions: int, batch_size: int, generator: torch.Generator
) -> Tensor:
    """Sends images (n, C, H, W), 2 or more, several times, each time beside other images: (R, n, N, D).

    Half a batch stays together in every transmission, as the targets of an observation do; the other half is another such group,
    drawn anew. Each group thereby is the rest of the other's batch, and nothing that was sent is thrown away.
    """
    half = min(batch_size // 2, len(images) // 2)
    groups = torch.arange(len(images), device=images.device).tensor_split(-(-len(images) // half))
    rounds = []
    for _ in range(transmissions):
        order = torch.randperm(len(groups), generator=generator).tolist()
        sent: dict[int, Tensor] = {}
        # With an odd number of groups, one lends itself twice and its second transmission is not kept.
        for first, second in zip(order[::2], order[1::2] + order[:1], strict=False):
            rows = torch.cat([groups[first], groups[second]])
            parts = sender.send(images[rows], generator).tensor_split([len(groups[first])])
            sent = dict(zip((first, second), parts, strict=True)) | sent
        rounds.append(torch.cat([sent[number] for number in range(len(groups))]))
    return torch.stack(rounds)
