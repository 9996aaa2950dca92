"""Gradient inversion: find images whose gradient looks like the one that was sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.base import Attack, AttackError, ClientUpdate, Reconstruction
from attacks.batch_statistics import Statistics, call_with_statistics, sent_statistics, statistics_distance
from attacks.gradient_matching import COSTS, GradientMatching, Observed, attackable, count_classes, unrolled_client
from attacks.inversion_loop import Minimum, Stage, first_order, step_decay_stages
from attacks.labels import infer_observed_labels
from attacks.lbfgs import minimize
from attacks.learning_rate import estimate_learning_rate
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
    """One observation, ready to be attacked.

    Attributes:
        index: Its place among the observations.
        observation: With a learning rate in any case.
        gradient: What is matched.
        labels: (restarts, b) int64, or None where they are unknowns.
        starts: (restarts, D), see ``attacks.gradient_matching``.
        unrolled: The client's local training is unrolled.
        statistics: Of the client's batch, where they are matched too; else empty.
        diagnostics: What is known before the attack.
    """

    index: int
    observation: ClientUpdate
    gradient: Update
    labels: Tensor | None
    starts: Tensor
    unrolled: bool
    statistics: Statistics
    diagnostics: dict[str, float]

    @property
    def alike(self) -> tuple[object, ...]:
        """Equal for targets that one call can attack: same model, same unknowns, same objective."""
        seen = self.observation
        training = (seen.learning_rate, seen.batch_size, seen.local_steps, seen.momentum, seen.weight_decay)
        model = (id(seen.model), seen.train_mode, seen.input_shape, seen.mean, seen.std, self.starts.shape)
        return (*model, seen.num_examples if self.unrolled else 0, training if self.unrolled else (), *self.statistics)


Trials = list[tuple[_Target, int]]
"""Targets, and which of their restarts."""

Ends = tuple[Tensor, Tensor, Tensor]
"""The fields of a ``Minimum``."""


@dataclass(frozen=True, repr=False)
class GradientInversion(Attack[ClientUpdate, Reconstruction]):
    """Optimises dummy images until their gradient matches the observed one.

        argmin_x  D(grad_w loss(model_w(x), y), g) + total_variation * TV(x)

    All targets and restarts advance together (``attacks.gradient_matching``). Nothing is chosen by the truth: the iterate and the
    restart that are returned have the lowest value of this objective.

    An update of several local steps is matched by the update that a client would send for the dummy images, if there is one image
    per example and few steps (``unrolled_client``); else by its mean gradient. Which labels met in one batch is unknown: the first
    restart deals them to the dummy images as told, or in ascending order if inferred, and later ones at random. A wrong deal can be
    worse than the mean gradient, so that several restarts are worth their time; with labels="joint" nothing is dealt.

    A learning rate that the server does not know is estimated (``estimate_learning_rate``) with labels as below (inferred for
    "joint"). Where that fails, cosine costs go on without it, because they ignore the scale; others fail.

    Besides numbers on how the search went, ``diagnostics`` hold reasons for its failure: "labels_inferred" (1 where the labels
    were not told), "clipped_share" (pixels of the result at 0 or 1), "masked_share" (entries of the observed gradient that are
    exactly zero), "restart_agreement" (restarts whose objective is within 5 % of the lowest), "learning_rate" (where it was
    estimated), "unrolled" (1 where the local steps were), "batch_norm_layers" (whose statistics were matched).

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
        chunk: Trials (targets x restarts) in memory at once, at most: halved as long as memory runs out. Changes nothing but speed.
        max_unrolled_steps: Local steps that are unrolled at most, as memory grows with them; 0 always matches the mean gradient.
        batch_norm_prior: Weight of ``statistics_distance`` between the dummy images' batch statistics and the client's. Without
            effect where the update does not give these away (``sent_statistics``).

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
    max_unrolled_steps: int = 16
    batch_norm_prior: float = 0.0

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
        steps = self.max_unrolled_steps
        require(is_whole(steps) and steps >= 0, self, "max_unrolled_steps", "a whole number of at least 0")
        for name in ("signed", "boxed", "step_decay", "prior_decay", "line_search"):
            require(isinstance(getattr(self, name), bool), self, name, "True or False")
        rate = self.learning_rate
        require(is_number(rate) and 0 < rate < float("inf"), self, "learning_rate", "a positive number")
        for name in ("total_variation", "batch_norm_prior"):
            prior = getattr(self, name)
            require(is_number(prior) and 0 <= prior < float("inf"), self, name, "a number of at least 0")
        self._require_sense()

    def _require_sense(self) -> None:
        """Fields that only make sense together."""
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
                _require_usable(observation)
                known, estimate = self._with_learning_rate(observation)
                gradient = _usable_gradient(known)
                model = (id(observation.model), observation.train_mode)
                victim = victims[model] = victims.get(model) or _Victim.of(known, gradient)
                target = self._prepare(index, known, estimate, gradient, victim, generator)
            except AttackError as error:
                guesses[index] = self._failure(observation, str(error))
                continue
            groups.setdefault(target.alike, []).append(target)
        for targets in groups.values():
            first = targets[0].observation
            try:
                guesses.update(self._invert(targets, victims[id(first.model), first.train_mode]))
            except AttackError as error:
                guesses.update({target.index: self._failure(target.observation, str(error)) for target in targets})
        return [guesses[index] for index in range(len(observations))]

    def _count(self, observation: ClientUpdate) -> int:
        return min(observation.num_examples, self.max_images)

    def _told(self, observation: ClientUpdate) -> bool:
        return self.labels == "known" or (self.labels == "auto" and observation.labels is not None)

    def _with_learning_rate(self, observation: ClientUpdate) -> tuple[ClientUpdate, float | None]:
        """The observation with a learning rate, and its estimate if there is one."""
        if observation.learning_rate is not None:
            return observation, None
        try:
            told = observation.labels if self._told(observation) else None
            rate = _estimate(observation) if told is None else estimate_learning_rate(observation, told)
            return replace(observation, learning_rate=rate), rate
        except AttackError as error:
            # Any rate will do for a cosine, unless the weight decay is to be subtracted.
            if "cosine" not in self.cost or observation.weight_decay:
                raise AttackError(
                    f"the server does not know the learning rate, and the estimate failed: {error}"
                ) from error
            return replace(observation, learning_rate=1.0), 0.0

    def _prepare(
        self,
        index: int,
        observation: ClientUpdate,
        estimate: float | None,
        gradient: Update,
        victim: _Victim,
        generator: torch.Generator,
    ) -> _Target:
        labels = self._labels(observation, gradient, victim)
        steps, examples = observation.local_steps, observation.num_examples
        # An estimate of 0 is none: nothing can be simulated with it.
        unrolled = 1 < steps <= self.max_unrolled_steps and examples <= self.max_images and estimate != 0
        unrolled = unrolled and observation.batch_size >= 1
        if labels is not None and unrolled and not self._told(observation):
            labels = labels.sort().values
        statistics = self._statistics(observation)
        size, zeros = (
            sum(int(count(v)) for v in gradient.values()) for count in (torch.numel, lambda v: (v == 0).sum())
        )
        diagnostics = {"labels_inferred": float(not self._told(observation)), "masked_share": zeros / size}
        diagnostics |= {"learning_rate": estimate} if estimate else {}
        diagnostics |= {"unrolled": float(unrolled)} if steps > 1 else {}
        diagnostics |= {"batch_norm_layers": float(len(statistics))} if self.batch_norm_prior else {}
        starts = [self._start(observation, victim.num_classes, generator) for _ in range(self.restarts)]
        stacked = torch.stack(starts).to(next(iter(gradient.values())))
        dealt = None if labels is None else labels.expand(self.restarts, -1)
        if labels is not None and unrolled:
            deals = [torch.randperm(examples, generator=generator) for _ in range(self.restarts - 1)]
            dealt = torch.stack([labels, *(labels[deal] for deal in deals)])
        return _Target(index, observation, gradient, dealt, stacked, unrolled, statistics, diagnostics)

    def _statistics(self, observation: ClientUpdate) -> Statistics:
        """Of the client's batch, where they are wanted and were sent; else empty."""
        try:
            return sent_statistics(observation) if self.batch_norm_prior else {}
        except AttackError:
            # A prior is extra: without it the attack is the ordinary one.
            return {}

    def _labels(self, observation: ClientUpdate, gradient: Update, victim: _Victim) -> Tensor | None:
        count, labels = self._count(observation), None
        if self._told(observation):
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
        return labels

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
        trials = [(target, restart) for target in targets for restart in range(self.restarts)]
        parts = _in_chunks(lambda some: self._minimize(some, victim), trials, self.chunk)
        unknowns, loss, evaluations = (torch.split(torch.cat(rows), self.restarts) for rows in zip(*parts, strict=True))
        return {
            target.index: self._guess(target, victim, Minimum(*outcome))
            for target, *outcome in zip(targets, unknowns, loss, evaluations, strict=True)
        }

    def _minimize(self, trials: Trials, victim: _Victim) -> Ends:
        observation, owners = trials[0][0].observation, [target for target, _ in trials]
        gradients = {name: torch.stack([o.gradient[name] for o in owners]) for name in owners[0].gradient}
        starts = torch.stack([target.starts[restart] for target, restart in trials])
        labels = None
        if self.labels != "joint":
            dealt = [target.labels[at] for target, at in trials if target.labels is not None]
            labels = torch.stack(dealt).to(starts.device)
        objective = GradientMatching(
            victim.model,
            (self._count(observation), *observation.input_shape),
            victim.num_classes,
            gradients,
            labels,
            self.cost,
            self.total_variation,
            unrolled_client(victim.model, observation) if owners[0].unrolled else None,
            self._statistics_prior(victim.model) if owners[0].statistics else None,
            {
                name: (
                    torch.stack([o.statistics[name][0] for o in owners]),
                    torch.stack([o.statistics[name][1] for o in owners]),
                )
                for name in owners[0].statistics
            },
        )
        bounds = self._bounds(observation, starts[0])
        rate, steps = self.learning_rate, self.iterations
        if self.optimizer == "lbfgs":
            end = minimize(objective, starts, bounds, steps, rate, self.line_search, self.signed)
        else:
            end = first_order(self._stages(objective), starts, bounds, self.optimizer, self.signed)
        return end.unknowns, end.loss, end.evaluations

    def _statistics_prior(self, model: nn.Module) -> Callable[[Tensor, Observed], Tensor]:
        state = {name: p.detach() for name, p in model.named_parameters()}, dict(model.named_buffers())

        def prior(images: Tensor, observed: Observed) -> Tensor:
            return self.batch_norm_prior * statistics_distance(observed, call_with_statistics(model, *state, images)[1])

        return prior

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
            "restart_agreement": float(_agreement(end.loss)),
            **target.diagnostics,
        }
        if failed.all():
            reason = f"the objective became NaN or infinite in all {self.restarts} restarts"
            return self._failure(target.observation, reason, diagnostics)
        shape = (self._count(target.observation), *target.observation.input_shape)
        best = end.unknowns[chosen].cpu()
        pixels = torch.Size(shape).numel()
        mean, std = _channels(target.observation)
        logits = best[pixels:].view(-1, victim.num_classes)
        labels = logits.argmax(1) if target.labels is None else target.labels[chosen]
        images = (best[:pixels].view(shape) * std + mean).clamp(0, 1)
        # Undoing the normalisation rounds.
        diagnostics["clipped_share"] = float(((images < 1e-6) | (images > 1 - 1e-6)).double().mean())
        return Reconstruction(images, labels.cpu(), diagnostics)

    def _failure(
        self, observation: ClientUpdate, reason: str, diagnostics: dict[str, float] | None = None
    ) -> Reconstruction:
        count = max(self._count(observation), 0)
        grey = torch.full((count, *observation.input_shape), 0.5)
        return Reconstruction(grey, torch.full((count,), -1), diagnostics or {}, reason)


