"""Audit of DP-SGD by canary gradients: lower bounds of epsilon from the updates that a client sends.

The auditor knows the algorithm and chooses some of the client's records. It gives each a gradient of its choice, which is the worst
case that the bound of DP-SGD covers. It sees every update of every round, as the server does. The defence itself draws the batches,
clips, adds noise, divides and keeps the account.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from attacks.dp_audit.example_gradients import EMPTY, NO_CANARY, set_gradients
from attacks.dp_audit.verdict import ALL, Audit, CanaryPart, audited
from defenses.base import Training
from defenses.neighbours import REPLACE_ONE
from defenses.random_draws import generator_for
from defenses.training.dp_sgd import DPSGD

NUMBER = "number of examples"
"""Scores of the canary that is counted alone."""
ORDINARY = 8
"""Examples that are no canaries."""
FEATURES, HIDDEN, CLASSES = 16, 24, 8
"""Of the small network: 608 weights in four tensors."""
STEP = 1e-3
"""By how much a clipped canary moves its weight in a step: far above float32's rounding, and too little to disturb the network."""


def audit_dp_sgd(
    defense: DPSGD,
    *,
    runs: int = 16,
    rounds: int = 4,
    steps: int = 1,
    counted: int = 200,
    norm: float = 10.0,
    confidence: float = 0.95,
    seed: int = 0,
) -> Audit:
    """Bound the epsilon of a DP-SGD from below, by canaries in the training of a small network.

    In each run, every weight w has a canary, whose gradient is ``norm`` clipping norms at w and 0 elsewhere. Its coin decides
    between this gradient and its negative ("replace-one"), or whether the example exists ("add-or-remove"). Its score is the dot
    product of its direction with the sum of all updates. Coins are independent. Each tensor has bounds of its own, so that a
    fault in one of them shows.

    "add-or-remove" hides the number of examples, too. Further runs toss one coin each for an example with no gradient. The score
    is how short the updates are: a divisor that follows from the number of examples makes them shorter.

    Args:
        defense: The audited DP-SGD, or a subclass.
        runs: Trainings with canaries at all weights, at least 1.
        rounds: Rounds of a training, at least 1; the account covers them all.
        steps: Steps of a round under "replace-one", at least 1: batches are samples at the rate 1 / steps. "add-or-remove" has
            the number that follows from its sample rate.
        counted: Trainings with a counted canary under "add-or-remove", at least 1.
        norm: Of a canary's gradient in clipping norms, above 0. Above 1, missing clipping shows.
        confidence: With which both bounds of the result hold together, in (0, 1). Its error is halved between the two bounds,
            and divided among methods, parts and shares of guessed coins.
        seed: Of coins, weights and the defence's draws.

    Returns:
        The claim and the bounds.

    Raises:
        ValueError: On a number outside its range.
        AttackError: When the defence keeps no gradients per example, so that no canary can be set.
    """
    counts = {"runs": runs, "rounds": rounds, "steps": steps, "counted": counted}
    if wrong := {name: count for name, count in counts.items() if count < 1}:
        raise ValueError(f"{wrong} is not allowed; each must be 1 or more")
    if not norm > 0:
        raise ValueError(f"norm is {norm!r}; allowed: above 0")
    trainings = [_Run(defense, rounds, steps, norm, ("dp-audit", seed, run)) for run in range(runs)]
    parts = _by_part([training.canaries() for training in trainings])
    if defense.neighbours != REPLACE_ONE:
        lengths = [
            _Run(defense, rounds, 1, norm, ("dp-audit", seed, "counted", run)).counted() for run in range(counted)
        ]
        parts[NUMBER] = (torch.stack([length for length, _ in lengths]), torch.stack([coin for _, coin in lengths]))
    privacy = defense.privacy(trainings[0].state)
    judged = {name: CanaryPart(*drawn, centred=name != NUMBER) for name, drawn in parts.items()}
    return audited(judged, privacy["epsilon"], privacy["delta"], confidence)


