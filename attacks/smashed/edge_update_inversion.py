"""Inversion of the update of a trained client half, which clients of SplitFed send besides the smashed data."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.base import OWN_OBJECTIVE, Knowledge, learned_field
from attacks.descent import StepRule, minimise
from attacks.guesses import Reconstruction
from attacks.observations import AttackError, ClientUpdate
from attacks.smashed.base import EdgeStep, SmashedAttack, SmashedData
from attacks.smashed.feature_inversion import AssumedSender
from attacks.smashed.tokens.positions import images_of_patches, patches_of_tokens
from defenses.checks import Steps, algorithm
from defenses.pipeline import Pipeline
from defenses.tensors import Tensors, Update

LEARNING_RATE = 0.1
"""For images in [0, 1]."""


@algorithm
class EdgeUpdateInversion(
    SmashedAttack[Reconstruction],
    needs_step=True,
    effort={"iterations": "iterations"},
    selection=OWN_OBJECTIVE,
    quick={"iterations": 12},
):
    """Find images that explain both the client half's update and the smashed data.

    The server returned g, the gradient of the loss with respect to the smashed data F(x). The client's gradient is therefore that
    of <F(x), g> with respect to the client half's weights w, and its observed value is -update / learning_rate - weight_decay * w.

    If F is only a patch embedding, the gradient of its weight is G^T X, with rows of G (M, D) and X (M, P) for the M = B N sent
    tokens and their patches: linear equations for X. The attack takes the solution nearest to the patches in the smashed data. With
    M <= D and independent rows of G the solution is unique, and noise on the smashed data does not protect.
    Otherwise the attack matches both by Adam,

        argmin_x  1 - cos(grad_w <F(x), g>, observed) + |F(x) - z|^2 / (numel(z) Var(z)).

    F follows the defences' algorithm without noise, with tokens in the sent order: a shuffle is not undone, and the images are
    puzzles of the right patches.

    Diagnostics: ``gradient_distance``, 1 - cos at the result; ``closed_form``, 1 where equations were solved.

    Attributes:
        iterations: Steps of Adam.
    """

    source = "Zhu 2019 (DLG) and Geiping 2020 (Inverting Gradients), Eq. 4, with the loss that split learning hands to the server"
    threat = (
        "one transmission of smashed data, the gradient returned for it, and the client half's one-step update; its weights, "
        "learning rate and defences' algorithm"
    )

    iterations: Steps = 200
    learned: Pipeline = learned_field()

    def card(self) -> dict[str, int | str]:
        """Steps of the search; the equations of a linear client half are solved without one."""
        return super().card() | {"iterations": f"at most {self.iterations}"}

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Keep the defences' algorithm."""
        return replace(self, learned=knowledge.require_sender().pipeline)

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Reconstruction:
        """Invert the first transmission with its step."""
        if observation.step is None:
            raise AttackError("the client half is not trained: there is no update to attack")
        step, features = observation.step, observation.features[0]
        if step.gradient.shape != features.shape or not torch.isfinite(step.gradient).all():
            raise AttackError(f"the returned gradient does not fit smashed data of shape {tuple(features.shape)}")
        problem = GradientProblem.of(observation, step, self.learned)
        # Two ways to the same images; the equations need a client half that is an embedding and nothing else.
        linear = problem.is_linear()
        images = problem.solve() if linear else self._search(problem)
        numbers = {"gradient_distance": float(problem.distance(images).detach()), "closed_form": float(linear)}
        return Reconstruction.unlabelled(images[: observation.num_targets], numbers)

    def _search(self, problem: GradientProblem) -> Tensor:
        features = problem.observation.features[0]
        scale = 1 / features.var().clamp_min(1e-12)

        def objective(images: Tensor) -> Tensor:
            sent = problem.sent(images)
            return problem.distance(images, sent) + scale * (sent - features).square().mean()

        start = features.new_full((len(features), *problem.observation.input_shape), 0.5)
        return minimise(objective, start, self.iterations, StepRule(LEARNING_RATE, in_range=True))[0]


