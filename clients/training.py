"""Local training, probing and evaluation of one client; no Flower here.

Data flow: images -> once-only protection -> fresh protection per batch -> normalise -> model -> loss -> gradient -> update
defences per step -> step (under the training defences) -> update -> update defences per update. Where local training sees crops and
mirror images, these come first, anew for every batch, and all protection after them is fresh as well.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, Dataset, TensorDataset

from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.augmentation import random_crop_and_flip
from clients.data import ImageData, to_float
from clients.draws import Draws, digest_of
from clients.task import FLOAT_BYTES, Task, load_weights
from defenses.base import Batch, InputDefense, Key, Training, TrainingDefense, Update, generator_for
from defenses.pipeline import Pipeline
from defenses.visual_mixer import VisualMixer
from defenses.visual_mixer_windows import window_sides

Ledger = dict[str, dict[str, Any]]
"""What training defences must remember: their state under "train", and under "probe" that of the server's probes."""


BLOCK = 8
"""Examples that share the draws of a defence that protects an image once. A client whose share does not fit into memory protects no
more than the blocks that a batch touches; with one example in a block, defences would take five times as long."""

CHUNK = 256
"""Examples that are read and judged at once."""


MOST_AVERAGED = 4096
"""Images behind a mean image: no mean is known better by reading more of them."""


class TrainingError(RuntimeError):
    """Local training that produced nothing worth sending."""


@dataclass(frozen=True)
class LocalResult:
    """What one local round yields.

    Attributes:
        updates: Name -> (local - global), protected; one, or one per probe.
        num_examples: Examples behind each.
        local_steps: Optimizer steps behind each.
        metrics: Numbers about the round ("train-loss" unless a defence bounds what one example tells, "train-seconds", a privacy
            budget).
        ledger: To be kept until the next round; see ``Ledger``.
    """

    updates: list[Update]
    num_examples: int
    local_steps: int
    metrics: dict[str, float]
    ledger: Ledger


def device() -> torch.device:
    """The GPU when this process may use one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def soft_cross_entropy(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy between the model's logits and soft targets (B, K)."""
    return F.cross_entropy(model(images), targets)


def local_batch(part: ImageData, indices: Tensor, num_classes: int) -> Batch:
    """The examples at ``indices`` as floats in [0, 1] with one-hot targets."""
    targets = F.one_hot(part.labels[indices], num_classes).float()
    return Batch(to_float(part.images[indices]), targets)


@dataclass(frozen=True)
class Probed:
    """The images of one probe: as the person holds them, and as they entered the model.

    Attributes:
        original: Before the defences, cropped and mirrored where training does so.
        seen: As they entered the model.
        positions: (B,) int64, which of the client's own images they are: as ``LocalClient.own_images`` counts.
    """

    original: Batch
    seen: Batch
    positions: Tensor


