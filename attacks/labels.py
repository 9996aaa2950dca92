"""Labels from the gradient of the last fully connected layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.base import Attack, AttackError, ClientUpdate, Labels
from attacks.gradient_matching import attackable, count_classes
from defenses.base import Update
from defenses.checks import is_whole, require


@dataclass(frozen=True, repr=False)
class LabelInference(Attack[ClientUpdate, Labels]):
    """The classes of a batch, from signs and sizes of the last layer's gradient; see ``infer_labels``.

    Attributes:
        max_labels: At most this many of the ``num_examples`` labels are guessed, the surest first.

    Source: Zhao, Mopuri, Bilen, "iDLG: Improved Deep Leakage from Gradients", 2020, Eq. 3-6 (one example); Wainakh et al.,
    "User-Level Label Leakage from Gradients in Federated Learning" (LLG), 2022, Algorithm 1 (more examples).
    """

    source: ClassVar[str] = "Zhao 2020 (iDLG), Eq. 3-6; Wainakh 2022 (LLG), Algorithm 1"
    threat: ClassVar[str] = (
        "global model, one update, its number of examples and learning rate; no labels, no auxiliary data"
    )

    max_labels: int = 1024

    def __post_init__(self) -> None:
        require(is_whole(self.max_labels) and self.max_labels >= 1, self, "max_labels", "a whole number of at least 1")

    def attack_many(self, observations: Sequence[ClientUpdate], generators: Sequence[torch.Generator]) -> list[Labels]:
        """Guesses ``num_examples`` classes per observation; nothing is random. A refused update gives the classes -1."""
        return [self._attack(observation) for observation, _ in zip(observations, generators, strict=True)]

    def _attack(self, observation: ClientUpdate) -> Labels:
        count = min(observation.num_examples, self.max_labels)
        try:
            gradient = observation.gradient()
            like = next(iter(gradient.values()))
            model = attackable(observation.model, train_mode=False)
            classes = count_classes(model, observation.input_shape, like)
            guess = infer_labels(gradient, observation.model, observation.num_examples, classes)[:count]
        except AttackError as error:
            return Labels(torch.full((max(count, 0),), -1), failure=str(error))
        return Labels(guess.sort().values)


def infer_labels(gradient: Update, model: nn.Module, batch: int, num_classes: int | None = None) -> Tensor:
    """Guesses the classes of a batch from the mean gradient of cross-entropy, the surest first.

    For logits W a + b and probabilities p, row i of the gradient is the mean over examples of (p_i - [y = i]) a, so

        row_i = p_i a - (count_i / batch) a     if all examples had the same features a and probabilities p.

    A row points against the features only if its class is present. The rows are projected on u, an estimate of a: all ones
    without a bias, as in iDLG (the features are assumed to be non-negative, as after ReLU or sigmoid); with a bias, whose gradient
    db_i is p_i - count_i / batch exactly, the least-squares solution of row_i = db_i a, with the bias itself as one more feature.
    This also covers features whose sum is zero (LayerNorm) or negative. One example: the smallest projection is its class (iDLG).
    More: every class with a negative projection is taken once, most negative first; then, again and again, the class whose
    projection is smallest after each label taken has raised its own by ``impact``, the share of one example (LLG).

    Args:
        gradient: Parameter name -> mean gradient over the batch.
        model: Whose parameters these are.
        batch: Number of examples.
        num_classes: Width of the layer to look for; None accepts the last fully connected layer of any width.

    Returns:
        (batch,) int64 on the CPU.

    Raises:
        AttackError: When the model has no such layer or its gradient is zero.

    Differs from LLG: with a bias the impact is 1 / batch, which is exact; LLG's estimate (1 + 1/K) / batch * sum of the negative
    projections serves only without one.
    """
    name, layer = last_linear(model, num_classes)
    weight = gradient[f"{name}.weight".lstrip(".")].double().cpu()
    if layer.bias is not None:
        bias = gradient[f"{name}.bias".lstrip(".")].double().cpu()
        rows = torch.cat([weight, bias[:, None]], 1)
        features = rows.T @ bias / bias.square().sum().clamp(min=1e-300)
        signal = rows @ features / features.square().sum().clamp(min=1e-300)
        impact = torch.tensor(1.0 / batch, dtype=torch.float64)
    else:
        signal = weight.sum(1)
        impact = -signal.clamp(max=0).sum() * (1 + 1 / len(signal)) / batch
    if not signal.any():
        raise AttackError(
            f"the gradient of the last fully connected layer {name!r} is zero; it says nothing about labels"
        )
    present = [int(i) for i in signal.argsort() if signal[i] < 0][:batch]
    signal[present] += impact
    while len(present) < batch:
        present.append(int(signal.argmin()))
        signal[present[-1]] += impact
    return torch.tensor(present)


def last_linear(model: nn.Module, num_classes: int | None = None) -> tuple[str, nn.Linear]:
    """The last ``nn.Linear`` in order of definition (of that width, if given) and its name.

    Raises:
        AttackError: When there is none.
    """
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and num_classes in (None, module.out_features)
    ]
    if not found:
        width = "" if num_classes is None else f" with {num_classes} outputs"
        raise AttackError(f"labels are read from the last nn.Linear{width}, and {type(model).__name__} has none")
    return found[-1]
