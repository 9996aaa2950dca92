"""``fedveil protect`` on real pictures: what it writes, that it repeats, and what it refuses."""

import json
import math
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from clients.data.datasets import load_dataset
from clients.data.images import to_float
from defenses.spec import parse
from simulations.cli import app
from simulations.protect.copies import Copy, Order, protect_image
from simulations.protect.manifest import Manifest
from simulations.protect.pictures import read
from tests.simulations.protect.commands import MIXER, files, protect, refused


@pytest.mark.essential
def test_every_picture_gets_a_copy_that_the_defence_made_and_the_manifest_tells(source: Path, tmp_path: Path) -> None:
    before = files(source)
    code, told = protect(source, tmp_path / "out", "--defense", MIXER)
    assert code == 0, told
    assert files(source) == before, "originals are never touched"
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    working = {path.name for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert working == {"manifest.json"}
    assert (manifest["failed"], manifest["defense"]) == ([], MIXER)
    psnrs = [one["psnr"] for one in manifest["files"]]
    for text in (
        f"12 of 12 pictures processed by {MIXER} 12 pictures: windows of 2 to 8 of 32 pixels (6 to 25 % of the side)",
        f"originals: {min(psnrs):.1f} to {max(psnrs):.1f} dB, mean {manifest['psnr']:.1f} (100: unchanged). PSNR is no measure of",
    ):
        assert text in " ".join(told.split())
    assert manifest["psnr"] == pytest.approx(sum(psnrs) / 12)
    assert [one["source"] for one in manifest["files"]] == sorted(before)
    secret = (tmp_path / "home" / ".fedveil" / "secrets" / "protect").read_text().strip()
    assert secret not in json.dumps(manifest)
    for one in manifest["files"]:
        assert one["sha256"] == before[one["source"]]
        image, copy = read(source / one["source"]).image, read(tmp_path / "out" / one["output"]).image
        assert list(copy.shape) == one["shape"] == list(image.shape)
        # Shuffled, channel by channel.
        assert torch.equal(image.flatten(1).sort().values, copy.flatten(1).sort().values)
        assert not torch.equal(image, copy)
        assert one["psnr"] == pytest.approx(-10 * math.log10((image - copy).square().mean()), abs=1e-3)
        assert torch.equal(protect_image(parse(MIXER), image, secret), copy)


def test_a_secret_gives_the_same_copies_in_any_number_of_processes_alone(source: Path, tmp_path: Path) -> None:
    found = {}
    for name, workers, secret in (("one", 1, "a"), ("two", 2, "a"), ("other", 1, "b")):
        given = ("--defense", MIXER, "-s", f"workers={workers}", "--secret", tmp_path / secret)
        code, told = protect(source, tmp_path / name, *given)
        assert (code, "a new secret was written to" in told) == (0, name != "two")
        found[name] = files(tmp_path / name)
    assert found["one"] == found["two"]
    assert all(found["one"][name] != found["other"][name] for name in found["one"])


def test_unreadable_files_are_listed_others_are_counted_and_the_rest_is_written(source: Path, tmp_path: Path) -> None:
    (source / "odd" / "broken.png").write_text("no picture")
    (source / "odd" / "empty.jpg").write_bytes(b"")
    for name in ("IMG_1.HEIC", "raw.CR2", "raw2.cr2", ".hidden"):
        (source / name).write_bytes(b"")
    words = ["protect", str(source), str(tmp_path / "out"), "--defense", MIXER]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 3
    found = json.loads(done.stdout)
    assert (found["protected"], found["skipped"], 5 < found["psnr"] < 40) == (12, {".cr2": 2, ".heic": 1}, True)
    unread = ["odd/broken.png", "odd/empty.jpg"]
    assert [one["source"] for one in found["unreadable"]] == unread
    assert "odd/broken.png: cannot be read" in done.stderr
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert ([one["source"] for one in manifest["failed"]], len(manifest["files"])) == (unread, 12)
    again = CliRunner().invoke(app, [*words, "--resume", "--quiet"])
    assert (again.exit_code, again.stdout) == (3, "")
    assert "odd/broken.png: cannot be read" in again.stderr


def test_the_windows_of_the_most_frequent_sizes_are_named_and_the_mean_psnr_skips_failures(tmp_path: Path) -> None:
    manifest = Manifest(Order(tmp_path, tmp_path / "out", MIXER, "secret", 0, "in"))
    assert manifest.psnr is None
    for at, side in enumerate([*4 * [224], *3 * [32], *2 * [64], 128, 128, 600]):
        windows = tuple(parse(MIXER).at_size(side, side))
        manifest.done[str(at)] = Copy(str(at), str(at), psnr=float(at), windows=windows)
    manifest.done["broken"] = Copy("broken", error="no picture")
    counts = [line.partition(":")[0] for line in manifest.windows]
    assert counts == ["4 pictures", "3 pictures", "2 pictures", "3 pictures of 2 other sizes"]
    assert manifest.psnr == 5.5


def test_refused_commands_name_the_reason_make_no_secret_and_leave_nothing_behind(source: Path, tmp_path: Path) -> None:
    full, out = tmp_path / "full", tmp_path / "out"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    (tmp_path / "bare").mkdir()
    (tmp_path / "known").write_text("0" * 64)
    (tmp_path / "known").chmod(0o644)
    known = ("--defense", MIXER)
    (tmp_path / "twins").mkdir()
    for name in ("a.jpg", "a.jpg.png"):
        Image.new("RGB", (16, 16)).save(tmp_path / "twins" / name)
    before = {path.name for path in tmp_path.iterdir()}
    for words, message in (
        ((source, out, "--defense", ""), "--defense is empty"),
        ((source, out, "--defense", "VisualMixr()"), "did you mean 'VisualMixer'"),
        ((source, out, "--defense", "VisualMixer(window_lower=0)"), "window_lower is 0"),
        ((source, out, "--defense", "VisualMixer() | GaussianNoise(std=0.1)"), "does not protect images"),
        ((source, out, "--defense", "InstaHide()"), "makes one image and one label of several"),
        ((source, out, "--defense", "VisualMixer(); Blur()"), "--defense:"),
        ((source, out, *known, "-s", "image-siz=3"), "unknown setting 'image-siz', did you mean 'image-size'"),
        ((source, out, *known, "-s", "image_size=8"), "unknown setting 'image_size'"),
        ((source, out, *known, "-s", "image-size=1"), "image-size is 1; allowed: 0, or at least 2, at most 4096"),
        ((tmp_path / "twins", out, *known), "would both be a.jpg.png"),
        ((source, full / "mine.txt" / "out", *known), "mine.txt is a file, and results need a folder"),
        ((source, tmp_path / "new" / ("o" * 300), *known), "File name too long; name another folder"),
        ((source, tmp_path / ("o" * 300), *known, "--resume"), "File name too long"),
        ((source, out, *known, "-s", f"data-dir={tmp_path}"), "it is for named data sets"),
        ((source, out, *known, "--secret", tmp_path / "known"), "can be read by others"),
        ((source, out, *known, "--secret", tmp_path / "known" / "below"), "name another file by --secret"),
        ((source, source, *known), "lie in each other"),
        ((source, source / "odd" / "out", *known), "lie in each other"),
        ((source / "odd", source, *known), "lie in each other"),
        ((source, full, *known), "is not empty: it holds 'mine.txt'; name another folder"),
        ((source, full, *known, "--resume"), "holds nothing to go on with"),
        ((source, full / "mine.txt", *known), "is a file, and results need a folder; name another"),
        ((tmp_path / "none", out, *known), "is no folder and no data set"),
        ((source / "odd" / "0.png", out, *known), "is a file and no data set"),
        ((tmp_path / "bare", out, *known), "holds no pictures"),
        (("census", out, *known), "IN: 'census' is a table"),
        (("celeba:all", out, *known), "IN: 'celeba:all' has several labels for each image"),
        (("cifar10", out, *known, "-s", f"data-dir={tmp_path}"), "set data-dir to the directory"),
    ):  # fmt: skip
        refused(protect(*words), message)
        assert {path.name for path in tmp_path.iterdir()} == before, words
    assert [path.name for path in full.iterdir()] == ["mine.txt"]
    (source / "circle.png").symlink_to(source / "circle.png")
    refused(protect(source, out, *known), "circle.png is a link that leads nowhere")


def test_windows_larger_than_pictures_are_told_and_a_data_set_leaves_its_copies_alone(tmp_path: Path) -> None:
    large = "VisualMixer(window_lower=64, window_upper=64)"
    code, told = protect("photos", tmp_path / "out", "--defense", large, "--secret", tmp_path / "s")
    assert code == 0, told
    found = json.loads((tmp_path / "out" / "manifest.json").read_text())
    data = load_dataset("photos")
    count = len(data.train) + len(data.test)
    assert (len(found["files"]), found["failed"], found["source"]) == (count, [], "photos")
    assert f"{count} pictures: windows of 32 of 32 pixels (100 % of the side)" in " ".join(told.split())
    assert {path.name for path in tmp_path.iterdir()} == {"out", "s"}, "no originals stay beside the copies"
    name = f"train/{data.class_names[int(data.train.labels[0])]}/000000.png"
    image, copy = to_float(data.train.images[:1])[0], read(tmp_path / "out" / name).image
    assert torch.equal(protect_image(parse(large), image, (tmp_path / "s").read_text().strip()), copy)
