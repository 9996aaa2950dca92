"""Base of attacks on shuffles inside windows: inference of the windows, and the null baseline of window means."""

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
from defenses.images.vfe import window_fill, window_sum
from defenses.images.visual_mixer import VisualMixer, shuffle_windows
from defenses.images.visual_mixer_windows import Level
from defenses.pipeline import Pipeline
from defenses.tensors import Numbers


class Piece(NamedTuple):
    """One guess whose shuffle is to be undone.

    Attributes:
        images: (B, C, H, W), on the CPU.
        windows: Of these images, in which pixels may have been shuffled, as ``VisualMixer.partition`` returns them.
        generator: What is drawn for them comes from it.
    """

    images: Tensor
    windows: list[Level]
    generator: torch.Generator


@algorithm
class Unshuffle(Refinement, needs_auxiliary=True):
    """Base of attacks on the first shuffle in the clients' pipeline.

    The windows of ``VisualMixer`` depend on the original image; running its algorithm on the guess gives other windows, because
    shuffling makes small windows look rough and large ones flat. They are inferred; see
    ``window_inference``. The diagnostic ``windows_expected`` is the expected share of pixels with the right window.
    """

    threat = (
        "a guess of the protected images and the defence's algorithm; auxiliary images, from which it learns to tell how large "
        "the windows of VisualMixer are"
    )
    learned: tuple[WindowInference, ...] = learned_field()
    """Of the windows of the first shuffle in the clients' pipeline; empty without one."""

    @property
    def lesson(self) -> str:
        """The windows, whatever is done in them."""
        return Unshuffle.__name__

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Learn to infer the windows of the first shuffle of the clients' pipeline, if any."""
        defenses = knowledge.pipeline.defenses
        at = next((i for i, d in enumerate(defenses) if isinstance(d, VisualMixer)), None)
        if at is None:
            return replace(self, learned=())
        shuffle = defenses[at]
        assert isinstance(shuffle, VisualMixer)
        auxiliary = knowledge.auxiliary
        if not len(auxiliary):
            raise AttackError(f"{self} learns from auxiliary images to find windows, and there are none")
        before, after = Pipeline(defenses[:at]), Pipeline(defenses[at + 1 :])

        def mix(images: Tensor, stream: torch.Generator) -> tuple[list[Level], Tensor]:
            targets = torch.ones(len(images), auxiliary.targets.shape[1], device=images.device)
            entering = protect_afresh(before, Batch(images, targets / targets.shape[1]), stream)
            levels = shuffle.partition(entering.images)
            shuffled = shuffle_windows(entering.images, levels, stream)
            return levels, protect_afresh(after, Batch(shuffled, entering.targets), stream).images

        images = auxiliary.images.float()
        return replace(self, learned=(learn_windows(shuffle.sizes(*images.shape[-2:]), images, mix, generator),))

    def refine_begun(self, begun: Sequence[Begun]) -> list[Reconstruction]:
        """Undo the shuffle in every image.

        Without a shuffle in the pipeline images stay unchanged, with ``nothing_to_undo`` = 1. A guess fails if its windows must be
        inferred and its images differ in size from the auxiliary images.
        """
        results, groups = [entry.guess for entry in begun], defaultdict(list)
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
            for (at, _), (images, numbers) in zip(members, solved, strict=True):
                own = results[at]
                results[at] = replace(own, images=images.to(own.images), diagnostics=own.diagnostics | numbers)
        return results

    def _windows(self, images: Tensor) -> tuple[list[Level], Numbers]:
        if not self.learned:
            return [], {}
        (inference,) = self.learned
        if inference.shape != images.shape[-2:]:
            raise AttackError(
                f"images have sides {tuple(images.shape[-2:])}; allowed: {inference.shape}, as in training"
            )
        levels, share = inference(images)
        return levels, {"windows_expected": float(share.mean())}

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


def _means(images: Tensor, windows: list[Level]) -> Tensor:
    result = images.clone()
    height, width = images.shape[-2:]
    for size, active in windows:
        means = window_sum(images, size) / window_sum(torch.ones(height, width), size)
        inside = window_fill(active, size, height, width)[:, None]
        result = torch.where(inside, window_fill(means, size, height, width), result)
    return result
