"""Distillation by the outsourced scenario's own training: teachers, students and controls of one seed, and the attacks on them.

Imported by ``vm_distillation.py``; prints nothing by itself.
"""

from __future__ import annotations

import argparse
import functools
import time
from dataclasses import replace
from typing import NamedTuple

import torch
from seeded_results import Numbers, Results
from torch import Tensor, nn
from torch.nn import functional as F
from upload_restoration import decibels, fitted, restored

from attacks.local_model import shared_tensors
from attacks.membership.loss_threshold import LossThreshold, predict
from attacks.normalisation import normalise
from attacks.refinement.base import Refinement
from attacks.refinement.restoration import LearnedRestorer
from attacks.refinement.unshuffle import WindowMean
from attacks.scoring.roc import auc
from attacks.uploads.base import TrainedModel
from clients.data.images import ImageDataset
from clients.task.batches import local_batch
from clients.task.task import WholeModelPlan
from clients.training.evaluation import device
from defenses.base import Batch, Loss
from defenses.random_draws import Key, generator_for
from defenses.spec import parse
from simulations.experiment.experiment import Experiment
from simulations.settings.errors import ConfigError
from strategies.training.central_training import CentralTraining

STUDY = "vm_distillation"
ROLES = ("teacher", "student", "auxiliary", "outsider")
"""Whose images are drawn from the training part of the data set."""
LAST = 3
"""Epochs at the end whose test accuracy is told beside that at the quarters, so that one sees whether it still moves."""


class Arm(NamedTuple):
    """A row: whose images it learns from ("teacher" or "student"), whether they are protected, and its teacher, if any."""

    role: str
    protected: bool
    teacher: str = ""


ARMS = {
    "TO": Arm("teacher", protected=False), "TV": Arm("teacher", protected=True),
    "SO": Arm("student", protected=False, teacher="TO"), "SV": Arm("student", protected=True, teacher="TV"),
    "CO": Arm("student", protected=False), "CV": Arm("student", protected=True),
}  # fmt: skip


def distillation_loss(logits: Tensor, targets: Tensor, answers: Tensor, temperature: float, weight: float) -> Tensor:
    """What a student is trained on, a mean over the batch.

        (1 - weight) CE(targets, softmax(logits)) + weight T^2 KL(softmax(answers / T) || softmax(logits / T))

    Args:
        logits: (B, K), the student's.
        targets: (B, K), class probabilities.
        answers: (B, K), the teacher's logits.
        temperature: T, above 0. T^2 keeps the size of the gradient as T changes.
        weight: Share of the teacher, from 0 to 1.

    Source: Hinton, Vinyals, Dean, "Distilling the Knowledge in a Neural Network", 2015, section 2.
    """
    told, said = (F.log_softmax(of / temperature, 1) for of in (answers, logits))
    soft = F.kl_div(said, told, reduction="batchmean", log_target=True)
    return (1 - weight) * F.cross_entropy(logits, targets) + weight * temperature**2 * soft


def student_loss(temperature: float, weight: float) -> Loss:
    """``distillation_loss`` as training wants it, of targets (B, 2K): class probabilities, and beside them the teacher's answers.

    A student's images never change, so that its teacher is asked once, before the training.
    """

    def loss(model: nn.Module, images: Tensor, beside: Tensor) -> Tensor:
        targets, answers = beside.chunk(2, 1)
        return distillation_loss(model(images), targets, answers, temperature, weight)

    return loss


def top(logits: Tensor, classes: Tensor, count: int) -> float:
    """Share of (N, K) logits whose ``count`` largest hold the true class."""
    return float((logits.topk(count, 1).indices == classes[:, None]).any(1).float().mean())


def check(chosen: argparse.Namespace, sizes: list[int], data: ImageDataset) -> None:
    """Whether the settings that only this study has can be used.

    Raises:
        ConfigError: Naming the one that cannot.
    """
    if not (chosen.temperature > 0 and 0 <= chosen.weight <= 1):
        raise ConfigError(
            f"temperature is {chosen.temperature:g} and weight {chosen.weight:g}; allowed: above 0, and from 0 to 1"
        )
    if min(*sizes, chosen.test_images) < 1 or not 1 <= chosen.attacked <= min(sizes[:2]):
        raise ConfigError(
            f"attacked is {chosen.attacked}; allowed: 1 to the number of teacher's and of student's images ({sizes[0]}, "
            f"{sizes[1]}); all numbers of images: at least 1"
        )
    for part, count in ((data.train, sum(sizes)), (data.test, chosen.test_images)):
        if count > len(part):
            raise ConfigError(f"{count} images are asked for of a part of {chosen.dataset} that has {len(part)}")


