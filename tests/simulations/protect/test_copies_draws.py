"""Draws of copies that somebody could lay side by side: measured by the attacks that shared draws would make exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from attacks.image_measures import psnr
from defenses.base import Batch
from defenses.spec import parse
from simulations.protect.copies import Order, copies, copy
from simulations.protect.pictures import read

SECRET = "5e" * 32
MIXER = "VisualMixer(window_lower=2, window_upper=16)"


def protected(folder: Path, out: Path, defense: str, size: int = 0) -> dict[str, Tensor]:
    """Source -> copy, as it was written."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    order = Order(folder, out, defense, SECRET, size, "test")
    made = list(copies(order, [(name, name) for name in names], 1))
    assert not [one.error for one in made if one.error]
    return {name: read(out / name).image for name in names}


def saved(path: Path, pixels: np.ndarray) -> Tensor:  # type: ignore[type-arg]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return read(path).image


def mid_greys(seed: int, side: int = 64) -> np.ndarray:  # type: ignore[type-arg]
    """Colours far from black and white, where noise is not cut."""
    return np.random.default_rng(seed).integers(100, 156, (side, side, 3), np.uint8)


def gain(guess: Tensor, than: Tensor, truth: Tensor) -> float:
    """PSNR of the guess over that of what everybody sees, in dB."""
    return float(psnr(guess[None], truth[None]) - psnr(than[None], truth[None]))


def test_two_strengths_of_noise_do_not_undo_each_other(tmp_path: Path) -> None:
    truth = saved(tmp_path / "in" / "one.png", mid_greys(0))
    weak, strong = (
        protected(tmp_path / "in", tmp_path / str(std), f"ImageNoise(std={std})")["one.png"] for std in (0.05, 0.1)
    )
    # With one draw n, 2 (x + 0.05 n) - (x + 0.1 n) is x up to rounding: about 50 dB. With two it is noisier than either copy.
    assert gain(2 * weak - strong, weak, truth) < -5
    # The best that two independent draws allow, by their inverse variances, is log10(1 + 0.25): a decibel.
    assert gain(0.8 * weak + 0.2 * strong, weak, truth) < 1.5


def test_a_further_defence_in_the_chain_has_draws_of_its_own(tmp_path: Path) -> None:
    truth = saved(tmp_path / "in" / "one.png", mid_greys(0))
    alone = protected(tmp_path / "in", tmp_path / "alone", "ImageNoise(std=0.05)")["one.png"]
    chained = protected(tmp_path / "in", tmp_path / "two", "ImageNoise(std=0.05) | ImageNoise(std=0.0)")["one.png"]
    assert abs(correlation(alone - truth, chained - truth)) < 0.05


def correlation(one: Tensor, two: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1])


def distinct(seed: int) -> np.ndarray:  # type: ignore[type-arg]
    """A grey picture of 16 x 16 whose pixels are all different."""
    return np.random.default_rng(seed).permutation(256).astype(np.uint8).reshape(16, 16)


def undone(known: Tensor, known_copy: Tensor, copy: Tensor) -> Tensor:
    """What of a copy is restored by whoever has a picture that was shuffled alike."""
    order = known_copy.flatten().argsort()[known.flatten().argsort().argsort()]
    return copy.flatten()[order].view_as(copy)


def test_pictures_of_one_name_in_two_folders_do_not_restore_each_other(tmp_path: Path) -> None:
    defense = parse(MIXER)
    known, truth = (saved(tmp_path / folder / "cat.png", distinct(at)) for at, folder in enumerate(("a", "b")))
    one, two = (protected(tmp_path / folder, tmp_path / f"out-{folder}", MIXER)["cat.png"] for folder in ("a", "b"))
    # Control: under one draw the attack is exact.
    alike = [defense.protect_once(Batch(image[None], torch.ones(1, 1)), ("x",)).images[0] for image in (known, truth)]
    assert torch.equal(undone(known, alike[0], alike[1]), truth)
    assert gain(undone(known, one, two), two, truth) < 1
    restored = float((undone(known, one, two) == truth).float().mean())
    assert restored < 0.1, "in windows of 2 to 16 pixels few come home by chance"


def test_an_edited_picture_has_unrelated_draws(tmp_path: Path) -> None:
    pixels = mid_greys(0)
    before = saved(tmp_path / "before" / "one.png", pixels)
    pixels[:4, :4] = 128
    after = saved(tmp_path / "after" / "one.png", pixels)
    one, two = (
        protected(tmp_path / name, tmp_path / f"out-{name}", "ImageNoise(std=0.05)")["one.png"]
        for name in ("before", "after")
    )
    assert abs(correlation(one - before, two - after)) < 0.05
    # The difference of the copies would else show the edit, and nothing but the edit.
    assert float((one - two)[:, 8:, 8:].std()) == pytest.approx(0.05 * 2**0.5, rel=0.05)


def test_scaled_copies_have_draws_of_their_own(tmp_path: Path) -> None:
    truth = saved(tmp_path / "in" / "one.png", np.full((32, 32), 128, np.uint8))
    whole, half = (protected(tmp_path / "in", tmp_path / str(n), "ImageNoise(std=0.05)", n)["one.png"] for n in (0, 16))
    noise = (whole - truth).flatten()[: 16 * 16]
    assert abs(correlation(noise, half - 128 / 255)) < 0.2


def test_a_picture_has_one_copy_under_any_name_so_that_copies_cannot_be_averaged(tmp_path: Path) -> None:
    pixels = mid_greys(0)
    for name in ("one.png", "deep/two.png"):
        saved(tmp_path / "in" / name, pixels)
    saved(tmp_path / "in" / "other.png", mid_greys(1))
    protected(tmp_path / "in", tmp_path / "out", "ImageNoise(std=0.05)")
    found = [(tmp_path / "out" / name).read_bytes() for name in ("one.png", "deep/two.png", "other.png")]
    assert found[0] == found[1] != found[2]


def test_another_secret_has_other_draws_and_the_same_one_repeats(tmp_path: Path) -> None:
    truth = saved(tmp_path / "in" / "one.png", mid_greys(0))

    def made(secret: str, folder: str) -> Tensor:
        order = Order(tmp_path / "in", tmp_path / folder, "ImageNoise(std=0.05)", secret, 0, "test")
        assert not copy(order, "one.png", "one.png")[0].error
        return read(tmp_path / folder / "one.png").image

    assert torch.equal(made(SECRET, "a"), made(SECRET, "b"))
    assert abs(correlation(made(SECRET, "a") - truth, made("0" * 64, "c") - truth)) < 0.05