class _Run:
    """One training of the small network, with the draws that a key names; ``state`` has its account afterwards."""

    def __init__(self, defense: DPSGD, rounds: int, steps: int, norm: float, key: tuple[Any, ...]) -> None:
        self.defense, self.rounds, self.steps, self.norm, self.key = defense, rounds, steps, norm, key
        self.state: dict[str, Any] = {}
        self.model = _network(generator_for(*key, "weights"))
        self.weights = sum(weight.numel() for weight in self.model.parameters())

    def canaries(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Scores and coins of the canaries of each tensor; the scores are centred."""
        coins = torch.rand(self.weights, generator=generator_for(*self.key, "coins")) < 0.5
        numbers = torch.arange(self.weights)
        if self.defense.neighbours == REPLACE_ONE:
            signs = torch.where(coins, 1.0, -1.0)
        else:
            signs, numbers = torch.ones(self.weights), numbers[coins]
        sizes = [weight.numel() for weight in self.model.parameters()]
        # Half of what a clipped canary adds in the expected number of steps, so that 0 lies between both coins.
        rate = self.defense.sample_rate
        middle = 0.0 if rate is None else self.rounds * round(1 / rate) * rate * min(self.norm, 1.0) / 2
        scores = torch.split(self._updates(numbers, signs) - middle, sizes)
        names = [name for name, _ in self.model.named_parameters()]
        return dict(zip(names, zip(scores, torch.split(coins, sizes), strict=True), strict=True))

    def counted(self) -> tuple[Tensor, Tensor]:
        """How short the updates are, as a scalar, and the coin of an example more."""
        coin = torch.rand((), generator=generator_for(*self.key, "coins")) < 0.5
        numbers = torch.full((int(coin),), EMPTY)
        return -self._updates(numbers, torch.ones(self.weights)).norm(), coin

    def _updates(self, numbers: Tensor, signs: Tensor) -> Tensor:
        """Sum of the gradients that all rounds sent (D,), in clipping norms; examples of ``numbers`` are canaries."""
        total = torch.zeros(self.weights, dtype=torch.float64)
        generator = generator_for(*self.key, "data")
        numbers = torch.cat([torch.full((ORDINARY,), NO_CANARY), numbers])
        images = torch.rand(len(numbers), FEATURES, generator=generator)
        targets = F.one_hot(torch.randint(CLASSES, (len(numbers),), generator=generator), CLASSES).float()
        examples = list(zip(images, targets, numbers, strict=True))
        if self.defense.sample_rate is None:
            batch = -(-len(numbers) // self.steps)
        else:
            batch = max(1, round(self.defense.sample_rate * (ORDINARY + self.weights / 2)))
        step = STEP * batch / self.defense.max_grad_norm
        values = signs * self.norm * self.defense.max_grad_norm
        for number in range(self.rounds):
            training = Training(
                model=self.model.train(),
                optimizer=torch.optim.SGD(self.model.parameters(), lr=step),
                loader=DataLoader(examples, batch_size=batch),  # type: ignore[arg-type]
                loss=lambda model, inputs, classes: F.cross_entropy(model(inputs), classes),
                epochs=1,
                total_epochs=self.rounds,
                state=self.state,
            )
            protected = self.defense.protect_training(training, generator_for(*self.key, "defense", number))
            before = _flat(self.model)
            for inputs, classes, drawn in protected.loader:
                loss = protected.loss(self.model, inputs, classes)
                protected.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                set_gradients(self.model, drawn, values[drawn.clamp(min=0)])
                protected.optimizer.step()
            total += (before - _flat(self.model)) / STEP
            self.state = protected.state
        return total


def _network(generator: torch.Generator) -> nn.Module:
    """The small network, with weights from the generator."""
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 4)
    return model


def _flat(model: nn.Module) -> Tensor:
    """All weights (D,), float64, in the order of ``parameters``."""
    return torch.cat([weight.detach().double().flatten() for weight in model.parameters()])


def _by_part(runs: list[dict[str, tuple[Tensor, Tensor]]]) -> dict[str, tuple[Tensor, Tensor]]:
    """Scores and coins of all runs, for each tensor and for all tensors together."""
    parts = {
        name: (torch.cat([run[name][0] for run in runs]), torch.cat([run[name][1] for run in runs])) for name in runs[0]
    }
    scores, coins = zip(*parts.values(), strict=True)
    return {ALL: (torch.cat(scores), torch.cat(coins)), **parts}
