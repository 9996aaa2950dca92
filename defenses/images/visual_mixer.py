"""VisualMixer: shuffle pixels inside windows that are larger where the image has little structure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from defenses.base import Batch, InputDefense
from defenses.checks import (
    MOST_SIDE,
    algorithm,
    checked_field,
    choice_field,
    flag_field,
    is_whole,
    probability_field,
    require,
    scale_field,
    whole_field,
)
from defenses.images.vfe import pair_count
from defenses.images.visual_mixer_windows import (
    DENSITIES,
    ESTIMATORS,
    FIRST_REGIONS,
    Level,
    log10_keys,
    mixing_windows,
    partition,
    power_of_two,
    public_probability,
    shuffled_vfe,
    total_vfe,
    window_lower_bound,
    window_sizes,
    window_upper_bound,
    windows_in_words,
)
from defenses.tensors import ImageShape, Numbers

CHANNELS = ("per-channel", "spatial")
ADVICE = "for windows of several sizes choose bounds further apart or first_regions='nearest', else equal bounds"


def _is_bound(value: object) -> bool:
    return value == "auto" or (is_whole(value) and value <= MOST_SIDE)  # type: ignore[operator]


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
    and then each channel, which has exactly the law of shuffling each channel alone, "per-channel".

    Attributes:
        window_lower: WS_l, 1 or more pixels.
        window_upper: WS_u, at least ``window_lower``. "auto" is equation 17 for the last four settings, which are public.
        density: How regions of different size are compared: "normalised" is VFE_R per neighbouring pair, "sum" is
            VFE_R, and "sigma" is VFE_R / sigma^2. With the last two nearly all parts of a region fall under the median.
        strict_lower: Round ``window_lower`` up to a power of two; the paper rounds down, and so breaks its own bound.
        channels: "per-channel" shuffles each channel on its own, "spatial" moves whole pixels.
        first_regions: "halved" is line 5 of Algorithm 1, which from a side that is no power of two falls below the bound: 28
            pixels under a bound of 16 begin with 8. "nearest" is the text of Sec. IV-D, the largest power of two at most
            ``window_upper``: 16 there. On sides that are powers of two both are the same.
        target_vfe: VFE / (2 sigma^2) that whole windows reach in the mean over shuffles, in channels that vary; 0 asks for
            nothing. WS_l is then at least the smallest such window (section IV-B), rounded up to a power of two: rounded
            down, as the paper does, windows miss the target (60 asks for windows of 6; windows of 4 have 24).
        vfe_margin: How far that mean must lie over the target, in standard deviations of a single window's VFE.
        max_change: d, the tolerated change of a model's output in standard deviations of a weight, for "auto".
        confidence: alpha, the probability with which the change of a window of WS_u stays below d, for "auto".
        estimator: How the change of a window of 3 is estimated, for "auto"; see ``within_probability``.
        reshuffle: Shuffle an image anew at every use, and not once for all; see ``PassAveraging`` for what that gives away.
        strict_upper: For "auto", count (m + 1)^2 outputs of a window of 3 + 2m; the paper counts m^2, none of a window of 3.
    """

    always_shown = ("window_lower", "window_upper")
    source = "Li et al., You Can Use But Cannot Recognize (VisualMixer), NDSS 2024, Algorithm 1"
    at_inference = True
    resamples = False
    adaptive_attacks = (
        "LearnedRestorer",
        "WindowMean",
        "Shredder",
        "Jigsaw",
        "PassAveraging",
    )

    window_lower: int = whole_field(2, 1, MOST_SIDE)
    window_upper: int | str = checked_field(15, _is_bound, f'a whole number up to {MOST_SIDE}, or "auto"')
    density: str = choice_field("normalised", DENSITIES)
    strict_lower: bool = flag_field(False)
    channels: str = choice_field("per-channel", CHANNELS)
    first_regions: str = choice_field("halved", FIRST_REGIONS)
    target_vfe: float = scale_field(0.0, zero=True)
    vfe_margin: float = scale_field(0.0, zero=True)
    max_change: float = scale_field(5.0)
    confidence: float = probability_field(0.5)
    estimator: str = choice_field("exact", ESTIMATORS)
    strict_upper: bool = flag_field(False)
    reshuffle: bool = flag_field(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "resamples", self.reshuffle)  # the class attribute describes the default
        lower, upper = power_of_two(self.window_lower, up=self.strict_lower), self.upper
        least = max(self.window_lower, lower)
        given = "" if upper == self.window_upper else f" (it is {upper} here)"
        given = " (it has its default)" if self.window_upper == VisualMixer.window_upper else given
        require(upper >= least, self, "window_upper", f"{least} or more, so that a window of {lower} fits{given}")
        if self.target_vfe > 0:
            # Asked before ``smallest``, whose search for a window that reaches a target out of reach could take years.
            most = power_of_two(upper)
            reached = shuffled_vfe(most, self.vfe_margin)
            allowed = f"at most {reached:.4g}, which windows of {most} reach, the largest under a bound of {upper}"
            require(reached >= self.target_vfe, self, "target_vfe", allowed)

    @property
    def upper(self) -> int:
        """WS_u in pixels, "auto" resolved."""
        if isinstance(self.window_upper, int):
            return self.window_upper
        within = public_probability(float(self.max_change), self.estimator)
        return window_upper_bound(within, self.confidence, strict=self.strict_upper)

    @property
    def smallest(self) -> int:
        """Side of the smallest windows in pixels, a power of two, before the image's edge cuts them."""
        wanted = power_of_two(window_lower_bound(self.target_vfe, self.vfe_margin), up=True)
        return max(power_of_two(self.window_lower, up=self.strict_lower), wanted)

    def sizes(self, height: int, width: int) -> list[int]:
        """Sides of regions and windows in an image of this size; see ``window_sizes``."""
        return window_sizes(height, width, self.smallest, self.upper, first_regions=self.first_regions)

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
        below = sum(h * w for h in down for w in across if pair_count(h, w) < self.target_vfe)
        return below / (height * width)

    def partition(self, images: Tensor) -> list[Level]:
        """The windows that (B, C, H, W) images are shuffled in; see ``partition``."""
        return partition(images, self.sizes(*images.shape[-2:]), self.density)

    def totals(self, images: Tensor, protected: Tensor) -> Numbers:
        """Windows of each size in which something moves, and the sums over them of VFE / (2 sigma^2) before and after.

        "log10-keys" is the decimal logarithm of the orders that an image can have been shuffled into, added up over images.
        """
        levels = self.partition(images)
        found = mixing_windows(images, levels)
        possible = found if len(found) == 1 else list(found)[1:]
        vfe = {"vfe-sum-before": total_vfe(images, levels), "vfe-sum-after": total_vfe(protected, levels)}
        keys = log10_keys(images, levels, per_channel=self.channels == "per-channel")
        return {f"windows-of-{size}": found[size] for size in possible} | vfe | {"log10-keys": keys}

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Shuffles the images; targets are unchanged."""
        levels = self.partition(batch.images)
        return Batch(shuffle_windows(batch.images, levels, generator, self.channels), batch.targets)


def shuffle_windows(
    images: Tensor, levels: list[Level], generator: torch.Generator, channels: str = "per-channel"
) -> Tensor:
    """Shuffles the pixels of every window of (B, C, H, W) uniformly at random; windows must not overlap."""
    batch, depth, height, width = images.shape
    planes, area = depth if channels == "per-channel" else 1, height * width
    source = torch.arange(area).expand(batch, planes, -1).contiguous()
    plane = torch.arange(planes).unsqueeze(1) * area
    for size, active in levels:
        for rows, columns, pixels in _tilings(height, width, size):
            image, window = active[:, rows, columns].flatten(1).nonzero().cpu().unbind(1)
            inside = pixels[window]  # (M, n): the n pixels of each of M windows
            target = (inside + image.unsqueeze(1) * (planes * area)).flatten() + plane
            source.view(-1).scatter_(0, target.flatten(), _shuffled(inside, planes, area, generator).flatten())
    return images.flatten(2).gather(2, source.to(images.device).expand(-1, depth, -1)).view_as(images)


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
