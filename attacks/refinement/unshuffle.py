"""Base of attacks on shuffles inside windows: inference of the windows, and the null baseline of window means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from attacks.base import Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.observations import AttackError
from attacks.refinement.base import Begun, Refinement
from attacks.refinement.restoration import protect_afresh
from attacks.refinement.window_inference import WindowInference, learn_windows
from defenses.base import Batch
from defenses.checks import algorithm
from defenses.images.block_shuffle import BlockShuffle
from defenses.images.vfe import window_fill, window_sum
from defenses.images.visual_mixer import VisualMixer, shuffle_windows
from defenses.images.visual_mixer_windows import Level
from defenses.pipeline import Pipeline
from defenses.tensors import Numbers

Shuffle = VisualMixer | BlockShuffle


class Windows(NamedTuple):
    """Windows of a guess in which a defence may have shuffled pixels (or blocks).

    Attributes:
        levels: As ``VisualMixer.partition`` returns them, in units of ``side`` pixels.
        side: Side of the squares that moved as a whole; 1 for pixels.
        spatial: All channels moved together.
    """

    levels: list[Level]
    side: int = 1
    spatial: bool = False


class Piece(NamedTuple):
    """One guess whose shuffle is to be undone.

    Attributes:
        images: (B, C, H, W), on the CPU.
        windows: Of these images.
        generator: What is drawn for them comes from it.
    """

    images: Tensor
    windows: Windows
    generator: torch.Generator


class Learned(NamedTuple):
    """Result of ``Unshuffle.fit``: the first shuffle of the clients' pipeline, if any, and the inference of its windows."""

    shuffle: Shuffle | None
    inference: WindowInference | None = None


@algorithm
class Unshuffle(Refinement, needs_auxiliary=True):
    """Base of attacks on the first shuffle in the clients' pipeline.

    The windows of ``BlockShuffle`` are known. Those of ``VisualMixer`` depend on the original image; running its algorithm on the
    guess gives other windows, because shuffling makes small windows look rough and large ones flat. They are inferred; see
    ``window_inference``. The diagnostic ``windows_expected`` is the expected share of pixels with the right window.
    """

    threat = (
        "a guess of the protected images and the defence's algorithm; auxiliary images, from which it learns to tell how large "
        "the windows of VisualMixer are"
    )
    learned: Learned = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Keep the first shuffle of the clients' pipeline, if any, and learn to infer its windows."""
        defenses = knowledge.pipeline.defenses
        at = next((i for i, d in enumerate(defenses) if isinstance(d, VisualMixer | BlockShuffle)), None)
        if at is None:
            return replace(self, learned=Learned(None))
        shuffle = defenses[at]
        assert isinstance(shuffle, VisualMixer | BlockShuffle)
        if isinstance(shuffle, BlockShuffle):
            return replace(self, learned=Learned(shuffle))
        auxiliary = knowledge.auxiliary
        if not len(auxiliary):
            raise AttackError(f"{self} learns from auxiliary images to find windows, and there are none")
        before, after = Pipeline(defenses[:at]), Pipeline(defenses[at + 1 :])

        def mix(images: Tensor, stream: torch.Generator) -> tuple[list[Level], Tensor]:
            targets = torch.ones(len(images), auxiliary.targets.shape[1], device=images.device)
            entering = protect_afresh(before, Batch(images, targets / targets.shape[1]), stream)
            levels = shuffle.partition(entering.images)
            shuffled = shuffle_windows(entering.images, levels, stream, shuffle.channels)
            return levels, protect_afresh(after, Batch(shuffled, entering.targets), stream).images

        images = auxiliary.images.float()
        inference = learn_windows(shuffle.sizes(*images.shape[-2:]), images, mix, generator)
        return replace(self, learned=Learned(shuffle, inference))

    def refine_begun(self, begun: Sequence[Begun]) -> list[Reconstruction]:
        """Undo the shuffle in every image.

        Without a shuffle in the pipeline images stay unchanged, with ``nothing_to_undo`` = 1. A guess fails if its windows must be
        inferred and its images differ in size from the auxiliary images.
        """
        results, groups = [one.guess for one in begun], defaultdict(list)
        for at, (_, guess, generator) in enumerate(begun):
            pixels = guess.images.detach().float().cpu()
            try:
                windows, expected = self._windows(pixels)
            except AttackError as error:
                results[at] = guess.failed(error)
                continue
            diagnostics = guess.diagnostics | (expected if windows else {"nothing_to_undo": 1.0})
            results[at] = replace(guess, diagnostics=diagnostics)
            if windows:
                groups[pixels.shape[1:]].append((at, Piece(pixels, windows, generator)))
        for members in groups.values():
            solved = self._solve([piece for _, piece in members])
            for (at, _), (images, found) in zip(members, solved, strict=True):
                own = results[at]
                results[at] = replace(own, images=images.to(own.images), diagnostics=own.diagnostics | found)
        return results

    def _windows(self, images: Tensor) -> tuple[Windows | None, Numbers]:
        known, inference = self.learned
        if known is None:
            return None, {}
        if isinstance(known, BlockShuffle):
            side = known.window // known.blocks
            rows, columns = (-(-length // (known.window // side * side)) for length in images.shape[-2:])
            # All over the images; windows at the edges may be cut.
            active = torch.ones(len(images), rows, columns, dtype=torch.bool)
            return Windows([(known.window // side, active)], side), {}
        assert inference is not None
        if inference.shape != images.shape[-2:]:
            raise AttackError(
                f"images have sides {tuple(images.shape[-2:])}; allowed: {inference.shape}, as in training"
            )
        levels, share = inference(images)
        return Windows(levels, 1, known.channels == "spatial"), {"windows_expected": float(share.mean())}

    def _solve(self, pieces: Sequence[Piece]) -> list[tuple[Tensor, Numbers]]:
        """Guesses of the shape of each piece's images, and diagnostics; a piece never affects another piece's result."""
        raise NotImplementedError


@algorithm
class WindowMean(Unshuffle):
    """Replace every window by its mean, channel by channel, which shuffling never hides.

    A null baseline, which undoes nothing: an attack on the order inside windows must score better than these low-resolution means.
    """

    source = "VisualMixer (NDSS 2024), Algorithm 1, keeps the values of every window; ours"

    def _solve(self, pieces: Sequence[Piece]) -> list[tuple[Tensor, Numbers]]:
        return [(_means(images, windows), {}) for images, windows, _ in pieces]


def _means(images: Tensor, windows: Windows) -> Tensor:
    result = images.clone()
    for units, active in windows.levels:
        size, (height, width) = units * windows.side, images.shape[-2:]
        means = window_sum(images, size) / window_sum(torch.ones(height, width), size)
        inside = window_fill(active, size, height, width)[:, None]
        result = torch.where(inside, window_fill(means, size, height, width), result)
    return result
