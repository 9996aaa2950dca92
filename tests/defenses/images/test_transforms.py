"""The 50 transforms against Pillow, which the authors' implementation calls, and against exact facts."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from defenses.base import DefenseError
from defenses.images.transforms import LIBRARY, apply_transform, magnitude

# Table 5 as printed: index, transformation, magnitude, in four columns of thirteen rows.
TABLE_5 = """
0 invert 7         13 brightness 5    26 brightness 6    39 color 0
1 contrast 6       14 sharpness 9     27 color 8         40 solarize 1
2 rotate 2         15 brightness 9    28 solarize 0      41 autocontrast 0
3 translateX 9     16 equalize 5      29 invert 0        42 translateY 3
4 sharpness 1      17 equalize 1      30 equalize 0      43 translateY 4
5 sharpness 3      18 contrast 7      31 autocontrast 0  44 autocontrast 1
6 shearY 2         19 sharpness 5     32 equalize 8      45 solarize 1
7 translateY 2     20 color 5         33 equalize 4      46 equalize 5
8 autocontrast 5   21 translateX 5    34 color 5         47 invert 1
9 equalize 2       22 equalize 7      35 equalize 5      48 translateY 3
10 shearY 5        23 autocontrast 8  36 autocontrast 4  49 autocontrast 1
11 posterize 5     24 translateY 3    37 solarize 4
12 color 3         25 sharpness 6     38 brightness 3
"""

# Largest difference in grey levels. Pillow cuts blends to whole levels and rounds what it blends with (mean grey, luma,
# smoothed image); it cuts stretched and interpolated values as well. What only moves or replaces levels must be equal.
TOLERANCE = dict.fromkeys(("contrast", "color", "sharpness"), 1.5) | dict.fromkeys(
    ("brightness", "autocontrast", "shearY"), 1.001
)
EXACT = 0.001


def pillow(image: Image.Image, name: str, level: int, sign: int) -> Image.Image:
    """The operation in Pillow's terms, as AutoAugment implementations write it."""
    size, (width, height) = magnitude(name, level) * sign, image.size
    black = (0, 0, 0) if image.mode == "RGB" else 0
    affine = Image.Transform.AFFINE
    match name:
        case "shearY":
            matrix = (1, 0, 0, size, 1, 0)
            return image.transform(image.size, affine, matrix, Image.Resampling.BICUBIC, fillcolor=black)
        case "translateX":
            return image.transform(image.size, affine, (1, 0, size * width, 0, 1, 0), fillcolor=black)
        case "translateY":
            return image.transform(image.size, affine, (1, 0, 0, 0, 1, size * height), fillcolor=black)
        case "rotate":
            turned = image.convert("RGBA").rotate(abs(size))
            grey = Image.new("RGBA", turned.size, (128,) * 4)
            return Image.composite(turned, grey, turned).convert(image.mode)
        case "color" | "contrast" | "brightness" | "sharpness":
            return getattr(ImageEnhance, name.capitalize())(image).enhance(1 + size)
        case "posterize" | "solarize":
            return getattr(ImageOps, name)(image, int(abs(size)) if name == "posterize" else abs(size))
        case _:
            return getattr(ImageOps, name)(image)


def pictures() -> list[np.ndarray]:
    """Noise, a smooth gradient, few grey levels, a constant; even, odd and oblong sizes; RGB and grey."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (32, 32, 3))
    rows, columns = np.mgrid[0:23, 0:41]
    smooth = np.stack([60 + 2 * rows + columns, 200 - 3 * rows, 90 + columns], axis=-1)
    few = rng.choice([3, 90, 200], (28, 28))
    constant = np.full((31, 31, 3), 77)
    return [picture.astype(np.uint8) for picture in (noise, smooth, few, constant)]


def to_tensor(picture: np.ndarray) -> Tensor:
    """(1, C, H, W) in [0, 1]."""
    channels_last = picture if picture.ndim == 3 else picture[..., None]
    return torch.from_numpy(channels_last.copy()).permute(2, 0, 1)[None].float() / 255


def to_levels(images: Tensor) -> np.ndarray:
    """(C, H, W) on the scale of 0 to 255, not rounded."""
    return (images[0].double() * 255).numpy()


def test_the_library_is_table_5_of_the_paper():
    words = TABLE_5.split()
    printed = {int(i): (name, int(level)) for i, name, level in zip(words[::3], words[1::3], words[2::3], strict=True)}
    assert {i: entry[:2] for i, entry in enumerate(LIBRARY)} == printed


def test_every_transform_agrees_with_pillow(subtests: pytest.Subtests) -> None:
    for index, (name, level) in enumerate(LIBRARY):
        with subtests.test(f"{index} {name} {level}"):
            for sign, picture in itertools.product((1, -1), pictures()):
                ours = to_levels(apply_transform(to_tensor(picture), index, torch.tensor([float(sign)])))
                theirs = to_levels(to_tensor(np.asarray(pillow(Image.fromarray(picture), name, level, sign))))
                difference = np.abs(ours - theirs)
                if name == "rotate":
                    # Pillow computes positions in 16.16 fixed point; one on the edge between two pixels may go either way.
                    assert (difference > EXACT).mean() < 0.002
                else:
                    assert difference.max() <= TOLERANCE.get(name, EXACT)


def test_a_batch_is_transformed_image_by_image() -> None:
    images = torch.rand(6, 3, 20, 17, generator=torch.Generator().manual_seed(2))
    signs = torch.tensor([1.0, -1, -1, 1, 1, -1])
    for index in range(50):
        together = apply_transform(images, index, signs)
        alone = torch.cat([apply_transform(images[i : i + 1], index, signs[i : i + 1]) for i in range(6)])
        torch.testing.assert_close(together, alone, atol=1e-6, rtol=0, msg=f"transform {index}")
        assert together.shape == images.shape
        assert 0 <= together.min() <= together.max() <= 1


def test_two_channels_are_refused() -> None:
    with pytest.raises(DefenseError, match=r"1 \(grey\) or 3 \(RGB\) channels.*\(1, 2, 4, 4\)"):
        apply_transform(torch.zeros(1, 2, 4, 4), 0, torch.ones(1))
