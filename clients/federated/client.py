"""Local training, probing and evaluation of one client; no Flower here.

Data flow: images -> once-only protection -> fresh protection per batch -> normalise -> model -> loss -> gradient -> update
defences per step -> step (under the training defences) -> update -> update defences per update. Where local training sees crops and
mirror images, these come first, anew for every batch, and all protection after them is fresh as well.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from attacks.local_model import shared_tensors
from attacks.metrics.training import EPSILON_WITH_PROBES
from clients.federated.budget import budget_spent
from clients.federated.canaries import CanaryClient, ClientCanaries, KeptExamples, WithCanaries
from clients.federated.plan import FederatedPlan
from clients.task.local_data import Client
from clients.task.task import load_weights
from clients.task.truths import Probed, Truths, joined, rows
from clients.training.evaluation import device, evaluate_weights, set_eval
from clients.training.sgd import batches, plain_training, protect_gradient, protect_update, train_on
from defenses.base import Batch, Training, TrainingDefense
from defenses.checks import MOST_EXAMPLES
from defenses.random_draws import Key, generator_for
from defenses.tensors import NamedTensors, Numbers, Update

Ledger = dict[str, dict[str, Any]]
"""What training defences must remember: their state under "train", and under "probe" that of the server's probes."""

QUESTIONS = {"probe": 0, "steps": 0, "active": 1}
"""Kind of observation -> number of the question in a round: steps from the global model, or from what is sent in its place."""


class TrainingError(RuntimeError):
    """Local training without a usable update."""


@dataclass(frozen=True)
class LocalResult:
    """Result of one local round.

    Attributes:
        updates: Name -> (local - global), protected; one, or one per probe.
        num_examples: Examples behind each; a public number where a defence hides the true one.
        local_steps: Optimizer steps behind each.
        metrics: "train-loss" unless a defence bounds what one example reveals; "train-seconds" unless it hides the number of
            examples, or the client is a real one under a bound; a privacy budget.
        ledger: To be kept until the next round; see ``Ledger``.
    """

    updates: list[Update]
    num_examples: int
    local_steps: int
    metrics: Numbers
    ledger: Ledger


