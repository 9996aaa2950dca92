"""Gradient inversion of updates of any number of local steps, by the gradient at one point between the two models."""

from dataclasses import replace

import torch
from torch import Tensor

from attacks.gradient.inversion import GradientInversion, Trials
from attacks.gradient.inversion_loop import Minimum
from attacks.gradient.inversion_target import Target, Victim
from attacks.gradient.trial_gradients.finite_difference import DifferencedMatching, RecordKinks, ReplayKinks
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem, Statistics
from attacks.guesses import Reconstruction
from attacks.observations import Aggregate, AttackError, ClientUpdate, Probe, TrainingUpdate
from defenses.checks import algorithm, require
from defenses.tensors import Update

ONE_STEP = (Probe, Aggregate)
"""Observations that always have one step; a training update may have more steps than the server knows."""
ALPHA_UNIT = 0.1
"""Of alpha for one unit of its unknown: a step of the optimizer moves pixels by tenths, and alpha should move by hundredths."""
FIRST_ALPHA = 0.5
"""Where the search for alpha starts; 0 is the global model, as all other inversions have it."""


@algorithm
class SurrogateMatching(GradientInversion, observes=TrainingUpdate):
    """Match a client's whole round, from w_0 to w_T, by a gradient at one surrogate model on the line between the two.

        min over x, alpha of  D(grad_w L(w_alpha, x), w_0 - w_T) + TV(x),    w_alpha = (1 - alpha) w_0 + alpha w_T

    over all the client's images x together. The client's gradients belong to points near this line, and their sum is close to the
    gradient of some point on it. The attack needs neither the learning rate nor the number of steps, epochs or batches, and its
    cost does not depend on them. alpha is an unknown like the pixels, within [0, 1]. A one-step probe holds the gradient at w_0, so
    that alpha is 0 and the attack is plain matching. At kinks of ReLUs and maxima on the line, D jumps in alpha. The derivative
    does not see jumps, so that a descent on alpha alone may miss a lower value.

    Differs from the paper: alpha moves with the pixels' optimizer, clamped; the total variation starts strong and shrinks, as in
    ``InvertingGradients``; and 600 iterations by default, where the authors' demonstration takes 2000.

    Diagnostics: ``alpha``, that of the guess; 0 for a probe.
    """

    source = "Zhu 2023 (SME: surrogate model extension), Algorithm 1"
    threat = "global model, one update of any number of steps, its number of examples and normalisation"

    iterations: int = 600
    total_variation: float = 1e-2
    prior_decay: bool = True
    max_images: int = 50
    max_unrolled_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        # Behind the pixels there is room for one kind of unknown.
        require(self.labels != "joint", self, "labels", "auto | known | infer")
        # The mean gradient at the surrogate model is matched, whatever the number of steps.
        require(self.max_unrolled_steps == 0, self, "max_unrolled_steps", "0")
        free = tuple(name for name, cost in self.costs.items() if cost.scale_free)
        require(self.cost in free, self, "cost", " | ".join(free))

    @property
    def threat_class(self) -> str:
        """Threat model of a server that does not know how clients train."""
        return "B" if super().threat_class == "C" else super().threat_class

    @property
    def more_starts(self) -> tuple[float, ...]:
        """That of alpha."""
        return (FIRST_ALPHA / ALPHA_UNIT,)

    def _objective(self, trials: Trials, victim: Victim) -> GradientMatching:
        return SurrogateGradientMatching(self._problem(trials, victim), moves([target for target, _ in trials]))

    def _differenced(self, exact: GradientMatching) -> DifferencedMatching:
        assert isinstance(exact, SurrogateGradientMatching)
        return SurrogateDifferencedMatching(exact)

    def _bounds(self, target: Target, unknowns: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = super()._bounds(target, unknowns)
        lower[-1], upper[-1] = 0.0, 1 / ALPHA_UNIT
        return lower, upper

    def _guess(self, target: Target, victim: Victim, end: Minimum, differenced: bool) -> Reconstruction:
        guess = super()._guess(target, victim, end, differenced)
        if guess.failure:
            return guess
        at_global = isinstance(target.observation, ONE_STEP)
        alpha = 0.0 if at_global else ALPHA_UNIT * float(end.unknowns[int(end.loss.argmin()), -1])
        return replace(guess, diagnostics={**guess.diagnostics, "alpha": alpha})


def moves(owners: list[Target]) -> Update:
    """Name -> w_T - w_0 of each target, (T, *shape); 0 for updates of one step, whose gradient is that of w_0."""

    def sent(observation: ClientUpdate, like: Update) -> Update:
        if missing := sorted(set(like) - set(observation.update)):
            raise AttackError(f"the update lacks {missing[:3]}")
        if isinstance(observation, ONE_STEP):
            return {name: torch.zeros_like(value) for name, value in like.items()}
        return {name: observation.update[name].detach().to(value) for name, value in like.items()}

    deltas = [sent(owner.observation, owner.gradient) for owner in owners]
    return {name: torch.stack([delta[name] for delta in deltas]) for name in deltas[0]}


class SurrogateGradientMatching(GradientMatching):
    """The objective at the surrogate models; the last unknown of a row is alpha over ``ALPHA_UNIT``.

    ``problem`` is that of matching at the global model; ``moves`` are name -> w_T - w_0 of each trial, (T, *shape).
    """

    def __init__(self, problem: MatchingProblem, moves: Update) -> None:
        super().__init__(problem)
        self.moves = moves

    def __call__(self, unknowns: Tensor, trials: Tensor) -> tuple[Tensor, Tensor]:
        """See ``GradientMatching``."""
        known, targets, observed, smoothing = self.of_trials(trials)
        mine = {name: move[trials] for name, move in self.moves.items()}
        return self._evaluated(self._surrogate_loss, unknowns, known, targets, observed, smoothing, mine)

    def _surrogate_loss(
        self, unknowns: Tensor, known: Tensor, target: Update, observed: Statistics, smoothing: Tensor, move: Update
    ) -> Tensor:
        alpha, (images, labels) = ALPHA_UNIT * unknowns[-1], self.read(unknowns, known)
        between = {name: weight + alpha * move[name] for name, weight in self.parameters.items()}
        return self.cost.distance(self.client(between, images, labels), target) + self.priors(
            images, observed, smoothing
        )


class SurrogateDifferencedMatching(DifferencedMatching):
    """``DifferencedMatching`` at the surrogate models.

    With g(u, alpha) = grad_w L(w_alpha, u), v = dD/dg and m = w_T - w_0, the derivative by alpha is <H v, m> with the Hessian H at
    w_alpha, and H v is the same difference, of gradients by the weights: the second pass gives those, too.
    """

    # The passes are of other models than the one whose statistics are compared.
    second_pass_has_statistics = False

    def __init__(self, exact: SurrogateGradientMatching) -> None:
        super().__init__(exact)
        self._moves = torch.cat([exact.moves[name].flatten(1) for name in self._shapes], 1)

    def __call__(self, unknowns: Tensor, trials: Tensor) -> tuple[Tensor, Tensor]:
        """See ``DifferencedMatching``."""
        move = self._moves if len(trials) == len(self._moves) else self._moves[trials]
        between = self._weights + ALPHA_UNIT * unknowns[:, -1:] * move

        def at(rows: Tensor) -> tuple[Tensor, Tensor]:
            """Gradients by the unknowns and by the weights (n, P)."""
            weights = {name: part.requires_grad_() for name, part in self._named(rows.detach()).items()}
            by_unknowns, *dummy = self._gradients(weights, unknowns, known, list(weights.values()))
            return by_unknowns, torch.cat([g.flatten(1) for g in dummy], 1)

        known = self._exact.of_trials(trials)[0]
        kinks = RecordKinks()
        with kinks:
            here, dummy = at(between)
        distances, directions, step, _ = self._direction(dummy, trials, {}, {})
        with ReplayKinks(kinks.noted):
            there, moved = at(directions * step + between)
        pulls, priors = self._priors(unknowns, trials)
        gradient = (there - here) / step + pulls
        gradient[:, -1] = ALPHA_UNIT * (((moved - dummy) / step) * move).sum(1)
        return distances + priors, gradient
