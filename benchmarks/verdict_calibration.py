"""The verdicts on images beside those of a classifier of clean images, on copies degraded in known ways.

python benchmarks/verdict_calibration.py
"""

import numpy as np
import torch
from scipy.stats import mannwhitneyu
from studies import table
from torch import Tensor
from torch.nn import functional as F

from attacks.image_measures import correlation, ms_ssim, psnr, ssim
from attacks.metrics.images import LEAST_STRUCTURE, STRUCTURE
from attacks.scoring.metrics import blurred, retrieved
from attacks.scoring.oracle import train_oracle
from clients.data.datasets import load_dataset
from clients.data.images import to_float
from clients.data.packaged import packaged_file
from defenses.base import Batch


def grey(images: Tensor) -> Tensor:
    return images.mean(1, keepdim=True)


def edges(images: Tensor) -> Tensor:
    return torch.cat([grey(images).diff(dim=2)[..., :-1], grey(images).diff(dim=3)[..., :-1, :]], 1)


MEASURES = {
    "ssim": ssim, "ms-ssim": ms_ssim, "luminance": lambda a, b: correlation(grey(a), grey(b)),
    "edges": lambda a, b: correlation(edges(a), edges(b)), "all channels": correlation,
}  # fmt: skip


def blocks(images: Tensor, side: int) -> Tensor:
    return F.interpolate(F.adaptive_avg_pool2d(images, side), images.shape[-2:])


def shuffled(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    size = images.shape[2] // side * side
    windows = F.unfold(images[..., :size, :size], side, stride=side)
    order = torch.rand(len(images), windows.shape[2], generator=generator).argsort(1)[:, None].expand_as(windows)
    return F.interpolate(F.fold(windows.gather(2, order), (size, size), side, stride=side), images.shape[-2:])


def copies(images: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """Name -> degraded copies (N, C, H, W) of images of classes (N,) of 100 each."""
    generator, others, means = torch.Generator().manual_seed(1), images.clone(), images.clone()
    for one in classes.unique():
        mine = images[classes == one]
        others[classes == one], means[classes == one] = mine.roll(1, 0), (mine.sum(0) - mine) / (len(mine) - 1)
    noise = torch.randn(images.shape, generator=generator)
    found = {"none": images, "mean colour": blocks(images, 1), "mean of the class": means}
    found |= {f"blocks, {side}x{side}": blocks(images, side) for side in (2, 3, 4, 6, 8, 12)}
    found |= {f"blur, {std:g} pixels": blurred(images, std) for std in (0.5, 1, 1.5, 2, 3, 4)}
    found |= {f"noise, std {std:g}": (images + std * noise).clamp(0, 1) for std in (0.1, 0.2, 0.3, 0.5)}
    found |= {
        f"mixed with another, {share:g}": share * images + (1 - share) * others for share in (0.3, 0.4, 0.5, 0.6, 0.7)
    }
    return found | {f"windows of {side} shuffled": shuffled(images, side, generator) for side in (1, 4, 7, 12)}


def even(images: Tensor) -> Tensor:
    centred = images - images.mean((1, 2, 3), keepdim=True)
    return centred / centred.flatten(1).std(1).clamp(min=1e-3)[:, None, None, None]


def data(name: str) -> tuple[Tensor, Tensor, Tensor, Batch]:
    """Images, their classes, what a classifier is to say of each (of faces and photographs which one it is), what it learns."""
    if name == "digits":
        part = load_dataset("mnist-5k")
        learned = Batch(even(to_float(part.train.images[::2])), F.one_hot(part.train.labels[::2], 10).float())
        return to_float(part.test.images[:]), part.test.labels, part.test.labels, learned
    if name == "faces":
        images = torch.from_numpy(np.load(packaged_file("skimage", "data/lfw_subset.npy"))[:100]).float()[:, None]
        classes = torch.zeros(len(images), dtype=torch.int64)
    else:
        part = load_dataset("photos")
        images, classes = (
            torch.cat([getattr(of, key)[:] for of in (part.train, part.test)]) for key in ("images", "labels")
        )
        chosen = torch.cat(
            [(classes == one).nonzero()[:100, 0] for one in classes.unique() if (classes == one).sum() >= 100]
        )
        images, classes = to_float(images[chosen]), classes[chosen]
    each = torch.arange(len(images))
    return images, classes, each, Batch(even(images).repeat(8, 1, 1, 1), F.one_hot(each.repeat(8), len(each)).float())


def balanced(verdict: Tensor, right: Tensor) -> float:
    """Mean of the shares of ones and of zeros of ``right`` that the verdict repeats."""
    return (verdict[right].float().mean().item() + (~verdict[~right]).float().mean().item()) / 2


def main() -> None:
    """Print what agrees best with the classifier, and the verdicts on each kind of copy."""
    torch.set_num_threads(1)
    shares, agreement = dict[str, list[str]](), {name: [name] for name in MEASURES}
    for name in ("digits", "faces", "photographs"):
        images, classes, target, learned = data(name)
        oracle = train_oracle(learned, 0)
        known = oracle.classify(even(images)) == target
        images, classes, target = images[known], classes[known], target[known]
        found, rights, values = list[Tensor](), list[Tensor](), {key: list[Tensor]() for key in MEASURES}
        for kind, guess in copies(images, classes).items():
            hits = torch.zeros(len(images))
            for one in classes.unique():
                mine = classes == one
                hits[mine] = torch.tensor(retrieved(guess[mine], images[mine], torch.arange(int(mine.sum()))))
            found.append((hits == 1) & (psnr(guess, images) > psnr(blocks(images, 1), images)))
            rights.append(oracle.classify(even(guess)) == target)
            for key, measure in MEASURES.items():
                values[key].append(measure(guess, images).nan_to_num())
            verdict = found[-1] & (STRUCTURE.measure(guess, images) >= LEAST_STRUCTURE)
            three = (hits.mean(), verdict.float().mean(), rights[-1].float().mean())
            shares.setdefault(kind, []).append(" / ".join(f"{100 * share:.0f}" for share in three))
        above, right = torch.cat(found), torch.cat(rights)
        for key, of in values.items():
            value = torch.cat(of)
            scores = [balanced(above & (value >= at / 20), right) for at in range(21)]
            auc = (
                mannwhitneyu(value[above & right], value[above & ~right]).statistic
                / (above & right).sum()
                / (above & ~right).sum()
            )
            best = int(np.argmax(scores))
            agreement[key].append(f"{best / 20:.2f}: {scores[best]:.3f}; AUC {auc:.3f}")
        verdict = above & (torch.cat(values["all channels"]) >= LEAST_STRUCTURE)
        cells = {f"{a}/{b}": int(((verdict == a) & (right == b)).sum()) for a in (True, False) for b in (True, False)}
        print(
            name,
            f"n = {len(images)}, right on {known.float().mean():.1%} of all; recognisable/right: {cells}",
            flush=True,
        )
        print(f"balanced accuracy {balanced(verdict, right):.3f}", flush=True)
    print(table(["copy", "digits", "faces", "photographs"], ([kind, *of] for kind, of in shares.items())))
    print(table(["measure", "digits", "faces", "photographs"], agreement.values()))


if __name__ == "__main__":
    main()
