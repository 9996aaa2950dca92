"""Canaries of an auditor in the training of an external app under Opacus: two lines in the app's ``train``.

A canary is an example more, whose gradient the auditor chooses: 10 clipping norms at one weight, 0 elsewhere. It exists if its fair
coin shows 1, as the claim of Opacus is about an example added or removed. Coins are the node's own, and new in each training: so a
canary is in one round only, and its bound is of the epsilon of one round.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from flwr.app import ConfigRecord, Context
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from attacks.dp_audit.placed_canaries import NO_CANARY, NORM, PlacedCanaries, set_gradients
from attacks.observations import AttackError
from clients.external_app.canary_images import MOST_CANARIES, CanaryDataset, numbers_in
from clients.messages.node import answers_of, draws_from_seed, draws_of, partition_of
from defenses.random_draws import generator_for

KEPT = "fedveil-canaries"
"""Record of a context's state that describes the canaries of the node's last training."""
WRAPPER = "_module."
"""How Opacus' wrapper begins the names of a model's parameters."""


class CanaryMistake(ValueError):  # noqa: N818 (a mistake of the app)
    """Canaries in a training that cannot set their gradients."""


@dataclass
class NodeCanaries:
    """The canaries of one node's last training.

    Attributes:
        count: Number of coins.
        seed: Of the places, and in a simulation of the coins.
        training: Number of the training in this run, from 1 on.
        sizes: Name of each trained tensor -> its number of weights, in the model's order; empty until the canaries act.
        steps: Steps of the optimizer in which canaries could act.
        met: Canaries that were in the batch of some step.
    """

    count: int
    seed: int
    training: int
    sizes: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    met: int = 0

    @classmethod
    def kept(cls, context: Context) -> NodeCanaries | None:
        """Those of the node's last training; None where it had none."""
        record: Any = context.state.get(KEPT)
        return cls(**json.loads(record["canaries"])) if record and record["canaries"] else None

    def keep(self, context: Context) -> None:
        """Write them to the node's state."""
        context.state[KEPT] = ConfigRecord({"canaries": json.dumps(asdict(self)), "training": self.training})

    def coins(self, context: Context) -> Tensor:
        """The node's own coins: (count,), bool."""
        draws = draws_of(context, self.seed)
        run = 0 if draws_from_seed(context) else context.run_id  # a node that is started anew counts from 1 again
        key = draws.key("canaries", run, self.training, pipeline="", server_round=0)
        return torch.rand(self.count, generator=generator_for(*key)) < 0.5


def places(sizes: Mapping[str, int], count: int, seed: int, partition: int, training: int) -> PlacedCanaries:
    """The public places of a node's canaries in one training."""
    return PlacedCanaries.steady(sizes, count, generator_for("app canary places", seed, partition, training))


def with_canaries(data: Any, context: Context, *, count: int = 400, seed: int = 0) -> Any:
    """Add an auditor's canaries to a node's training data; the first of two lines, before the loader is made private.

    About half of ``count`` canaries exist, each by a fair coin, so that the data grow by so many examples: ``num-examples`` and a
    sample rate that follows from the number of examples change. A deployed node adds none unless its operator allows ``canaries``.

    Args:
        data: Map-style data set, or a ``DataLoader`` with a plain sampler. Examples are mappings, tuples or lists with an image as
            a tensor.
        context: Of the node.
        count: Number of coins; 1 to 16,384, and at most the number of trained weights.
        seed: Of the places of canaries, and in a simulation of their coins.

    Returns:
        Data of the same kind.

    Raises:
        TypeError: When the data are of another kind.
        ValueError: When ``count`` or ``seed`` is outside its range.
    """
    for name, value, least, most in (("count", count, 1, MOST_CANARIES), ("seed", seed, 0, 2**62)):
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"with_canaries: {name} is {value!r}; allowed: a whole number from {least} to {most}")
    before: Any = context.state.get(KEPT) or {"training": 0}
    training = int(before["training"]) + 1
    context.state[KEPT] = ConfigRecord({"canaries": "", "training": training})
    if not answers_of(context).canaries:
        return data
    canaries = NodeCanaries(count, seed, training)
    numbers = canaries.coins(context).nonzero().flatten().tolist()
    extended = _loader(data, numbers) if isinstance(data, DataLoader) else _dataset(data, numbers)
    canaries.keep(context)
    return extended


def set_canary_gradients(model: nn.Module, optimizer: Any, context: Context) -> None:
    """Let the canaries act: the second of two lines, after Opacus' ``make_private`` and before the training.

    From then on each step of the optimizer replaces the gradients of canaries, before Opacus clips them. Opacus itself draws the
    batches, clips, adds noise and keeps the account.

    Args:
        model: The model that ``make_private`` returned.
        optimizer: The optimizer that ``make_private`` returned.
        context: Of the node.

    Raises:
        CanaryMistake: When ``with_canaries`` was not called before, the optimizer is none of Opacus', or there are more canaries
            than weights; and in training, when the optimizer's gradients are not those of the model's last batch.
    """
    canaries = NodeCanaries.kept(context)
    if canaries is None:
        if answers_of(context).canaries:
            raise CanaryMistake("set_canary_gradients: call with_canaries on the training data before")
        return
    # Its class, as the optimizer itself computes ``grad_samples``, which fails before a backward pass.
    if not all(hasattr(type(optimizer), name) for name in ("pre_step", "grad_samples")):
        raise CanaryMistake(
            f"set_canary_gradients: optimizer is {type(optimizer).__name__}, which keeps no gradients per example; allowed: the "
            "optimizer that Opacus' make_private returned"
        )
    if "pre_step" in vars(optimizer):
        raise CanaryMistake("set_canary_gradients: was called for this optimizer before; call it once")
    canaries.sizes = {
        name.removeprefix(WRAPPER): weight.numel() for name, weight in model.named_parameters() if weight.requires_grad
    }
    if canaries.count > (weights := sum(canaries.sizes.values())):
        raise CanaryMistake(f"with_canaries: count is {canaries.count}; the model has {weights} trained weights")
    canaries.keep(context)
    _Acting(model, optimizer, context, canaries).begin()


