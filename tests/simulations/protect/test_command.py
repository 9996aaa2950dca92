"""``fedveil protect`` on real pictures: what it writes, that it repeats, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from clients.data.datasets import load_dataset
from defenses.base import InputDefense
from defenses.images.vfe import vfe_map
from defenses.registry import DEFENSES
from defenses.spec import parse
from simulations.cli import app
from simulations.protect.copies import protect_image
from simulations.protect.pictures import read
from tests.other_package import offer
from tests.simulations.protect.commands import MIXER, NOISE, files, protect, refused


def test_every_picture_gets_a_copy_that_the_defence_made_and_the_manifest_tells(source: Path, tmp_path: Path) -> None:
    before = files(source)
    code, told = protect(source, tmp_path / "out", "--defense", MIXER)
    assert code == 0, told
    assert files(source) == before, "originals are never touched"
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_file()} == {"manifest.json"}, (
        "no working files"
    )
    among = f"{manifest['identified']} of {manifest['compared']} copies"
    assert manifest["compared"] == 24
    assert manifest["finding"].startswith(among)
    assert f"24 of 24 pictures processed by {MIXER}; {among} " in " ".join(told.split())
    assert "No attack ran on these copies; --preview runs those that know the defence." in told
    assert manifest["defense"] == MIXER
    assert [one["source"] for one in manifest["files"]] == sorted(before)
    secret = (tmp_path / "home" / ".fedveil" / "secrets" / "protect").read_text().strip()
    assert secret not in json.dumps(manifest)
    for one in manifest["files"]:
        assert one["sha256"] == before[one["source"]]
        image, copy = read(source / one["source"]).image, read(tmp_path / "out" / one["output"]).image
        assert list(copy.shape) == one["shape"] == list(image.shape)
        assert torch.equal(image.flatten(1).sort().values, copy.flatten(1).sort().values), (
            "shuffled, channel by channel"
        )
        assert not torch.equal(image, copy)
        for name, pixels in (("vfe_before", image), ("vfe_after", copy)):
            assert one[name] == pytest.approx(float(vfe_map(pixels, 8).mean()), rel=1e-5)
        assert torch.equal(protect_image(parse(MIXER), image, secret), copy)
    assert manifest["failed"] == []


def test_the_same_secret_gives_the_same_copies_in_any_number_of_processes_and_another_gives_others(
    source: Path, tmp_path: Path
) -> None:
    for name, workers, secret in (("one", 1, "a"), ("two", 2, "a"), ("other", 1, "b")):
        assert (
            protect(source, tmp_path / name, "--defense", MIXER, "--workers", workers, "--secret", tmp_path / secret)[0]
            == 0
        )
    one, two, other = (
        {name: digest for name, digest in files(tmp_path / folder).items() if name.endswith(("png", "bmp"))}
        for folder in ("one", "two", "other")
    )
    assert one == two
    assert all(one[name] != other[name] for name in one)
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("one", "two")]
    assert manifests[0] == manifests[1]


def test_broken_files_are_listed_and_the_rest_is_written(source: Path, tmp_path: Path) -> None:
    (source / "odd" / "broken.png").write_text("no picture")
    (source / "odd" / "empty.jpg").write_bytes(b"")
    code, told = protect(source, tmp_path / "out", "--defense", MIXER)
    assert code == 3
    assert "24 of 26 pictures processed" in told
    assert ", 2 unreadable" in told
    assert "2 could not be protected" in told
    assert "odd/broken.png: cannot be read: cannot identify" in told
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [one["source"] for one in manifest["failed"]] == ["odd/broken.png", "odd/empty.jpg"]
    assert len(manifest["files"]) == 24


def test_json_has_what_the_terminal_says_and_errors_stay_errors(source: Path, tmp_path: Path) -> None:
    (source / "odd" / "broken.png").write_text("no picture")
    (source / "notes.txt").write_text("no picture")
    words = ["protect", str(source), str(tmp_path / "out"), "--defense", MIXER]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 3
    found = json.loads(done.stdout)
    assert (found["protected"], found["skipped"], found["preview"]) == (24, {".txt": 1}, None)
    assert [one["source"] for one in found["unreadable"]] == ["odd/broken.png"]
    assert Path(found["manifest"]).is_file()
    assert "odd/broken.png: cannot be read" in done.stderr
    again = CliRunner().invoke(app, [*words, "--resume", "--quiet"])
    assert (again.exit_code, again.stdout) == (3, "")
    assert "odd/broken.png: cannot be read" in again.stderr


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_lossy_sources_get_lossless_copies(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "in").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "in" / f"one.{suffix}")
    assert protect(tmp_path / "in", tmp_path / "out", "--defense", MIXER)[0] == 0
    with Image.open(tmp_path / "out" / f"one.{suffix}.png") as copy:
        assert copy.format == "PNG"


@pytest.mark.long
def test_a_named_data_set_is_protected_as_pictures_in_folders_of_classes(tmp_path: Path) -> None:
    code, told = protect("photos", tmp_path / "out", "--defense", "ATS(policies='3-1-7')")
    assert code == 0, told
    data = load_dataset("photos")
    assert len(list((tmp_path / "out" / "train").rglob("*.png"))) == len(data.train)
    assert {path.name for path in (tmp_path / "out" / "train").iterdir()} <= set(data.class_names)
    again = load_dataset("folder", data_dir=str(tmp_path / "out"))
    assert len(again.test) == len(data.test)
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["source"] == "photos"
    assert {path.name for path in tmp_path.iterdir()} == {"out", "home"}, "no unprotected picture is left"


@pytest.mark.parametrize(
    ("defense", "message"),
    [
        ("", "--defense is empty"),
        ("VisualMixr()", "did you mean 'VisualMixer'"),
        ("VisualMixer(window_lower=0)", "window_lower is 0"),
        ("Clip(max_norm=1)", "per='update') does not protect images"),
        ("VisualMixer() | GaussianNoise(std=0.1)", "does not protect images"),
        ("InstaHide()", "makes one image and one label of several"),
        ("VisualMixer(); Blur()", "--defense:"),
    ],
)
def test_what_is_no_defence_of_single_images_is_refused(
    source: Path, tmp_path: Path, defense: str, message: str
) -> None:
    refused(protect(source, tmp_path / "out", "--defense", defense), message)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def hungry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A defence of another package that asks for 64 TiB; those of ours have ranges that keep them from it."""
    (tmp_path / "package").mkdir()
    lines = (
        "from dataclasses import dataclass",
        "import torch",
        "from defenses.base import InputDefense",
        "@dataclass(frozen=True, repr=False)",
        "class Hungry(InputDefense):",
        "    source = 'a test of memory'",
        "    def protect_batch(self, batch, generator):",
        "        torch.empty(2**44)",
        "        return batch",
        "MINE = Hungry",
    )
    offer(monkeypatch, tmp_path / "package", "fedveil.defenses", "\n".join(lines), "Hungry")
    vars(DEFENSES).pop("_foreign", None)
    yield "Hungry()"
    vars(DEFENSES).pop("_foreign", None)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_defence_that_wants_more_memory_than_there_is_ends_the_command_once(
    source: Path, tmp_path: Path, workers: int, hungry: str
) -> None:
    told = protect(source, tmp_path / "out", "--defense", hungry, "--workers", workers)
    refused(told, f"{hungry} cannot protect the first 3 pictures (of ")
    assert "GiB at once, and there is not so much memory); choose weaker settings" in " ".join(told[1].split())
    assert "alloc_cpu" not in told[1]


