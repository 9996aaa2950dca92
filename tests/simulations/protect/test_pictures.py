"""What of a file enters a defence: against pictures made by Pillow pixel by pixel, and as a run on the folder reads it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clients.data.datasets import load_dataset
from clients.data.images import DataError, to_float
from simulations.protect import pictures
from simulations.protect.pictures import find, output_names, read, write
from simulations.settings.errors import ConfigError

PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3) * 3


def saved(path: Path, pixels: np.ndarray = PIXELS, **options: object) -> Path:  # type: ignore[type-arg]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)  # type: ignore[arg-type]
    return path


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
    "colours.png": lambda: Image.fromarray(COLOURS), "colours.jpg": lambda: Image.fromarray(COLOURS),
    "cmyk.jpg": lambda: Image.fromarray(COLOURS).convert("CMYK"),
    "alpha.png": lambda: Image.fromarray(np.dstack([COLOURS, CLEAR])),
    "alpha.webp": lambda: Image.fromarray(np.dstack([COLOURS, CLEAR])),
    "grey-alpha.png": lambda: Image.fromarray(np.dstack([GREYS, CLEAR])),
    "palette.png": lambda: palette(Image.fromarray(COLOURS)), "grey.png": lambda: Image.fromarray(GREYS),
    "grey-as-colours.png": lambda: Image.fromarray(np.repeat(GREYS[:, :, None], 3, 2)),
    "grey-palette.gif": lambda: Image.fromarray(GREYS),
    "deep.png": lambda: Image.fromarray(GREYS.astype(np.uint16) * 251),
    "bits.png": lambda: Image.fromarray(GREYS).convert("1"), "colours-in-the-middle.png": lambda: middle(colours=True),
    "colours-outside.png": lambda: middle(colours=False),
}  # fmt: skip


def test_every_kind_of_picture_enters_the_defence_as_it_enters_a_run(tmp_path: Path) -> None:
    for name, made in KINDS.items():
        for size in (0, 16, 30, 64):
            folder = tmp_path / f"{size}-{name}"
            for part in ("train", "test"):
                (folder / part / "a").mkdir(parents=True)
                made().save(folder / part / "a" / name)
            run = to_float(load_dataset("folder", data_dir=str(folder), image_size=size).train.images[:])[0]
            ours = read(folder / "train" / "a" / name, size).image
            assert torch.equal(ours.expand_as(run), run), (name, size)
            # One channel where those of the run are equal, also where a crop has made them so.
            assert len(ours) == (1 if bool((run == run[:1]).all()) else 3), (name, size)


def test_a_copy_without_a_defence_has_every_pixel(tmp_path: Path) -> None:
    for ending in ("png", "bmp", "tif", "webp"):
        path = saved(tmp_path / f"one.{ending}", **({"lossless": True} if ending == "webp" else {}))
        image, name = read(path).image, output_names([path.name])[path.name]
        assert torch.equal(image, torch.from_numpy(PIXELS).permute(2, 0, 1).float() / 255)
        write(tmp_path / ending / name, image)
        with Image.open(tmp_path / ending / name) as copy:
            assert copy.format in {"PNG", "BMP", "TIFF"}
            assert np.array_equal(np.asarray(copy), PIXELS)
        assert [one.name for one in (tmp_path / ending).iterdir()] == [name], "no half file is left"


def test_pictures_are_turned_upright_and_lose_their_metadata(tmp_path: Path) -> None:
    about = Image.Exif()
    about[0x0112] = 6  # turned by 90 degrees
    about[0x010E] = "my garden"
    about[0x8825] = {1: "N"}  # a place
    path = saved(tmp_path / "turned.png", exif=about)
    image = read(path).image
    assert torch.equal(image, torch.from_numpy(np.rot90(PIXELS, -1).copy()).permute(2, 0, 1).float() / 255)
    write(tmp_path / "copy.png", image)
    with Image.open(tmp_path / "copy.png") as copy:
        assert not copy.getexif()
        assert not copy.info
    assert b"my garden" not in (tmp_path / "copy.png").read_bytes()


def test_other_kinds_of_pixels_become_eight_bits_and_the_notes_say_so(tmp_path: Path) -> None:
    grey, deep = (
        saved(tmp_path / "grey.png", PIXELS[:, :, 0]),
        saved(tmp_path / "deep.png", PIXELS[:, :, 0].astype(np.uint16) * 257),
    )
    assert torch.equal(read(deep).image, read(grey).image)
    assert read(deep).notes == ("levels 0 to 65535 become 0 to 255",)
    assert torch.equal(read(deep, scale=(0, 2**20 - 1)).image, (read(grey).image * 255 // 16) / 255)
    KINDS["alpha.png"]().save(tmp_path / "clear.png")
    found = read(tmp_path / "clear.png")
    assert torch.equal(found.image, torch.from_numpy(COLOURS).permute(2, 0, 1).float() / 255)
    assert found.notes == ("transparency dropped: what it hid is shown",)
    frames = [Image.fromarray(PIXELS), Image.fromarray(255 - PIXELS)]
    frames[0].save(tmp_path / "two.tif", save_all=True, append_images=frames[1:])
    assert read(tmp_path / "two.tif").notes == ("first of 2 frames",)
    assert read(saved(tmp_path / "one.png"), 8).image.shape == (3, 8, 8)


def test_bombs_and_broken_files_are_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_PIXELS", 1_000_000)
    with pytest.raises(DataError, match="2000 x 2000 pixels, and 1,000,000 are allowed"):
        read(saved(tmp_path / "bomb.png", np.zeros((2000, 2000), np.uint8)))
    assert read(saved(tmp_path / "small.png", np.zeros((100, 100), np.uint8))).image.shape == (1, 100, 100)
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(DataError, match="cannot be read: cannot identify image file"):
        read(tmp_path / "text.png")
    whole = saved(tmp_path / "whole.png", np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="truncated"):
        read(tmp_path / "cut.png")


def test_pictures_are_found_at_any_depth_without_hidden_and_other_files(tmp_path: Path) -> None:
    for name in ("b/two.png", "a.JPG", "b/c/three.bmp", ".hidden/four.png", ".five.png"):
        saved(tmp_path / name, format="PNG")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "inside.png").symlink_to(tmp_path / "b" / "two.png")
    assert find(tmp_path) == ["a.JPG", "b/c/three.bmp", "b/two.png", "inside.png"]
    with pytest.raises(ConfigError, match="holds no pictures"):
        find(tmp_path / "folder.png")


def test_links_out_of_the_folder_are_refused_and_no_two_copies_have_one_name(tmp_path: Path) -> None:
    outside = saved(tmp_path / "outside" / "private.png")
    saved(tmp_path / "in" / "one.png")
    for target in (outside, outside.parent):
        (tmp_path / "in" / "link.png").unlink(missing_ok=True)
        (tmp_path / "in" / "link.png").symlink_to(target)
        with pytest.raises(ConfigError, match=r"link\.png is a link to .*outside"):
            find(tmp_path / "in")
    assert output_names(["a.jpg", "b/a.PNG", "a.tif"]) == {"a.jpg": "a.jpg.png", "b/a.PNG": "b/a.PNG", "a.tif": "a.tif"}
    with pytest.raises(ConfigError, match=r"copies of a\.jpg and a\.jpg\.png would both be a\.jpg\.png"):
        output_names(["a.jpg", "a.jpg.png"])
