"""The objective of many inversions: how well dummy images explain an observed gradient, evaluated in one call.

A *trial* is one start of one target. Its unknowns are one row of a matrix (T, D): the pixels of its b dummy images, normalised as
the model wants them, and, where labels are unknown, b * K label logits behind them. Rows never influence each other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, replace_all_batch_norm_modules_, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.gradient.costs import Cost
from attacks.gradient.trial_gradients.local_steps import LocalSGD, local_orders, logits_of, simulated_training
from attacks.image_measures import total_variation
from attacks.observations import AttackError, ClientUpdate
from defenses.tensors import ImageShape, Update

Client = Callable[[Update, Tensor, Tensor], Update]
"""(global weights, normalised images (b, C, H, W), soft labels (b, K)) -> what a client with these would send, as a gradient."""


Statistics = dict[str, tuple[Tensor, Tensor]]
"""Layer name -> (mean, variance) over a batch of what enters it, one value per channel; biased, as BatchNorm normalises."""


def attackable(model: nn.Module, train_mode: bool) -> nn.Module:
    """Copy a model in eval mode; its BatchNorm uses batch statistics if the client's did, and no buffer ever changes.

    Dropout stays off, because the server does not know the client's masks.
    """
    private = copy.deepcopy(model).eval()
    if train_mode:
        # Without running statistics a layer in eval mode normalises by its batch.
        replace_all_batch_norm_modules_(private)
    return private


def count_classes(model: nn.Module, input_shape: ImageShape, like: Tensor) -> int:
    """Number of logits per image of a model from ``attackable``."""
    with torch.no_grad():
        # Two images: a batch statistic of one 1 x 1 feature map is undefined.
        return int(model(like.new_zeros(2, *input_shape)).shape[-1])


def unrolled_client(model: nn.Module, observation: ClientUpdate) -> Client:
    """The local training of a client as a function of its images, for updates of several steps.

    It returns -update / (learning_rate * step_length * local_steps) - weight_decay * w, which is how ``ClientUpdate.gradient``
    reads what was sent, so that costs, priors and their scales mean the same as for one step.

    The client's order of examples is unknown. One fixed guess serves all trials (``local_orders`` from the seed 0): the first epoch
    takes the dummy images as they come, which loses nothing where they can be exchanged, and a later one is right by luck only.

    ``model`` is from ``attackable``, and the learning rate of ``observation`` is a number.

    Source: Dimitrov et al., "Data Leakage in Federated Averaging", 2022, section 4, without its prior on the epochs' order.
    """
    sgd, seed = LocalSGD.of(observation), torch.Generator().manual_seed(0)
    order = local_orders(observation.num_examples, observation.batch_size, observation.local_steps, seed)
    travelled = -sgd.learning_rate * observation.step_length * observation.local_steps
    network = logits_of(model, dict(model.named_buffers()))

    def client(weights: Update, images: Tensor, labels: Tensor) -> Update:
        sent = simulated_training(network, weights, images, labels, order, sgd)
        return {name: sent[name] / travelled - sgd.weight_decay * weight for name, weight in weights.items()}

    return client


@dataclass(frozen=True, eq=False)
class MatchingProblem:
    """The network, the trials and the terms of an objective that compares gradients.

    Attributes:
        model: From ``attackable``; left as it is.
        batch_shape: (b, C, H, W) of one trial's dummy images.
        num_classes: K.
        targets: Parameter name -> (T, *shape), the observed gradient of each trial's target; frozen parameters are left out.
        labels: (T, b) int64, or None: then the unknowns hold label logits, and the soft labels are their softmax.
        cost: D, the distance of gradients.
        total_variation: Weight of the image prior.
        client: What to match instead of the gradient of the loss, see ``unrolled_client``; or None.
        prior: P, a function of one trial's images and its ``observed``; or None.
        observed: The statistics (T, C) that P reads; empty where none are matched.
    """

    model: nn.Module
    batch_shape: tuple[int, int, int, int]
    num_classes: int
    targets: Update
    labels: Tensor | None
    cost: Cost
    total_variation: float
    client: Client | None = None
    prior: Callable[[Tensor, Statistics], Tensor] | None = None
    observed: Statistics = field(default_factory=dict)


class GradientMatching:
    """The objective of Zhu et al. 2019, Eq. 3, and Geiping et al. 2020, Eq. 4, for any number of trials in one call.

        L(x, y) = D(grad_w loss(model_w(x), y), g) + total_variation * TV(x) + P(x)

    with D a ``Cost``, loss the mean cross-entropy with soft labels, TV the mean over the dummy images, and P another prior, if any.
    The model's weights are shared by all trials; images, labels and observed gradients are batched (``torch.func.vmap``).
    """

    def __init__(self, problem: MatchingProblem) -> None:
        self.model = problem.model
        self.batch_shape = problem.batch_shape
        self.num_classes = problem.num_classes
        self.cost = problem.cost
        self.client = problem.client or grad(self._training_loss)
        self.prior = problem.prior
        self.observed = problem.observed
        self.targets = problem.targets
        like = next(iter(self.targets.values()))
        self.smoothing = like.new_full((len(like),), problem.total_variation)
        self.smooth = problem.total_variation != 0
        self.labels = None if problem.labels is None else F.one_hot(problem.labels, self.num_classes).to(like)
        # The others are frozen, and constants of the model.
        self.parameters = {name: p.detach() for name, p in self.model.named_parameters() if name in self.targets}
        self.buffers = dict(self.model.named_buffers())

    def __call__(self, unknowns: Tensor, trials: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (n,) and their gradients (n, D) at ``unknowns`` (n, D), whose rows belong to ``trials`` (n,), ascending."""
        return self._evaluated(self._loss, unknowns, *self.of_trials(trials))

    @staticmethod
    def _evaluated(loss: Callable[..., Tensor], unknowns: Tensor, *others: object) -> tuple[Tensor, Tensor]:
        """Losses and gradients by the unknowns of ``loss``, called with one trial's row of everything."""
        # The fused attention kernels have no second derivative.
        try:
            with sdpa_kernel(SDPBackend.MATH):
                gradients, losses = vmap(grad_and_value(loss), randomness="same")(unknowns, *others)
        except RuntimeError as error:
            if "derivative for" not in str(error):
                raise
            raise AttackError(
                f"the model cannot be differentiated twice, as gradient matching needs: {error}"
            ) from error
        return losses.detach(), gradients.detach()

    def with_prior(self, weight: float | Tensor) -> GradientMatching:
        """The same objective with another weight of the image prior, for all trials or (T,) for each."""
        other = copy.copy(self)
        other.smoothing = torch.as_tensor(weight).to(self.smoothing).expand_as(self.smoothing)
        other.smooth = bool(other.smoothing.any())
        return other

    def from_zero(self) -> Tensor:
        """Distance (T,) of each trial's target from a gradient of zero: the unit in which a prior weighs the same for all."""

        def distance(target: Update) -> Tensor:
            return self.cost.distance({name: torch.zeros_like(value) for name, value in target.items()}, target)

        return vmap(distance)(self.targets)

    def of_trials(self, trials: Tensor) -> tuple[Tensor, Update, Statistics, Tensor]:
        """Select some trials: soft labels (n, b, K), or (n, 0) if unknown; targets; the prior's input; weights of smoothness."""
        targets, known, observed, smoothing = self.targets, self.labels, self.observed, self.smoothing
        if known is None:
            known = next(iter(targets.values())).new_empty(len(next(iter(targets.values()))), 0)
        if len(trials) < len(known):
            targets, known = {name: t[trials] for name, t in targets.items()}, known[trials]
            observed = {name: (mean[trials], variance[trials]) for name, (mean, variance) in observed.items()}
            smoothing = smoothing[trials]
        return known, targets, observed, smoothing

    def read(self, unknowns: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Split unknowns (..., D) into images (..., b, C, H, W) and soft labels (..., b, K)."""
        pixels = torch.Size(self.batch_shape).numel()
        images = unknowns[..., :pixels].reshape(*unknowns.shape[:-1], *self.batch_shape)
        if self.labels is not None:
            return images, known
        return images, unknowns[..., pixels:].reshape(*unknowns.shape[:-1], -1, self.num_classes).softmax(-1)

    def priors(self, images: Tensor, observed: Statistics, smoothing: Tensor) -> Tensor:
        """Prior terms of the objective for the images (b, C, H, W) of one trial and its weight."""
        return self.smoothness(images, smoothing) + self.other_prior(images, observed)

    def smoothness(self, images: Tensor, smoothing: Tensor) -> Tensor:
        """Weighted total variation of one trial's images."""
        return smoothing * total_variation(images).mean() if self.smooth else images.new_zeros(())

    def other_prior(self, images: Tensor, observed: Statistics) -> Tensor:
        """P of one trial's images."""
        return images.new_zeros(()) if self.prior is None else self.prior(images, observed)

    def _loss(self, unknowns: Tensor, known: Tensor, target: Update, observed: Statistics, smoothing: Tensor) -> Tensor:
        images, labels = self.read(unknowns, known)
        dummy = self.client(self.parameters, images, labels)
        return self.cost.distance(dummy, target) + self.priors(images, observed, smoothing)

    def _training_loss(self, parameters: Update, images: Tensor, labels: Tensor) -> Tensor:
        logits = functional_call(self.model, (parameters, self.buffers), (images,))
        return -(labels * F.log_softmax(logits, 1)).sum(1).mean()
