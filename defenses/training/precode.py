"""PRECODE: a variational bottleneck before the last layer, whose random draws change the gradients of all earlier layers."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from defenses.base import DefenseError, Training, TrainingDefense
from defenses.checks import ScaleOrNone, Width, algorithm
from defenses.module_calls import calls_of
from defenses.random_draws import spawned


class VariationalBottleneck(nn.Module):
    """A random bottleneck: features (B, D) -> code of k values, drawn around its mean -> features (B, D).

        (mu, log sigma^2) = encoder(r),   b = mu + sigma * eps,   eps ~ N(0, I),   r' = decoder(b)

    Without the generator ``noise``, which draws eps, b is mu; so it is in evaluation, and in copies of other parties.
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


@algorithm
class Precode(TrainingDefense):
    """Insert a random ``VariationalBottleneck`` before the last fully connected layer and train it with the model.

        loss + beta * mean over examples of KL(N(mu, sigma^2) || N(0, I))

    The gradients of all layers before the bottleneck depend on a draw that the server does not know. Matching all gradients then
    finds no image that explains them. The server's model has the bottleneck too (``extended``): architecture and initial weights
    are public, the draws are not. In evaluation the model does not draw; the paper leaves this open.

    Known break (Balunovic et al., ICLR 2022, section 5): for one example, the gradient at the encoder's output equals the gradient
    of the encoder's bias, which the client sends. ``BottleneckInversion`` starts from it and matches no random gradient.

    Args:
        size: k, values of a code; the paper uses 256.
        beta: Weight of the divergence; the paper uses 0.001.
    """

    size: Width = 256
    beta: ScaleOrNone = 1e-3

    source = "Scheliga, Maeder, Seeland, PRECODE: A Generic Model Extension to Prevent Deep Gradient Leakage, WACV 2022, section 4"
    adaptive_attacks = ("BottleneckInversion",)

    def extended(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """Insert a bottleneck before the model's last ``nn.Linear``, in place, unless the model has one already."""
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
        """Let the bottleneck draw in every forward pass, from a stream of the generator, and add the divergence to the loss."""
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
    named = ((name, module) for name, module in model.named_modules() if isinstance(module, VariationalBottleneck))
    return next(named, None)


def divergence(encoded: Tensor) -> Tensor:
    """Mean over examples of KL(N(mu, sigma^2) || N(0, I)), of (B, 2k) means and logarithms of variances."""
    mean, log_variance = encoded.chunk(2, -1)
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1).mean()
