"""Random crops and flips: the usual augmentation of networks for small pictures; not a defence."""

import torch
from torch import Tensor
from torch.nn import functional as F


def random_crop_and_flip(images: Tensor, padding: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Shift images (B, C, H, W) by -padding to padding pixels either way, black at the edges; with ``flip``, mirror every second.

    As torchvision's ``RandomCrop(size, padding)`` and ``RandomHorizontalFlip``. Every image takes the same number of draws of the
    ``generator`` (on the CPU) for all arguments.

    Source: Krizhevsky 2009 and He et al. 2016, section 4.2 (padding 4 on CIFAR).
    """
    count, _, height, width = images.shape
    top, left = torch.randint(2 * padding + 1, (2, count), generator=generator).to(images.device)
    mirrored = (torch.rand(count, generator=generator) < 0.5).to(images.device)
    rows = top.view(-1, 1) + torch.arange(height, device=images.device)
    columns = left.view(-1, 1) + torch.arange(width, device=images.device)
    if flip:
        columns = torch.where(mirrored.view(-1, 1), columns.flip(1), columns)
    padded = F.pad(images, [padding] * 4) if padding else images
    which = torch.arange(count, device=images.device).view(-1, 1, 1)
    # Advanced indices around a slice put the channels last.
    return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def mean_view(images: Tensor, padding: int, flip: bool) -> Tensor:
    """Expectation of ``random_crop_and_flip`` (B, C, H, W): the mean over the (2 padding + 1)^2 shifts and the mirror."""
    if padding:
        images = F.avg_pool2d(F.pad(images, [padding] * 4), 2 * padding + 1, stride=1)
    return (images + images.flip(-1)) / 2 if flip else images
