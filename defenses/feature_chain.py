"""A chain's stages on smashed data: what travels, what the server makes of it, and how those that learn are fitted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from defenses.base import Defense, DefenseError, SmashedDefense
from defenses.fitting import FitContext, FittedDefense, version_of
from defenses.random_draws import Key, generator_for

T = TypeVar("T")


@dataclass(frozen=True)
class FeatureChain:
    """Defences in a chain, of which only those of smashed data act here; ``Pipeline`` is the whole chain.

    Every method takes a ``Key`` and gives stage ``i`` the stream ``(*key, i)``: a stage's randomness depends on
    neither the other stages nor the order in which clients run.
    """

    defenses: tuple[Defense, ...] = ()

    def __str__(self) -> str:
        return " | ".join(map(repr, self.defenses))

    def _stages(self, kind: type[Defense]) -> Iterator[tuple[int, Any]]:
        return ((i, d) for i, d in enumerate(self.defenses) if isinstance(d, kind))

    def _smashed_stages(self, *, before_blocks: bool) -> list[tuple[int, SmashedDefense]]:
        return [(i, d) for i, d in self._stages(SmashedDefense) if d.before_blocks == before_blocks]

    def protect_tokens(self, tokens: Tensor, key: Key) -> Tensor:
        """Stages on smashed data that come before the client's transformer blocks."""
        return fold(self._smashed_stages(before_blocks=True), "protect_features", tokens, key)

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
        """The server's part: fitted stages decode, the last one first; without any, what came."""
        for defense in reversed(self._fitted_stages):
            latent = defense.decode(latent)
        return latent

    @property
    def smashed_defenses(self) -> tuple[SmashedDefense, ...]:
        """The stages on smashed data."""
        return tuple(d for d in self.defenses if isinstance(d, SmashedDefense))

    @property
    def shuffles(self) -> bool:
        """Whether a stage sends tokens in another order than that of the images' patches, or of a table's columns."""
        return any(type(defense).order is not SmashedDefense.order for defense in self.smashed_defenses)

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

    # Stages that learn -----------------------------------------------------------------------------------------------------

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
        """
        chain, learning = self, list(self._stages(FittedDefense))
        for at, (index, defense) in enumerate(learning, 1):
            behind, generator = chain.context_of(index, context, key), generator_for(*key, index)
            if at < len(learning):
                chain = chain._with(index, defense.fit(behind, generator))
                continue
            for position, state in defense.path(behind, generator):
                yield position, chain._with(index, state)

    def context_of(self, index: int, context: FitContext, key: Key) -> FitContext:
        """What stage ``index`` learns from: the context behind the earlier stages on smashed data, which must be fitted.

        Noise of earlier stages is that of the fit, drawn anew with every pass.
        """
        before = type(self)(self.defenses[:index])
        if not before.smashed_defenses:
            return context
        passes = itertools.count()

        def encode(features: Tensor) -> Tensor:
            # Fresh noise at every call, or a stage that learns from it would learn one draw by heart.
            return before.encode_features(features, (*key, "fit", index, next(passes)))

        return context.behind(encode, before.decode_features)

    def _with(self, index: int, stage: Defense) -> Self:
        return type(self)((*self.defenses[:index], stage, *self.defenses[index + 1 :]))

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

    def learned_numbers(self, channels: int, height: int, width: int) -> int:
        """How many numbers the stages learn, and every client is sent, for features (C, H, W); nothing need be fitted."""
        self.latent_shape(channels, height, width)
        total, shape = 0, (channels, height, width)
        for defense in self._fitted_stages:
            total += sum(map(math.prod, defense.shapes(*shape).values()))
            shape = defense.latent_shape(*shape)  # type: ignore[assignment]  # of three sides where another stage follows
        return total


def fold(stages: Iterable[tuple[int, Defense]], method: str, value: T, key: Key) -> T:
    """The value after a method of each stage in turn, with the stage's own stream."""
    for index, defense in stages:
        value = getattr(defense, method)(value, generator_for(*key, index))
    return value
