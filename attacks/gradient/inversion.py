"""Gradient inversion: find images whose gradient matches the one that the client sent."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from attacks.base import OWN_OBJECTIVE
from attacks.gradient.inversion_loop import Minimum, Stage, agreement, first_order, step_decay_stages
from attacks.gradient.inversion_target import Target, TargetPreparation, Victim
from attacks.gradient.lbfgs import STEP_ITERATIONS, minimize, walk
from attacks.gradient.trial_gradients.batch_statistics import StatisticsPrior
from attacks.gradient.trial_gradients.finite_difference import DifferencedMatching, agrees, full_precision
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem, unrolled_client
from attacks.gradient.trial_gradients.memory import fitting_trials, in_chunks
from attacks.guesses import Reconstruction
from attacks.normalisation import denormalise, normalise
from attacks.observations import AttackError, ClientUpdate
from defenses.checks import Examples, Scale, ScaleOrNone, Starts, Steps, StepsOrNone, algorithm, require

Trials = Sequence[tuple[Target, int]]
"""Targets, and which of their restarts."""
Minimiser = Literal["adam", "sgd", "lbfgs"]
LabelSource = Literal["auto", "known", "infer", "joint"]
SecondOrder = Literal["auto", "exact"]


@algorithm
class GradientInversion(
    TargetPreparation,
    begins_chains=True,
    effort={"iterations": "iterations", "restarts": "restarts"},
    selection=OWN_OBJECTIVE,
    quick={"iterations": 40, "restarts": 1},
):
    """Optimise dummy images until their gradient matches the observed gradient.

        argmin_x  D(grad_w loss(model_w(x), y), g) + total_variation * TV(x)

    All targets and restarts advance together (``attacks.gradient.trial_gradients.matching``). The attack returns the iterate and
    restart with the lowest value of this objective; the true images play no part in the choice.

    For an update of several local steps, the attack matches the update that a client would send for the dummy images, if there is
    one image per example and few steps (``unrolled_client``); otherwise the mean gradient. The division of labels into batches is
    unknown: the first restart assigns labels in the known order, or ascending if inferred, and later restarts at random. A wrong
    assignment can be worse than the mean gradient, so that several restarts help; labels="joint" needs no assignment.

    A learning rate that the server does not know is estimated (``estimate_learning_rate``) with labels as below (inferred for
    "joint"). If the estimate fails, costs that ignore the scale (cosines) work without it; the other costs fail.

    Diagnostics that explain a failure: "labels_inferred" (1 if labels were not known) and "clipped_share" (pixels of the result at
    0 or 1). "masked_share" counts entries sent as exactly zero, or treated as pruned. "restart_agreement" is the share of restarts
    with an objective within 5 % of the lowest. "learning_rate" stands where it was estimated, "unrolled" is 1 if local steps were.
    "batch_norm_layers" is the number with matched statistics, and "normalised_by_sent" of layers that sent ones normalised at
    first. "differenced" is 1 if no second derivative was taken.

    Attributes:
        costs: Name -> D; a subclass adds its own by ``{**COSTS, "name": Cost(distance)}``.
        cost: D: "cosine" over the concatenated gradient, "masked-cosine" over its non-zero entries, "l2" (sum of squares),
            "l1" (sum of absolute differences), or another in ``costs``.
        optimizer: "adam", "sgd" (Nesterov momentum 0.9) or "lbfgs".
        signed: The optimizer sees only the sign of the gradient.
        learning_rate: Step size in normalised pixels; for L-BFGS with a line search, the first step tried.
        iterations: Evaluations of the objective per restart; of L-BFGS without a line search, steps of up to 20 evaluations
            each, as ``torch.optim.LBFGS`` and the papers that use it count.
        restarts: Independent starts per observation.
        total_variation: Weight of the image prior: mean |dx| + mean |dy| of the normalised images.
        boxed: Clamp to the normalised [0, 1] after every step (of L-BFGS without a line search, after its up to 20 iterations); the
            result is clamped in any case.
        labels: "known", "infer" (``infer_labels``), "auto" (known if the server has them, else inferred) or "joint" (soft labels
            are unknowns too, as in DLG).
        init: "randn" (standard normal in normalised pixels) or "black" (0).
        step_decay: Adam and SGD: step size x 0.1 after 3/8, 5/8 and 7/8 of the iterations.
        prior_decay: Adam and SGD with ``step_decay``: the weight of the prior shrinks with the step size, so that the prior guides
            the start and hardly biases the result.
        line_search: L-BFGS: weak Wolfe line search instead of a fixed step.
        max_images: Largest number of recovered images; if the update covers more, their labels are spread over the sorted labels.
        chunk: Most trials (targets x restarts) in memory at once, halved when memory runs out. Changes only the speed.
        max_unrolled_steps: Most local steps to unroll, as memory grows with them; 0 always matches the mean gradient.
        batch_norm_prior: Weight of ``statistics_distance`` between the dummy images' batch statistics and the client's, if an
            update of one step reveals these (``sent_statistics``); otherwise "batch_norm_layers" is 0.
        normalise_by: How BatchNorm normalises the dummy images before the first decay of the step size: "batch" by their own
            statistics, "sent" by the client's. "sent" needs ``batch_norm_prior``, ``step_decay`` and a finite
            difference, and skips layers with a sent variance of 0 or less. "normalised_by_sent" shows whether it had an effect.
        second_order: "auto": a finite difference (``DifferencedMatching``), which is faster, if it agrees with the second
            derivative at the first start. "exact": always the second derivative.
    """

    source = "Zhu 2019 (DLG), Algorithm 1; Geiping 2020 (Inverting Gradients), Eq. 4"
    threat = "global model, one update, its number of examples, learning rate and normalisation; no auxiliary data"

    cost: str = "cosine"
    optimizer: Minimiser = "adam"
    signed: bool = True
    learning_rate: Scale = 0.1
    iterations: Steps = 1000
    restarts: Starts = 1
    total_variation: ScaleOrNone = 1e-4
    boxed: bool = True
    labels: LabelSource = "auto"
    init: Literal["randn", "black"] = "randn"
    step_decay: bool = True
    prior_decay: bool = False
    line_search: bool = False
    max_images: Examples = 8
    chunk: Examples = 32
    max_unrolled_steps: StepsOrNone = 16
    batch_norm_prior: ScaleOrNone = 0.0
    normalise_by: Literal["batch", "sent"] = "batch"
    second_order: SecondOrder = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(isinstance(self.cost, str) and self.cost in self.costs, self, "cost", " | ".join(self.costs))
        # Fields that make sense together only.
        decays = self.optimizer != "lbfgs" and self.step_decay
        require(decays or not self.prior_decay, self, "prior_decay", "False, unless adam or sgd run with step_decay")
        searchable = self.optimizer == "lbfgs" and not self.signed
        require(searchable or not self.line_search, self, "line_search", "False, unless lbfgs sees unsigned gradients")
        varied = self.init == "randn" or self.labels == "joint"
        require(
            varied or self.restarts == 1, self, "restarts", f"1 with init={self.init!r}, whose starts are all equal"
        )

    def card(self) -> dict[str, int | str]:
        """Evaluations of the objective, or steps of several, from each start."""
        several = self.optimizer == "lbfgs" and not self.line_search
        steps = {"iterations": f"{self.iterations} steps of up to {STEP_ITERATIONS} evaluations"} if several else {}
        return super().card() | steps

    def attack_many(
        self, observations: Sequence[ClientUpdate], generators: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Attack all observations together; one that cannot be attacked becomes a failed guess without effect on the others."""
        guesses: dict[int, Reconstruction] = {}
        victims: dict[tuple[int, bool], Victim] = {}
        groups: dict[tuple[object, ...], list[Target]] = {}
        for index, (observation, generator) in enumerate(zip(observations, generators, strict=True)):
            try:
                model = (id(observation.model), observation.train_mode)
                victims[model] = victims.get(model) or Victim.of(observation)
                target = self.prepare(index, observation, victims[model], generator)
            except AttackError as error:
                guesses[index] = self._failure(observation, str(error))
                continue
            groups.setdefault(target.alike, []).append(target)
        for targets in groups.values():
            first = targets[0].observation
            try:
                with full_precision():
                    guesses.update(self._invert(targets, victims[id(first.model), first.train_mode]))
            except AttackError as error:
                guesses.update({target.index: self._failure(target.observation, str(error)) for target in targets})
        return [guesses[index] for index in range(len(observations))]

    def _invert(self, targets: list[Target], victim: Victim) -> dict[int, Reconstruction]:
        """Attacks targets whose unknowns have the same shape and meaning."""
        trials = [(target, restart) for target in targets for restart in range(self.restarts)]
        fitting = fitting_trials(victim.model, targets[0].observation.input_shape, targets[0].batch_shape[0])
        # Two, because a forward pass that mixes the images of a batch does no harm to one.
        differenced = all(in_chunks(lambda first: self._differences(first, victim), trials[:2], 2))
        if self.normalise_by == "sent":
            layers = 0
            if differenced and self.optimizer != "lbfgs":
                first = self._stages(self._differenced(self._objective(trials[:1], victim)))[0].objective
                layers = len(first.constants) if isinstance(first, DifferencedMatching) else 0
            sent = {"normalised_by_sent": float(layers)}
            targets = [replace(target, diagnostics=target.diagnostics | sent) for target in targets]
        parts = in_chunks(lambda some: self._minimize(some, victim, differenced), trials, min(self.chunk, fitting))
        unknowns, loss, evaluations = (torch.split(torch.cat(rows), self.restarts) for rows in zip(*parts, strict=True))
        return {
            target.index: self._guess(target, victim, Minimum(*outcome), differenced)
            for target, *outcome in zip(targets, unknowns, loss, evaluations, strict=True)
        }

    def _differences(self, trials: Trials, victim: Victim) -> bool:
        """Whether differences may stand for second derivatives, by one evaluation of both at the starts of these trials.

        Their times are not measured: a choice that depended on them would make runs of the same seed differ.
        """
        if self.second_order == "exact" or trials[0][0].unrolled:
            return False
        starts = torch.stack([target.starts[restart] for target, restart in trials])
        starts = starts.clamp(*self._bounds(trials[0][0], starts[0]))
        return agrees(self._objective(trials, victim), starts, self._differenced)

    def _differenced(self, exact: GradientMatching) -> DifferencedMatching:
        """What may stand for the objective where differences serve."""
        return DifferencedMatching(exact)

    def _objective(self, trials: Trials, victim: Victim) -> GradientMatching:
        return GradientMatching(self._problem(trials, victim))

    def _problem(self, trials: Trials, victim: Victim) -> MatchingProblem:
        owners, first, labels = [target for target, _ in trials], trials[0][0], None
        if self.labels != "joint":
            labels = torch.stack([target.labels[at] for target, at in trials if target.labels is not None])
        return MatchingProblem(
            victim.model,
            first.batch_shape,
            victim.num_classes,
            {name: torch.stack([owner.gradient[name] for owner in owners]) for name in first.gradient},
            None if labels is None else labels.to(first.starts.device),
            self.costs[self.cost],
            self.total_variation,
            unrolled_client(victim.model, first.observation) if first.unrolled else None,
            StatisticsPrior(victim.model, self.batch_norm_prior) if first.statistics else None,
            {
                name: (
                    torch.stack([owner.statistics[name][0] for owner in owners]),
                    torch.stack([owner.statistics[name][1] for owner in owners]),
                )
                for name in first.statistics
            },
        )

    def _minimize(self, trials: Trials, victim: Victim, differenced: bool) -> Minimum:
        exact = self._objective(trials, victim)
        objective = self._differenced(exact) if differenced else exact
        starts = torch.stack([target.starts[restart] for target, restart in trials])
        bounds = self._bounds(trials[0][0], starts[0])
        rate, steps = self.learning_rate, self.iterations
        if self.optimizer == "lbfgs" and self.line_search:
            return minimize(objective, starts, bounds, steps, rate)
        if self.optimizer == "lbfgs":
            return walk(objective, starts, bounds, steps, rate, self.signed)
        return first_order(self._stages(objective), starts, bounds, self.optimizer, self.signed)

    def _stages(self, objective: GradientMatching | DifferencedMatching) -> list[Stage]:
        if not self.step_decay:
            return [Stage(objective, self.learning_rate, self.iterations)]
        objectives = [objective] * 4
        if self.prior_decay:
            objectives = [objective.with_prior(self.total_variation * 0.1**i) for i in range(4)]
        first = objectives[0]
        if self.normalise_by == "sent" and isinstance(first, DifferencedMatching):
            objectives[0] = first.normalised()
        return step_decay_stages(objectives, self.learning_rate, self.iterations)

    def _bounds(self, target: Target, unknowns: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = torch.full_like(unknowns, -torch.inf), torch.full_like(unknowns, torch.inf)
        if self.boxed:
            pixels = torch.Size(target.batch_shape).numel()
            for bound, level in ((lower, 0.0), (upper, 1.0)):
                bound[:pixels] = normalise(unknowns.new_full(target.batch_shape, level), target.observation).flatten()
        return lower, upper

    def _guess(self, target: Target, victim: Victim, end: Minimum, differenced: bool) -> Reconstruction:
        """The restart with the lowest objective, as images in [0, 1]."""
        failed = ~end.loss.isfinite()
        norm = float(sum(value.double().square().sum() for value in target.gradient.values())) ** 0.5
        chosen = int(end.loss.argmin())
        diagnostics = {
            "objective": float(end.loss[chosen]),
            "restart": float(chosen),
            "failed_restarts": float(failed.sum()),
            "evaluations": float(end.evaluations.sum()),
            "gradient_norm": norm,
            "restart_agreement": float(agreement(end.loss)),
            "differenced": float(differenced),
            **target.diagnostics,
        }
        if failed.all():
            reason = f"the objective became NaN or infinite in all {self.restarts} restarts"
            return self._failure(target.observation, reason, diagnostics)
        best = end.unknowns[chosen].cpu()
        pixels = torch.Size(target.batch_shape).numel()
        labels = None if target.labels is None else target.labels[chosen]
        labels = best[pixels:].view(-1, victim.num_classes).argmax(1) if labels is None else labels
        images = denormalise(best[:pixels].view(target.batch_shape), target.observation).clamp(0, 1)
        # Undoing the normalisation rounds.
        diagnostics["clipped_share"] = float(((images < 1e-6) | (images > 1 - 1e-6)).double().mean())
        return Reconstruction(images, labels.cpu(), diagnostics)
