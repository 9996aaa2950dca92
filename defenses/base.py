"""What a defence is: four one-method interfaces, and one for split training; ``defenses.pipeline`` chains them.

A defence maps one thing that a client holds to the same kind of thing. "No defence" is the empty pipeline, not a class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from defenses.checks import check_fields

Update = dict[str, Tensor]
"""Parameter name -> (local weight - global weight); floating-point tensors only."""


Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(model, normalised images (B, C, H, W), soft targets (B, K)) -> scalar."""


class DefenseError(ValueError):
    """A defence or a chain of defences that cannot do, or would misstate, what it says."""


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


@dataclass(frozen=True)
class Training:
    """Everything one round of local training is made of; a training defence replaces parts of it.

    Attributes:
        model: The network that is trained, in train mode.
        optimizer: Steps ``model``'s parameters.
        loader: Yields (images in [0, 1], soft targets); input defences that resample and the normalisation come later.
        loss: See ``Loss``.
        epochs: Local epochs of this round.
        total_epochs: Local epochs of all rounds together, which a privacy budget must cover.
        state: What must survive until the client's next round (a privacy accountant); JSON-serialisable values only.
        total_steps: Optimizer steps of all rounds together, where rounds are counted in steps; None: ``total_epochs`` whole ones.
        probe: The loader holds a few examples that were drawn for one step; its ``batch_size`` is their number in the question,
            which is public. Else it holds all that the client has.
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

    Class variables hold what an evaluator must know:

    Attributes:
        source: The paper, with the number of the algorithm or equation.
        mixes_examples: One protected example depends on several examples.
        bounds_examples: Its guarantee rests on a bound of what one example contributes.
        neighbours: Between which data sets its guarantee holds, a name of ``defenses.neighbours``; "" without a guarantee.
        at_inference: Test images must be protected too.
        resamples: Fresh randomness at every use; otherwise an image is protected once and kept.
        always_shown: Fields that ``repr`` writes even at their defaults: the strength by which people know the defence.
        adaptive_attacks: Names of the attacks that know this algorithm; empty means untested against an adaptive
            attacker.
        caveat: What readers of its scores must know besides, such as a published break that is not among the attacks here.
        quick: Settings, field -> value, under which it takes no time on a few small images: for tests that run every defence.
    """

    source: ClassVar[str] = ""
    mixes_examples: ClassVar[bool] = False
    bounds_examples: ClassVar[bool] = False
    neighbours: str = ""
    at_inference: ClassVar[bool] = False
    resamples: ClassVar[bool] = True
    always_shown: ClassVar[tuple[str, ...]] = ()
    adaptive_attacks: ClassVar[tuple[str, ...]] = ()
    caveat: ClassVar[str] = ""
    quick: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def configured(cls, **given: Any) -> Self:
        """The defence with arguments of a person's own configuration: the only ones that may name a file to be read.

        ``defenses.spec.read_files`` calls it. ``__init__`` reads none: it takes texts of messages, too. The result's ``repr`` must
        hold all that was read.

        Raises:
            ValueError: When they are not allowed, or a file cannot be read.
        """
        return cls(**given)

    def __post_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        return call_text(self)


def call_text(instance: Any) -> str:
    """``Name(field=value)`` with the fields that differ from their defaults and the class's ``always_shown`` ones."""
    shown, always = [], getattr(instance, "always_shown", ())
    for spec in fields(instance):
        value = getattr(instance, spec.name)
        value = value.item() if hasattr(value, "item") else value  # NumPy's repr of a number is not a literal
        default = spec.default_factory() if spec.default_factory is not MISSING else spec.default
        if spec.init and spec.repr and (value != default or spec.name in always):
            shown.append(f"{spec.name}={value!r}")
    return f"{type(instance).__name__}({', '.join(shown)})"


