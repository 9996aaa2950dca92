"""Inference of VisualMixer's windows from a shuffled image.

In a shuffled window, the means of its parts differ only by chance, and their differences do not agree across colour channels. In an
image that was not shuffled at that scale, the means differ more and the channels agree. A classifier, trained on auxiliary images,
therefore judges each region of Algorithm 1 by the variance of its parts' means at each scale and by the channels' agreement.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.descent import step_down
from defenses.functional import widened
from defenses.images.vfe import window_fill, window_sum
from defenses.images.visual_mixer_windows import Level
from defenses.random_draws import seed_of
from defenses.tensors import Shape

Mix = Callable[[Tensor, torch.Generator], tuple[list[Level], Tensor]]
"""Auxiliary images (B, C, H, W) -> the windows that a client's algorithm chooses, and the shuffled images."""

DRAWS, MOST_IMAGES, CHUNK = 4, 400, 64
"""Times that each auxiliary image is mixed; images used at most; images mixed at once."""
STEPS, ROWS, HIDDEN, RATE = 250, 4096, 32, 1e-2
"""Training of one judgement: steps of Adam, regions in a step, hidden units, largest learning rate."""
NOISE, SMOOTHING, LOST = 0.3, 0.6, 0.15
"""Simulated errors of inversions in training: largest standard deviation of noise, and share of a 3 x 3 blur. The last is the share
of guesses with up to 8 times as much noise, on which the classifier learns to be uncertain."""
COARSEST = 5
"""Octaves of coarse noise: squares of 1, 2, 4, ... pixels."""
FLOOR = 1e-5
"""Variance below which nothing is visible, in units of images in [0, 1]."""
CERTAIN = 0.95
"""Probability from which a region counts among those at or under the median although half of the regions are."""
MARGIN = 0.08
"""Margin by which a partition's expected share must exceed that of a single size, because the best of many is overestimated."""


