"""The piece of benchmarks/reliability/reliability.py about damaged files: every command that reads one ends well, or with
one clear error.

A case is drawn from the seed and its number: a file that a person or a run left, what has happened to it, and the command that
reads it.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reliability_replies import COMMON, Killed, Stuck, Watching, within
from reliability_runs import ROOT, require, rows_of, table, untimed
from reliability_wire import BOMB
from typer.testing import CliRunner, Result

from simulations.cli import app
from simulations.experiment.experiment import Experiment
from simulations.server_app import run_experiment

RUN: dict[str, Any] = COMMON | {
    "model": "lenet",
    "defenses": "GaussianNoise(std=0.01)",
    "attack_rounds": "first,final",
    "probe_attacks": "LabelInference()",
    "update_attacks": "ClassGAN(iterations=2, images_per_class=1); LossThreshold()",
}
SEARCH = (
    "dataset=mnist-5k",
    "train-limit=100",
    "model=cnn",
    "images=2",
    "path-steps=2",
    "accuracy-batches=1",
    "semi-epochs=1",
    "candidates=3",
    "longest=1",
    "workers=1",
)
SECONDS = 120
OTHERS = (
    b"",
    b"\0" * 64,
    b"[]",
    b"{}",
    b"null",
    b"3",
    b'"x"',
    BOMB.encode(),
    b"9" * 10_000,
    b"\xff\xfe",
    b'{"a": 1e999}',
    b"NaN",
    b'{"policies": "3-1-7", "channels": Infinity}',
    b'{"metric": "x", "value": 1e308, "round": 1e300}\n',
    b'{"metric": "\\ud800"}\n',
    b"\xff" * 8 + b"{}",
    (2**40).to_bytes(8, "little") + b"{}",
)
"""What may stand in a file instead."""


@dataclass(frozen=True)
class Reader:
    """A command that reads files.

    Attributes:
        folder: Name of the folder that is copied for it; what it changes is lost.
        files: Globs of what it reads there.
        call: Folder -> the words of the command.
        result: Folder -> what came out, to be compared with what comes out of the undamaged files.
    """

    folder: str
    files: tuple[str, ...]
    call: Callable[[Path], list[str]]
    result: Callable[[Path], Any]


def _rows(place: Path) -> Any:
    return untimed(rows_of(place))


def _attacked(place: Path) -> Any:
    with suppress(OSError):
        return [one["scores"] for one in json.loads((place / "out" / "result.json").read_text())["attacks"]]
    return _rows(place / "out")


def _attack(update: str, *more: str) -> Callable[[Path], list[str]]:
    shape = ["--model", "lenet", "--num-classes", "10", "--input-shape", "1,28,28", "--attack", "LabelInference()"]

    def words(place: Path) -> list[str]:
        return [
            "attack",
            str(place / update),
            *shape,
            "--out",
            str(place / "out"),
            *(w.replace("@", f"{place}/") for w in more),
        ]

    return words


RUN_FILES = ("config.json", "rows.jsonl", "pictures/index.jsonl", "checkpoints/*")
READERS: dict[str, Reader] = {
    "run --resume": Reader(
        "broken", (*RUN_FILES, "jobs/*", "history/*"), lambda at: ["run", "--in-process", "--resume", str(at)], _rows
    ),
    "run --resume (finished)": Reader(
        "done", RUN_FILES, lambda at: ["run", "--in-process", "--resume", str(at)], _rows
    ),
    "report": Reader(
        "done",
        (*RUN_FILES[:3], "pictures/*.png"),
        lambda at: ["report", str(at)],
        lambda at: (at / "rows.csv").read_text(),
    ),
    "compare": Reader(
        "done",
        RUN_FILES[:2],
        lambda at: ["compare", str(at), str(at.parent / "whole"), "--out", str(at / "page.html")],
        lambda at: (at / "page.html").stat().st_size,
    ),
    "attack UPDATE": Reader(
        "update",
        ("update", "global", "truth"),
        _attack("update", "--learning-rate", "0.1", "--weights", "@global", "--truth", "@truth"),
        _attacked,
    ),
    "attack RECORDING": Reader(
        "recorded",
        ("rec/*.json", "rec/*/*", "originals/*"),
        _attack("rec", "--local-steps", "1", "--originals", "@originals"),
        _attacked,
    ),
    "search --resume": Reader(
        "searched",
        ("search.json", "scores.jsonl", "model.safetensors"),
        lambda at: ["search", "--resume", str(at)],
        lambda at: (at / "policies.json").read_text(),
    ),
    "run -s defenses=ATS": Reader(
        "policies",
        ("policies.json",),
        lambda at: ["run", "--dry-run", "-s", f"defenses=ATS(policies='{at / 'policies.json'}')"],
        lambda _: "",
    ),
}


def made(folder: Path, readers: tuple[str, ...] = tuple(READERS)) -> None:
    """The undamaged files of some readers."""
    wanted = {READERS[name].folder for name in readers}
    _runs(folder, broken="broken" in wanted)
    if wanted & {"update", "recorded"}:
        _updates(folder)
    if "searched" in wanted:
        found = _called(
            ["search", "--out", str(folder / "searched"), *(word for one in SEARCH for word in ("-s", one))]
        )
        require(found.exit_code == 0, f"a search: {found.output}")
    (folder / "policies").mkdir()
    (folder / "policies" / "policies.json").write_text(json.dumps({"policies": "3-1-7", "channels": 3}))


def _runs(folder: Path, *, broken: bool) -> None:
    """A finished run, the same of another seed, and one that was killed while attacks waited for their turn."""
    seen = Watching(COMMON["num_clients"])
    run_experiment(seen, Experiment.of(**RUN, output_dir=str(folder / "done")))
    shutil.copytree(folder / "done", folder / "whole")
    for name in ("config.json", "rows.jsonl"):
        path = folder / "whole" / name
        path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    if broken:
        last = [at for at, (kind, _) in enumerate(seen.seen) if kind == "query.audit"][-9]
        with suppress(Killed):
            run_experiment(
                Watching(COMMON["num_clients"], 0, None, last), Experiment.of(**RUN, output_dir=str(folder / "broken"))
            )


def _updates(folder: Path) -> None:
    """One update of a digit, and a recording."""
    sys.path.insert(0, str(ROOT))
    from tests.simulations.external_app.recorded.test_attack_file import digit, network, save_file, trained
    from tests.simulations.external_app.recorded.test_recording import record

    (folder / "update").mkdir()
    before, after = trained(network())
    images, labels = digit()
    save_file({name: after[name] - before[name] for name in before}, folder / "update" / "update")
    save_file(before, folder / "update" / "global")
    save_file({"images": images, "labels": labels}, folder / "update" / "truth")
    record(folder / "recorded", rounds=2)


def _called(words: list[str]) -> Result:
    with within(SECONDS):
        return CliRunner().invoke(app, words)


@dataclass
class Damaged:
    """One damaged file, read by one command.

    Attributes:
        seed: Of all cases.
        number: Of this one.
        originals: Folder of ``made``.
    """

    seed: int
    number: int
    originals: Path
    readers: tuple[str, ...] = tuple(READERS)
    fault: str = ""
    outcome: str = ""
    said: str = ""

    def __post_init__(self) -> None:
        self.draw = random.Random(f"files {self.seed} {self.number}")
        self.reader = self.draw.choice(self.readers)
        self.source = self.originals / READERS[self.reader].folder
        patterns = [p for p in READERS[self.reader].files if list(self.source.glob(p))]
        self.pattern = self.draw.choice(patterns)
        self.file = self.draw.choice(sorted(self.source.glob(self.pattern)))

    def __str__(self) -> str:
        return (
            f"seed {self.seed}, case {self.number}: {self.reader}, {self.file.relative_to(self.originals)}: {self.said}"
        )

    def _damage(self, path: Path) -> None:
        data, how = (
            bytearray(path.read_bytes()),
            self.draw.choice(["bit", "bit", "bit", "cut", "other", "swapped", "folder", "gone", "twice"]),
        )
        at = self.draw.randrange(max(1, len(data)))
        if how == "bit" and data:
            bit = self.draw.randrange(8)
            data[at] ^= 1 << bit
            self.said = f"bit {bit} of byte {at} of {len(data)}"
            path.write_bytes(data)
        elif how == "cut":
            self.said = f"cut to {at} of {len(data)} bytes"
            path.write_bytes(data[:at])
        elif how == "other":
            other = self.draw.choice(OTHERS)
            self.said = f"holds {other[:40]!r}"
            path.write_bytes(other)
        elif how == "twice":
            self.said = "its bytes twice"
            path.write_bytes(data + data)
        elif how == "swapped":
            others = sorted(
                one for one in path.parent.iterdir() if one.is_file() and one.suffix == path.suffix and one != path
            )
            other = self.draw.choice(others) if others else None
            self.said = f"holds what is in {other.name}" if other else "as it was"
            path.write_bytes(other.read_bytes() if other else data)
        elif how in ("folder", "gone"):
            path.unlink()
            self.said = "a folder in its place" if how == "folder" else "gone"
            if how == "folder":
                path.mkdir()

    def check(self, expected: Any) -> Damaged:
        """Damages the file and calls the command."""
        reader = READERS[self.reader]
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / self.source.name
            shutil.copytree(self.source, place)
            shutil.copytree(self.originals / "whole", Path(folder) / "whole")
            self._damage(place / self.file.relative_to(self.source))
            try:
                result = _called(reader.call(place))
            except Stuck as error:
                self.fault = str(error)
                return self
            self._judged(result, place, expected)
        return self

    def _judged(self, result: Result, place: Path, expected: Any) -> None:
        told = result.output.strip()
        if (result.exception and not isinstance(result.exception, SystemExit)) or "Traceback" in told:
            self.outcome = "traceback"
            self.fault = f"{type(result.exception).__name__}: {str(result.exception)[:300]} {told[-300:]}"
        elif result.exit_code in (1, 2):
            self.outcome = "refused" if result.exit_code == 2 else "exit code 1"
            if not told:
                self.fault = "refused without a word"
        else:
            try:
                same = READERS[self.reader].result(place) == expected
            except (OSError, ValueError, KeyError) as error:
                self.fault, self.outcome = f"exit code {result.exit_code} without a result: {error}", "nothing written"
                return
            self.outcome = "the same result" if same else "another result"


def files(arguments: argparse.Namespace) -> None:
    """Files with bits flipped, cut off, swapped or replaced, and the commands that read them."""
    logging.disable(logging.CRITICAL)
    deadline, found = time.monotonic() + 60 * arguments.minutes, Counter[tuple[str, str, str]]()
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        originals = Path(folder)
        names = tuple(arguments.readers.split(",")) if arguments.readers else tuple(READERS)
        made(originals, names)
        expected = {name: undamaged(originals, READERS[name]) for name in names}
        for number in range(arguments.first, arguments.first + arguments.cases):
            if time.monotonic() > deadline:
                break
            case = Damaged(arguments.seed, number, originals, names)
            case.check(expected[case.reader])
            found[case.reader, case.pattern, case.outcome] += 1
            faults += bool(case.fault)
            if case.fault or arguments.verbose or case.outcome == "another result":
                print(f"{'FAULT: ' if case.fault else ''}{case} -> {case.outcome} {case.fault}", flush=True)
    outcomes = sorted({outcome for *_, outcome in found})
    table(
        f"Damaged files (seed {arguments.seed}, cases {arguments.first} to {arguments.first + sum(found.values()) - 1})",
        ["command", "file", *outcomes],
        [
            [f"`{reader}`", f"`{pattern}`", *(found[reader, pattern, outcome] for outcome in outcomes)]
            for reader, pattern in sorted({(reader, pattern) for reader, pattern, _ in found})
        ],
    )
    require(not faults, f"{faults} of {sum(found.values())} cases")


def undamaged(originals: Path, reader: Reader) -> Any:
    """What comes out of a reader's files as they are."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / reader.folder
        shutil.copytree(originals / reader.folder, place)
        shutil.copytree(originals / "whole", Path(folder) / "whole", dirs_exist_ok=True)
        result = _called(reader.call(place))
        require(
            result.exit_code in (0, 3),
            f"{reader.call(place)}: {result.exit_code} {result.output[-2000:]} {result.exception!r}",
        )
        return reader.result(place)
