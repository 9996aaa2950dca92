"""``fedveil protect`` that is stopped, killed, repeated, or called twice at once."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from simulations.protect.copies import AT_ONCE, Copy, Order, copies
from simulations.protect.manifest import Manifest
from simulations.run_folder.folder_lock import take_lock
from simulations.settings.errors import ConfigError
from tests.simulations.protect.commands import MIXER, NOISE, beside, files, protect, refused, result


@pytest.mark.long
def test_a_data_set_can_be_protected_again_and_taken_up_again(tmp_path: Path) -> None:
    assert protect("photos", tmp_path / "one", "--defense", NOISE)[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*.png")}
    assert protect("photos", tmp_path / "two", "--defense", NOISE)[0] == 0
    assert result(tmp_path / "one") == result(tmp_path / "two")
    refused(protect("photos", tmp_path / "one", "--defense", NOISE), "is not empty; go on with --resume")
    assert protect("photos", tmp_path / "one", "--defense", NOISE, "--resume")[0] == 0
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*.png")}, (
        "nothing is done twice"
    )
    refused(
        protect("mnist-5k", tmp_path / "one", "--defense", NOISE, "--resume"), "source was 'photos' and is 'mnist-5k'"
    )
    assert beside(tmp_path) == {"one", "two"}


@pytest.mark.long
@pytest.mark.parametrize("when", ["writing", "protecting"])
def test_a_killed_command_on_a_data_set_goes_on_and_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    module = "simulations.protect.sources.write" if when == "writing" else "simulations.protect.manifest.Manifest.add"
    count, kept = 0, import_module(module.rpartition(".")[0]).write if when == "writing" else Manifest.add

    def some(*given: object) -> None:
        nonlocal count
        count += 1
        kept(*given) if count < 50 else stop()

    with monkeypatch.context() as patch:
        patch.setattr(module, some)
        assert protect("photos", tmp_path / "out", "--defense", NOISE, "--workers", 1)[0] == 130
    assert beside(tmp_path) == {"out", f"out.source{'.part' if when == 'writing' else ''}"}
    refused(protect("photos", tmp_path / "out", "--defense", NOISE), "is not empty; go on with --resume")
    assert protect("photos", tmp_path / "out", "--defense", NOISE, "--resume")[0] == 0
    assert beside(tmp_path) == {"out"}
    assert protect("photos", tmp_path / "whole", "--defense", NOISE)[0] == 0
    assert result(tmp_path / "out") == result(tmp_path / "whole")


def test_a_folder_in_the_way_of_a_data_set_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "out.source").mkdir()
    (tmp_path / "out.source" / "mine.txt").write_text("mine")
    refused(protect("photos", tmp_path / "out", "--defense", NOISE), "out.source is in the way")
    assert (tmp_path / "out.source" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_two_commands_into_one_target_are_refused(source: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    if more:
        assert protect(source, tmp_path / "out", "--defense", MIXER)[0] == 0
    before = files(tmp_path / "out") if more else {}
    with take_lock(tmp_path / "out", ""):
        told = protect(source, tmp_path / "out", "--defense", MIXER, *more)
        refused(told, f"OUT: another `fedveil protect` is still writing to {tmp_path / 'out'}; wait for it, or end it")
        assert files(tmp_path / "out") | {".lock": ""} == before | {".lock": ""}, "nothing was written"
    assert protect(source, tmp_path / "out", "--defense", MIXER, *more)[0] == 0


def test_what_a_command_left_that_was_killed_before_it_began_is_no_content(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in (".lock", ".journal.jsonl.tmp"):
        (tmp_path / "out" / name).write_text("")
    code, told = protect(source, tmp_path / "out", "--defense", MIXER)
    assert (code, "24 of 24" in told) == (0, True)


def test_somebodys_own_folder_does_not_even_get_a_lock(source: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for more in ((), ("--resume",)):
        assert protect(source, tmp_path / "full", "--defense", MIXER, *more)[0] == 2
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_resuming_with_other_settings_is_refused_and_changed_sources_are_done_again(
    source: Path, tmp_path: Path
) -> None:
    assert protect(source, tmp_path / "out", "--defense", MIXER)[0] == 0
    first = files(tmp_path / "out")
    other = protect(source, tmp_path / "out", "--defense", "ATS(policies='3')", "--resume")
    refused(other, "was begun with other settings (defense was")
    other = protect(source, tmp_path / "out", "--defense", MIXER, "--secret", tmp_path / "s", "--resume")
    refused(other, f"--secret: {tmp_path / 's'} does not exist")
    assert protect(source, tmp_path / "another", "--defense", MIXER, "--secret", tmp_path / "s")[0] == 0
    other = protect(source, tmp_path / "out", "--defense", MIXER, "--secret", tmp_path / "s", "--resume")
    refused(other, "secret_digest was")
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(source / "odd" / "0.png")
    (tmp_path / "out" / "even" / "1.bmp").unlink()
    code, told = protect(source, tmp_path / "out", "--defense", MIXER, "--resume")
    assert (code, "24 of 24" in told) == (0, True)
    second = files(tmp_path / "out")
    changed = {name for name in first if second.get(name) != first[name]}
    assert changed == {"odd/0.png", "manifest.json"}


def test_pictures_of_another_folder_of_the_same_name_are_refused(source: Path, tmp_path: Path) -> None:
    """Although the manifest, which is delivered, says only the folder's name."""
    assert protect(source, tmp_path / "out", "--defense", MIXER)[0] == 0
    text = (tmp_path / "out" / "manifest.json").read_text()
    assert json.loads(text)["source"] == source.name
    assert str(source.parent) not in text
    elsewhere = tmp_path / "elsewhere" / source.name
    shutil.copytree(source, elsewhere)
    before = files(tmp_path / "out")
    again = protect(elsewhere, tmp_path / "out", "--defense", MIXER, "--resume")
    refused(again, "was begun with other settings (pictures from another place)")
    assert files(tmp_path / "out") == before, "no lock stays either"