@dataclass(frozen=True)
class GradientProblem:
    """The client half's gradient as a function of the images.

    The weights of the ``assumed`` sending side need gradients. ``returned`` (B, N, D) is the gradient with respect to the smashed
    data, and ``gradient`` the observed one of the ``weights``.
    """

    observation: SmashedData
    assumed: AssumedSender
    weights: Tensors
    returned: Tensor
    gradient: Update

    @classmethod
    def of(cls, observation: SmashedData, step: EdgeStep, pipeline: Pipeline) -> GradientProblem:
        """Raises: AttackError when the update does not fit the weights of the client half."""
        edge = copy.deepcopy(observation.edge)
        assert isinstance(edge, nn.Module)
        edge.requires_grad_()
        update = ClientUpdate(
            edge,
            step.update,
            observation.input_shape,
            observation.mean,
            observation.std,
            num_examples=len(step.gradient),
            batch_size=len(step.gradient),
            local_steps=1,
            learning_rate=step.learning_rate,
            weight_decay=step.weight_decay,
        )
        assumed = AssumedSender(edge, pipeline, observation)
        returned = step.gradient.to(observation.features)
        return cls(observation, assumed, dict(edge.named_parameters()), returned, update.gradient())

    def _order(self) -> Tensor:
        batch, num_tokens = self.returned.shape[:2]
        return torch.arange(batch * num_tokens).view(batch, num_tokens)

    def sent(self, images: Tensor) -> Tensor:
        """Smashed data (B, N, D), tokens in order."""
        # Fused attention has no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            features = self.assumed.features(images, self._order())
        if features.shape != self.returned.shape:
            raise AttackError(f"smashed data have shape {tuple(self.returned.shape)}, expected {tuple(features.shape)}")
        return features

    def distance(self, images: Tensor, sent: Tensor | None = None) -> Tensor:
        """1 - cosine of the images' gradient and the observed one, in [0, 2]; differentiable."""
        loss = ((self.sent(images) if sent is None else sent) * self.returned).sum()
        gradients = torch.autograd.grad(loss, list(self.weights.values()), create_graph=True, materialize_grads=True)
        ours = torch.cat([gradient.flatten() for gradient in gradients])
        theirs = torch.cat([self.gradient[name].flatten() for name in self.weights])
        return 1 - nn.functional.cosine_similarity(ours, theirs, dim=0)

    def is_linear(self) -> bool:
        """Whether smashed data are the embedded tokens, up to noise and order."""
        tokens = torch.randn(self.returned.shape, generator=torch.Generator().manual_seed(0)).to(self.returned)
        embedded = self.assumed.edge.embed(tokens.new_zeros(1, *self.observation.input_shape))
        if embedded.shape[-1] != tokens.shape[-1] or self._weight_name() is None:
            return False
        with torch.no_grad():
            return torch.equal(self.assumed.encode(100 * tokens, self._order()), 100 * tokens)

    def _weight_name(self) -> str | None:
        """The weight of the patch embedding, the only one of (D, P) numbers."""
        channels, dim = self.observation.input_shape[0], self.returned.shape[-1]
        length = channels * self.assumed.edge.patch_size**2
        fits = [
            name for name, weight in self.weights.items() if weight.shape[0] == dim and weight.numel() == dim * length
        ]
        return fits[0] if len(fits) == 1 else None

    def solve(self) -> Tensor:
        """The images (B, C, H, W) in [0, 1] next to what the smashed data show whose gradient is the observed one."""
        seen, name = self.observation, self._weight_name()
        assert name is not None
        shown = patches_of_tokens(seen.features[0], seen.edge, seen.input_shape)
        flat, tokens = shown.flatten(0, 1).double(), self.returned.flatten(0, 1).double()
        missing = self.gradient[name].flatten(1).double() - tokens.T @ flat
        # Directions that rounding alone determines are left as the smashed data show them.
        flat = flat + torch.linalg.pinv(tokens.T, rtol=1e-5) @ missing
        return images_of_patches(flat.to(shown).view_as(shown), seen.edge, seen.input_shape, seen)
