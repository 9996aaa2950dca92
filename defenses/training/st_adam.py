"""ST-Adam: Adam without bias correction, as an optimizer and as the training defence that puts it in place."""

from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from defenses.base import Training, TrainingDefense
from defenses.checks import BelowOne, Scale, algorithm


class STAdamOptimizer(Optimizer):
    """Stable adaptive moment estimation.

        m <- beta m + (1 - beta) g,   v <- gamma v + (1 - gamma) g^2,   w <- w - lr m / (sqrt(v) + eps)

    A step is (1 - beta^t) / sqrt(1 - gamma^t) times Adam's (for small eps): 3.16 times at t = 1, at most 6.57 times, at
    t = 12, and equal in the limit. The paper says "we added weight decay" and no more; here there is none.
    """

    def __init__(
        self, params: ParamsT, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step on every parameter that has a gradient; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_parameter(parameter, group)
        return loss

    def _step_parameter(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        if gradient is None or gradient.is_sparse:
            raise RuntimeError("STAdamOptimizer does not support sparse gradients")
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
            state["second_moment"] = torch.zeros_like(parameter)
        beta, gamma = group["betas"]
        momentum = state["momentum"].lerp_(gradient, 1 - beta)
        second_moment = state["second_moment"].mul_(gamma).addcmul_(gradient, gradient, value=1 - gamma)
        parameter.addcdiv_(momentum, second_moment.sqrt().add_(group["eps"]), value=-group["lr"])


@algorithm
class STAdam(TrainingDefense):
    """Train with ST-Adam (Adam without bias correction) instead of the client's optimizer.

    Part of VisualMixer, whose shuffled images make gradients fluctuate; on its own it protects nothing. The moments
    start at zero in every round of federated learning, because clients keep no optimizer between rounds. In the outsourced
    scenario the server trains and keeps them.

    Args:
        learning_rate: Step size; the paper gives none, and the client's own, made for SGD, would be far too large.
        beta: Decay of the first moment.
        gamma: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        bias_correction: Divide both moments by what they lack at the start: Adam, which the paper compares with.
    """

    learning_rate: Scale = 1e-3
    beta: BelowOne = 0.9
    gamma: BelowOne = 0.999
    epsilon: Scale = 1e-8
    bias_correction: bool = False

    source = "Li et al., You Can Use But Cannot Recognize (VisualMixer), NDSS 2024, IV-E"
    replaces_optimizer = True

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        """Replaces the optimizer by one over the same parameters in the same groups."""
        kind = torch.optim.Adam if self.bias_correction else STAdamOptimizer
        optimizer = kind(
            [{"params": group["params"]} for group in training.optimizer.param_groups],
            lr=self.learning_rate,
            betas=(self.beta, self.gamma),
            eps=self.epsilon,
        )
        return replace(training, optimizer=optimizer)
