"""Damaged files: the command that reads one gives a result, or refuses the file with one clear error.

A case follows from the seed and its number: a file of a person or a run, what happened to it, and the command that reads it.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reliability_replies import COMMON, LENET, SECONDS, Killed, Stuck, Watching, within
from reliability_runs import ROOT, Case, CaseError, require, rows_of, untimed
from reliability_wire import BOMB
from typer.testing import CliRunner, Result

from simulations.cli import app
from simulations.experiment.experiment import Experiment
from simulations.server_app import run_experiment

RUN: dict[str, Any] = COMMON | LENET | {
    "defenses": "GaussianNoise(std=0.01)", "attack_rounds": "first,final",
    "update_attacks": "ClassGAN(iterations=2, images_per_class=1); LossThreshold()",
}  # fmt: skip
SEARCH = (
    "dataset=mnist-5k", "semi-share=0.003", "model=cnn", "images=2", "semi-epochs=1", "candidates=3",
    "workers=1",
)  # fmt: skip
OTHERS = (
    b"", b"\0" * 64, b"[]", b"{}", b"null", b"3", b'"x"', BOMB.encode(), b"9" * 10_000, b"\xff\xfe", b'{"a": 1e999}', b"NaN",
    b'{"policies": "3-1-7", "channels": Infinity}', b'{"metric": "x", "value": 1e308, "round": 1e300}\n',
    b'{"metric": "\\ud800"}\n', b"\xff" * 8 + b"{}", (2**40).to_bytes(8, "little") + b"{}",
)  # fmt: skip
"""Contents in place of a file's own."""


@dataclass(frozen=True)
class Reader:
    """A command that reads files.

    Attributes:
        folder: Name of the folder that is copied for it.
        files: Globs of what it reads there.
        command: The command, where ``@`` stands for the copy.
        result: What it wrote into the copy, to be compared with what it writes from undamaged files.
    """

    folder: str
    files: tuple[str, ...]
    command: str
    result: Callable[[Path], Any]


def _rows(place: Path) -> Any:
    return untimed(rows_of(place))


def _scores(place: Path) -> Any:
    return _rows(place / "out")


RUN_FILES = ("config.json", "rows.jsonl", "pictures/index.jsonl", "checkpoints/*")
ATTACK = "-s model=lenet -s num-classes=10 -s input-shape=1,28,28 -s update-attacks=LabelInference() --out @/out"
READERS = {
    "run --resume": Reader("broken", (*RUN_FILES, "jobs/*", "history/*"), "run --in-process --resume @", _rows),
    "run --resume (finished)": Reader("done", RUN_FILES, "run --in-process --resume @", _rows),
    "report": Reader("done", (*RUN_FILES[:3], "pictures/*.png"), "report @", lambda at: (at / "rows.csv").read_text()),
    "compare": Reader(
        "done", RUN_FILES[:2], "compare @ @/../whole --out @/page.html", lambda at: (at / "page.html").stat().st_size,
    ),
    "attack UPDATE": Reader(
        "update", ("update", "global", "truth"),
        f"attack @/update {ATTACK} -s learning-rate=0.1 -s weights=@/global -s originals=@/truth", _scores,
    ),
    "attack RECORDING": Reader(
        "recorded", ("rec/*.json", "rec/*/*", "originals/*"),
        f"attack @/rec {ATTACK} -s local-steps=1 -s originals=@/originals", _scores,
    ),
    "search --resume": Reader(
        "searched", ("search.json", "scores.jsonl", "model.safetensors"), "search --resume @",
        lambda at: (at / "policies.json").read_text(),
    ),
    "run -s defenses=ATS": Reader(
        "policies", ("policies.json",), "run --dry-run -s defenses=ATS(policies='@/policies.json')", lambda _: "",
    ),
}  # fmt: skip


def make(folder: Path, names: tuple[str, ...]) -> None:
    """Write the undamaged files that some readers need."""
    wanted = {READERS[name].folder for name in names}
    _make_runs(folder, broken="broken" in wanted)
    if wanted & {"update", "recorded"}:
        _make_updates(folder)
    if "searched" in wanted:
        settings = [word for one in SEARCH for word in ("-s", one)]
        found = _called(["search", "--out", str(folder / "searched"), *settings])
        require(found.exit_code == 0, f"a search: {found.output}")
    (folder / "policies").mkdir()
    (folder / "policies" / "policies.json").write_text(json.dumps({"policies": "3-1-7", "channels": 3}))


def _make_runs(folder: Path, *, broken: bool) -> None:
    """A finished run, the same of another seed, and one that was killed while attacks waited for their turn."""
    seen = Watching(COMMON["num_clients"])
    run_experiment(seen, Experiment.of(**RUN, output_dir=str(folder / "done")))
    shutil.copytree(folder / "done", folder / "whole")
    for name in ("config.json", "rows.jsonl"):
        path = folder / "whole" / name
        path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    if broken:
        last = [at for at, (kind, _) in enumerate(seen.seen) if kind == "query.audit"][-9]
        grid = Watching(COMMON["num_clients"], 0, None, last)
        with suppress(Killed):
            run_experiment(grid, Experiment.of(**RUN, output_dir=str(folder / "broken")))