def test_few_pictures_that_want_too_much_memory_are_listed(tmp_path: Path, hungry: str) -> None:
    (tmp_path / "in").mkdir()
    for at in range(2):
        Image.effect_noise((32, 32), 60).save(tmp_path / "in" / f"{at}.png")
    code, told = protect(tmp_path / "in", tmp_path / "out", "--defense", hungry, "--workers", 1)
    assert code == 3, told
    assert "1.png: its protection wants 6.55e+04 GiB at once, and there is not so much memory" in told


def test_an_image_of_one_pixel_is_refused(source: Path, tmp_path: Path) -> None:
    told = protect(source, tmp_path / "out", "--defense", NOISE, "--image-size", 1)
    refused(told, "--image-size is 1; allowed: 0, or at least 2, at most 4096")
    assert not (tmp_path / "out").exists()


def test_folders_that_would_mix_or_lose_pictures_are_refused(source: Path, tmp_path: Path) -> None:
    known = ("--defense", MIXER)
    refused(protect(source, source, *known), "lie in each other")
    refused(protect(source, source / "odd" / "out", *known), "lie in each other")
    refused(protect(source / "odd", source, *known), "lie in each other")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    refused(protect(source, tmp_path / "full", *known), "is not empty; go on with --resume, or name another folder")
    refused(protect(source, tmp_path / "full", *known, "--resume"), "holds nothing to go on with")
    refused(protect(source, tmp_path / "full" / "mine.txt", *known), "is a file; name a folder")
    refused(protect(tmp_path / "none", tmp_path / "out", *known), "is no folder and no data set")
    refused(protect(source / "odd" / "0.png", tmp_path / "out", *known), "is a file and no data set")
    refused(protect("census", tmp_path / "out", *known), "IN: 'census' is a table")
    refused(protect("celeba:all", tmp_path / "out", *known), "IN: 'celeba:all' has several labels for each image")
    (tmp_path / "bare").mkdir()
    refused(protect(tmp_path / "bare", tmp_path / "out", *known), "holds no pictures")
    told = protect("cifar10", tmp_path / "out", *known, "--data-dir", tmp_path)
    refused(told, "cifar10: there is no")
    assert "set --data-dir to the directory" in " ".join(told[1].split())
    assert "download" not in told[1], "it has no such setting"
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


