"""Base classes of defences: four interfaces of one method, and one for split training; ``defenses.pipeline`` chains them.

A defence maps one thing that a client holds to the same kind of thing. "No defence" is the empty pipeline, not a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from defenses.checks import Per, check_fields, declared_fields, is_number
from defenses.registry import Registry
from defenses.tensors import Loss, Numbers, Shape, Update


class DefenseError(ValueError):
    """A defence, or a chain of defences, that cannot work here or would misstate its guarantee."""


@dataclass(frozen=True)
class Batch:
    """Examples as a client holds them before normalisation.

    Attributes:
        images: (B, C, H, W), floating point, in [0, 1].
        targets: (B, K), class probabilities; rows sum to 1 (one-hot unless a defence mixed examples).
    """

    images: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def rows(self, chosen: Tensor | slice) -> Batch:
        """Some of the examples."""
        return Batch(self.images[chosen], self.targets[chosen])


@dataclass(frozen=True)
class Training:
    """Parts of one round of local training; a training defence replaces some of them.

    Attributes:
        model: The network that is trained, in train mode.
        optimizer: Steps ``model``'s parameters.
        loader: Yields (images in [0, 1], soft targets), before input defences that resample and before the normalisation.
        loss: See ``Loss``.
        epochs: Local epochs of this round.
        total_epochs: Local epochs of all rounds together, which a privacy budget must cover.
        state: Values kept until the client's next round, such as a privacy accountant's; JSON-serialisable only.
        total_steps: Optimizer steps of all rounds together, where rounds are counted in steps; None: ``total_epochs`` epochs.
        probe: The loader holds a few examples, its batches are those of the steps that the server requested, and its ``batch_size``
            is their public size. Otherwise the loader holds all examples of the client.
    """

    model: nn.Module
    optimizer: Optimizer
    loader: DataLoader[tuple[Tensor, ...]]
    loss: Loss
    epochs: int
    total_epochs: int
    state: dict[str, Any] = field(default_factory=dict)
    total_steps: int | None = None
    probe: bool = False


class Defense:
    """Base of all defences: a frozen dataclass whose ``repr`` is its configuration text.

    Class variables describe the defence to an evaluator:

    Attributes:
        source: The paper, with the number of the algorithm or equation.
        mixes_examples: One protected example depends on several examples.
        bounds_examples: The guarantee needs a bound on the contribution of one example.
        bounds_client: The guarantee covers all training examples of a client together, and so every number that follows from them.
        neighbours: Neighbouring data sets of the guarantee, a name of ``defenses.neighbours``; "" without a guarantee.
        at_inference: Test images must be protected too.
        resamples: Every use draws new randomness; otherwise an image is protected once and kept.
        always_shown: Fields that ``repr`` writes even at their defaults, such as the strength that readers look for.
        adaptive_attacks: Names of the attacks that know this algorithm; empty means untested against an adaptive
            attacker.
        caveat: A further warning for readers of the scores, such as a published break that no attack here implements.
        no_defense_at: Field -> value at which the defence changes nothing, such as a standard deviation of 0.
        quick: Settings, field -> value, that make the defence fast on a few small images: for tests that run every defence.
    """

    source: ClassVar[str] = ""
    mixes_examples: ClassVar[bool] = False
    bounds_examples: ClassVar[bool] = False
    bounds_client: ClassVar[bool] = False
    neighbours: str = ""
    at_inference: ClassVar[bool] = False
    resamples: ClassVar[bool] = True
    always_shown: ClassVar[tuple[str, ...]] = ()
    adaptive_attacks: ClassVar[tuple[str, ...]] = ()
    caveat: ClassVar[str] = ""
    no_defense_at: ClassVar[Mapping[str, float]] = {}
    quick: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def configured(cls, **given: Any) -> Self:
        """Make the defence from a user's own configuration, whose arguments may name files to read.

        ``defenses.spec.read_files`` calls this method. ``__init__`` reads no files, because its arguments may come from messages.
        The ``repr`` of the result must contain everything read from a file.

        Raises:
            ValueError: When an argument is not allowed, or a file cannot be read.
        """
        return cls(**given)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def no_defense(self) -> str:
        """Reason why the defence changes nothing with its settings, and a sensible value; "" if it changes something."""
        name = next((setting for setting, value in self.no_defense_at.items() if getattr(self, setting) == value), "")
        if not name:
            return ""
        usual = getattr(type(self), name)  # a dataclass keeps defaults as attributes of the class
        return f"{self}: {name} is {getattr(self, name):g}, so this stage changes nothing and is no defence; try {usual:.3g}"

    def __repr__(self) -> str:
        return call_text(self)


def call_text(instance: Any) -> str:
    """``Name(field=value)`` with the fields that differ from their defaults and the class's ``always_shown`` ones."""
    shown, always, declared = [], getattr(instance, "always_shown", ()), declared_fields(type(instance))  # type: ignore[arg-type]
    for spec in fields(instance):
        value = getattr(instance, spec.name)
        value = value.item() if hasattr(value, "item") else value  # NumPy's repr of a number is not a literal
        if spec.name in declared and declared[spec.name].kind is float and is_number(value):
            value += 0.0  # equal values have one text, under which accounts and draws are kept: 4.0 for 4, 0.0 for -0.0
        default = spec.default_factory() if spec.default_factory is not MISSING else spec.default
        if spec.init and spec.repr and (value != default or spec.name in always):
            shown.append(f"{spec.name}={value!r}")
    return f"{type(instance).__name__}({', '.join(shown)})"