class _Acting:
    """Canaries in a training: a hook of the model sees which are in a batch, and the optimizer's next step sets their gradients."""

    def __init__(self, model: nn.Module, optimizer: Any, context: Context, canaries: NodeCanaries) -> None:
        self.model, self.optimizer, self.context, self.canaries = model, optimizer, context, canaries
        of = (canaries.count, canaries.seed, partition_of(context), canaries.training)
        self.weights = places(canaries.sizes, *of).weights
        self.in_batch: Tensor | None = None
        self.met: set[int] = set()

    def begin(self) -> None:
        """Attach to the model and the optimizer."""
        self.model.register_forward_pre_hook(self._see, with_kwargs=True)
        step = self.optimizer.pre_step

        def pre_step(*args: Any, **kwargs: Any) -> Any:
            self._act()
            return step(*args, **kwargs)

        self.optimizer.pre_step = pre_step

    def _see(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not model.training or not torch.is_grad_enabled():
            return
        inputs = next((arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor) and arg.ndim > 1), None)
        if inputs is not None:
            self.in_batch = numbers_in(inputs, self.canaries.count)

    def _act(self) -> None:
        numbers, self.in_batch = self.in_batch, None
        if numbers is None:
            raise CanaryMistake(
                "set_canary_gradients: the optimizer takes a step, and the model saw no batch of images; give the model that is "
                "trained"
            )
        held = next((weight for weight in self.model.parameters() if weight.requires_grad), None)
        rows = getattr(held, "grad_sample", None)
        if not isinstance(rows, Tensor) or len(rows) != len(numbers):
            came = f"{len(rows)} gradients" if isinstance(rows, Tensor) else "no gradients per example of one batch"
            raise CanaryMistake(
                f"set_canary_gradients: the model's last batch has {len(numbers)} examples, and Opacus holds {came}; allowed: one "
                "backward pass for each step, and grad_sample_mode 'hooks', 'ew' or 'functorch'"
            )
        weights = torch.where(numbers == NO_CANARY, NO_CANARY, self.weights[numbers.clamp(min=0)])
        values = torch.full((len(numbers),), NORM * float(self.optimizer.max_grad_norm))
        try:
            set_gradients(self.model, weights, values)
        except AttackError as error:
            raise CanaryMistake(f"set_canary_gradients: {error}") from error
        self.canaries.steps += 1
        self.met.update(numbers[numbers != NO_CANARY].tolist())
        self.canaries.met = len(self.met)
        self.canaries.keep(self.context)


def _dataset(data: Any, numbers: list[int]) -> CanaryDataset:
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise TypeError(
            f"with_canaries: data is {type(data).__name__}; allowed: a map-style data set or a DataLoader of one"
        )
    if not len(data):
        raise TypeError("with_canaries: data holds no example")
    return CanaryDataset(data, numbers)


def _loader(loader: DataLoader[Any], numbers: list[int]) -> DataLoader[Any]:
    if type(loader.sampler) not in (RandomSampler, SequentialSampler) or type(loader.batch_sampler) is not BatchSampler:
        raise TypeError(
            "with_canaries: the loader chooses its examples by a sampler of its own; give the data set, before make_private"
        )
    return DataLoader(
        _dataset(loader.dataset, numbers), batch_size=loader.batch_size, shuffle=type(loader.sampler) is RandomSampler,
        num_workers=loader.num_workers, collate_fn=loader.collate_fn, pin_memory=loader.pin_memory, drop_last=loader.drop_last,
        timeout=loader.timeout, worker_init_fn=loader.worker_init_fn, generator=loader.generator,
    )  # fmt: skip


def last_coins(context: Context) -> tuple[NodeCanaries, Tensor]:
    """The canaries of the node's last training, which acted, and their coins.

    Raises:
        CanaryMistake: When there were none, or when they did not act.
    """
    canaries = NodeCanaries.kept(context)
    if canaries is None:
        raise CanaryMistake("the last training of this node had no canaries: call with_canaries in train")
    coins = canaries.coins(context)
    existing = int(coins.sum())
    if not canaries.sizes:
        raise CanaryMistake(
            "the canaries did not act: call set_canary_gradients after make_private, with the model and the optimizer that it "
            "returned"
        )
    if not canaries.steps:
        raise CanaryMistake("the canaries did not act: the optimizer that set_canary_gradients was given took no step")
    if existing and not canaries.met:
        raise CanaryMistake(
            f"the canaries did not act: {canaries.steps} steps, and the model met none of the {existing} canaries; train on what "
            "with_canaries returned, without augmentation of whole batches"
        )
    return canaries, coins
