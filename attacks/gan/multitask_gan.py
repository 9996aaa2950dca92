"""mGAN-AI: a GAN whose discriminator shares the victim's network and also separates the victim's data from other clients'."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Knowledge, learned_field
from attacks.descent import step_down
from attacks.gan.representative_attack import RepresentativeAttack, Rounds, usable_rounds
from attacks.gradient.labels import last_linear
from attacks.gradient.presets import InvertingGradients
from attacks.guesses import Representatives
from attacks.networks.generator import ImageGenerator
from attacks.normalisation import normalise
from attacks.observations import AttackError, ClientUpdate, UpdateHistory
from defenses.base import Batch, Numbers
from defenses.checks import scale_field, steps_field
from defenses.module_calls import calls_of


@dataclass(frozen=True, repr=False)
class MultitaskGAN(RepresentativeAttack):
    """Train a GAN with three discriminators: real or generated image, class, and this client or another (mGAN-AI).

        min_D  -log r(x) - log(1 - r(x~)) + identity [ -log i(v) - log(1 - i(o)) ]
        min_G  -log r(x~) - category log p_w(c | x~) - identity log i(x~),      x~ = G(z, c)

    x are auxiliary images, v representatives of the victim, o auxiliary images and representatives of the other clients. Judges r
    and i are heads on one trunk, everything before the last ``nn.Linear`` of the received model; p_w is the received model itself.
    In every round the trunk and p_w are set to the model of that round; the heads and the generator go on.

    Differs from the paper (Eq. 1-4): the frozen received model judges the class, so that information about classes comes from the
    client; auxiliary labels are not used. The identity is this client or any other, not a class per client.
    Representatives come from ``InvertingGradients`` on the oldest usable update; the paper matches every update with L-BFGS.
    After several local steps they are poor. Real images are auxiliary ones, which the generator learns to imitate: compare the
    guesses with the auxiliary mean of each class.

    Attributes:
        category: Weight of the class.
        identity: Weight of the identity; 0 leaves the representatives out.
        representative_iterations: Of the gradient inversion that makes the representatives.
        learned: Auxiliary images; set by ``fit``.
    """

    source = "Wang 2019 (mGAN-AI), section IV, passive"
    threat = "global models and updates of all clients over the rounds, normalisation; auxiliary images"
    needs_auxiliary = True
    reads_steps = True
    effort = {"iterations": "iterations", "representative_iterations": "iterations"}
    quick = {**RepresentativeAttack.quick, "representative_iterations": 5}

    iterations: int = 150
    category: float = scale_field(1.0, zero=True)
    identity: float = scale_field(0.1, zero=True)
    representative_iterations: int = steps_field(50)
    learned: Batch | None = learned_field()

    def card(self) -> dict[str, int | str]:
        """Steps of the generator, and of the inversion of each client's update that it begins with."""
        return {"iterations": f"{self.iterations}, behind {self.representative_iterations} of an inversion"}

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> MultitaskGAN:
        """The same attack, which now holds the auxiliary images; nothing is trained before an update is there."""
        if len(knowledge.auxiliary) < 2:
            raise AttackError(f"{self} needs at least 2 auxiliary images, there are {len(knowledge.auxiliary)}")
        return replace(self, learned=knowledge.auxiliary)

    def attack_many(
        self, observations: Sequence[UpdateHistory], generators: Sequence[torch.Generator]
    ) -> list[Representatives]:
        """Draws ``images_per_class`` images of every class for each client; the other observations are the other clients."""
        self.check_fitted()
        known = self._representatives(observations, generators) if self.identity else [None] * len(observations)
        guesses = []
        for at, (history, generator) in enumerate(zip(observations, generators, strict=True)):
            others = [images for i, images in enumerate(known) if i != at and images is not None]
            try:
                guesses.append(self._represent(history, generator, partial(self._train, own=known[at], others=others)))
            except AttackError as error:
                guesses.append(self.failed(history, str(error)))
        return guesses

    def _representatives(
        self, observations: Sequence[UpdateHistory], generators: Sequence[torch.Generator]
    ) -> list[Tensor | None]:
        """Images (R, C, H, W) in [0, 1] whose gradient resembles each client's oldest usable update; None where that fails."""
        oldest: dict[int, ClientUpdate] = {}
        for at, history in enumerate(observations):
            try:
                oldest[at] = usable_rounds(history)[0][0]
            except AttackError:
                continue  # the guess holds the reason
        inversion = InvertingGradients(iterations=self.representative_iterations)
        guesses = inversion.attack_many(list(oldest.values()), [generators[at] for at in oldest])
        found = dict(zip(oldest, guesses, strict=True))
        return [found[at].images if at in found and not found[at].failure else None for at in range(len(observations))]

    def _train(
        self,
        network: ImageGenerator,
        rounds: Rounds,
        count: int,
        generator: torch.Generator,
        own: Tensor | None,
        others: list[Tensor],
    ) -> Numbers:
        """Plays the game over all rounds, with representatives of this client and of the others, (R, C, H, W) in [0, 1]."""
        last, model = rounds[-1]
        assert self.learned is not None
        public = self.learned.images.to(next(model.parameters()))
        if tuple(public.shape[1:]) != last.input_shape:
            raise AttackError(f"auxiliary images are {tuple(public.shape[1:])}, the client's {last.input_shape}")
        others = [images for images in others if images.shape[1:] == public.shape[1:]]
        judge = _Discriminator(model, generator)
        game = _Game(self, network, judge, public, own, others)
        per_round = [len(part) for part in torch.arange(self.iterations).tensor_split(len(rounds))]
        for (observation, received), steps in zip(rounds, per_round, strict=True):
            judge.take_over(received)
            for _ in range(steps):
                classes = torch.randint(count, (self.batch_size,), generator=generator)
                game.step(observation, received, classes.to(public.device), generator)
        return game.losses | {"representatives": 0.0 if own is None else float(len(own))}