class InputDefense(Defense):
    """Protects images before they are normalised and enter the model."""

    stage: ClassVar[str] = "images"

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Return a protected batch of the same shape, with images in [0, 1]; the argument stays unchanged."""
        raise NotImplementedError

    def totals(self, images: Tensor, protected: Tensor) -> Numbers:
        """Statistics of the protection of images (B, C, H, W), summed over the images, for the client's report; {} by default.

        Statistics are sums, not means, so that they can be added over batches and clients.
        """
        return {}

    def unfit(self, channels: int, height: int, width: int) -> str:
        """Reason why the defence is unsuitable for images of this shape, and what to change; "" if it is suitable."""
        return ""

    def at_size(self, height: int, width: int) -> str:
        """What settings in pixels mean on images of this size, as a clause; "" for a defence whose settings do not need it."""
        return ""

    def idle(self, height: int, width: int) -> str:
        """Reason why the defence runs on images of this size without effect, and what to change; "" if it has an effect."""
        return ""


class TrainingDefense(Defense):
    """Changes how a client trains: its model, optimizer, loader or loss."""

    stage: ClassVar[str] = "training"
    needs_group_norm: ClassVar[bool] = False
    """BatchNorm layers must be replaced, because they mix examples inside the model."""
    replaces_optimizer: ClassVar[bool] = False

    def extended(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """Add the defence's layers to a model, perhaps in place, wherever the model is built; most defences add none.

        The generator draws the initial weights, which are public.

        Raises:
            DefenseError: When the model has no place for the layers.
        """
        return model

    def check_model(self, model: nn.Module, input_shape: Shape) -> None:
        """Refuse a model that the defence cannot protect, before the run starts; most defences accept any model.

        The model stays as it is; ``input_shape`` is (C, H, W) of one image.

        Raises:
            DefenseError: With the property that the model lacks.
        """

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        """Return a protected training set-up.

        Raises:
            DefenseError: When the model lacks what the defence needs, or a budget cannot be met.
        """
        raise NotImplementedError

    def reported_examples(self, batch_size: int) -> int | None:
        """Number of examples that a client reports if the guarantee hides the true number; None: the true number."""
        return None

    def privacy(self, *states: Mapping[str, Any]) -> Numbers:
        """Total privacy budget ("epsilon", "delta") of the steps recorded in training states; empty without a guarantee."""
        return {}

    def privacy_by_accountant(self, *states: Mapping[str, Any]) -> Numbers:
        """Name of an accountant -> its finite epsilon of the steps recorded in training states; empty without accountants."""
        return {}


class SmashedDefense(Defense):
    """Protects the output of the client half of a split model (smashed data); autograd passes through.

    A transformer's client half embeds an image into N tokens, runs its blocks on them and sends the result. A convolutional client
    half sends feature maps (B, C, H, W). Only token defences can act before the blocks. Defences that must learn derive from
    ``defenses.fitting.FittedDefense``.

    Attributes:
        before_blocks: The defence acts on the embedded tokens before the client's blocks, not on the blocks' output.
        edge_blocks: Number of blocks that the client half must have under this defence; None: the experiment decides.
        widening: Length of a protected token divided by the length of an unprotected token.
        takes_maps: The defence also protects the feature maps (B, C, H, W) of a convolutional client half.
    """

    stage: ClassVar[str] = "smashed data"
    before_blocks: ClassVar[bool] = False
    takes_maps: ClassVar[bool] = False
    edge_blocks: ClassVar[int | None] = None
    widening: ClassVar[int] = 1

    def check_batch(self, batch_size: int, num_tokens: int) -> None:
        """Refuse a number of images or tokens that the defence cannot protect; most defences accept any.

        Raises:
            DefenseError: With the reason.
        """

    def protect_features(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Protect tokens: (B, N, D) -> (B, N, widening * D); with ``takes_maps`` also feature maps (B, C, H, W).

        Raises:
            DefenseError: See ``check_batch``; also when the defence must be fitted first.
        """
        raise NotImplementedError

    def without_noise(self) -> Self:
        """A copy without random noise, shuffled orders kept: the smashed data that an attacker expects on average.

        A defence without noise returns itself; a fitted defence keeps its learned tensors.
        """
        return self

    def privacy(self, releases: int) -> Numbers:
        """Privacy budget ("epsilon", "delta") of sending one example's tokens ``releases`` times; empty without a guarantee.

        The budget covers no update of the client half, so that a run refuses to train the client half with such a defence.
        """
        return {}

    def hidden_orders(self, batch_size: int, num_tokens: int) -> Numbers:
        """Metrics of the number of orders that a shuffle of such a batch hides; empty without shuffling."""
        return {}

    def order(self, num_images: int, num_tokens: int, generator: torch.Generator) -> Tensor:
        """Origin of each sent token, (B, N) int64: its number among the tokens 0 to B * N - 1 before shuffling.

        ``protect_features`` with a generator in the same state uses the same order; without shuffling it is ascending.
        """
        return torch.arange(num_images * num_tokens).view(num_images, num_tokens)


