"""Membership inference (was this record in the client's training data?) by a test on the client's model."""

import copy
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor, nn

from attacks.base import Attack
from attacks.local_model import Module, local_model, overwrite, shared_tensors
from attacks.membership.rules import GaussianRule, PairwiseRule
from attacks.observations import AttackError, ClientUpdate, TrainingUpdate
from defenses.checks import algorithm
from defenses.tensors import NamedTensors, Numbers, Tensors, on_cpu

SCORED_AT_ONCE = 256
"""Records per forward pass."""
LARGEST_LOGIT = 1e6
"""Largest logit, above those of any trained model; logits that overflow are set to it, so that every record has a score."""
Rule = GaussianRule | PairwiseRule
PARTS = ("model", "network", "references", GaussianRule.part, PairwiseRule.part)
"""Parts of a test that is sent."""
LARGEST_CONFIDENCE = 40.0
"""Features of the attack network are clamped to +- this; float32 probabilities end near exp(-16) from 0 and 1."""


class MembershipNetwork(nn.Module):
    """A small network that maps features of a model's output on records to membership logits: (N, F) -> (N,).

    Features, less their mean and over their deviation, go through one hidden layer.
    """

    def __init__(self, num_features: int, hidden: int) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(num_features))
        self.std = nn.Buffer(torch.ones(num_features))
        self.hidden = nn.Linear(num_features, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Membership logits."""
        logits: Tensor = self.out(torch.tanh(self.hidden((features - self.mean) / self.std)))
        return logits.squeeze(1)


@dataclass(frozen=True)
class Membership:
    """A membership test. The server sends it to the client, which applies it to records that the server never sees.

    Attributes:
        model: The client's model after local training, computed from the update, in eval mode; None if the attack failed.
        network: Maps the output of ``model`` on a record to its score; None and no rule: the negative loss is the score.
        rule: Maps the confidences of ``model`` and of ``references`` in a record's true class to its score; or None.
        references: Shadow models, which were trained without the records in question; empty without a rule.
        diagnostics: Numbers about the attack's progress.
        failure: Why the attack failed, or "".
    """

    model: nn.Module | None
    network: MembershipNetwork | None = None
    diagnostics: Numbers = field(default_factory=dict)
    failure: str = ""
    rule: Rule | None = None
    references: tuple[nn.Module, ...] = ()

    @property
    def kind(self) -> str:
        """How it scores: "loss", "network", "gaussian" or "pairwise"."""
        if self.rule is not None:
            return self.rule.part
        return "network" if self.network is not None else "loss"

    @torch.no_grad()
    def scores(self, images: Tensor, classes: Tensor) -> Tensor:
        """Membership score of each record, (N,) float64 on the CPU; a higher score means a likelier member.

        Records are normalised images (N, C, H, W), protected like test images if the defence requires it, and their classes.

        Raises:
            AttackError: When the attack failed, since equal scores for all records would wrongly suggest privacy.
        """
        if self.model is None:
            raise AttackError(f"a test that failed scores no record: {self.failure or 'no reason given'}")
        if not len(images):
            return torch.zeros(0, dtype=torch.float64)
        logits = predict(self.model, images)
        classes = classes.cpu()
        if self.rule is not None:
            others = torch.stack([confidence_of(predict(reference, images), classes) for reference in self.references])
            judged: Tensor = self.rule(confidence_of(logits, classes), others)
        elif self.network is not None:
            judged = self.network(membership_features(logits, classes).to(self.network.mean))
        else:
            judged = -loss_of(logits, classes)
        return judged.cpu().double()

    def to_tensors(self) -> Tensors:
        """The test as tensors: weights and float buffers under PART/NAME; empty if the attack failed.

        Parts are "model", "network", "gaussian" or "pairwise" (a rule), and "references", with all shadow models in one tensor.
        """
        tensors: Tensors = {}
        for part, module in (("model", self.model), ("network", self.network), (self.kind, self.rule)):
            if module is not None:
                tensors |= on_cpu(shared_tensors(module), f"{part}/")
        shadows = [shared_tensors(reference) for reference in self.references]
        for name in shadows[0] if shadows else ():
            tensors[f"references/{name}"] = torch.stack([shadow[name].detach().cpu() for shadow in shadows])
        return tensors

    @classmethod
    def from_tensors(cls, tensors: NamedTensors, model: nn.Module) -> Self:
        """Inverse of ``to_tensors``, for a model of the same architecture, which is copied.

        Raises:
            AttackError: When names, shapes or values do not fit.
        """
        if not tensors:
            return cls(None, failure="the attack failed and sent no test")
        parts: dict[str, Tensors] = {part: {} for part in PARTS}
        for key, value in tensors.items():
            part, _, name = key.partition("/")
            if part not in parts:
                raise AttackError(f"{key!r} names no part; allowed: {', '.join(f'{part}/NAME' for part in PARTS)}")
            parts[part][name] = value
        network, references = None, _rebuild_all(model, parts["references"])
        if parts["network"]:
            weight = parts["network"].get("hidden.weight")
            if weight is None or weight.ndim != 2:
                raise AttackError("network/hidden.weight is missing or is no matrix")
            network = _rebuild(MembershipNetwork(weight.shape[1], weight.shape[0]), parts["network"])
        rule: Rule | None = None
        if parts["gaussian"]:
            rule = _rebuild(GaussianRule(0, 0, 1, 0), parts["gaussian"])
        elif parts["pairwise"]:
            ratios = parts["pairwise"].get("ratios")
            if ratios is None or ratios.ndim != 1 or not len(ratios):
                raise AttackError("pairwise/ratios is missing or is no vector")
            rule = _rebuild(PairwiseRule(torch.zeros(len(ratios)), 0), parts["pairwise"])
            if not 0 <= float(rule.correction) <= 1:
                raise AttackError(f"pairwise/correction is {float(rule.correction)}; allowed: 0 to 1")
        if (rule is None) != (not references):
            raise AttackError("a rule needs references, and references a rule")
        return cls(_rebuild(copy.deepcopy(model), parts["model"]), network, rule=rule, references=references)


class MembershipAttack(Attack[ClientUpdate, Membership], observes=TrainingUpdate, guesses="membership"):
    """Base of attacks on membership that make a test from one update."""

    def failed(self, observation: ClientUpdate, reason: str) -> Membership:
        """The failed test, which scores no record."""
        return Membership(None, failure=reason)


@algorithm
class LossThreshold(MembershipAttack):
    """Score a record's membership by its negative cross-entropy under the client's model: members tend to have a low loss.

    The paper's adversary decides by a fixed threshold; here the scores give a ROC curve over all thresholds.
    """

    source = "Yeom et al. 2018, Adversary 2"
    threat = "global model and one update; true classes of the records in question; no auxiliary data"

    def attack_one(self, observation: ClientUpdate, generator: torch.Generator) -> Membership:
        """Make the test from the client's own model; deterministic."""
        return Membership(local_model(observation))


def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Logits (N, K), float64 on the CPU, of a model in eval mode for normalised images (N, C, H, W); always finite."""
    like = next(model.parameters())
    starts = range(0, len(images), SCORED_AT_ONCE)
    with torch.no_grad():
        logits = torch.cat([model(images[at : at + SCORED_AT_ONCE].to(like)).double().cpu() for at in starts])
    return logits.nan_to_num(nan=0.0).clamp(-LARGEST_LOGIT, LARGEST_LOGIT)


def confidence_of(logits: Tensor, classes: Tensor) -> Tensor:
    """Logit-scaled confidence log p_y - log(1 - p_y) of the true class y, (N,): Carlini et al. 2022, section VI-A."""
    own = nn.functional.one_hot(classes, logits.shape[1]).bool()
    return logits[own] - logits.masked_fill(own, -torch.inf).logsumexp(1)


def loss_of(logits: Tensor, classes: Tensor) -> Tensor:
    """Cross-entropy per record, (N,), that stays exact far below the smallest difference of a probability from 1."""
    confidence = confidence_of(logits, classes)
    return torch.logaddexp(torch.zeros_like(confidence), -confidence)


def membership_features(logits: Tensor, classes: Tensor) -> Tensor:
    """Inputs of an attack network for each record, (N, 1 + min(3, K) + K) float32.

    The logit-scaled confidence of the true class, the three largest log-probabilities in falling order, and the class as one-hot.
    """
    largest = logits.log_softmax(1).topk(min(3, logits.shape[1])).values
    said = torch.cat([confidence_of(logits, classes)[:, None], largest], 1)
    said = said.clamp(-LARGEST_CONFIDENCE, LARGEST_CONFIDENCE)
    return torch.cat([said, nn.functional.one_hot(classes, logits.shape[1])], 1).float()


def _rebuild(module: Module, values: NamedTensors) -> Module:
    """``overwrite`` with values that must name everything."""
    if different := sorted(set(shared_tensors(module)) ^ set(values)):
        raise AttackError(f"missing or unknown names: {different[:3]} ({len(different)})")
    return overwrite(module, values)


def _rebuild_all(model: Module, values: NamedTensors) -> tuple[Module, ...]:
    """Copies of ``model`` with values that hold one entry of each tensor per copy."""
    counts = {len(value) if value.ndim else 0 for value in values.values()}
    if not values:
        return ()
    if len(counts) != 1 or 0 in counts:
        raise AttackError("references hold different numbers of models, or none")
    each = range(counts.pop())
    return tuple(_rebuild(copy.deepcopy(model), {name: value[at] for name, value in values.items()}) for at in each)
