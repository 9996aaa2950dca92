"""The pipeline: defences in a chain, each at its stage of the client's work. "No defence" is the empty chain, not a class."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from defenses.base import (
    Batch,
    Defense,
    DefenseError,
    EdgeTrainingDefense,
    InputDefense,
    Key,
    SmashedDefense,
    Training,
    TrainingDefense,
    Update,
    UpdateDefense,
    generator_for,
)
from defenses.combinations import why_not_together
from defenses.fitting import FitContext, FittedDefense, version_of

T = TypeVar("T")


@dataclass(frozen=True)
class Pipeline:
    """Defences applied in order, each at its stage of the client's work.

    Every method takes a ``Key`` and gives stage ``i`` the stream ``(*key, i)``: a stage's randomness depends on
    neither the other stages nor the order in which clients run.

    Raises:
        DefenseError: On combinations that would lie, with the reason.
    """

    defenses: tuple[Defense, ...] = ()

    def __post_init__(self) -> None:
        if why := why_not_together(self.defenses):
            raise DefenseError(f"{self}: {why}")

    def __str__(self) -> str:
        return " | ".join(map(repr, self.defenses))

    def _stages(self, kind: type[Defense]) -> Iterator[tuple[int, Any]]:
        return ((i, d) for i, d in enumerate(self.defenses) if isinstance(d, kind))

    def _input_stages(self) -> tuple[list[tuple[int, InputDefense]], list[tuple[int, InputDefense]]]:
        """Input stages up to the first that resamples, and the rest: what follows fresh randomness is fresh as well."""
        stages: list[tuple[int, InputDefense]] = list(self._stages(InputDefense))
        first = next((at for at, (_, defense) in enumerate(stages) if defense.resamples), len(stages))
        return stages[:first], stages[first:]

    @property
    def protects_once(self) -> bool:
        """Whether ``protect_once`` does anything."""
        return bool(self._input_stages()[0])

    @property
    def protects_batches(self) -> bool:
        """Whether ``protect_batch`` does anything."""
        return bool(self._input_stages()[1])

    def protect_once(self, batch: Batch, key: Key) -> Batch:
        """Input stages that protect an image once and keep the result; call it on a client's whole data set."""
        return _fold(self._input_stages()[0], "protect_batch", batch, key)

    def protect_batch(self, batch: Batch, key: Key) -> Batch:
        """The remaining input stages, fresh for every batch; its argument has been through ``protect_once``."""
        return _fold(self._input_stages()[1], "protect_batch", batch, key)

    def protect_test(self, batch: Batch, key: Key) -> Batch:
        """Input stages that test images must pass too (``at_inference``)."""
        stages = [(i, d) for i, d in self._stages(InputDefense) if d.at_inference]
        return _fold(stages, "protect_batch", batch, key)

    @property
    def mixes_images(self) -> bool:
        """Whether an input stage makes one image of several, so that none can be protected alone."""
        return any(defense.mixes_examples for _, defense in self._stages(InputDefense))

    @property
    def once(self) -> str:
        """Text of the stages of ``protect_once``; "" where there are none."""
        return " | ".join(repr(defense) for _, defense in self._input_stages()[0])

    @property
    def in_tests(self) -> str:
        """Text of the stages of ``protect_test``; "" where there are none."""
        return " | ".join(repr(d) for _, d in self._stages(InputDefense) if d.at_inference)

    def totals(self, batch: Batch, key: Key) -> dict[str, float]:
        """What the input stages do to a batch, each to what reaches the stage; see ``InputDefense.totals``."""
        stages: list[tuple[int, InputDefense]] = list(self._stages(InputDefense))
        telling = [at for at, (_, defense) in enumerate(stages) if type(defense).totals is not InputDefense.totals]
        totals: dict[str, float] = {}
        for index, defense in stages[: max(telling, default=-1) + 1]:
            protected = defense.protect_batch(batch, generator_for(*key, index))
            for name, number in defense.totals(batch.images, protected.images).items():
                totals[name] = totals.get(name, 0) + number
            batch = protected
        return totals

    def window_sides(self, images: Tensor) -> Tensor | None:
        """See ``InputDefense.window_sides``; of the first input stage alone, because what later ones get is drawn."""
        first: InputDefense | None = next((defense for _, defense in self._stages(InputDefense)), None)
        return first.window_sides(images) if first else None

    def unfit(self, channels: int, height: int, width: int) -> str:
        """Why a defence of images is not meant for such images; "" when all are."""
        found = (defense.unfit(channels, height, width) for _, defense in self._stages(InputDefense))
        return next(filter(None, found), "")

    def idle(self, height: int, width: int) -> list[str]:
        """Why input stages do nothing to images of this size; see ``InputDefense.idle``."""
        return [why for _, defense in self._stages(InputDefense) if (why := defense.idle(height, width))]

    def protect_training(self, training: Training, key: Key) -> Training:
        """All training stages."""
        return _fold(self._stages(TrainingDefense), "protect_training", training, key)

    def _smashed_stages(self, *, before_blocks: bool) -> list[tuple[int, SmashedDefense]]:
        return [(i, d) for i, d in self._stages(SmashedDefense) if d.before_blocks == before_blocks]

    def protect_tokens(self, tokens: Tensor, key: Key) -> Tensor:
        """Stages on smashed data that come before the client's transformer blocks."""
        return _fold(self._smashed_stages(before_blocks=True), "protect_features", tokens, key)

    def protect_features(self, features: Tensor, key: Key) -> Tensor:
        """Stages on smashed data that come after them, as the server half gets the result: ``encode_features``, then decoded."""
        return self.decode_features(self.encode_features(features, key))

    def encode_features(self, features: Tensor, key: Key) -> Tensor:
        """The client's part of ``protect_features``: what travels.

        A stage after a fitted one acts on that one's latent: ``DeltaAutoencoder() | FeatureNoise(std=0.1)`` adds noise to what the
        encoder made. Without fitted stages this is all there is.

        Raises:
            DefenseError: When a stage must be fitted and is not.
        """
        for index, defense in self._smashed_stages(before_blocks=False):
            if isinstance(defense, FittedDefense):
                features = defense.encode(features)
            else:
                features = defense.protect_features(features, generator_for(*key, index))
        return features

    def decode_features(self, latent: Tensor) -> Tensor:
        """The server's part: fitted stages decode, the last one first; without any, what came.

        Raises:
            DefenseError: When a stage must be fitted and is not.
        """
        for defense in reversed(self._fitted_stages):
            latent = defense.decode(latent)
        return latent

    @property
    def _fitted_stages(self) -> tuple[FittedDefense, ...]:
        return tuple(d for d in self.defenses if isinstance(d, FittedDefense))

    @property
    def fitted(self) -> bool:
        """Whether no stage is left to fit."""
        return all(d.fitted for d in self._fitted_stages)

    @property
    def needs_adversary(self) -> bool:
        """Whether a stage wants ``FitContext.adversary``."""
        return any(defense.needs_adversary for defense in self._fitted_stages)

    @property
    def version(self) -> str:
        """16 hexadecimal digits that tell the tensors of two fits apart; "" where nothing is fitted."""
        return version_of(state) if (state := self.state()) else ""

    def fit(self, context: FitContext, key: Key) -> Self:
        """Fits the stages that learn, in order, each to what the earlier ones on smashed data let through.

        Stages on images are the caller's: ``context.images`` have been through those that test images pass.

        Raises:
            DefenseError: When a stage cannot be fitted, with the reason.
        """
        fitted = self
        for _, fitted in self.path(context, key):  # noqa: B007
            pass
        return fitted

    @property
    def path_axis(self) -> str:
        """What ``path`` runs over; see ``FittedDefense``. "" where nothing learns, or what learns last has no path."""
        return self._fitted_stages[-1].path_axis if self._fitted_stages else ""

    @property
    def path_positions(self) -> tuple[int, ...]:
        """Where on ``path_axis`` the states of ``path`` lie, ascending."""
        return self._fitted_stages[-1].path_positions if self._fitted_stages else ()

    def path(self, context: FitContext, key: Key) -> Iterator[tuple[int, Self]]:
        """``fit`` with the states on the way of the stage that learns last: (position, the whole chain, fitted so far).

        Earlier stages that learn are fitted before the first state. The last state is the very chain that ``fit`` with the same
        arguments returns. A chain that learns nothing has no state.

        Raises:
            DefenseError: See ``fit``.
        """
        stages, learning = list(self.defenses), list(self._stages(FittedDefense))
        for at, (index, defense) in enumerate(learning, 1):
            behind, generator = _behind(stages[:index], context, (*key, "fit", index)), generator_for(*key, index)
            if at < len(learning):
                stages[index] = defense.fit(behind, generator)
                continue
            for position, state in defense.path(behind, generator):
                stages[index] = state
                yield position, type(self)(tuple(stages))

    def state(self) -> dict[str, Tensor]:
        """Tensors of all fitted stages, under "<number of the stage>.<name>"; see ``FittedDefense.state``."""
        learned = [(i, d.state()) for i, d in self._stages(FittedDefense)]
        return {f"{index}.{name}": tensor for index, tensors in learned for name, tensor in tensors.items()}

    def with_state(self, state: Mapping[str, Tensor]) -> Self:
        """The same chain with tensors that ``state`` gave; stages without any stay as they are.

        Raises:
            DefenseError: When a tensor belongs to no stage, or is not that of the stage's configuration.
        """
        stages, given = list(self.defenses), dict(state)
        for index, defense in self._stages(FittedDefense):
            own = {name: given.pop(name) for name in state if name.startswith(f"{index}.")}
            if own:
                stages[index] = defense.with_state({name.partition(".")[2]: t for name, t in own.items()})
        if given:
            raise DefenseError(f"{self}: tensors {sorted(given)} belong to no stage that is fitted")
        return type(self)(tuple(stages))

    def latent_shape(self, channels: int, height: int, width: int) -> tuple[int, ...]:
        """Shape of what travels for one image with features (C, H, W); nothing need be fitted.

        Raises:
            DefenseError: When a stage cannot restore such features, with the reason.
        """
        shape: tuple[int, ...] = (channels, height, width)
        for defense in self._fitted_stages:
            if len(shape) != 3:
                raise DefenseError(
                    f"{self}: {defense} works on (C, H, W), and what reaches it is {shape}; write it first"
                )
            shape = defense.latent_shape(*shape)
        return shape

    def token_order(self, num_images: int, num_tokens: int, key: Key) -> Tensor:
        """Where each token on the wire comes from: (B, N) int64, numbers of tokens 0 to B * N - 1 before all shuffles.

        The same ``key`` gives the order that ``protect_tokens`` and ``protect_features`` gave the tokens.
        """
        order = torch.arange(num_images * num_tokens).view(num_images, num_tokens)
        for before_blocks in (True, False):
            for index, defense in self._smashed_stages(before_blocks=before_blocks):
                taken = defense.order(num_images, num_tokens, generator_for(*key, index))
                order = order.flatten()[taken]
        return order

    @property
    def edge_training(self) -> EdgeTrainingDefense | None:
        """The stage that changes how the client half of a split model is trained, if there is one."""
        return next((d for d in self.defenses if isinstance(d, EdgeTrainingDefense)), None)

    @property
    def edge_blocks(self) -> int | None:
        """Blocks that a stage on smashed data asks the client half to have; None when none asks."""
        return next((d.edge_blocks for d in self.smashed_defenses if d.edge_blocks is not None), None)

    @property
    def raw_patches(self) -> bool:
        """Whether tokens are pixels, without a learned embedding."""
        return any(d.raw_patches for d in self.smashed_defenses)

    @property
    def widening(self) -> int:
        """Length of a token on the wire over that of an embedded one."""
        return math.prod(d.widening for d in self.smashed_defenses)

    @property
    def smashed_defenses(self) -> tuple[SmashedDefense, ...]:
        """The stages on smashed data."""
        return tuple(d for d in self.defenses if isinstance(d, SmashedDefense))

    def _update_stages(self, per: str) -> list[tuple[int, UpdateDefense]]:
        return [(i, d) for i, d in self._stages(UpdateDefense) if d.per == per]

    def protect_gradient(self, gradient: Update, key: Key) -> Update:
        """All stages that act per step, on one step's gradient (name -> tensor), before the client's optimizer."""
        return _fold(self._update_stages("step"), "protect_update", gradient, key)

    def protect_update(self, update: Update, key: Key) -> Update:
        """All stages that act per update."""
        return _fold(self._update_stages("update"), "protect_update", update, key)

    @property
    def update_defenses(self) -> tuple[UpdateDefense, ...]:
        """The stages on gradients and updates in the order in which they act: first those per step."""
        return tuple(d for per in ("step", "update") for _, d in self._update_stages(per))

    @property
    def at_inference(self) -> bool:
        """Whether test images must be protected too."""
        return any(d.at_inference for d in self.defenses)

    @property
    def needs_group_norm(self) -> bool:
        """Whether BatchNorm layers must be replaced."""
        return any(isinstance(d, TrainingDefense) and d.needs_group_norm for d in self.defenses)

    @property
    def adaptive_attacks(self) -> tuple[str, ...]:
        """Names of the adaptive attacks of all stages, in order, without repeats."""
        return tuple(dict.fromkeys(name for d in self.defenses for name in d.adaptive_attacks))


def _fold(stages: Iterable[tuple[int, Defense]], method: str, value: T, key: Key) -> T:
    for index, defense in stages:
        value = getattr(defense, method)(value, generator_for(*key, index))
    return value


def _behind(earlier: Iterable[Defense], context: FitContext, key: Key) -> FitContext:
    """The context of a stage behind others."""
    before = Pipeline(tuple(earlier))
    return context.behind(_encoder(before, key), before.decode_features) if before.smashed_defenses else context


def _encoder(pipeline: Pipeline, key: Key) -> Callable[[Tensor], Tensor]:
    """``encode_features`` with fresh noise at every call, or a stage that learns from it would learn one draw by heart."""
    passes = itertools.count()
    return lambda features: pipeline.encode_features(features, (*key, next(passes)))