@dataclass(frozen=True)
class WindowInference:
    """Infers the windows of shuffled images; made by ``learn_windows``.

    Attributes:
        sizes: As ``VisualMixer.sizes`` gives them for these images.
        judges: One network per size of region that may be cut further: features -> log-odds that it was not.
        shape: (H, W) of the images that it learned from.
    """

    sizes: Shape
    judges: tuple[nn.Module, ...]
    shape: tuple[int, int]

    def __call__(self, images: Tensor) -> tuple[list[Level], Tensor]:
        """The partition with the largest expected share of pixels of the right window size, and this share for each image, (B,).

        Candidates are all partitions of Algorithm 1 and a single size everywhere. Images (B, C, H, W) in [0, 1] are shuffled, exact
        or guessed by an inversion. Partition and share are on the host.
        """
        height, width = self.shape
        if not self.judges:
            side = self.sizes[-1]
            windows = torch.ones(len(images), -(-height // side), -(-width // side), dtype=torch.bool)
            return [(side, windows)], torch.ones(len(images))
        with torch.no_grad():
            features = region_features(images.to(next(self.judges[0].parameters()).device), self.sizes)
            low = [judge(f)[..., 0].sigmoid().cpu() for judge, f in zip(self.judges, features, strict=True)]
        levels, share = _most_expected(low, self.sizes, height, width)
        return _or_one_size(levels, share, low, self.sizes, height, width)


def learn_windows(sizes: list[int], images: Tensor, mix: Mix, generator: torch.Generator) -> WindowInference:
    """Learn to infer the windows of images like these (N, C, H, W), on a random subset if there are many.

    ``sizes`` are as ``VisualMixer.sizes`` gives them; ``mix`` is the client's algorithm, with randomness of the attacker's own.
    """
    shape = (images.shape[-2], images.shape[-1])
    if len(sizes) < 3:  # one size everywhere: nothing to find
        return WindowInference(tuple(sizes), (), shape)
    chosen = images[torch.randperm(len(images), generator=generator)[:MOST_IMAGES].to(images.device)]
    examples: list[list[tuple[Tensor, Tensor]]] = [[] for _ in sizes[:-2]]
    for part in (part for _ in range(DRAWS) for part in torch.split(chosen, CHUNK)):
        # All images flipped, or not, along each axis.
        axes = [axis for axis in (-1, -2) if torch.rand((), generator=generator) < 0.5]
        levels, mixed = mix(part.flip(axes) if axes else part, generator)
        seen = region_features(as_inverted(mixed, generator), tuple(sizes))
        for at, (features, low, reached) in enumerate(zip(seen, *_cuts(levels), strict=True)):
            examples[at].append((features[reached], low[reached].float()))
    judges = []
    for level in examples:
        features, low = (torch.cat(part) for part in zip(*level, strict=True))
        judges.append(_judge(features, low, generator))
    return WindowInference(tuple(sizes), tuple(judges), shape)


def region_features(images: Tensor, sizes: Shape) -> list[Tensor]:
    """Features that show whether regions were shuffled, for each size of region that may be cut: (B, rows, columns, features).

    At each scale s = 1, 2, 4, ... below the region's side: the logarithm of the variance of the means of its s x s squares around
    those of the 2s x 2s squares that hold them, in units of single pixels (so that it is the same at all scales of a shuffled
    window); and, of images with colours, the correlation of channels in these differences. Each stands beside its difference to
    the mean over the image's regions, and beside that mean: Algorithm 1 compares regions of one image.

    Images are (B, C, H, W) in [0, 1]; sizes are decreasing powers of two, and regions of the last two are never cut further.
    """
    pixels = widened(images)
    channels, ones = pixels.shape[1], torch.ones(1, 1, *pixels.shape[-2:], device=pixels.device)
    pairs = [(c, c) for c in range(channels)] + list(combinations(range(channels), 2))
    squares, counts = {}, {}
    for scale in (1 << power for power in range(sizes[0].bit_length())):
        total, area = window_sum(pixels, scale), window_sum(ones, scale)
        squares[scale] = torch.stack([total[:, a] * total[:, b] for a, b in pairs], 1) / area
        counts[scale] = torch.ones_like(area)

    features = []
    for size in sizes[:-2]:
        columns = []
        for scale in (s for s in squares if s < size):
            spread, freedom = (
                window_sum(of[scale], size // scale) - window_sum(of[2 * scale], size // (2 * scale))
                for of in (squares, counts)
            )
            columns += _variance_and_correlation(spread / freedom.clamp(min=1), channels)
        own = torch.stack(columns, -1)
        mean = own.mean((1, 2), keepdim=True).expand_as(own)
        features.append(torch.cat([own, own - mean, mean], -1))
    return features


def _variance_and_correlation(covariance: Tensor, channels: int) -> list[Tensor]:
    """Variances, then covariances, of channels (B, ., h, w) -> log mean variance and, with colours, correlation, (B, h, w) each."""
    variance, shared = covariance[:, :channels].clamp(min=0), covariance[:, channels:]
    features = [(variance.mean(1) + FLOOR).log()]
    if channels > 1:
        products = torch.stack([variance[:, a] * variance[:, b] for a, b in combinations(range(channels), 2)], 1)
        features.append(shared.mean(1) / (products.sqrt().mean(1) + FLOOR))
    return features


def as_inverted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images with simulated errors of an inversion: white noise, or coarse noise as of a failed inversion, and a blur.

    Kind and strength of the errors are drawn for each image.
    """
    draw = torch.rand(5, len(images), 1, 1, 1, generator=generator).to(images)
    kernel = torch.tensor([1.0, 2.0, 1.0]).outer(torch.tensor([1.0, 2.0, 1.0])).to(images) / 16
    channels = images.shape[1]
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
    blurred = F.conv2d(padded, kernel.expand(channels, 1, 3, 3), groups=channels)
    share = SMOOTHING * draw[0] * (draw[1] < 0.5)
    white = draw[2].square() * torch.randn(images.shape, generator=generator).to(images)
    noise = torch.where(draw[4] < 0.5, white, draw[2] * _coarse_noise(images, generator))
    std = NOISE * torch.where(draw[3] < LOST, 8.0, 1.0)
    return (images + share * (blurred - images) + std * noise).clamp(0, 1)


def _coarse_noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Noise of standard deviation 1, larger at coarse scales and partly shared by the channels, by draws for each image."""
    batch, channels, height, width = images.shape
    slope, shared = torch.rand(2, batch, 1, 1, 1, generator=generator)
    total, power = torch.zeros(images.shape), torch.zeros(batch, 1, 1, 1)
    for octave in range(COARSEST):
        size = (max(height >> octave, 1), max(width >> octave, 1))
        own = torch.randn(batch, channels, *size, generator=generator)
        common = torch.randn(batch, 1, *size, generator=generator)
        weight = 2 ** (2 * slope * octave)  # of the variance; natural images have 4 for each octave
        rough = (1 - shared).sqrt() * own + shared.sqrt() * common
        total += weight.sqrt() * F.interpolate(rough, (height, width))
        power += weight
    return (total / power.sqrt()).to(images)


def _cuts(levels: list[Level]) -> tuple[list[Tensor], list[Tensor]]:
    """For regions of all sizes but the last two: whether each was shuffled in windows of the next size; whether it was formed."""
    low = [window_sum(active.float(), 2) > 0 for _, active in levels[1:-1]]
    formed = [torch.ones_like(low[0])]
    for chosen, after in pairwise(low):
        formed.append(window_fill(formed[-1] & ~chosen, 2, *after.shape[1:]))
    return low, formed


def _judge(features: Tensor, low: Tensor, generator: torch.Generator) -> nn.Module:
    """Logistic regression with one hidden layer: (n, k) features and (n,) answers; in eval mode."""
    mean, std = features.mean(0), features.std(0, correction=0) + 1e-3
    with torch.random.fork_rng(devices=[]):  # PyTorch's initialisation draws from the global stream
        torch.manual_seed(seed_of(generator, 31))
        first, last = nn.Linear(features.shape[1], HIDDEN), nn.Linear(HIDDEN, 1)
        network = nn.Sequential(first, nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), last).to(features)
    optimizer = torch.optim.AdamW(network.parameters(), RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS)
    inputs = (features - mean) / std
    for _ in range(STEPS):
        rows = torch.randint(len(inputs), (min(ROWS, len(inputs)),), generator=generator).to(inputs.device)
        step_down(optimizer, F.binary_cross_entropy_with_logits(network(inputs[rows])[:, 0], low[rows]), schedule)
    with torch.no_grad():  # the scaling of the features becomes part of the first layer
        first.weight /= std
        first.bias.sub_(first.weight @ mean)
    return network.eval()


def _most_expected(low: list[Tensor], sizes: Shape, height: int, width: int) -> tuple[list[Level], Tensor]:
    """Of all partitions that Algorithm 1 can draw, that with most pixels expected to be right, by recursion over the regions.

    Half of the first regions, rounded up, are at or under their median; more only where values tie, as in flat regions.
    """
    area = [window_sum(torch.ones(1, height, width), size) for size in sizes]
    # A region of the last size but one has its windows for certain.
    choices, right = [], area[-2].expand(len(low[0]), -1, -1)
    for at in reversed(range(len(low))):
        whole, parts = low[at] * area[at], (1 - low[at]) * window_sum(right, 2)
        chosen = _at_least_half(low[0]) if at == 0 else whole >= parts
        choices.append(chosen)
        right = torch.where(chosen, whole, parts)
    pending, levels = torch.ones_like(choices[-1]), [(sizes[0], torch.zeros_like(choices[-1]))]
    for chosen, half in zip(reversed(choices), sizes[1:], strict=False):
        rows, columns = -(-height // half), -(-width // half)
        active, pending = (window_fill(of, 2, rows, columns) for of in (pending & chosen, pending & ~chosen))
        levels.append((half, active))
    last = window_fill(pending, 2, -(-height // sizes[-1]), -(-width // sizes[-1]))
    return [*levels, (sizes[-1], last)], right.flatten(1).sum(1) / (height * width)


def _at_least_half(low: Tensor) -> Tensor:
    flat = low.flatten(1)
    rank = flat.argsort(1, descending=True).argsort(1)
    return ((rank < -(-flat.shape[1] // 2)) | (flat > CERTAIN)).view_as(low)


def _or_one_size(
    levels: list[Level], share: Tensor, low: list[Tensor], sizes: Shape, height: int, width: int
) -> tuple[list[Level], Tensor]:
    """Choose a single size for images in which it has the higher expected share of right pixels."""
    formed, shares = torch.ones_like(low[0]), []
    for at, chance in enumerate(low):
        area = window_sum(torch.ones(1, height, width), sizes[at])
        shares.append((formed * chance * area).flatten(1).sum(1) / (height * width))
        rows, columns = -(-height // sizes[at + 1]), -(-width // sizes[at + 1])
        formed = window_fill(formed * (1 - chance), 2, rows, columns)
    shares.append(1 - torch.stack(shares).sum(0))
    best, number = torch.stack(shares).max(0)
    one_size = best > share - MARGIN
    mixed = [levels[0]]
    for at, (size, active) in enumerate(levels[1:]):
        mixed.append((size, torch.where(one_size[:, None, None], (number == at)[:, None, None], active)))
    return mixed, torch.where(one_size, best, share)
