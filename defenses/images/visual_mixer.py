"""VisualMixer: shuffle pixels inside windows that are larger where the image has little structure."""

from collections.abc import Iterator
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from defenses.base import Batch, InputDefense
from defenses.checks import Pixels, ScaleOrNone, algorithm, require
from defenses.images.vfe import pair_count
from defenses.images.visual_mixer_windows import (
    Level,
    log10_keys,
    mixing_windows,
    partition,
    power_of_two,
    total_vfe,
    window_lower_bound,
    window_sizes,
    windows_in_words,
)
from defenses.tensors import ImageShape, Numbers

ADVICE = "for windows of several sizes choose bounds further apart or first_regions='nearest', else equal bounds"


@algorithm
class VisualMixer(InputDefense):
    """Shuffle the pixels inside each window of an image; windows are larger where visual feature entropy (VFE) is low.

    An image is cut into regions of a power of two at most ``window_upper``. A region whose VFE is at most the median is
    shuffled in windows of half its size; another is split into such windows, which are judged again, down to
    ``window_lower``. So no window is larger than half the first regions. On 32 pixels the defaults give windows of 4 (low
    VFE) and 2 (high VFE). The bounds (2, 16) give 8, 4 and 2, and the bounds (4, 15) give 4 everywhere. Windows of 2 to 8 of 32
    pixels cover the side as 14 to 56 of the paper's 224 do. Which bounds let VFE decide anything depends on the image's side: see
    ``sizes``. Each window keeps its values, channel by channel; no key is kept, and test images must be shuffled as well.

    The paper's text contradicts itself on which regions get larger windows; we follow Algorithm 1. It shuffles space
    and then each channel, which has exactly the law of shuffling each channel alone, as we do.

    Attributes:
        window_lower: WS_l, 1 or more pixels, rounded down to a power of two as in the paper.
        window_upper: WS_u, at least ``window_lower``; 15 is what equation 17 gives for d = 5 standard deviations of a weight and
            alpha = 0.5.
        first_regions: "halved" is line 5 of Algorithm 1, which from a side that is no power of two falls below the bound: 28
            pixels under a bound of 16 begin with 8. "nearest" is the text of Sec. IV-D, the largest power of two at most
            ``window_upper``: 16 there. On sides that are powers of two both are the same.
        target_vfe: VFE / (2 sigma^2) that whole windows reach in the mean over shuffles, in channels that vary; 0 asks for
            nothing. WS_l is then at least the smallest such window (section IV-B), rounded up to a power of two: rounded
            down, as the paper does, windows miss the target (60 asks for windows of 6; windows of 4 have 24).
        reshuffle: Shuffle an image anew at every use, and not once for all; see ``PassAveraging`` for what that gives away.
    """

    always_shown = ("window_lower", "window_upper")
    source = "Li et al., You Can Use But Cannot Recognize (VisualMixer), NDSS 2024, Algorithm 1"
    at_inference = True
    resamples = False
    adaptive_attacks = ("LearnedRestorer", "WindowMean", "Shredder", "Jigsaw", "PassAveraging")

    window_lower: Pixels = 2
    window_upper: Pixels = 15
    first_regions: Literal["halved", "nearest"] = "halved"
    target_vfe: ScaleOrNone = 0.0
    reshuffle: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "resamples", self.reshuffle)  # the class attribute describes the default
        upper, lower = self.window_upper, self.window_lower
        given = " (it has its default)" if upper == VisualMixer.window_upper else ""
        allowed = f"{lower} or more, so that a window of {power_of_two(lower)} fits{given}"
        require(upper >= lower, self, "window_upper", allowed)
        if self.target_vfe > 0:
            # Asked before ``smallest``, whose search for a window that reaches a target out of reach could take years.
            most = power_of_two(upper)
            reached = pair_count(most, most)
            allowed = f"at most {reached}, which windows of {most} reach, the largest under a bound of {upper}"
            require(reached >= self.target_vfe, self, "target_vfe", allowed)

    @property
    def smallest(self) -> int:
        """Side of the smallest windows in pixels, a power of two, before the image's edge cuts them."""
        return max(power_of_two(self.window_lower), power_of_two(window_lower_bound(self.target_vfe), up=True))

    def sizes(self, height: int, width: int) -> list[int]:
        """Sides of regions and windows in an image of this size; see ``window_sizes``."""
        return window_sizes(height, width, self.smallest, self.window_upper, first_regions=self.first_regions)

    def at_size(self, height: int, width: int) -> str:
        """The windows as shares of the longer side, beside those of the paper's images; see ``windows_in_words``."""
        sizes, shorter = self.sizes(height, width), min(height, width)
        words = windows_in_words(sizes, max(height, width))
        # Of a square every window fits: a larger one is stated as the whole side.
        cut = height != width and max(sizes[1:] or sizes) > shorter
        return f"{words}; the shorter side has only {shorter} pixels and cuts them" if cut else words

    def idle(self, height: int, width: int) -> str:
        """A target out of reach, or missed at the edges; or bounds that differ and yet give one window size."""
        sizes = self.sizes(height, width)
        size = sizes[-1]
        most = pair_count(min(size, height), min(size, width))
        if most < self.target_vfe:
            return (
                f"{self} cannot reach its target in images of {height} x {width}, whose smallest windows have a VFE of {most} over "
                "2 sigma^2; lower target_vfe"
            )
        if missed := self._missed(height, width, size):
            return (
                f"{self} misses its target in {missed:.0%} of images of {height} x {width}, the cut windows at their edges; choose "
                f"an image size that {size} divides"
            )
        # The first regions, and one size that all of them are cut to, leave VFE nothing to decide.
        if self.window_lower == self.window_upper or len(sizes) > 2:
            return ""
        return (
            f"{self} shuffles all of an image of {height} x {width} in windows of one size, {size} pixels, whatever its VFE; "
            f"{ADVICE}"
        )

    def _missed(self, height: int, width: int, size: int) -> float:
        """Share of the area in windows that the image's edge cuts below the target."""
        down, across = ([min(size, side - at) for at in range(0, side, size)] for side in (height, width))
        return sum(h * w for h in down for w in across if pair_count(h, w) < self.target_vfe) / (height * width)

    def partition(self, images: Tensor) -> list[Level]:
        """The windows that (B, C, H, W) images are shuffled in; see ``partition``."""
        return partition(images, self.sizes(*images.shape[-2:]))

    def totals(self, images: Tensor, protected: Tensor) -> Numbers:
        """Windows of each size in which something moves, and the sums over them of VFE / (2 sigma^2) before and after.

        "log10-keys" is the decimal logarithm of the orders that an image can have been shuffled into, added up over images.
        """
        levels = self.partition(images)
        counts = mixing_windows(images, levels)
        possible = counts if len(counts) == 1 else list(counts)[1:]
        vfe = {"vfe-sum-before": total_vfe(images, levels), "vfe-sum-after": total_vfe(protected, levels)}
        keys = {"log10-keys": log10_keys(images, levels)}
        return {f"windows-of-{size}": counts[size] for size in possible} | vfe | keys

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Shuffles the images; targets are unchanged."""
        return Batch(shuffle_windows(batch.images, self.partition(batch.images), generator), batch.targets)


def shuffle_windows(images: Tensor, levels: list[Level], generator: torch.Generator) -> Tensor:
    """Shuffles the pixels of every window of (B, C, H, W) uniformly at random, channel by channel; windows must not overlap."""
    batch, planes, height, width = images.shape
    area = height * width
    source = torch.arange(area).expand(batch, planes, -1).contiguous()
    plane = torch.arange(planes).unsqueeze(1) * area
    for size, active in levels:
        for rows, columns, pixels in _tilings(height, width, size):
            image, window = active[:, rows, columns].flatten(1).nonzero().cpu().unbind(1)
            inside = pixels[window]  # (M, n): the n pixels of each of M windows
            target = (inside + image.unsqueeze(1) * (planes * area)).flatten() + plane
            source.view(-1).scatter_(0, target.flatten(), _shuffled(inside, planes, area, generator).flatten())
    return images.flatten(2).gather(2, source.to(images.device)).view_as(images)


def _spans(length: int, window: int) -> list[ImageShape]:
    """Start, stop and window side of the whole windows along one axis, then of the remainder."""
    whole = length - length % window
    return [span for span in ((0, whole, window), (whole, length, length - whole)) if span[1] > span[0]]


def _tilings(height: int, width: int, window: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """The grid of windows as at most four blocks of equal rectangles: rows and columns of each, and its windows' pixels."""
    position = torch.arange(height * width).view(height, width)
    for (top, bottom, h), (left, right, w) in product(_spans(height, window), _spans(width, window)):
        tiles = position[top:bottom, left:right].unfold(0, h, h).unfold(1, w, w)
        rows, columns = (slice(start // window, -(-stop // window)) for start, stop in ((top, bottom), (left, right)))
        yield rows, columns, tiles.reshape(-1, h * w)


def _shuffled(rows: Tensor, copies: int, limit: int, generator: torch.Generator) -> Tensor:
    """Shuffles every row of several copies of ``rows`` on its own: (M, n) int64 in [0, limit) -> (copies, M, n).

    Sorting random numbers whose low bits carry the entries needs no second array of indices. Equal random bits put the
    smaller entry first; with b bits for the entries, a row has such a tie with probability below n^2 / 2^(64 - b).
    """
    bits = (limit - 1).bit_length()
    keys = torch.empty(copies, *rows.shape, dtype=torch.int64).random_(generator=generator)
    keys.bitwise_and_(-1 << bits).bitwise_or_(rows)
    keys.numpy().sort(axis=-1)  # In place, and several times faster than torch on many short rows.
    return keys.bitwise_and_((1 << bits) - 1)
