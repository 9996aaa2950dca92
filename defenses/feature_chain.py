"""A chain's stages on smashed data: encoding at the client, decoding at the server, and fits of stages that learn."""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from defenses.base import Defense, DefenseError, SmashedDefense
from defenses.fitting import FitContext, FittedDefense, version_of
from defenses.random_draws import Key, generator_for
from defenses.tensors import NamedTensors, Shape, Tensors

T = TypeVar("T")


@dataclass(frozen=True)
class FeatureChain:
    """The part of ``Pipeline`` for smashed data: a chain of defences of which only those of smashed data act here.

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
        """Apply the stages on smashed data before the client's transformer blocks."""
        return fold(self._smashed_stages(before_blocks=True), "protect_features", tokens, key)

    def protect_features(self, features: Tensor, key: Key) -> Tensor:
        """Apply the stages after the client's blocks, and decode: the input of the server half."""
        return self.decode_features(self.encode_features(features, key))

    def encode_features(self, features: Tensor, key: Key) -> Tensor:
        """Compute the sent tensor, the client's part of ``protect_features``.

        A stage after a fitted stage acts on the latent of the latter: ``DeltaAutoencoder() | FeatureNoise(std=0.1)`` adds noise to
        the encoder's output. Without fitted stages, the result equals that of ``protect_features``.

        Raises:
            DefenseError: When a stage must be fitted first.
        """
        for index, defense in self._smashed_stages(before_blocks=False):
            if isinstance(defense, FittedDefense):
                features = defense.encode(features)
            else:
                features = defense.protect_features(features, generator_for(*key, index))
        return features

    def decode_features(self, latent: Tensor) -> Tensor:
        """Decode the sent tensor at the server: fitted stages decode, the last one first; without any, it stays unchanged."""
        for defense in reversed(self._fitted_stages):
            latent = defense.decode(latent)
        return latent

    @property
    def smashed_defenses(self) -> tuple[SmashedDefense, ...]:
        """The stages on smashed data."""
        return tuple(d for d in self.defenses if isinstance(d, SmashedDefense))

    @property
    def shuffles(self) -> bool:
        """Whether a stage changes the order of tokens, which is that of the images' patches or the table's columns."""
        return any(type(defense).order is not SmashedDefense.order for defense in self.smashed_defenses)

    def token_order(self, num_images: int, num_tokens: int, key: Key) -> Tensor:
        """Origin of each sent token: (B, N) int64, its number among the tokens 0 to B * N - 1 before all shuffles.

        The same ``key`` gives the same order as in ``protect_tokens`` and ``protect_features``.
        """
        order = torch.arange(num_images * num_tokens).view(num_images, num_tokens)
        for before_blocks in (True, False):
            for index, defense in self._smashed_stages(before_blocks=before_blocks):
                order = order.flatten()[defense.order(num_images, num_tokens, generator_for(*key, index))]
        return order

    @property
    def edge_blocks(self) -> int | None:
        """Number of blocks in the client half that a stage on smashed data requires; None without such a stage."""
        return next((d.edge_blocks for d in self.smashed_defenses if d.edge_blocks is not None), None)

    @property
    def widening(self) -> int:
        """Length of a sent token divided by the length of an embedded token."""
        return math.prod(d.widening for d in self.smashed_defenses)

    @property
    def _fitted_stages(self) -> tuple[FittedDefense, ...]:
        return tuple(d for d in self.defenses if isinstance(d, FittedDefense))

    @property
    def fitted(self) -> bool:
        """Whether all stages that learn are fitted."""
        return all(d.fitted for d in self._fitted_stages)

    @property
    def needs_adversary(self) -> bool:
        """Whether a stage needs ``FitContext.adversary``."""
        return any(defense.needs_adversary for defense in self._fitted_stages)

    @property
    def version(self) -> str:
        """Digest of the fitted tensors, 16 hexadecimal digits; "" without fitted stages."""
        return version_of(state) if (state := self.state()) else ""

    def fit(self, context: FitContext, key: Key) -> Self:
        """Fit the stages that learn, in order, each on the output of the earlier stages on smashed data.

        The caller applies stages on images: ``context.images`` have passed the stages for test images.
        """
        chain = self
        for index, defense in self._stages(FittedDefense):
            stage = defense.fit(chain.context_of(index, context, key), generator_for(*key, index))
            chain = type(self)((*chain.defenses[:index], stage, *chain.defenses[index + 1 :]))
        return chain

    def context_of(self, index: int, context: FitContext, key: Key) -> FitContext:
        """Context in which stage ``index`` learns, after the earlier stages on smashed data, which must be fitted.

        Earlier stages draw new noise in every pass of the fit.
        """
        before = type(self)(self.defenses[:index])
        if not before.smashed_defenses:
            return context
        passes = itertools.count()

        def encode(features: Tensor) -> Tensor:
            # New noise at every call, or a stage that learns would memorise one draw.
            return before.encode_features(features, (*key, "fit", index, next(passes)))

        return context.behind(encode, before.decode_features)

    def state(self) -> Tensors:
        """Tensors of all fitted stages, under "<number of the stage>.<name>"; see ``FittedDefense.state``."""
        learned = [(i, d.state()) for i, d in self._stages(FittedDefense)]
        return {f"{index}.{name}": tensor for index, tensors in learned for name, tensor in tensors.items()}

    def with_state(self, state: NamedTensors) -> Self:
        """A copy of the chain with the tensors of ``state``; stages without any stay unchanged.

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

    def latent_shape(self, channels: int, height: int, width: int) -> Shape:
        """Shape of the sent tensor for one image with features (C, H, W); no fit needed.

        Raises:
            DefenseError: When a stage cannot restore such features, with the reason.
        """
        shape: Shape = (channels, height, width)
        for defense in self._fitted_stages:
            if len(shape) != 3:
                raise DefenseError(
                    f"{self}: {defense} needs features (C, H, W), and gets {shape} from the stage before; write it first"
                )
            shape = defense.latent_shape(*shape)
        return shape

    def learned_numbers(self, channels: int, height: int, width: int) -> int:
        """Number of learned values, which every client receives, for features (C, H, W); no fit needed."""
        self.latent_shape(channels, height, width)
        total, shape = 0, (channels, height, width)
        for defense in self._fitted_stages:
            total += sum(map(math.prod, defense.shapes(*shape).values()))
            shape = defense.latent_shape(*shape)  # type: ignore[assignment]  # of three sides where another stage follows
        return total


def fold(stages: Iterable[tuple[int, Defense]], method: str, value: T, key: Key) -> T:
    """Apply a method of each stage in turn, with the stage's own random stream."""
    for index, defense in stages:
        value = getattr(defense, method)(value, generator_for(*key, index))
    return value
