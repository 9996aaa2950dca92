"""White-box inversion of smashed data: find images that the client half maps to the received tokens."""

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from attacks.base import OWN_OBJECTIVE, Knowledge, learned_field
from attacks.descent import StepRule, minimise
from attacks.guesses import Reconstruction
from attacks.normalisation import Normalisation, normalise
from attacks.observations import AttackError
from attacks.sender import ClientHalf, key_of
from attacks.smashed.base import SmashedAttack, SmashedData
from attacks.smashed.tokens.positions import TokenReader
from attacks.smashed.tokens.training import train_reader
from defenses.base import DefenseError
from defenses.checks import Scale, Steps, algorithm
from defenses.pipeline import Pipeline


@dataclass(frozen=True)
class AssumedSender:
    """The client's sending side without noise, and in an order of tokens that the attacker assumes."""

    edge: ClientHalf
    pipeline: Pipeline
    known: Normalisation

    def features(self, images: Tensor, order: Tensor) -> Tensor:
        """Smashed data (B, N, D) of images (B, C, H, W) in [0, 1] if slots held the tokens ``order`` (B, N); differentiable."""
        return self.encode(self.edge.embed(normalise(images, self.known)), order)

    def encode(self, tokens: Tensor, order: Tensor) -> Tensor:
        """The same of embedded tokens (B, N, D)."""
        key = ("assumed",)
        noiseless = without_noise(self.pipeline)
        early = Pipeline(tuple(d for d in noiseless.smashed_defenses if d.before_blocks))
        try:
            protected = early.protect_tokens(tokens, key)
            # Shuffles gather: their own order is undone, and the assumed one takes its place.
            slots = early.token_order(tokens.shape[0], tokens.shape[1], key).flatten().argsort()[order]
            return noiseless.protect_features(self.edge.encode(protected.flatten(0, 1)[slots.to(tokens.device)]), key)
        except DefenseError as error:
            raise AttackError(str(error)) from error


def without_noise(pipeline: Pipeline) -> Pipeline:
    """Its stages on smashed data, each without its noise: what the attacker expects to see on average."""
    return Pipeline(tuple(stage.without_noise() for stage in pipeline.smashed_defenses))


@dataclass(frozen=True)
class Prepared:
    """Result of ``FeatureInversion.fit``: the clients' defences, and a reader that was trained for permutation="jigsaw"."""

    pipeline: Pipeline
    reader: TokenReader | None


@algorithm
class FeatureInversion(
    SmashedAttack[Reconstruction],
    effort={"iterations": "iterations", "reader_iterations": "training_iterations"},
    selection=OWN_OBJECTIVE,
    quick={"iterations": 12, "reader_iterations": 12},
):
    """Optimise a batch of images until the client half would send the observed smashed data for them.

        argmin_x  |F(x) - z|^2 / (numel(z) Var(z)),    F = defences, noise left out, on the edge(x)

    F follows the defences' algorithm. The order of the tokens is unknown, and ``permutation`` sets an assumption. Against shuffling
    only "oracle" is right. The client's blocks mix the tokens of one row and are inverted in the assumed order too: a wrong order
    within the image gives the right patches in wrong positions. Images start grey and are kept in [0, 1]; the client half is in
    eval mode. (The reference code uses train mode, chooses images by their true error and rescales them to [0, 1].)

    Diagnostics: ``feature_loss`` (mean squared error of the features) and ``relative_loss`` (divided by their variance; a constant
    would reach 1). If the second is far from 0, the inversion itself failed. With "jigsaw" also those of the reader.

    Attributes:
        permutation: "fixed": token n in slot n, which is the true order without shuffling. "resampled": at every step an order that
            a client could have drawn, so that x must suit all orders. "jigsaw": the order found by the solver of
            ``tokens.positions``, with a network trained on auxiliary images. "oracle": the true order, which no message
            contains: an upper bound for attacks that infer the order.
        iterations: Steps of Adam (AMSGrad), 500,000 in the reference code. The lowest objective is returned; with "resampled"
            the lowest of a single draw.
        learning_rate: Learning rate for images in [0, 1], falling to zero along a half cosine; 0.001 in the paper.
        reader_iterations: Training steps for "jigsaw".
    """

    source = (
        "He, Zhang, Lee, Model Inversion Attacks against Collaborative Inference, ACSAC 2019, Algorithm 1; "
        "Yao et al., ICDM 2022, Eq. 4 (white box)"
    )
    threat = "one transmission of smashed data; weights of the client half; the defences' algorithm"

    permutation: Literal["fixed", "resampled", "jigsaw", "oracle"] = "fixed"
    iterations: Steps = 200
    learning_rate: Scale = 0.1
    reader_iterations: Steps = 500
    learned: Prepared = learned_field()

    @property
    def needs_auxiliary(self) -> bool:
        """Whether ``permutation`` is "jigsaw"."""
        return self.permutation == "jigsaw"

    @property
    def reveals_order(self) -> bool:
        """Whether ``permutation`` is "oracle"."""
        return self.permutation == "oracle"

    def card(self) -> dict[str, int | str]:
        """Steps of the search, and with "jigsaw" of the reader's training."""
        facts = super().card()
        return facts if self.needs_auxiliary else {key: facts[key] for key in facts if key != "training_iterations"}

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Keep the defences' algorithm, and train the network that "jigsaw" needs."""
        sender = knowledge.require_sender()
        reader = None
        if self.permutation == "jigsaw":
            reader = train_reader(sender, knowledge.auxiliary.images, generator, iterations=self.reader_iterations)
        return replace(self, learned=Prepared(knowledge.pipeline, reader))

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Reconstruction:
        """Invert the first transmission."""
        features = observation.features[0]
        if not torch.isfinite(features).all():
            raise AttackError("the smashed data hold NaN or infinite values")
        order = self._order(observation)
        assumed = AssumedSender(observation.edge, self.learned.pipeline, observation)

        def objective(images: Tensor) -> Tensor:
            sent = assumed.features(images, order if order is not None else self._draw(features, generator))
            if sent.shape != features.shape:
                raise AttackError(f"smashed data have shape {tuple(features.shape)}, expected {tuple(sent.shape)}")
            return (sent - features).square().mean() / features.var().clamp_min(1e-12)

        start = features.new_full((len(features), *observation.input_shape), 0.5)
        images, _ = minimise(objective, start, self.iterations, StepRule(self.learning_rate, in_range=True))
        with torch.no_grad():
            sent = assumed.features(images, order if order is not None else self._draw(features, generator))
        loss = float((sent - features).square().mean())
        numbers = {"feature_loss": loss, "relative_loss": loss / max(float(features.var()), 1e-12)}
        if self.learned.reader is not None:
            numbers |= self.learned.reader.diagnostics
        return Reconstruction.unlabelled(images[: observation.num_targets], numbers)

    def _order(self, observation: SmashedData) -> Tensor | None:
        """The assumed order (B, N), or None where every step draws its own."""
        num_images, num_tokens = observation.features.shape[1:3]
        match self.permutation:
            case "fixed":
                return torch.arange(num_images * num_tokens).view(num_images, num_tokens)
            case "oracle":
                if observation.orders is None:
                    raise AttackError(f"{self} is an upper bound and was not given the true order")
                return observation.orders[0]
            case "jigsaw":
                assert self.learned.reader is not None
                return self.learned.reader.order(self.learned.reader(observation.features[0]))
        return None

    def _draw(self, features: Tensor, generator: torch.Generator) -> Tensor:
        return self.learned.pipeline.token_order(features.shape[0], features.shape[1], key_of(generator))
