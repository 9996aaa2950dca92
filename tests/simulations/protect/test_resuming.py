"""``fedveil protect`` that is stopped, killed, repeated, or called twice at once."""

import json
import multiprocessing
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clients.process.worker_processes import AT_ONCE
from simulations.protect.copies import Order, copies
from simulations.run_folder.folder_lock import take_lock
from simulations.settings.errors import ConfigError
from tests.simulations.protect.commands import MIXER, NOISE, files, protect, refused


def test_two_commands_into_one_target_are_refused_and_killed_ones_are_no_content(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in (".lock", ".journal.jsonl.tmp"):
        (tmp_path / "out" / name).write_text("")
    for more in ((), ("--resume",)):
        before = files(tmp_path / "out")
        with take_lock(tmp_path / "out", ""):
            told = protect(source, tmp_path / "out", "--defense", MIXER, *more)
            refused(
                told, f"OUT: another `fedveil protect` is still writing to {tmp_path / 'out'}; wait for it, or end it"
            )
            assert files(tmp_path / "out") | {".lock": ""} == before | {".lock": ""}, "nothing was written"
            assert more or not (tmp_path / "home").exists(), "no secret either"
        code, told = protect(source, tmp_path / "out", "--defense", MIXER, *more)
        assert (code, "12 of 12" in told) == (0, True), told


def test_resuming_with_other_settings_is_refused_and_changed_sources_done_again(source: Path, tmp_path: Path) -> None:
    assert protect(source, tmp_path / "out", "--defense", MIXER)[0] == 0
    first = files(tmp_path / "out")
    other = protect(source, tmp_path / "out", "--defense", "ATS(policies='3')", "--resume")
    refused(other, "was begun with other settings (defense was")
    other = protect(source, tmp_path / "out", "--defense", MIXER, "--secret", tmp_path / "s", "--resume")
    refused(other, f"--secret: {tmp_path / 's'} does not exist")
    assert protect(source, tmp_path / "another", "--defense", MIXER, "--secret", tmp_path / "s")[0] == 0
    other = protect(source, tmp_path / "out", "--defense", MIXER, "--secret", tmp_path / "s", "--resume")
    refused(other, "secret_digest was")
    # Pictures of another folder of the same name, although the manifest, which is delivered, says only the folder's name.
    text, before = (tmp_path / "out" / "manifest.json").read_text(), files(tmp_path / "out")
    assert (json.loads(text)["source"], str(source.parent) in text) == (source.name, False)
    shutil.copytree(source, tmp_path / "elsewhere" / source.name)
    other = protect(tmp_path / "elsewhere" / source.name, tmp_path / "out", "--defense", MIXER, "--resume")
    refused(other, "was begun with other settings (pictures from another place)")
    assert files(tmp_path / "out") == before, "no lock stays either"
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(source / "odd" / "0.png")
    (tmp_path / "out" / "even" / "1.bmp").unlink()
    code, told = protect(source, tmp_path / "out", "--defense", MIXER, "--resume")
    assert (code, "12 of 12" in told) == (0, True)
    second = files(tmp_path / "out")
    changed = {name for name in first if second.get(name) != first[name]}
    assert changed == {"odd/0.png", "manifest.json"}


def unlocked(folder: Path) -> None:
    """Wait until no process writes to a folder."""
    while True:
        try:
            return take_lock(folder, "").close()
        except ConfigError:
            time.sleep(0.01)


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_kill_9_and_resume_give_the_copies_of_an_unbroken_run(tmp_path: Path, workers: int) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for at in range(300):
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)).save(tmp_path / "in" / f"{at}.png")
    command = [sys.executable, "-c", "from simulations.cli import main; main()", "protect", str(tmp_path / "in")]
    given = ["--defense", MIXER, "-s", f"workers={workers}"]
    process = subprocess.Popen(
        [*command, str(tmp_path / "out"), *given], stdout=subprocess.DEVNULL, start_new_session=True
    )
    journal = tmp_path / "out" / ".journal.jsonl"
    try:
        while not (journal.is_file() and journal.read_text().count("\n") > 20):
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
    stamps = {n: (tmp_path / "out" / n).stat().st_mtime_ns for n in (json.loads(line)["output"] for line in done)}
    assert 19 <= len(stamps) < 300
    code, told = protect(tmp_path / "in", tmp_path / "out", *given, "--resume")
    assert (code, "300 of 300" in told) == (0, True)
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == stamp for name, stamp in stamps.items()), (
        "nothing is done twice"
    )
    assert protect(tmp_path / "in", tmp_path / "whole", *given)[0] == 0
    assert files(tmp_path / "out") == files(tmp_path / "whole"), "the manifest as well"


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
def test_two_processes_finish_their_work_if_stopped_and_name_the_way_if_killed(tmp_path: Path, stopped: bool) -> None:
    (tmp_path / "in").mkdir()
    for at in range(40):
        Image.new("RGB", (64, 64), (at, 0, 0)).save(tmp_path / "in" / f"{at}.png")
    order = Order(tmp_path / "in", tmp_path / "out", NOISE, "secret", 0, "pictures")
    at_work = copies(order, [(f"{at}.png", f"{at}.png") for at in range(40)], workers=2)
    next(at_work)
    if stopped:
        at_work.close()
        assert len(list((tmp_path / "out").rglob("*.png"))) <= 2 * 2 * AT_ONCE
        return
    for process in multiprocessing.active_children():
        process.kill()
    with pytest.raises(ConfigError, match=r"was killed, perhaps for want of memory.*--resume"):
        list(at_work)
