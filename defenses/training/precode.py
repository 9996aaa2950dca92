"""PRECODE: a variational bottleneck in front of the head, whose random draws reach every gradient before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from defenses.base import DefenseError, Training, TrainingDefense
from defenses.checks import scale_field, width_field
from defenses.module_calls import calls_of
from defenses.random_draws import spawned


class VariationalBottleneck(nn.Module):
    """Features (B, D) -> code of k values, drawn around its mean -> features (B, D).

        (mu, log sigma^2) = encoder(r),   b = mu + sigma * eps,   eps ~ N(0, I),   r' = decoder(b)

    Without a generator ``noise``, where eps is drawn from, b is mu: so it is in use, and in a copy that another party holds.
    """

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, 2 * size)
        self.decoder = nn.Linear(size, features)
        self.noise: torch.Generator | None = None

    def forward(self, features: Tensor) -> Tensor:
        """Maps (B, D) to (B, D)."""
        mean, log_variance = self.encoder(features).chunk(2, -1)
        if self.noise is None:
            code: Tensor = mean
        else:
            draws = torch.randn(mean.shape, generator=self.noise, device=self.noise.device).to(mean)
            code = mean + (0.5 * log_variance).exp() * draws
        decoded: Tensor = self.decoder(code)
        return decoded


@dataclass(frozen=True, repr=False)
class Precode(TrainingDefense):
    """Inserts a ``VariationalBottleneck`` in front of the last fully connected layer, and trains it with the rest.

        loss + beta * mean over examples of KL(N(mu, sigma^2) || N(0, I))

    The gradients of all layers before the bottleneck depend on the draw, which the server does not know, so that a matching
    of all gradients has no image that explains them. The model grows by the bottleneck wherever it is built, at the server too
    (``extended``): the architecture and its first weights are public, the draws are not. Models in use do not draw.

    Known break (Balunovic et al., ICLR 2022, section 5): the gradient that arrives at the encoder's output is, for one example,
    that of the encoder's bias, which is sent. ``BottleneckInversion`` starts from it, and leaves all that is random out.

    Args:
        size: k, values of a code; the paper has 256.
        beta: Weight of the divergence; the paper has 0.001.

    Where the paper leaves open whether a model in use draws, ours does not.
    """

    size: int = width_field(256)
    beta: float = scale_field(1e-3, zero=True)

    source: ClassVar[str] = (
        "Scheliga, Maeder, Seeland, PRECODE: A Generic Model Extension to Prevent Deep Gradient Leakage, WACV 2022, section 4"
    )
    adaptive_attacks: ClassVar[tuple[str, ...]] = ("BottleneckInversion",)

    def extended(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """The model with a bottleneck in front of its last ``nn.Linear``, in place; one that has it already stays as it is."""
        if find_bottleneck(model):
            return model
        layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        if not layers or not layers[-1][0]:
            raise DefenseError(f"{self} goes in front of a model's last fully connected layer, and there is none")
        name, head = layers[-1]
        owner, _, last = name.rpartition(".")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.set_state(generator.get_state())
            bottleneck = VariationalBottleneck(head.in_features, self.size).to(head.weight)
        setattr(model.get_submodule(owner), last, nn.Sequential(bottleneck, head))
        return model

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        """Draws in every forward pass, from a stream that the generator names, and adds the divergence."""
        held = find_bottleneck(training.model)
        if held is None:
            raise DefenseError(f"{self}: the model has no variational bottleneck; build it with extended")
        bottleneck = held[1]
        bottleneck.noise = spawned(generator, bottleneck.encoder.weight.device)
        inner, beta = training.loss, self.beta

        def loss(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
            with calls_of([bottleneck.encoder]) as seen:
                value = inner(model, images, targets)
            return value + beta * divergence(seen[-1][2]) if beta else value

        return replace(training, loss=loss)


def find_bottleneck(model: nn.Module) -> tuple[str, VariationalBottleneck] | None:
    """The bottleneck of a model and its name; None where there is none."""
    named = ((name, one) for name, one in model.named_modules() if isinstance(one, VariationalBottleneck))
    return next(named, None)


def divergence(encoded: Tensor) -> Tensor:
    """Mean over examples of KL(N(mu, sigma^2) || N(0, I)), of (B, 2k) means and logarithms of variances."""
    mean, log_variance = encoded.chunk(2, -1)
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1).mean()