class EdgeTrainingDefense(Defense):
    """Changes the training of a split model's client half: a network at the client adds a penalty on the features sent."""

    stage: ClassVar[str] = "training of the client half"

    def build_network(self, num_tokens: int, dim: int, patch_values: int, generator: torch.Generator) -> nn.Module:
        """Build the network that the client trains along with the client half and never sends.

        Its inputs are N tokens of length D, one for each patch of ``patch_values`` numbers. The generator draws initial weights.
        """
        raise NotImplementedError

    def losses(self, network: nn.Module, features: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of the network, and penalty added to the loss of the client half; the client differentiates their sum.

        ``features`` (B, N, D) are the sent ones, with gradients; ``patches`` are (B, N, patch_values) pixels in [0, 1].
        """
        raise NotImplementedError


class UpdateDefense(Defense):
    """Protects a client's update, or the gradient of each local step, as a map of named tensors.

    Attributes:
        per: "update": the defence maps local minus global weights, once, before the client sends them. "step": the defence maps the
            gradient of every local step, before the client's optimizer adds weight decay and momentum. Over T steps the first
            acts once and the second T times: at the same strength they are different defences.
        keeps_statistics: BatchNorm's running averages stay at the client, and all else is sent as it is.
    """

    stage: ClassVar[str] = "updates"
    keeps_statistics: ClassVar[bool] = False
    per: Per = "update"

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model on which the defence would change nothing, before the run starts; most defences accept any model.

        Raises:
            DefenseError: With the property that the model lacks.
        """

    def protect_update(self, update: Update, generator: torch.Generator) -> Update:
        """Return a protected update or gradient with the same names, shapes and dtypes; the argument stays unchanged."""
        raise NotImplementedError

    def recorded(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The training state after the release of one more protected update; a copy without an account."""
        return dict(state)

    def privacy(self, *states: Mapping[str, Any]) -> Numbers:
        """Total privacy budget ("epsilon", "delta") of the releases recorded in training states; empty without a guarantee."""
        return {}


DEFENSES = Registry(Defense, "fedveil.defenses", "defenses.exports")
"""Defences that the setting ``defenses`` may name."""