class LocalClient(Client):
    """One client's work on one task of federated learning."""

    def train(self, weights: NamedTensors, ledger: Ledger) -> LocalResult:
        """One local round; ``ledger`` is that of the round before. ``TrainingError`` for an update that is not finite."""
        start = time.perf_counter()
        self.data.renew("train")
        model = self._model(weights)
        key = self.data.key("train", self.task.round)
        training = self._training(model, self._examples, ledger.get("train", {}), key)
        loss, steps = self._run(training, key)
        update = self._update(model, weights, key, self.canary)
        # An exact loss is a message about every example, which no bound of an update would cover.
        losses = {} if self.pipeline.bounded else {"train-loss": loss}
        state = self.pipeline.recorded(training.state)
        spent = budget_spent(self.pipeline, self.task, state)
        # Only the client's ledger knows both: what they spend together is not the sum of two budgets.
        if ledger.get("probe") and self.task.round == self.task.plan.rounds:  # of many probes it takes seconds
            spent |= self._privacy_with_probes(state, ledger["probe"])
        public = self.pipeline.reported_examples(self.task.plan.batch_size)
        # Where the number of examples is hidden, times would reveal it. Of a real client under a bound, so would they an example.
        hidden = public or (self.pipeline.bounded and self.data.draws.notebook)
        times = {} if hidden else {"train-seconds": time.perf_counter() - start}
        metrics = {**losses, **spent, **times}
        # Exact, because a pass repeats no example; of a Poisson sample (DP-SGD) the expected size, as the true one is private.
        examples = public or min(self._num_examples, steps * self.task.plan.batch_size)
        return LocalResult([update], examples, steps, metrics, _without_empty(ledger | {"train": state}))

    def truths(self, observation: str) -> Truths:
        """One view for each probe target, or one for the whole local round."""
        if observation in QUESTIONS:
            question = QUESTIONS[observation]
            return Truths([self.probed(target, question) for target in range(self.task.plan.probe_targets)])
        if observation == "update":
            return Truths([self.trained_views()], whole_round=True)
        if observation == "aggregate":  # the client's part of it, which is its probe
            return replace(self.truths("probe"), pooled=True)
        return super().truths(observation)

    @cached_property
    def canaries(self) -> ClientCanaries | None:
        """Those of an auditor among the training examples; None without any."""
        return ClientCanaries.of(self.data)

    @cached_property
    def canary(self) -> CanaryClient | None:
        """Its part as an auditor's canary, if it is one."""
        return CanaryClient.of(self.data)

    @property
    def _num_examples(self) -> int:
        return self.data.num_train + (len(self.canaries.examples) if self.canaries else 0)

    @property
    def _examples(self) -> Dataset[Any]:
        own = KeptExamples(self.data)
        return WithCanaries(own, self.canaries, self.data) if self.canaries else own

    def trained_on(self) -> Tensor:
        """Positions (n,), int64 and ascending, of the training examples that this round's training update depends on."""
        every = torch.arange(self.data.num_train)
        if not self.task.plan.local_steps:
            return every
        drawn = every[torch.isin(every, torch.cat(list(self._drawn())))]
        # Poisson sampling may draw no example, and a score needs one.
        return drawn if len(drawn) else every

    def trained_views(self) -> Probed:
        """The examples of ``trained_on`` as they first entered this round's training.

        Later passes see other crops and draws, so that an update of several passes depends on more than this.
        """
        used, key = self.trained_on(), self.data.key("train", self.task.round)
        if not self.task.plan.augments and not self.pipeline.protects_batches:
            return self.data.view(used, key)
        views: list[Probed] = []
        missing = torch.ones(self.data.num_train, dtype=torch.bool)
        for step, positions in enumerate(self._drawn()):
            new = missing[positions]
            if new.any():
                views.append(rows(self.data.view(positions, (*key, "batch", step)), new))
                missing[positions] = False
            if not missing.any():
                break
        if len(never := used[missing[used]]):  # whom Poisson sampling missed
            views.append(self.data.view(never, (*key, "audit")))
        every = joined(views)
        return rows(every, every.positions.argsort())

    def _drawn(self) -> Iterator[Tensor]:
        """Positions (b,) of the examples in each batch of this round's training: the draws of ``train`` without its images."""
        every = torch.arange(self._num_examples)
        key = self.data.key("train", self.task.round)
        training = self._training(self.task.plan.build_model(), TensorDataset(every, every), {}, key)
        drawn = (positions for positions, _ in batches(training, self.task.plan.local_steps))
        return (positions[positions < self.data.num_train] for positions in drawn)

    def probe(self, weights: NamedTensors, ledger: Ledger, question: int = 0) -> LocalResult:
        """Updates of one step, or of ``probe_steps``, on a few images each, through the same defences; one step is the strongest
        setting of the papers.

        Noise is calibrated for the real training, never for the probe. What probes spend is booked apart: the training's own
        budget does not cover a question that a curious server adds. ``weights`` may be what the server sends in place of the
        global ones. Each ``question`` (one of ``QUESTIONS``, else ``ValueError``) has draws of its own and can be audited later.
        """
        if question not in QUESTIONS.values():
            raise ValueError(f"question is {question}; allowed: {', '.join(map(str, sorted({*QUESTIONS.values()})))}")
        kept = ledger.get("train", {})
        real = kept if set(kept) - {"accountant"} else kept | self._calibrated(weights)
        # What a node that was started anew gets back is what was spent. All else is that of the training, which is the newer one.
        booked = ledger.get("probe", {}) | {name: value for name, value in real.items() if name != "accountant"}
        updates, steps, number = [], 0, self._number(question)
        self.data.renew("probe", number)
        for target in range(self._plan.probe_targets):
            key = self.data.key("probe", self.task.round, target, number=number)
            model, seen = self._model(weights), self.probed(target, question).seen
            training = self._training(model, TensorDataset(seen.images, seen.targets), booked, key, probe=True)
            if self._plan.probe_mode == "eval":
                set_eval(training.model, keep_hooked=self.pipeline.needs_group_norm)
            _, steps = self._run(training, key, protect=False)
            booked = self.pipeline.recorded(training.state)
            updates.append(self._update(model, weights, key))
        metrics = self._privacy_with_probes(ledger.get("train", {}), booked)
        return LocalResult(updates, self._plan.probe_size, steps, metrics, _without_empty(ledger | {"probe": booked}))

    def _calibrated(self, weights: NamedTensors) -> dict[str, Any]:
        """What training defences work out from the real training (such as a noise multiplier), before its first round."""
        if not any(isinstance(defense, TrainingDefense) for defense in self.pipeline.defenses):
            return {}
        return self._training(self._model(weights), self._examples, {}, self.data.key("calibrate")).state

    def _privacy_with_probes(self, trained: Mapping[str, Any], probed: Mapping[str, Any]) -> Numbers:
        spent = self.pipeline.privacy(trained, probed)
        return {EPSILON_WITH_PROBES.name: spent["epsilon"]} if spent else {}

    def probed(self, target: int, question: int = 0) -> Probed:
        """The images of a probe, step by step: equal in every round, pipeline and request, so that curves compare the same people.

        No two probes show the same person as long as there are enough: scores of an image that is attacked twice are not two
        observations. Crops and mirror images are drawn anew in every round.
        """
        views = []
        for at in self._steps_of(target):
            key = self.data.key("probe", self.task.round, "batch", at, number=self._number(question))
            # Defences that mix examples need company: a step is on the first examples of a batch of the usual size.
            views.append(rows(self.data.view(self._probed_batch(at), key), slice(self._plan.probe_images)))
        return joined(views)

    def probed_positions(self, target: int) -> Tensor:
        """Positions (b,) of the training examples in a probe."""
        return torch.cat([self._probed_batch(at)[: self._plan.probe_images] for at in self._steps_of(target)])

    def _probed_batch(self, at: int) -> Tensor:
        """Positions of a step's examples, counted over all probes, and of their company."""
        count = self._plan.probe_images
        order = torch.randperm(self.data.num_train, generator=generator_for(*self.data.key("probed")))
        return order.roll(-at * count)[: max(count, self._plan.batch_size)]

    def _steps_of(self, target: int) -> range:
        steps = self._plan.probe_steps
        return range(target * steps, (target + 1) * steps)

    def _number(self, question: int) -> int:
        """Number of a message in its round: probes of each size have draws of their own, which an audit finds again."""
        return (self._plan.probe_images * (MOST_EXAMPLES + 1) + self._plan.probe_steps) * 2 + question

    @property
    def _plan(self) -> FederatedPlan:
        return FederatedPlan.narrow(self.task.plan)

    def evaluate(self, weights: NamedTensors) -> Numbers:
        """Accuracy and mean loss of the global model on the local test share; see ``clients.training.evaluation``."""
        return evaluate_weights(self.data, weights)

    def _model(self, weights: NamedTensors) -> nn.Module:
        return load_weights(self.task.plan.build_model(), weights).to(device())

    def _training(
        self, model: nn.Module, examples: Dataset[Any], state: dict[str, Any], key: Key, *, probe: bool = False
    ) -> Training:
        plan, order = self._plan, generator_for(*key, "order")
        size = plan.probe_images if probe else plan.batch_size
        mixed = not probe or plan.probe_steps == 1  # else each step has images of its own
        loader = DataLoader(examples, batch_size=size, shuffle=mixed, generator=order)
        training = plain_training(plan, model, loader, self.task.learning_rate, self._num_examples)
        training = replace(training, epochs=1 if probe else training.epochs, state=dict(state), probe=probe)
        return self.pipeline.protect_training(training, (*key, "training"))

    def _run(self, training: Training, key: Key, *, protect: bool = True) -> tuple[float, int]:
        """Trains; returns the mean loss per example and the number of steps."""
        canaries = self.canaries if protect else None  # probes have none

        def enter(batch: Batch, step: int) -> Batch:
            of_step = (*key, "batch", step)
            if canaries:
                return canaries.enter(batch, self.data, of_step)
            return self.data.enter(batch, of_step) if protect else batch

        def gradient(step: int) -> None:
            if canaries:
                canaries.set_gradients(training.model, self.task.round)
            protect_gradient(self.pipeline, training.model, (*key, "gradient", step))

        steps = self._plan.probe_steps if training.probe else self._plan.local_steps
        batched: Iterable[tuple[Tensor, ...]] = batches(training, steps)
        batched = canaries.of_batches(batched) if canaries else batched
        return train_on(training, batched, self.data.card, enter=enter, protect=gradient)

    def _update(self, model: nn.Module, weights: NamedTensors, key: Key, canary: CanaryClient | None = None) -> Update:
        update = {name: local.cpu() - weights[name] for name, local in shared_tensors(model).items()}
        # Whether a training diverged depends on all data: under a client-level bound an error would show what noise hides.
        hidden = any(defense.bounds_client for defense in self.pipeline.defenses)
        if bad := [name for name, delta in update.items() if not (hidden or np.isfinite(delta.numpy()).all())]:
            raise TrainingError(
                f"client {self.data.partition}, round {self.task.round}: training diverged, {bad[0]!r} is not finite; "
                f"lower learning-rate (now {self.task.learning_rate:g})"
            )
        if canary:
            update = canary.update(update, self.task.round)
        return protect_update(self.pipeline, model, update, (*key, "update"))


def _without_empty(ledger: Ledger) -> Ledger:
    return {name: state for name, state in ledger.items() if any(state.values())}