def _estimate(observation: ClientUpdate) -> float:
    """The learning rate by inferred labels, whose counts depend on it in turn: a few rounds, as a rule two, settle both."""
    rate, before = 1.0, None
    for _ in range(5):
        labels = infer_observed_labels(observation, observation.gradient(rate)).sort().values
        if before is not None and torch.equal(labels, before):
            break
        rate, before = estimate_learning_rate(observation, labels), labels
    return rate


def _in_chunks(minimize_some: Callable[[Trials], Ends], trials: Trials, chunk: int) -> list[Ends]:
    """Results for consecutive parts of ``trials``, of at most ``chunk`` each and fewer where memory runs out.

    Raises:
        AttackError: When even one trial does not fit.
    """
    ends: list[Ends] = []
    done = 0
    while done < len(trials):
        some = trials[done : done + chunk]
        try:
            ends.append(minimize_some(some))
            done += len(some)
            continue
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            reason = str(error).splitlines()[0][:200]
        # Behind the except block, because the error keeps all tensors of the failed try alive.
        if len(some) == 1:
            raise AttackError(f"out of memory with a single trial in memory: {reason}")
        chunk = len(some) // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return ends


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Accelerators raise their own class; the CPU's allocator a plain RuntimeError, like many an error of another kind."""
    told = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error).lower() for words in told)


def _agreement(loss: Tensor) -> Tensor:
    """Share of the losses (R,) that are within 5 % of the lowest; 0 where all are infinite."""
    best = loss.min()
    # 1e-12: two exact solutions agree.
    return (loss - best <= 0.05 * best.abs() + 1e-12).double().mean() * best.isfinite()


def _require_usable(observation: ClientUpdate) -> None:
    channels = observation.input_shape[0]
    if observation.num_examples < 1:
        raise AttackError(f"the update covers {observation.num_examples} examples; at least 1 is needed")
    if not len(observation.mean) == len(observation.std) == channels:
        raise AttackError(f"{len(observation.mean)} means and {len(observation.std)} stds for {channels} channels")


def _usable_gradient(observation: ClientUpdate) -> Update:
    gradient = observation.gradient()
    if not any(bool(value.any()) for value in gradient.values()):
        raise AttackError("the gradient is zero in every parameter, so there is nothing to match")
    return gradient


def _channels(observation: ClientUpdate) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the normalisation, (C, 1, 1) each."""
    return torch.tensor(observation.mean).view(-1, 1, 1), torch.tensor(observation.std).view(-1, 1, 1)
