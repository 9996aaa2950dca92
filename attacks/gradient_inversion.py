"""Gradient inversion: find images whose gradient looks like the one that was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.base import Attack, AttackError, ClientUpdate, Reconstruction
from attacks.gradient_matching import COSTS, GradientMatching, attackable, count_classes
from attacks.inversion_loop import Minimum, Stage, first_order, step_decay_stages
from attacks.labels import infer_observed_labels
from attacks.lbfgs import minimize
from defenses.base import Update
from defenses.checks import is_number, is_whole, require

INITS = ("randn", "uniform", "grey", "black")


@dataclass(frozen=True)
class _Victim:
    """A private copy of the global model, and the number of its logits."""

    model: nn.Module
    num_classes: int

    @classmethod
    def of(cls, observation: ClientUpdate, gradient: Update) -> _Victim:
        model = attackable(observation.model, observation.train_mode)
        return cls(model, count_classes(model, observation.input_shape, next(iter(gradient.values()))))


@dataclass(frozen=True)
class _Target:
    """One observation, ready to be attacked. ``starts`` is (restarts, D), see ``attacks.gradient_matching``."""

    index: int
    observation: ClientUpdate
    gradient: Update
    labels: Tensor | None
    starts: Tensor


@dataclass(frozen=True, repr=False)
class GradientInversion(Attack[ClientUpdate, Reconstruction]):
    """Optimises dummy images until their gradient matches the observed one.

        argmin_x  D(grad_w loss(model_w(x), y), g) + total_variation * TV(x)

    All targets and restarts advance together (``attacks.gradient_matching``). Nothing is chosen by the truth: the iterate and the
    restart that are returned have the lowest value of this objective.

    Attributes:
        cost: D: "cosine" over the concatenated gradient, "masked-cosine" over its non-zero entries only, "l2" (sum of squares) or
            "l1" (sum of absolute differences).
        optimizer: "adam", "sgd" (Nesterov momentum 0.9) or "lbfgs".
        signed: The optimizer sees only the sign of the gradient.
        learning_rate: Step size in normalised pixels; of L-BFGS with a line search, the first step that is tried.
        iterations: Evaluations of the objective per restart (for L-BFGS too, where torch's "iteration" holds up to 20).
        restarts: Independent starts per observation.
        total_variation: Weight of the image prior: mean |dx| + mean |dy| of the normalised images.
        boxed: Clamp to the normalised [0, 1] after every step; the result is clamped in any case.
        labels: "known" (the server was told), "infer" (``infer_labels``), "auto" (known if told, else inferred) or "joint" (soft
            labels are unknowns too, as in DLG).
        init: "randn" (standard normal in normalised pixels), "uniform" (in [0, 1]), "grey" (0.5) or "black" (0).
        step_decay: Adam and SGD: step size x 0.1 after 3/8, 5/8 and 7/8 of the iterations.
        prior_decay: Adam and SGD with ``step_decay``: the weight of the prior shrinks with the step size, so that it guides the
            start and hardly biases the result.
        line_search: L-BFGS: weak Wolfe line search instead of a fixed step.
        max_images: Images that are reconstructed when the update covers more; their labels are an even choice from the sorted ones.
        chunk: Trials (targets x restarts) in memory at once; changes nothing but speed.

    Source: Zhu, Liu, Han, "Deep Leakage from Gradients", 2019, Algorithm 1; Geiping, Bauermeister, Droege, Moeller, "Inverting
    Gradients", 2020, Eq. 4.
    """

    source: ClassVar[str] = "Zhu 2019 (DLG), Algorithm 1; Geiping 2020 (Inverting Gradients), Eq. 4"
    threat: ClassVar[str] = (
        "global model, one update, its number of examples, learning rate and normalisation; no auxiliary data"
    )

    cost: str = "cosine"
    optimizer: str = "adam"
    signed: bool = True
    learning_rate: float = 0.1
    iterations: int = 1000
    restarts: int = 1
    total_variation: float = 1e-4
    boxed: bool = True
    labels: str = "auto"
    init: str = "randn"
    step_decay: bool = True
    prior_decay: bool = False
    line_search: bool = False
    max_images: int = 8
    chunk: int = 32

    def __post_init__(self) -> None:
        for name, allowed in (
            ("cost", tuple(COSTS)),
            ("optimizer", ("adam", "sgd", "lbfgs")),
            ("labels", ("auto", "known", "infer", "joint")),
            ("init", INITS),
        ):
            require(getattr(self, name) in allowed, self, name, " | ".join(allowed))
        for name in ("iterations", "restarts", "max_images", "chunk"):
            value = getattr(self, name)
            require(is_whole(value) and value >= 1, self, name, "a whole number of at least 1")
        for name in ("signed", "boxed", "step_decay", "prior_decay", "line_search"):
            require(isinstance(getattr(self, name), bool), self, name, "True or False")
        rate, prior = self.learning_rate, self.total_variation
        require(is_number(rate) and 0 < rate < float("inf"), self, "learning_rate", "a positive number")
        require(is_number(prior) and 0 <= prior < float("inf"), self, "total_variation", "a number of at least 0")
        decays = self.optimizer != "lbfgs" and self.step_decay
        require(decays or not self.prior_decay, self, "prior_decay", "False, unless adam or sgd run with step_decay")
        searchable = self.optimizer == "lbfgs" and not self.signed
        require(searchable or not self.line_search, self, "line_search", "False, unless lbfgs sees unsigned gradients")
        varied = self.init in ("randn", "uniform") or self.labels == "joint"
        require(
            varied or self.restarts == 1, self, "restarts", f"1 with init={self.init!r}, whose starts are all equal"
        )

    def attack_many(
        self, observations: Sequence[ClientUpdate], generators: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Attacks all observations together; one that cannot be attacked becomes a failed guess and leaves the others alone."""
        guesses: dict[int, Reconstruction] = {}
        victims: dict[tuple[int, bool], _Victim] = {}
        groups: dict[tuple[object, ...], list[_Target]] = {}
        for index, (observation, generator) in enumerate(zip(observations, generators, strict=True)):
            try:
                gradient = _usable_gradient(observation)
                model = (id(observation.model), observation.train_mode)
                victim = victims[model] = victims.get(model) or _Victim.of(observation, gradient)
                target = self._prepare(index, observation, gradient, victim, generator)
            except AttackError as error:
                guesses[index] = self._failure(observation, str(error))
                continue
            alike = (*model, observation.input_shape, observation.mean, observation.std, self._count(observation))
            groups.setdefault(alike, []).append(target)
        for targets in groups.values():
            first = targets[0].observation
            try:
                guesses.update(self._invert(targets, victims[id(first.model), first.train_mode]))
            except AttackError as error:
                guesses.update({target.index: self._failure(target.observation, str(error)) for target in targets})
        return [guesses[index] for index in range(len(observations))]

    def _count(self, observation: ClientUpdate) -> int:
        return min(observation.num_examples, self.max_images)

    def _prepare(
        self, index: int, observation: ClientUpdate, gradient: Update, victim: _Victim, generator: torch.Generator
    ) -> _Target:
        count, labels = self._count(observation), None
        told = self.labels == "auto" and observation.labels is not None
        if self.labels == "known" or told:
            labels = observation.labels
            if labels is None:
                raise AttackError("the server does not know the labels; use labels='infer' or labels='joint'")
            if labels.shape != (observation.num_examples,):
                raise AttackError(f"{tuple(labels.shape)} labels for {observation.num_examples} examples")
            if labels.min() < 0 or labels.max() >= victim.num_classes:
                raise AttackError(f"labels {labels.tolist()[:8]} do not fit a model of {victim.num_classes} classes")
        elif self.labels in ("auto", "infer"):
            labels = infer_observed_labels(observation, gradient)
        if labels is not None and count < len(labels):
            # The middles of ``count`` equal parts: frequent classes stay frequent.
            labels = labels.sort().values[(torch.arange(count) * 2 + 1) * len(labels) // (2 * count)]
        starts = [self._start(observation, victim.num_classes, generator) for _ in range(self.restarts)]
        return _Target(index, observation, gradient, labels, torch.stack(starts).to(next(iter(gradient.values()))))

    def _start(self, observation: ClientUpdate, num_classes: int, generator: torch.Generator) -> Tensor:
        """One start: pixels, then label logits if they are unknown; float32, so that it does not depend on the model's type."""
        shape = (self._count(observation), *observation.input_shape)
        if self.init == "randn":
            pixels = torch.randn(shape, generator=generator)
        else:
            level = {"grey": torch.full(shape, 0.5), "black": torch.zeros(shape)}.get(self.init)
            mean, std = _channels(observation)
            pixels = ((torch.rand(shape, generator=generator) if level is None else level) - mean) / std
        logits = torch.randn(shape[0], num_classes, generator=generator) if self.labels == "joint" else torch.zeros(0)
        return torch.cat([pixels.flatten(), logits.flatten()])

    def _invert(self, targets: list[_Target], victim: _Victim) -> dict[int, Reconstruction]:
        """Attacks targets whose unknowns have the same shape and meaning."""
        trials = [(target, start) for target in targets for start in target.starts]
        parts = [self._minimize(trials[i : i + self.chunk], victim) for i in range(0, len(trials), self.chunk)]
        unknowns, loss, evaluations = (torch.split(torch.cat(rows), self.restarts) for rows in zip(*parts, strict=True))
        return {
            target.index: self._guess(target, victim, Minimum(*outcome))
            for target, *outcome in zip(targets, unknowns, loss, evaluations, strict=True)
        }

    def _minimize(self, trials: list[tuple[_Target, Tensor]], victim: _Victim) -> tuple[Tensor, Tensor, Tensor]:
        observation, owners = trials[0][0].observation, [target for target, _ in trials]
        gradients = {name: torch.stack([o.gradient[name] for o in owners]) for name in owners[0].gradient}
        starts = torch.stack([start for _, start in trials])
        objective = GradientMatching(
            victim.model,
            (self._count(observation), *observation.input_shape),
            victim.num_classes,
            gradients,
            None if self.labels == "joint" else torch.stack([o.labels.to(starts.device) for o in owners]),  # type: ignore[union-attr]
            self.cost,
            self.total_variation,
        )
        bounds = self._bounds(observation, starts[0])
        rate, steps = self.learning_rate, self.iterations
        if self.optimizer == "lbfgs":
            end = minimize(objective, starts, bounds, steps, rate, self.line_search, self.signed)
        else:
            end = first_order(self._stages(objective), starts, bounds, self.optimizer, self.signed)
        return end.unknowns, end.loss, end.evaluations

    def _stages(self, objective: GradientMatching) -> list[Stage]:
        if not self.step_decay:
            return [Stage(objective, self.learning_rate, self.iterations)]
        objectives = [objective] * 4
        if self.prior_decay:
            objectives = [objective.with_prior(self.total_variation * 0.1**i) for i in range(4)]
        return step_decay_stages(objectives, self.learning_rate, self.iterations)

    def _bounds(self, observation: ClientUpdate, unknowns: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = torch.full_like(unknowns, -torch.inf), torch.full_like(unknowns, torch.inf)
        if self.boxed:
            mean, std = _channels(observation)
            pixels = torch.ones(self._count(observation), *observation.input_shape)
            lower[: pixels.numel()] = ((0 - mean) / std * pixels).flatten()
            upper[: pixels.numel()] = ((1 - mean) / std * pixels).flatten()
        return lower, upper

    def _guess(self, target: _Target, victim: _Victim, end: Minimum) -> Reconstruction:
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
        }
        if failed.all():
            reason = f"the objective became NaN or infinite in all {self.restarts} restarts"
            return self._failure(target.observation, reason, diagnostics)
        shape = (self._count(target.observation), *target.observation.input_shape)
        best = end.unknowns[chosen].cpu()
        pixels = torch.Size(shape).numel()
        mean, std = _channels(target.observation)
        labels = target.labels
        if labels is None:
            labels = best[pixels:].view(shape[0], victim.num_classes).argmax(1)
        return Reconstruction((best[:pixels].view(shape) * std + mean).clamp(0, 1), labels.cpu(), diagnostics)

    def _failure(
        self, observation: ClientUpdate, reason: str, diagnostics: dict[str, float] | None = None
    ) -> Reconstruction:
        count = max(self._count(observation), 0)
        grey = torch.full((count, *observation.input_shape), 0.5)
        return Reconstruction(grey, torch.full((count,), -1), diagnostics or {}, reason)


def _usable_gradient(observation: ClientUpdate) -> Update:
    channels = observation.input_shape[0]
    if observation.num_examples < 1:
        raise AttackError(f"the update covers {observation.num_examples} examples; at least 1 is needed")
    if not len(observation.mean) == len(observation.std) == channels:
        raise AttackError(f"{len(observation.mean)} means and {len(observation.std)} stds for {channels} channels")
    gradient = observation.gradient()
    if not any(bool(value.any()) for value in gradient.values()):
        raise AttackError("the gradient is zero in every parameter, so there is nothing to match")
    return gradient


def _channels(observation: ClientUpdate) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the normalisation, (C, 1, 1) each."""
    return torch.tensor(observation.mean).view(-1, 1, 1), torch.tensor(observation.std).view(-1, 1, 1)
