"""Draws of copies that lie side by side: measured by the attacks that shared draws would make exact."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from defenses.base import Batch
from defenses.spec import parse
from simulations.protect.copies import Order, copies
from simulations.protect.pictures import read
from tests.simulations.protect.commands import MIXER

SECRET = "5e" * 32


def protected(folder: Path, out: Path, defense: str, size: int = 0, secret: str = SECRET) -> dict[str, Tensor]:
    """Source -> copy, as it was written."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    order = Order(folder, out, defense, secret, size, "test")
    made = list(copies(order, [(name, name) for name in names], 1))
    assert not [one.error for one in made if one.error]
    return {name: read(out / name).image for name in names}


def saved(path: Path, pixels: np.ndarray) -> Tensor:  # type: ignore[type-arg]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return read(path).image


def distinct(seed: int) -> np.ndarray:  # type: ignore[type-arg]
    """A grey picture of 16 x 16 whose pixels are all different."""
    return np.random.default_rng(seed).permutation(256).astype(np.uint8).reshape(16, 16)


def undone(known: Tensor, known_copy: Tensor, copy: Tensor) -> Tensor:
    """Restore a copy by the shuffle of a known picture."""
    order = known_copy.flatten().argsort()[known.flatten().argsort().argsort()]
    return copy.flatten()[order].view_as(copy)


def test_pictures_of_one_name_in_two_folders_do_not_restore_each_other(tmp_path: Path) -> None:
    defense = parse(MIXER)
    known, truth = (saved(tmp_path / folder / "cat.png", distinct(at)) for at, folder in enumerate(("a", "b")))
    one, two = (protected(tmp_path / folder, tmp_path / f"out-{folder}", MIXER)["cat.png"] for folder in ("a", "b"))
    # Control: under one draw the attack is exact.
    alike = [defense.protect_once(Batch(image[None], torch.ones(1, 1)), ("x",)).images[0] for image in (known, truth)]
    assert torch.equal(undone(known, alike[0], alike[1]), truth)
    restored = float((undone(known, one, two) == truth).float().mean())
    assert restored < 0.1, "in windows of 2 to 16 pixels few come home by chance"


def test_a_picture_has_one_copy_under_any_name_and_other_strengths_sizes_and_secrets_draw_anew(tmp_path: Path) -> None:
    """With one draw n for both strengths, 2 (x + 0.05 n) - (x + 0.1 n) would be x."""
    truth = saved(tmp_path / "in" / "one.png", np.full((64, 64, 3), 128, np.uint8))
    saved(tmp_path / "in" / "deep" / "two.png", np.full((64, 64, 3), 128, np.uint8))
    saved(tmp_path / "in" / "other.png", np.full((64, 64, 3), 127, np.uint8))
    weak = "ImageNoise(std=0.05)"
    base = protected(tmp_path / "in", tmp_path / "out", weak)
    found = [(tmp_path / "out" / name).read_bytes() for name in ("one.png", "deep/two.png", "other.png")]
    assert found[0] == found[1] != found[2]
    again = protected(tmp_path / "in", tmp_path / "again", weak)
    assert all(torch.equal(again[name], image) for name, image in base.items())
    noise = (base["one.png"] - truth)[:, :32, :32]
    for name, changes in {
        "strength": {"defense": "ImageNoise(std=0.1)"}, "chain": {"defense": f"{weak} | ImageNoise(std=0.0)"},
        "size": {"size": 32}, "secret": {"secret": "0" * 64},
    }.items():  # fmt: skip
        other = protected(tmp_path / "in", tmp_path / name, **{"defense": weak, **changes})["one.png"] - 128 / 255
        correlation = torch.corrcoef(torch.stack([noise.flatten(), other[:, :32, :32].flatten()]))[0, 1]
        assert abs(float(correlation)) < 0.1, name  # five standard deviations of 3,072 pairs