def _make_updates(folder: Path) -> None:
    """An update of one digit, and a recording."""
    sys.path.insert(0, str(ROOT))
    from tests.simulations.external_app.recorded.recordings import record
    from tests.simulations.external_app.recorded.test_attack_file import digit, network, save_file, trained

    (folder / "update").mkdir()
    before, after = trained(network())
    images, labels = digit()
    save_file({name: after[name] - before[name] for name in before}, folder / "update" / "update")
    save_file(before, folder / "update" / "global")
    save_file({"images": images, "labels": labels}, folder / "update" / "truth")
    record(folder / "recorded", rounds=2)


@contextmanager
def _copied(originals: Path, reader: Reader) -> Iterator[Path]:
    """A copy of a reader's files, beside another run."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(originals / "whole", Path(folder) / "whole")
        yield shutil.copytree(originals / reader.folder, Path(folder) / "copy")


def _called(words: list[str]) -> Result:
    with within(SECONDS):
        return CliRunner().invoke(app, words)


def _read(reader: Reader, place: Path) -> Result:
    return _called([word.replace("@", str(place)) for word in reader.command.split(" ")])


class Damaged:
    """One damaged file, read by one command: case ``number`` of a seed."""

    def __init__(self, seed: int, number: int, originals: Path, names: tuple[str, ...]) -> None:
        self.name, self.draw = f"seed {seed}, case {number}", random.Random(f"files {seed} {number}")
        self.originals, self.command = originals, self.draw.choice(names)
        self.reader, self.said = READERS[self.command], ""
        source = originals / self.reader.folder
        pattern = self.draw.choice([one for one in self.reader.files if list(source.glob(one))])
        self.file = self.draw.choice(sorted(source.glob(pattern)))

    def __str__(self) -> str:
        return f"{self.name}: {self.command}, {self.file.relative_to(self.originals)}: {self.said}"

    def check(self, expected: Any) -> str:
        """Damage the file and call the command; the outcome."""
        with _copied(self.originals, self.reader) as place:
            self._damage(place / self.file.relative_to(self.originals / self.reader.folder))
            try:
                result = _read(self.reader, place)
            except Stuck as error:
                raise CaseError(str(error)) from None
            text = result.output.strip()
            raised = bool(result.exception) and not isinstance(result.exception, SystemExit)
            require(not raised and "Traceback" not in text, f"{result.exception!r} {text[-300:]}")
            if result.exit_code in (1, 2):
                require(bool(text), "refused without a word")
                return f"code {result.exit_code}: {text[-200:]}"
            try:
                same = self.reader.result(place) == expected
            except (OSError, ValueError, KeyError) as error:
                raise CaseError(f"exit code {result.exit_code} without a result: {error}") from error
        return "the same result" if same else "another result"

    def _damage(self, path: Path) -> None:
        data, draw = bytearray(path.read_bytes()), self.draw
        how = draw.choice(["bit", "bit", "bit", "cut", "other", "swapped", "folder", "gone", "twice"])
        at = draw.randrange(max(1, len(data)))
        self.said = f"{how} at byte {at} of {len(data)}"
        if how == "bit" and data:
            data[at] ^= 1 << draw.randrange(8)
        elif how == "cut":
            del data[at:]
        elif how == "other":
            data = bytearray(draw.choice(OTHERS))
            self.said = f"holds {bytes(data[:40])!r}"
        elif how == "twice":
            data *= 2
        elif how == "swapped":
            others = [one for one in path.parent.iterdir() if one.is_file() and one.suffix == path.suffix]
            other = draw.choice(sorted(others))
            self.said, data = f"holds what is in {other.name}", bytearray(other.read_bytes())
        path.unlink()
        if how == "folder":
            path.mkdir()
        elif how != "gone":
            path.write_bytes(data)


def files(arguments: argparse.Namespace) -> Iterator[Case]:
    """Files with flipped bits, truncated, swapped or replaced, and the commands that read them, of ``--kinds`` of commands."""
    logging.disable(logging.CRITICAL)
    names = tuple(arguments.kinds.split(",")) if arguments.kinds else tuple(READERS)
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), names)
        expected = {name: _undamaged(Path(folder), READERS[name]) for name in names}
        for number in range(arguments.first, arguments.first + arguments.cases):
            case = Damaged(arguments.seed, number, Path(folder), names)
            yield Case(f"`{case.command}`", case, partial(case.check, expected[case.command]))


def _undamaged(originals: Path, reader: Reader) -> Any:
    with _copied(originals, reader) as place:
        result = _read(reader, place)
        require(result.exit_code in (0, 3), f"{reader.command}: {result.exit_code} {result.output[-2000:]}")
        return reader.result(place)