class Trial:
    """All arms under one seed.

    Args:
        chosen: The settings.
        seed: Of the images of each role, the draws of the defence, weights and orders.
        results: Where arms are kept.

    Raises:
        ConfigError: When the data set has too few images, or a setting is out of its range.
    """

    def __init__(self, chosen: argparse.Namespace, seed: int, results: Results) -> None:
        self.chosen, self.seed, self.results = chosen, seed, results
        plan = self.plan(ARMS["TO"])
        self.card, data = plan.data_card(), plan.load_data()
        sizes = [getattr(chosen, f"{role}_images") for role in ROLES]
        check(chosen, sizes, data)
        order = torch.randperm(len(data.train), generator=generator_for(*self.key("images")))[: sum(sizes)]
        tests = torch.randperm(len(data.test), generator=generator_for(*self.key("tests")))[: chosen.test_images]
        batches = [local_batch(data.train, rows, data.num_classes) for rows in torch.split(order, sizes)]
        self.plain: dict[str, Batch] = dict(zip(ROLES, batches, strict=True))
        self.plain["test"] = local_batch(data.test, tests, data.num_classes)

    def key(self, *what: str) -> Key:
        """A random stream of this seed; arms that are compared share theirs."""
        return (STUDY, self.seed, *what)

    def plan(self, arm: Arm) -> WholeModelPlan:
        """How the outsourced scenario would train this arm, with an epoch for a round."""
        chosen = self.chosen
        experiment = Experiment.of(
            scenario="outsourced", dataset=chosen.dataset, data_dir=chosen.data_dir, image_size=chosen.image_size,
            model=getattr(chosen, arm.role), norm=chosen.norm, rounds=getattr(chosen, f"{arm.role}_epochs"), local_epochs=1,
            learning_rate=getattr(chosen, f"{arm.role}_learning_rate"), learning_rate_milestones="3/8,5/8,7/8",
            batch_size=chosen.batch_size, momentum=0.9, nesterov=True, weight_decay=5e-4, seed=self.seed,
            defenses=chosen.defense,
        )  # fmt: skip
        return WholeModelPlan.narrow(experiment.plan(parse(chosen.defense if arm.protected else "")))

    def uploads(self, role: str, *, protected: bool) -> Batch:
        """Training images of a role as the server gets them."""
        pipeline, key = parse(self.chosen.defense if protected else ""), self.key("upload", role)
        return pipeline.protect_batch(pipeline.protect_once(self.plain[role], key), key)

    def shown(self, role: str, *, protected: bool) -> Batch:
        """Images of a role as a model in use sees them: under draws of their own, where they must be protected then."""
        pipeline = parse(self.chosen.defense if protected else "")
        return pipeline.protect_test(self.plain[role], self.key("shown", role))

    def says(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits (N, K) of a model, put into eval mode, for images in [0, 1]."""
        return predict(model.eval(), normalise(batch.images, self.card))

    def train(self, arm: Arm) -> tuple[nn.Module, Numbers]:
        """An arm's model, with its accuracies and its curve: epoch, top-1 test accuracy, training loss."""
        examples = self.uploads(arm.role, protected=arm.protected)
        tests = self.shown("test", protected=arm.protected)
        plan, loss = self.plan(arm), None
        if arm.teacher:
            answers = self.says(self.teacher(arm.teacher), examples).float()
            examples = Batch(examples.images, torch.cat([examples.targets, answers], 1))
            loss = student_loss(self.chosen.temperature, self.chosen.weight)
        central = CentralTraining(plan, examples, self.key("training", arm.role))
        if loss:
            central.training = replace(central.training, loss=loss)
        curve, logits, classes = list[tuple[int, float, float]](), torch.empty(0), tests.targets.argmax(1)
        last = range(plan.rounds - LAST + 1, plan.rounds + 1)
        told = {plan.rounds * quarter // 4 for quarter in (1, 2, 3)} | set(last)
        for epoch in range(1, plan.rounds + 1):
            mean, _ = central.run_round(plan.at(epoch))
            if epoch in told:
                logits = self.says(central.training.model, tests)
                curve.append((epoch, top(logits, classes, 1), mean))
        accuracies = {f"top{count}": top(logits, classes, count) for count in (1, 3)}
        return central.training.model.eval(), {"curve": curve, **accuracies}

    def teacher(self, name: str) -> nn.Module:
        """A teacher: as it was kept, or trained (again, where its file is gone)."""
        model = self.plan(ARMS[name]).build_model().to(device())
        if self.results.load_model(self.seed, name, model):
            return model.eval()
        return self.train_and_keep(name)[0]

    def train_and_keep(self, name: str) -> tuple[nn.Module, Numbers]:
        """As ``train``; a teacher's weights are kept for its students."""
        model, quality = self.train(ARMS[name])
        if ARMS[name].role == "teacher":
            self.results.keep_model(self.seed, name, model)
        return model, quality

    def membership(self, arm: Arm, model: nn.Module) -> Numbers:
        """How well its loss tells training images from outsiders', for the images of teacher and student, under two kinds of draws.

        As a model in use sees them (``auc_``), which is what somebody can try who holds the plain picture; and as they were
        uploaded (``auc_uploaded_``), outsiders as they would have been: what is learned by heart are the uploads.
        """
        plan = self.plan(arm)
        seen = TrainedModel(
            model=model, update={name: torch.zeros_like(tensor) for name, tensor in shared_tensors(model).items()},
            input_shape=self.card.input_shape, mean=self.card.mean, std=self.card.std, num_examples=len(self.plain[arm.role]),
            batch_size=plan.batch_size, local_steps=1, learning_rate=plan.learning_rate,
        )  # fmt: skip
        test = LossThreshold()(seen, generator_for(*self.key("membership")))

        found = dict[str, float]()
        for name, looks in (("auc", self.shown), ("auc_uploaded", self.uploads)):
            batches = {role: looks(role, protected=arm.protected) for role in ("outsider", "teacher", "student")}
            scores = {
                role: test.scores(normalise(batch.images, self.card), batch.targets.argmax(1))
                for role, batch in batches.items()
            }
            found |= {f"{name}_{role}": auc(scores[role], scores["outsider"]) for role in ("teacher", "student")}
        return found

    @functools.cached_property
    def attacks(self) -> list[Refinement]:
        """Both, after they learned from the auxiliary images."""
        found = (WindowMean(), LearnedRestorer(iterations=self.chosen.restorer_iterations))
        pipeline, auxiliary = parse(self.chosen.defense), self.plain["auxiliary"]
        return [
            fitted(attack, pipeline, auxiliary, generator_for(*self.key(type(attack).__name__))) for attack in found
        ]

    def pictures(self, arm: Arm) -> Numbers:
        """PSNR of the first training images as uploaded, of what attacks make of them, and of the auxiliary images' mean."""
        count = slice(self.chosen.attacked)
        truth = self.plain[arm.role].images[count]
        sent = self.uploads(arm.role, protected=arm.protected).images[count]
        mean = self.plain["auxiliary"].images.mean(0).expand_as(truth)
        found = {"as_uploaded": decibels(sent, truth), "mean_image": decibels(mean, truth)}
        for attack in self.attacks if arm.protected else ():
            name = type(attack).__name__
            found[name] = decibels(restored(attack, sent, generator_for(*self.key(name, arm.role))), truth)
        return found

    def numbers(self, name: str) -> Numbers:
        """All that is known of an arm."""
        begin, arm = time.perf_counter(), ARMS[name]
        pictures = self.pictures(arm)  # first, as it is the first to find that there are too few images
        start = time.perf_counter()
        model, quality = self.train_and_keep(name)
        trained = time.perf_counter() - start
        measured = {**quality, **self.membership(arm, model), **pictures}
        return measured | {"training_seconds": trained, "seconds": time.perf_counter() - begin}
