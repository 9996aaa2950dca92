"""Visual feature entropy (VFE): how much neighbouring pixels differ, and its exact law under pixel shuffling.

Source: the VisualMixer paper (NDSS 2024), equations 1-12. Its sums run over pixels whose right or lower neighbour does not
exist, but its own count of WS * (WS - 1) pairs per direction includes only pairs inside the region. We compute the latter; the
released code pads with zeros instead, which adds the squares of the border pixels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from defenses.functional import widened


def pair_count(height: int, width: int) -> int:
    """Neighbouring pixel pairs inside a height x width rectangle: h(w-1) + w(h-1); 2 WS (WS-1) for a square window."""
    return height * (width - 1) + width * (height - 1)


def vfe_map(images: Tensor, window: int) -> Tensor:
    """VFE_R of every window, the sum of squared differences between neighbours inside it (equation 2).

    (..., H, W) -> (..., ceil(H / window), ceil(W / window)), in squared pixel units; windows at the right and bottom edge may be
    smaller. 0 for a constant window or a single pixel; low precision is widened to float32.
    """
    return window_vfe(*squared_differences(images), window)


def vfe_normalised(images: Tensor, window: int) -> Tensor:
    """VFE_R / (2 sigma^2) of every window, sigma^2 with n - 1 (equations 5 and 10); shapes as in ``vfe_map``.

    Over all permutations of a window's pixels its mean is exactly the window's ``pair_count``, whatever the pixels are: two drawn
    without replacement differ by 2 sigma^2 in mean square. The paper derives it for independent normal pixels. 0 where the window
    is constant.
    """
    variance = window_variance(images, window)
    return torch.where(variance > 0, vfe_map(images, window) / (2 * variance), 0.0)


def squared_differences(images: Tensor) -> tuple[Tensor, Tensor]:
    """Squared forward differences (equation 1) of (..., H, W): across (..., H, W - 1) and down (..., H - 1, W)."""
    pixels = widened(images)
    return pixels.diff(dim=-1).square_(), pixels.diff(dim=-2).square_()


def window_vfe(across: Tensor, down: Tensor, window: int) -> Tensor:
    """Adds ``squared_differences`` up per window, without the pairs that cross a window's border; shapes as in ``vfe_map``."""
    inner_x, inner_y = (
        torch.arange(1, n + 1, device=across.device) % window != 0 for n in (across.shape[-1], down.shape[-2])
    )
    return window_sum(F.pad(across * inner_x, (0, 1)) + F.pad(down * inner_y[:, None], (0, 0, 0, 1)), window)


def window_sum(values: Tensor, window: int) -> Tensor:
    """Sums over windows, smaller ones at the edges: (..., H, W) -> (..., ceil(H / window), ceil(W / window))."""
    height, width = values.shape[-2:]
    rows, columns = -(-height // window), -(-width // window)
    padded = F.pad(values, (0, columns * window - width, 0, rows * window - height))
    return padded.reshape(*values.shape[:-2], rows, window, columns, window).sum(-1).sum(-2)


def window_fill(values: Tensor, window: int, height: int, width: int) -> Tensor:
    """Gives each pixel its window's value: (..., ceil(H / window), ceil(W / window)) -> (..., H, W)."""
    rows, columns = values.shape[-2:]
    filled = values[..., :, None, :, None].expand(*values.shape[:-2], rows, window, columns, window)
    return filled.reshape(*values.shape[:-2], rows * window, columns * window)[..., :height, :width]


def window_pairs(height: int, width: int, window: int) -> Tensor:
    """``pair_count`` of every window of an image: (ceil(height / window), ceil(width / window)), float32."""
    return window_vfe(torch.ones(height, width - 1), torch.ones(height - 1, width), window)


def window_variance(images: Tensor, window: int) -> Tensor:
    """Variance with n - 1 of every window, 0 for single pixels; shapes as in ``vfe_map``."""
    pixels = widened(images)
    height, width = pixels.shape[-2:]
    count = window_sum(torch.ones(height, width, dtype=pixels.dtype, device=pixels.device), window)
    mean = window_sum(pixels, window) / count
    # Subtracting the mean first keeps precision where the squares of the pixels dwarf the variance.
    centred = pixels - window_fill(mean, window, height, width)
    return window_sum(centred.square_(), window) / (count - 1).clamp(min=1)