def test_a_refused_command_makes_no_secret_and_leaves_nothing_behind(source: Path, tmp_path: Path) -> None:
    known = ("--defense", MIXER, "--secret", tmp_path / "key")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "out.source").mkdir()
    refused(protect(source, tmp_path / "full", *known), "is not empty; go on with --resume")
    refused(protect(source, tmp_path / "full", *known, "--resume"), "holds nothing to go on with")
    refused(protect("photos", tmp_path / "out", *known), "is in the way of the data set's own pictures")
    assert {path.name for path in tmp_path.iterdir()} == {"full", "in", "out.source"}
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    assert protect(source, tmp_path / "out", *known)[0] == 0
    (tmp_path / "key").unlink()
    refused(protect(source, tmp_path / "out", *known, "--resume"), f"--secret: {tmp_path / 'key'} does not exist")
    assert not (tmp_path / "key").exists()


def test_a_file_that_others_can_read_is_no_secret(source: Path, tmp_path: Path) -> None:
    (tmp_path / "known").write_text("0" * 64)
    (tmp_path / "known").chmod(0o644)
    refused(
        protect(source, tmp_path / "out", "--defense", MIXER, "--secret", tmp_path / "known"), "can be read by others"
    )
    told = protect(source, tmp_path / "out", "--defense", MIXER, "--secret", tmp_path / "known" / "below")
    refused(told, "name another file by --secret")
    assert "secret-dir" not in told[1]


def test_pictures_of_a_size_at_which_the_defence_misses_its_target_are_told(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    for number, side in enumerate((9, 9, 10)):
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "small" / f"{number}.png")
    code, told = protect(tmp_path / "small", tmp_path / "out", "--defense", "VisualMixer(target_vfe=60)")
    assert code == 0, told
    assert re.search("2 of them: .* misses its target in 21% of images of 9 x 9", told)
    assert re.search("1 of them: .* of images of 10 x 10", told)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [len(one["idle"]) for one in manifest["files"]] == [1, 1, 1]
    assert "of them" not in protect(tmp_path / "small", tmp_path / "other", "--defense", NOISE)[1]


def test_what_cannot_be_read_or_written_is_told_by_its_name(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(
        protect(source, tmp_path / "file" / "out", "--defense", MIXER), f"cannot write into {tmp_path / 'file' / 'out'}"
    )
    refused(protect(source, tmp_path / "out", "--defense", MIXER, "--data-dir", tmp_path), "it is for named data sets")
    (source / "circle.png").symlink_to(source / "circle.png")
    refused(protect(source, tmp_path / "out", "--defense", MIXER), "circle.png is a link that leads nowhere")


def test_an_unknown_defence_is_answered_by_those_that_protect_pictures(source: Path, tmp_path: Path) -> None:
    code, told = protect(source, tmp_path / "out", "--defense", "Blur() | Nope()")
    known = " ".join(told.split()).partition("--defense: unknown defence of images 'Nope'; known: ")[2].split(", ")
    assert (code, set(known) >= {"ATS", "Blur", "VisualMixer"}) == (2, True), told
    for name in known:
        kind = DEFENSES[name]
        assert issubclass(kind, InputDefense)
        assert not kind.mixes_examples


def test_files_that_are_left_alone_are_counted(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.new("RGB", (32, 32), (9, 80, 200)).save(tmp_path / "in" / "one.png")
    for name in ("IMG_1.HEIC", "raw.CR2", "raw2.cr2", ".hidden"):
        (tmp_path / "in" / name).write_bytes(b"")
    code, told = protect(tmp_path / "in", tmp_path / "out", "--defense", MIXER)
    assert code == 0
    assert "files left alone, as Pillow reads no pictures of their kind: 2 .cr2, 1 .heic" in " ".join(told.split())
