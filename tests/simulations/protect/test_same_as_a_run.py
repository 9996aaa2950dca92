"""What protects a folder reads its pictures as a run on that folder does: an audit of it holds for the copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from attacks.image_measures import psnr
from clients.data.datasets import load_dataset, to_float
from clients.data.images import DataError
from simulations.protect.copies import Order, copy
from simulations.protect.pictures import read
from simulations.protect.sources import pictures_of

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (30, 40, 3), np.uint8)
GREYS = COLOURS[:, :, 0]
CLEAR = RNG.integers(0, 256, (30, 40), np.uint8)


def palette(picture: Image.Image) -> Image.Image:
    made = picture.convert("P", palette=Image.Palette.ADAPTIVE)
    made.info["transparency"] = 3
    return made


def middle(*, colours: bool) -> Image.Image:
    """Grey in its central square, or outside of it."""
    pixels = np.repeat(GREYS[:, :, None], 3, 2)
    part = slice(5, 35) if colours else slice(0, 5)
    pixels[:, part] = COLOURS[:, part]
    return Image.fromarray(pixels)


KINDS: dict[str, Callable[[], Image.Image]] = {
    "colours.png": lambda: Image.fromarray(COLOURS),
    "colours.jpg": lambda: Image.fromarray(COLOURS),
    "cmyk.jpg": lambda: Image.fromarray(COLOURS).convert("CMYK"),
    "alpha.png": lambda: Image.fromarray(np.dstack([COLOURS, CLEAR])),
    "alpha.webp": lambda: Image.fromarray(np.dstack([COLOURS, CLEAR])),
    "grey-alpha.png": lambda: Image.fromarray(np.dstack([GREYS, CLEAR])),
    "palette.png": lambda: palette(Image.fromarray(COLOURS)),
    "grey.png": lambda: Image.fromarray(GREYS),
    "grey-as-colours.png": lambda: Image.fromarray(np.repeat(GREYS[:, :, None], 3, 2)),
    "grey-palette.gif": lambda: Image.fromarray(GREYS),
    "deep.png": lambda: Image.fromarray(GREYS.astype(np.uint16) * 251),
    "bits.png": lambda: Image.fromarray(GREYS).convert("1"),
    "colours-in-the-middle.png": lambda: middle(colours=True),
    "colours-outside.png": lambda: middle(colours=False),
}


@pytest.mark.parametrize("size", [0, 16, 30, 64])
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_picture_enters_the_defence_as_it_enters_a_run(tmp_path: Path, name: str, size: int) -> None:
    for part in ("train", "test"):
        (tmp_path / part / "a").mkdir(parents=True)
        KINDS[name]().save(tmp_path / part / "a" / name)
    run = to_float(load_dataset("folder", data_dir=str(tmp_path), image_size=size).train.images[:])[0]
    ours = read(tmp_path / "train" / "a" / name, size).image
    assert torch.equal(ours.expand_as(run), run)
    # One channel where those of the run are equal, also where a crop has made them so.
    assert len(ours) == (1 if bool((run == run[:1]).all()) else 3)


def test_hidden_colours_are_kept_and_the_manifest_says_so(tmp_path: Path) -> None:
    KINDS["alpha.png"]().save(tmp_path / "a.png")
    found = read(tmp_path / "a.png")
    assert torch.equal(found.image, torch.from_numpy(COLOURS).permute(2, 0, 1).float() / 255)
    assert found.notes == ("transparency dropped: what it hid is shown",)


@pytest.mark.parametrize("kind", ["float", "text", "cut"])
def test_what_a_run_refuses_has_no_copy_and_the_same_reason(tmp_path: Path, kind: str) -> None:
    for part in ("train", "test"):
        (tmp_path / "in" / part / "a").mkdir(parents=True)
        path = tmp_path / "in" / part / "a" / "one.tif"
        Image.fromarray(np.full((4, 4), 0.5, np.float32) if kind == "float" else COLOURS).save(path)
        if kind != "float":
            path.write_bytes(b"no picture" if kind == "text" else path.read_bytes()[:600])
    with pytest.raises(DataError) as run:
        load_dataset("folder", data_dir=str(tmp_path / "in")).train.images[:]
    with pytest.raises(DataError) as ours:
        read(path)
    order = Order(tmp_path / "in", tmp_path / "out", "ImageNoise(std=0.1)", "00", 0, "")
    done, _ = copy(order, "train/a/one.tif", "train/a/one.tif")
    if kind == "float":
        assert str(ours.value) == "holds floating-point values of unknown range; convert it to 8-bit levels"
    assert done.error
    assert not done.output
    # The run names the file first, as its message stands alone.
    assert str(run.value).endswith(done.error)


def test_levels_beyond_16_bits_are_cut_as_in_a_run_and_the_notes_say_so(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 65535, 70000]], np.int32)).save(tmp_path / "a.tif")
    found = read(tmp_path / "a.tif")
    assert found.image.tolist() == [[[0, 1, 1]]]
    assert found.notes == ("16 bits rounded to 8", "levels from 0 to 70000 cut to 0 to 65535")


def test_greys_stored_as_colours_get_one_draw_of_noise(tmp_path: Path) -> None:
    greys = RNG.integers(100, 156, (64, 64), np.uint8)
    Image.fromarray(np.repeat(greys[:, :, None], 3, 2)).save(tmp_path / "one.png")
    done, _ = copy(Order(tmp_path, tmp_path / "out", "ImageNoise(std=0.1)", "00", 0, ""), "one.png", "one.png")
    assert done.shape == (1, 64, 64)
    with Image.open(tmp_path / "out" / "one.png") as made:
        shown = torch.from_numpy(np.asarray(made.convert("RGB"), np.float32).copy()).permute(2, 0, 1) / 255
    truth = torch.from_numpy(greys).float() / 255
    looked = psnr(shown.mean(0)[None, None], truth[None, None])
    # 20 dB is what a standard deviation of 0.1 leaves; the mean of three draws would have 24.8.
    assert float(looked) == pytest.approx(20, abs=0.3)


@pytest.mark.long
def test_the_pictures_of_a_data_set_are_those_that_a_run_on_it_reads(tmp_path: Path) -> None:
    given = pictures_of("photos", tmp_path / "out", "")
    given.write()
    assert given.names == sorted(path.relative_to(given.root).as_posix() for path in given.root.rglob("*.png"))
    data = load_dataset("photos")
    for name in given.names[::100]:
        part = data.train if name.startswith("train/") else data.test
        at = int(Path(name).stem)
        assert torch.equal(
            read(given.root / name).image.expand(3, -1, -1), to_float(part.images[torch.tensor([at])])[0]
        )
        assert Path(name).parent.name == data.class_names[int(part.labels[at])]