class InputDefense(Defense):
    """Protects images before they are normalised and enter the model."""

    stage: ClassVar[str] = "images"

    @property
    def copies(self) -> int:
        """Copies of a batch that ``protect_batch`` holds at once beside what comes and goes, where they are many; else 0."""
        return 0

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Maps a batch to a protected batch of the same shape, with images in [0, 1]; the argument stays unchanged."""
        raise NotImplementedError

    def totals(self, images: Tensor, protected: Tensor) -> dict[str, float]:
        """What it did to images (B, C, H, W), added up over them, which a client may report; most have nothing to report.

        Sums over batches and clients must be sums over all of their images, so means are reported as sums.
        """
        return {}

    def window_sides(self, images: Tensor) -> Tensor | None:
        """Sides of the windows inside which it shuffles each pixel of (B, C, H, W) images, where the images decide them: (B, H, W)
        int64, in pixels. None of a defence that does no such thing.
        """
        return None

    def unfit(self, channels: int, height: int, width: int) -> str:
        """Why it is not meant for images of this shape, with what to change; "" when it is."""
        return ""

    def idle(self, height: int, width: int) -> str:
        """Why its idea does nothing to images of this size although it runs, with what to change; "" when it acts."""
        return ""


class TrainingDefense(Defense):
    """Changes how a client trains: its model, optimizer, loader or loss."""

    stage: ClassVar[str] = "training"
    needs_group_norm: ClassVar[bool] = False
    """BatchNorm layers must be replaced, because they mix examples inside the model."""
    replaces_optimizer: ClassVar[bool] = False

    def extended(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """The model with what the defence adds to its architecture wherever it is built, perhaps in place; most add nothing.

        First weights, which are public, come from the generator.

        Raises:
            DefenseError: When there is no place for it in the model.
        """
        return model

    def check_model(self, model: nn.Module) -> None:
        """Refuses, before anything starts, a model that it cannot protect; most defences protect any.

        Raises:
            DefenseError: Saying what the model lacks.
        """

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        """Maps a training set-up to a protected one.

        Raises:
            DefenseError: When the model lacks what the defence needs, or a budget cannot be met.
        """
        raise NotImplementedError

    def reported_examples(self, batch_size: int) -> int | None:
        """What a client reports as its number of examples where the guarantee hides the true one; None: the true one."""
        return None

    def privacy(self, *states: Mapping[str, Any]) -> dict[str, float]:
        """What the steps recorded in training states spent together ("epsilon", "delta"); empty without a guarantee."""
        return {}


class SmashedDefense(Defense):
    """Protects what the client half of a split model sends; autograd passes through.

    The client half embeds an image into N tokens, runs its transformer blocks on them and sends the result; or it is the front of
    a convolutional network and sends maps (B, C, H, W). What comes before the blocks is of tokens alone. Defences that must
    learn are ``defenses.fitting.FittedDefense``.

    Attributes:
        before_blocks: It acts on the embedded tokens, before the client's blocks, not on what these return.
        edge_blocks: Blocks that the client half must have under this defence; None leaves that to the experiment.
        raw_patches: Its tokens are the patches' pixels, without a learned embedding.
        widening: Length of a protected token over that of a token.
        takes_maps: It also protects the feature maps (B, C, H, W) of a convolutional client half.
    """

    stage: ClassVar[str] = "smashed data"
    before_blocks: ClassVar[bool] = False
    takes_maps: ClassVar[bool] = False
    edge_blocks: ClassVar[int | None] = None
    widening: ClassVar[int] = 1

    @property
    def raw_patches(self) -> bool:
        """See the class."""
        return False

    def check_batch(self, batch_size: int, num_tokens: int) -> None:
        """Whether batches of this many images of so many tokens can be protected; most can.

        Raises:
            DefenseError: When they cannot, with the reason.
        """

    def protect_features(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Maps (B, N, D) tokens to protected tokens (B, N, widening * D); with ``takes_maps`` also (B, C, H, W) to maps.

        Raises:
            DefenseError: See ``check_batch``; also when it must be fitted and is not.
        """
        raise NotImplementedError

    def without_noise(self) -> Self:
        """Itself without what it draws at random, but for orders: what an attacker expects to see on average.

        A defence that adds noise returns a copy without; one that was fitted keeps what it has learned.
        """
        return self

    def privacy(self, releases: int) -> dict[str, float]:
        """What sending one example's tokens so often spends ("epsilon", "delta"); empty without a guarantee.

        It covers no update of the client half: a trained one is refused beside it.
        """
        return {}

    def hidden_orders(self, batch_size: int, num_tokens: int) -> dict[str, float]:
        """Metric -> number that says what a shuffle of such a batch leaves open; nothing where nothing is shuffled."""
        return {}

    def order(self, num_images: int, num_tokens: int, generator: torch.Generator) -> Tensor:
        """Where each sent token comes from: (B, N) int64 numbers of tokens 0 to B * N - 1, as ``protect_features`` with a
        generator in the same state takes them. Without shuffling, in order.
        """
        return torch.arange(num_images * num_tokens).view(num_images, num_tokens)


class EdgeTrainingDefense(Defense):
    """Changes how the client half of a split model is trained: by a penalty on what it sends, with a network of its own."""

    stage: ClassVar[str] = "training of the client half"

    def build_network(self, num_tokens: int, dim: int, patch_values: int, generator: torch.Generator) -> nn.Module:
        """The network that the client trains beside its half, kept by the client alone.

        For N tokens of length D, each of which stands for ``patch_values`` numbers of an image; the generator draws first weights.
        """
        raise NotImplementedError

    def losses(self, network: nn.Module, features: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """What the network is trained on, and what is added to the loss of the client half; the client differentiates their sum.

        Of features (B, N, D) as sent, through which gradients flow back, and patches (B, N, patch_values) of pixels in [0, 1].
        """
        raise NotImplementedError


class UpdateDefense(Defense):
    """Protects what a client's training gives away, as a map of named tensors.

    Attributes:
        per: "update": it maps local minus global weights, once, before they are sent. "step": it maps the gradient of every local
            step, before the client's optimizer (which adds weight decay and momentum) takes it. Over T steps the first acts once
            and the second T times: at the same strength they are different defences.
    """

    stage: ClassVar[str] = "updates"
    per: str = "update"

    def protect_update(self, update: Update, generator: torch.Generator) -> Update:
        """Maps an update or a gradient to a protected one with the same names, shapes and dtypes; the argument stays as it is."""
        raise NotImplementedError