def unlocked(folder: Path) -> None:
    """Waits until nobody writes to a folder."""
    until = time.monotonic() + 20
    while True:
        try:
            take_lock(folder, "").close()
        except ConfigError:
            assert time.monotonic() < until, "a worker outlived its command"
            time.sleep(0.01)
        else:
            return


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_kill_9_and_resume_give_the_copies_of_an_unbroken_run(tmp_path: Path, workers: int) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for at in range(300):
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)).save(tmp_path / "in" / f"{at}.png")
    command = [sys.executable, "-c", "from simulations.cli import main; main()", "protect", str(tmp_path / "in")]
    given = ["--defense", MIXER, "--workers", str(workers)]
    process = subprocess.Popen(
        [*command, str(tmp_path / "out"), *given], stdout=subprocess.DEVNULL, start_new_session=True
    )
    journal = tmp_path / "out" / ".journal.jsonl"
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and not (journal.is_file() and journal.read_text().count("\n") > 20):
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.002)
        refused(
            protect(tmp_path / "in", tmp_path / "out", *given, "--resume"), "another `fedveil protect` is still writing"
        )
    finally:
        process.kill()  # the command alone: its workers must end with it, and let the target go
        process.wait()
    unlocked(tmp_path / "out")
    done = journal.read_text().splitlines()[1:-1]
    stamps = {
        name: (tmp_path / "out" / name).stat().st_mtime_ns for name in (json.loads(line)["output"] for line in done)
    }
    assert 19 <= len(stamps) < 300
    code, told = protect(tmp_path / "in", tmp_path / "out", *given, "--resume")
    assert (code, "300 of 300" in told) == (0, True)
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == stamp for name, stamp in stamps.items()), (
        "nothing is done twice"
    )
    assert protect(tmp_path / "in", tmp_path / "whole", *given)[0] == 0

    def pictures(folder: Path) -> dict[str, Any]:
        return {name: digest for name, digest in files(folder).items() if name.endswith(".png")}

    assert pictures(tmp_path / "out") == pictures(tmp_path / "whole")
    broken, whole = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("out", "whole"))
    assert broken == whole


def two_processes(tmp_path: Path, count: int) -> Iterator[Copy]:
    """Protects equal pictures."""
    (tmp_path / "in").mkdir()
    for at in range(count):
        Image.new("RGB", (64, 64), (at, 0, 0)).save(tmp_path / "in" / f"{at}.png")
    order = Order(tmp_path / "in", tmp_path / "out", NOISE, "secret", 0, "pictures")
    return copies(order, [(f"{at}.png", f"{at}.png") for at in range(count)], workers=2)


def test_who_stops_waits_for_what_is_at_work_and_for_no_more(tmp_path: Path) -> None:
    at_work = two_processes(tmp_path, 40)
    next(at_work)
    at_work.close()
    assert len(list((tmp_path / "out").rglob("*.png"))) <= 2 * 2 * AT_ONCE


def test_a_killed_process_is_told_with_what_to_do(tmp_path: Path) -> None:
    at_work = two_processes(tmp_path, 40)
    next(at_work)
    for process in multiprocessing.active_children():
        process.kill()
    with pytest.raises(ConfigError, match=r"was killed, perhaps for want of memory.*--resume"):
        list(at_work)