class LocalClient:
    """One client's data and its work on one task.

    Args:
        task: The server's orders.
        partition: Number of this client.
        train: Indices of its training examples.
        test: Indices of its share of the test examples.
        draws: Where its randomness starts; by default that of a simulated client, which follows from seed and partition.
    """

    def __init__(
        self, task: Task, partition: int, train: Sequence[int], test: Sequence[int], draws: Draws | None = None
    ) -> None:
        self.task = task
        self.partition = partition
        self.draws = draws or Draws.simulated(task.seed, partition)
        self.data = task.load_data()
        self.card = task.data_card()
        self.pipeline = task.defenses()
        self._train, self._test = tuple(train), tuple(test)

    @property
    def num_train(self) -> int:
        """Number of training examples."""
        return len(self._train)

    @property
    def train_indices(self) -> tuple[int, ...]:
        """Its training examples in the data set."""
        return self._train

    @property
    def num_test(self) -> int:
        """Number of test examples."""
        return len(self._test)

    def key(self, kind: str, *what: int | str | bytes, number: int = 0) -> Key:
        """A random stream of this client; see ``Draws.key``."""
        task = self.task
        return self.draws.key(
            kind, *what, self.partition, pipeline=task.pipeline, server_round=task.round, number=number
        )

    def renew(self, kind: str, first: int = 0, count: int = 1) -> None:
        """To be called before anything is drawn for a reply; see ``Draws.renew``."""
        self.draws.renew(kind, self.task.pipeline, self.task.round, first, count)

    def protected_test(self, kind: str, batch: Batch, *what: int | str) -> Batch:
        """Examples as they are shown to a model in use: the same examples are always protected in the same way."""
        stages, protect = self.pipeline.in_tests, self.pipeline.protect_test
        if not stages:
            return batch
        if self._one_by_one:
            return _each(protect, stages, batch, self.key(kind))
        return protect(batch, self.key(kind, *what, digest_of(batch, stages)))

    def plain(self, positions: Tensor) -> Batch:
        """Local training examples at ``positions`` (n,), unprotected."""
        indices = torch.tensor(self._train, dtype=torch.long)[positions]
        return local_batch(self.data.train, indices, self.card.num_classes)

    def kept(self, positions: Tensor) -> Batch:
        """Those examples after the defences that protect an image once and keep the result.

        Where training sees crops and mirror images nothing is kept: every view of an image is protected anew.
        """
        if self.task.augments or not self.pipeline.protects_once:
            return self.plain(positions)
        if self._one_by_one:
            return _each(self.pipeline.protect_once, self.pipeline.once, self.plain(positions), self.key("once"))
        if self.num_train * math.prod(self.card.input_shape) * FLOAT_BYTES <= self.task.image_memory * 2**30:
            whole = _protect_once(replace(self.task, round=0), self._train, self.key("once"))
            return Batch(whole.images[positions], whole.targets[positions])
        blocks = {at: self._kept_block(at) for at in sorted({int(position) // BLOCK for position in positions})}
        rows = [(blocks[int(position) // BLOCK], int(position) % BLOCK) for position in positions]
        return Batch(
            torch.stack([block.images[row] for block, row in rows]),
            torch.stack([block.targets[row] for block, row in rows]),
        )

    @property
    def _one_by_one(self) -> bool:
        """Whether the draws that protect an image once depend on that image alone, and not on its company.

        Company is the server's to choose, by the examples that it deals out, limits and batch sizes: each choice would protect
        the image anew, and the protections would average out. In a simulation blocks cost a fifth, and nobody is protected.
        """
        return self.draws.notebook is not None and not self.pipeline.mixes_images

    def _kept_block(self, at: int) -> Batch:
        """Examples ``at * BLOCK`` onwards after the once-only defences; the block's draws depend on nothing else."""
        positions = torch.arange(at * BLOCK, min((at + 1) * BLOCK, self.num_train))
        return _once(self.pipeline, self.plain(positions), (*self.key("once"), at))

    def originals(self) -> Batch:
        """All local training examples, unprotected."""
        return self.plain(torch.arange(self.num_train))

    def own_images(self, positions: Tensor) -> Tensor:
        """Images (N, C, H, W) in [0, 1] at positions (N,) among the training examples, and behind them the test examples."""
        indices = torch.tensor([*self._train, *self._test], dtype=torch.long)[positions]
        images = torch.zeros(len(positions), *self.card.input_shape)
        for part, chosen in (
            (self.data.train, positions < self.num_train),
            (self.data.test, positions >= self.num_train),
        ):
            images[chosen] = local_batch(part, indices[chosen], self.card.num_classes).images
        return images

    def protected(self) -> Batch:
        """All local training examples as ``kept``."""
        return self.kept(torch.arange(self.num_train))

    def averaged(self) -> Tensor:
        """Positions (n,) of the training images that stand for all of them in a mean: ``MOST_AVERAGED`` at most, evenly spaced."""
        return torch.linspace(0, self.num_train - 1, min(self.num_train, MOST_AVERAGED)).long()

    def augmented(self, batch: Batch, key: Key) -> Batch:
        """The batch as cropped and mirrored under ``key``; itself where the task asks for neither."""
        if not self.task.augments:
            return batch
        task, generator = self.task, generator_for(*key, "augment")
        return replace(
            batch, images=random_crop_and_flip(batch.images, task.crop_padding, task.horizontal_flip, generator)
        )

    def enter(self, kept: Batch, key: Key) -> Batch:
        """What enters the model of examples that are as ``kept`` gives them: one view of each, protected."""
        if self.task.augments:
            kept = self.pipeline.protect_once(self.augmented(kept, key), key)
        return self.pipeline.protect_batch(kept, key)

    def view(self, positions: Tensor, key: Key) -> Probed:
        """The training examples at ``positions`` as one batch sees them: before the defences, and as they enter the model.

        A crop or a mirror image is no protection: it shows what the image shows. A guess is therefore compared with the view that
        was used, since a shift of four pixels would look like privacy to every score that compares pixels.
        """
        return Probed(self.augmented(self.plain(positions), key), self.enter(self.kept(positions), key), positions)

    def train(self, weights: Mapping[str, Tensor], ledger: Ledger) -> LocalResult:
        """One local round from the global weights.

        Args:
            weights: The global weights.
            ledger: What the training defences recorded before; see ``Ledger``.

        Raises:
            TrainingError: When the update is not finite.
        """
        start = time.perf_counter()
        self.renew("train")
        model = self._model(weights)
        key = self.key("train", self.task.round)
        training = self._training(model, _Kept(self), ledger.get("train", {}), key)
        loss, steps = self._run(training, key)
        update = self._update(model, weights, key)
        # An exact loss is a message about every example, which no bound of what an update tells would cover.
        told = {} if any(defense.bounds_examples for defense in self.pipeline.defenses) else {"train-loss": loss}
        metrics = {**told, **self._privacy(training.state), "train-seconds": time.perf_counter() - start}
        # Exact, because a pass repeats nobody; of a Poisson sample (DP-SGD) the expected size, as the true one is private.
        examples = min(self.num_train, steps * self.task.batch_size)
        return LocalResult([update], examples, steps, metrics, _without_empty(ledger | {"train": training.state}))

    def trained_on(self) -> Tensor:
        """Positions (n,), int64 and ascending, of the training examples that this round's training update depends on."""
        everyone = torch.arange(self.num_train)
        if not self.task.local_steps:
            return everyone
        drawn = everyone[torch.isin(everyone, torch.cat(list(self._drawn())))]
        # Poisson sampling may draw nobody, and a score needs somebody.
        return drawn if len(drawn) else everyone

    def trained_views(self) -> Probed:
        """The examples of ``trained_on`` as they first entered this round's training.

        Later passes see other crops and draws, so that an update of several passes depends on more than this.
        """
        used, key = self.trained_on(), self.key("train", self.task.round)
        if not self.task.augments and not self.pipeline.protects_batches:
            return self.view(used, key)
        found: list[tuple[Tensor, Probed]] = []
        missing = torch.ones(self.num_train, dtype=torch.bool)
        for step, positions in enumerate(self._drawn()):
            new = missing[positions]
            if new.any():
                found.append((positions[new], _rows(self.view(positions, (*key, "batch", step)), new)))
                missing[positions] = False
            if not missing.any():
                break
        if len(never := used[missing[used]]):  # whom Poisson sampling missed
            found.append((never, self.view(never, (*key, "audit"))))
        order = torch.cat([positions for positions, _ in found]).argsort()
        original, seen = join([view.original for _, view in found]), join([view.seen for _, view in found])
        return _rows(Probed(original, seen, torch.cat([positions for positions, _ in found])), order)

    def _drawn(self) -> Iterator[Tensor]:
        """Positions (b,) of the examples in each batch of this round's training: the draws of ``train`` without its images."""
        everyone = torch.arange(self.num_train)
        key = self.key("train", self.task.round)
        training = self._training(self.task.build_model(), TensorDataset(everyone, everyone), {}, key)
        return (positions for positions, _ in self._batches(training))

    def probe(self, weights: Mapping[str, Tensor], ledger: Ledger) -> LocalResult:
        """One-step updates on a few images each, through the same defences: the strongest setting of the papers.

        Noise is calibrated for the real training, never for the probe. What probes spend is booked apart: the training's
        own budget does not cover a question that a curious server adds.
        """
        real = ledger.get("train", {}) or self._calibrated(weights)
        booked = ledger.get("probe") or {name: value for name, value in real.items() if name != "accountant"}
        updates, steps = [], 0
        self.renew("probe")
        for target in range(self.task.probe_targets):
            key = self.key("probe", self.task.round, target)
            model, seen = self._model(weights), self.probed(target).seen
            images = TensorDataset(seen.images, seen.targets)
            training = self._training(model, images, booked, key, one_step=True)
            if self.task.probe_mode == "eval":
                set_eval(training.model, keep_hooked=self.pipeline.needs_group_norm)
            _, steps = self._run(training, key, protect=False)
            booked = training.state
            updates.append(self._update(model, weights, key))
        spent = self._privacy(ledger.get("train", {}), booked)
        metrics = {f"{name}-with-probes": value for name, value in spent.items() if name != "delta"}
        return LocalResult(updates, self.task.probe_images, steps, metrics, _without_empty(ledger | {"probe": booked}))

    def _calibrated(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """What training defences work out from the real training (such as a noise multiplier), before its first round."""
        if not any(isinstance(defense, TrainingDefense) for defense in self.pipeline.defenses):
            return {}
        key = self.key("calibrate")
        return self._training(self._model(weights), _Kept(self), {}, key).state

    def _privacy(self, *states: Mapping[str, Any]) -> dict[str, float]:
        spent: dict[str, float] = {}
        for defense in self.pipeline.defenses:
            if isinstance(defense, TrainingDefense):
                spent |= defense.privacy(*states)
        return spent

    def probed(self, target: int) -> Probed:
        """The images of a probe: the same in every round and pipeline, so that curves compare the same people.

        No two probes show the same person as long as there are enough, because scores of an image that is attacked twice are not
        two observations. Crops and mirror images are drawn anew in every round.
        """
        count = self.task.probe_images
        order = torch.randperm(len(self._train), generator=generator_for(*self.key("probed")))
        # Defences that mix examples need company: the probe is the first `count` examples of a batch of the usual size.
        chosen = order.roll(-target * count)[: max(count, self.task.batch_size)]
        return _rows(self.view(chosen, self.key("probe", self.task.round, "batch", target)), slice(count))

    def probed_windows(self, target: int) -> Tensor | None:
        """Sides of the windows that VisualMixer shuffled each pixel of a probe in, (B, H, W) int64; for upper bounds only.

        None unless it is the first input defence: what an earlier one drew for these images is not drawn again here.
        """
        first = next((d for d in self.pipeline.defenses if isinstance(d, InputDefense)), None)
        if not isinstance(first, VisualMixer):
            return None
        images = self.probed(target).original.images
        return window_sides(first.partition(images), *images.shape[-2:])

    def test_plain(self, positions: Tensor) -> Batch:
        """Test examples of this client at ``positions`` (n,), unprotected."""
        indices = torch.tensor(self._test, dtype=torch.long)[positions]
        return local_batch(self.data.test, indices, self.card.num_classes)

    def test_examples(self) -> Batch:
        """This client's share of the test examples, unprotected."""
        return self.test_plain(torch.arange(self.num_test))

    def evaluate(self, weights: Mapping[str, Tensor]) -> dict[str, float]:
        """Accuracy and mean loss of the global model on the local test share, on clean images and as deployed.

        Returns:
            "test-accuracy-original", "test-loss-original" and the same for "transformed" (test images protected where
            the pipeline asks for it at inference; else equal), and "num-examples".
        """
        model, shown = self._model(weights).eval(), ["original"] + ["transformed"] * self.pipeline.at_inference
        found = {f"test-{what}-{name}": 0.0 for name in shown for what in ("accuracy", "loss")}
        for positions in chunks(self.num_test, CHUNK):
            clean = self.test_plain(positions)
            for name in shown:
                batch = clean if name == "original" else self.protected_test("test", clean, int(positions[0]))
                correct, loss = self._judge(model, batch)
                found[f"test-accuracy-{name}"] += correct / self.num_test
                found[f"test-loss-{name}"] += loss / self.num_test
        for what in ("accuracy", "loss"):
            found.setdefault(f"test-{what}-transformed", found[f"test-{what}-original"])
        return {"num-examples": float(self.num_test), **found}

    @torch.no_grad()
    def _judge(self, model: nn.Module, batch: Batch) -> tuple[float, float]:
        """Right answers and summed loss."""
        truth = batch.targets.argmax(1).to(device())
        logits = model(normalise(batch.images.to(device()), self.card))
        return float((logits.argmax(1) == truth).sum()), float(F.cross_entropy(logits, truth, reduction="sum"))

    def _model(self, weights: Mapping[str, Tensor]) -> nn.Module:
        return load_weights(self.task.build_model(), weights).to(device())

    def _training(
        self, model: nn.Module, examples: Dataset[Any], state: dict[str, Any], key: Key, *, one_step: bool = False
    ) -> Training:
        task, count = self.task, len(examples)  # type: ignore[arg-type]
        training = Training(
            model=model.train(),
            optimizer=torch.optim.SGD(
                model.parameters(),
                lr=task.round_learning_rate,
                momentum=task.momentum,
                weight_decay=task.weight_decay,
                nesterov=task.nesterov,
            ),
            loader=DataLoader(
                examples,
                batch_size=count if one_step else task.batch_size,
                shuffle=True,
                generator=generator_for(*key, "order"),
            ),
            loss=soft_cross_entropy,
            epochs=1 if one_step else task.passes(self.num_train),
            total_epochs=task.passes(self.num_train, task.rounds),
            state=dict(state),
            total_steps=task.rounds * task.local_steps or None,
        )
        return self.pipeline.protect_training(training, (*key, "training"))

    def _run(self, training: Training, key: Key, *, protect: bool = True) -> tuple[float, int]:
        """Trains; returns the mean loss per example and the number of steps."""
        total, seen, step = 0.0, 0, 0
        for images, targets in self._batches(training):
            batch = Batch(images, targets)
            if protect and len(batch):
                batch = self.enter(batch, (*key, "batch", step))
            inputs = normalise(batch.images.to(device()), self.card)
            loss = training.loss(training.model, inputs, batch.targets.to(device()))
            training.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._protect_gradient(training.model, (*key, "gradient", step))
            training.optimizer.step()
            total, seen, step = total + float(loss.detach()) * len(batch), seen + len(batch), step + 1
        return total / max(seen, 1), step

    def _protect_gradient(self, model: nn.Module, key: Key) -> None:
        """Defences per step, in place: the optimizer sees nothing else."""
        held = {name: weight for name, weight in model.named_parameters() if weight.grad is not None}
        gradient = {name: weight.grad for name, weight in held.items() if weight.grad is not None}
        for name, protected in self.pipeline.protect_gradient(gradient, key).items():
            held[name].grad = protected

    def _batches(self, training: Training) -> Iterator[tuple[Tensor, ...]]:
        """The batches of all passes; at most ``local_steps`` of them, unless that is 0."""
        passes = itertools.chain.from_iterable(training.loader for _ in range(training.epochs))
        return itertools.islice(passes, self.task.local_steps or None)

    def _update(self, model: nn.Module, weights: Mapping[str, Tensor], key: Key) -> Update:
        update = {name: local.cpu() - weights[name] for name, local in shared_tensors(model).items()}
        if bad := [name for name, delta in update.items() if not torch.isfinite(delta).all()]:
            raise TrainingError(
                f"client {self.partition}, round {self.task.round}: training diverged, {bad[0]!r} is not finite; "
                f"lower learning-rate (now {self.task.round_learning_rate:g})"
            )
        return self.pipeline.protect_update(update, (*key, "update"))


class _LoneClient(LocalClient):
    """A client whose examples are given as they are: the server's own."""

    def __init__(self, task: Task, batch: Batch, partition: int) -> None:
        super().__init__(task, partition, range(len(batch)), ())
        self._batch = batch

    def plain(self, positions: Tensor) -> Batch:
        """Of the given examples."""
        return Batch(self._batch.images[positions], self._batch.targets[positions])

    def kept(self, positions: Tensor) -> Batch:
        """Kept here, as a batch has no name to cache it by."""
        if self.task.augments or not self.pipeline.protects_once:
            return self.plain(positions)
        return Batch(self._whole.images[positions], self._whole.targets[positions])

    @functools.cached_property
    def _whole(self) -> Batch:
        return join([self._kept_block(at) for at in range(math.ceil(self.num_train / BLOCK))])


def train_alone(task: Task, batch: Batch, seed: int) -> nn.Module:
    """A model trained on one batch of examples as clients train theirs, in as many rounds; in eval mode.

    Args:
        task: The clients' orders; its pipeline protects this training too.
        batch: The examples.
        seed: Of the weights and of the training; the clients' own seeds are not touched.
    """
    # Streams that no client has: clients' partitions count from 0.
    own_seed = int(torch.randint(2**31, (), generator=generator_for("alone", task.seed, seed)))
    alone = replace(task, seed=own_seed, round=1)
    client = _LoneClient(alone, batch, -1)
    weights = shared_tensors(alone.build_model())
    ledger: Ledger = {}
    for server_round in range(1, task.rounds + 1):
        client.task = replace(alone, round=server_round)
        result = client.train(weights, ledger)
        ledger = result.ledger
        weights = {name: weight + result.updates[0][name] for name, weight in weights.items()}
    return load_weights(alone.build_model(), weights).eval()


def set_eval(model: nn.Module, *, keep_hooked: bool = False) -> None:
    """Puts a model into eval mode: BatchNorm uses its running statistics, dropout is off.

    Args:
        model: Changed in place.
        keep_hooked: Leave layers with weights of their own in train mode, because Opacus collects gradients per example in no
            other. None of those that it knows computes anything else there.
    """
    for module in [model, *model.modules()]:
        own = next(module.parameters(recurse=False), None) is not None
        module.training = keep_hooked and own and not isinstance(module, _BatchNorm)


class _Kept(Dataset[tuple[Tensor, Tensor]]):
    """A client's training examples for a loader, read when they are asked for."""

    def __init__(self, client: LocalClient) -> None:
        self._client = client

    def __len__(self) -> int:
        return self._client.num_train

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        batch = self._client.kept(torch.tensor(indices, dtype=torch.long))
        return list(zip(batch.images, batch.targets, strict=True))


def _rows(view: Probed, chosen: Tensor | slice) -> Probed:
    """Those of its images."""
    original, seen = (Batch(batch.images[chosen], batch.targets[chosen]) for batch in (view.original, view.seen))
    return Probed(original, seen, view.positions[chosen])


def _without_empty(ledger: Ledger) -> Ledger:
    return {name: state for name, state in ledger.items() if any(state.values())}


@functools.lru_cache(maxsize=32)
def _protect_once(task: Task, indices: tuple[int, ...], key: Key) -> Batch:
    """Cached per process: protection that is drawn once needs computing once, and every process computes the same."""
    part, pipeline, num_classes = task.load_data().train, task.defenses(), task.data_card().num_classes
    blocks = [torch.tensor(indices[at : at + BLOCK]) for at in range(0, len(indices), BLOCK)]
    return join([_once(pipeline, local_batch(part, block, num_classes), (*key, at)) for at, block in enumerate(blocks)])


def chunks(count: int, size: int, first: int = 0) -> list[Tensor]:
    """Positions ``first`` to ``first + count`` in pieces of ``size``; one that is left over joins the last, as nobody can be mixed
    with it.
    """
    cuts = [*range(first, max(first + count - 1, first + 1), size), first + count]
    return [torch.arange(start, end) for start, end in itertools.pairwise(cuts)]


def join(batches: Sequence[Batch]) -> Batch:
    """One batch of several, in order."""
    return Batch(torch.cat([batch.images for batch in batches]), torch.cat([batch.targets for batch in batches]))


def _each(protect: Callable[[Batch, Key], Batch], stages: str, batch: Batch, key: Key) -> Batch:
    """Every example protected as if it were the only one, under draws that its content names."""
    alone = (Batch(batch.images[at : at + 1], batch.targets[at : at + 1]) for at in range(len(batch)))
    return join([protect(one, (*key, digest_of(one, stages))) for one in alone]) if len(batch) else batch


def _once(pipeline: Pipeline, batch: Batch, key: Key) -> Batch:
    return pipeline.protect_once(batch, (*key, digest_of(batch, pipeline.once))) if pipeline.once else batch