class _Discriminator(nn.Module):
    """The trunk of a received model, trainable, with a head for real (column 0) and one for the victim (column 1)."""

    def __init__(self, model: nn.Module, generator: torch.Generator) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).eval()
        layer = last_linear(self.model)[1]
        with torch.random.fork_rng(devices=[]):
            heads = nn.Linear(layer.in_features, 2)
        seed = int(torch.randint(2**62, (1,), generator=generator))
        nn.init.normal_(heads.weight, std=0.02, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(heads.bias)
        self.heads = heads.to(layer.weight)

    def take_over(self, received: nn.Module) -> None:
        """Sets the trunk to that of a received model; its own last layer has no part in the heads and is not trained."""
        self.model.load_state_dict(received.state_dict())
        self.model.requires_grad_(True)
        last_linear(self.model)[1].requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) -> two logits (B, 2)."""
        with calls_of([last_linear(self.model)[1]]) as calls:
            self.model(images)
        # A transformer may apply its last layer to every token; their mean has the meaning of one feature vector.
        features = calls[-1][1]
        logits: Tensor = self.heads(features if features.dim() == 2 else features.flatten(1, -2).mean(1))
        return logits


class _Game:
    """Discriminator and generator with their optimizers, and the images that they play with."""

    def __init__(
        self,
        attack: MultitaskGAN,
        network: ImageGenerator,
        judge: _Discriminator,
        public: Tensor,
        own: Tensor | None,
        others: list[Tensor],
    ) -> None:
        self.attack, self.network, self.judge = attack, network, judge
        self.public = public
        self.own = None if own is None else own.to(public)
        # Not the victim: the public images of the step, and as many of other clients where there are any.
        self.others = torch.cat(others).to(public) if others else public
        self.optimizers = [
            torch.optim.Adam(part.parameters(), attack.learning_rate, betas=(0.5, 0.999)) for part in (judge, network)
        ]
        self.losses: Numbers = {}

    def step(self, observation: ClientUpdate, received: nn.Module, classes: Tensor, generator: torch.Generator) -> None:
        """One step of the discriminator, then one of the generator on the same noise."""
        images = self.network.draw(classes, generator)
        judged = self._judge_loss(observation, images.detach(), generator)
        step_down(self.optimizers[0], judged)
        fake = normalise(images, observation)
        logits = self.judge(fake)
        fooled = _says(logits[:, 0], True)
        loss = fooled + self.attack.category * F.cross_entropy(received(fake), classes)
        if self.own is not None:
            loss = loss + self.attack.identity * _says(logits[:, 1], True)
        step_down(self.optimizers[1], loss)
        self.losses = {"discriminator_loss": judged.item(), "generator_loss": loss.item()}

    def _judge_loss(self, observation: ClientUpdate, images: Tensor, generator: torch.Generator) -> Tensor:
        size = len(images)
        real = self.judge(normalise(_some(self.public, size, generator), observation))
        loss = _says(real[:, 0], True) + _says(self.judge(normalise(images, observation))[:, 0], False)
        if self.own is not None:
            victim = self.judge(normalise(_some(self.own, size, generator), observation))
            others = self.judge(normalise(_some(self.others, size, generator), observation))
            foreign = torch.cat([real[:, 1], others[:, 1]])
            loss = loss + self.attack.identity * (_says(victim[:, 1], True) + _says(foreign, False))
        return loss


def _says(logits: Tensor, truth: bool) -> Tensor:
    """Binary cross-entropy when all answers are the same."""
    return F.softplus(-logits if truth else logits).mean()


def _some(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` random images, with replacement."""
    return images[torch.randint(len(images), (count,), generator=generator).to(images.device)]
