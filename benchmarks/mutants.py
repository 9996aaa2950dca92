"""How many small faults in the arithmetic of the five packages the tests notice.

    uv run python benchmarks/mutants.py                                               # the kept ones of mutants.jsonl
    uv run --with cosmic-ray python benchmarks/mutants.py --sample 100 --keep FILE    # others
    uv run --with cosmic-ray python benchmarks/mutants.py --sample 12 --changed BASE  # of lines changed since a commit

A mutant is one change of one module: + and -, * and /, < and <=, and and or are swapped, a sign is taken off, a number changes by
one. Cosmic Ray makes them. The process has torch and Flower imported, forks for each mutant, puts the mutated module in the place
of the real one and runs the nearest tests (``nearest``); a mutant that survives these meets the tests of the module's users and of
all algorithms (``wider``). ``--marks`` chooses tests: without it those of README's command. No file is changed. A mutant is killed
when a test fails or when the tests take five times as long as without it. Each test file first runs once without any mutant: a
test that fails then judges no mutant. Prints every survivor as a diff, for a person to judge, and a table.

A kept mutant is made wherever its lines stand in exactly one module, so one file compares two trees (``--root TREE``).
"""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib.abc
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("defenses", "attacks", "clients", "strategies", "simulations")
KEPT = Path(__file__).with_suffix(".jsonl")
KINDS = {
    "arithmetic": tuple(
        f"core/ReplaceBinaryOperator_{name}"
        for name in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Pow_Mul", "FloorDiv_Div", "FloorDiv_Mul", "Mod_Add")
    ),
    "comparison": tuple(
        f"core/ReplaceComparisonOperator_{name}"
        for name in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq")
    ),
    "logic": (
        "core/ReplaceUnaryOperator_Delete_USub", "core/ReplaceUnaryOperator_Delete_Not", "core/ReplaceAndWithOr",
        "core/ReplaceOrWithAnd",
    ),
    "number": ("core/NumberReplacer",),
}  # fmt: skip
"""Kinds of changes, each drawn as often as the others, and Cosmic Ray's operators of each."""
KILLED, KILLED_WIDER, SURVIVED = "killed", "killed wider", "survived"
PRELOADED = (
    *("torch", "torchvision", "flwr.app", "flwr.serverapp", "flwr.clientapp", "scipy.stats", "pytest", "hypothesis"),
    *("opacus", "skimage", "matplotlib", "timm", "safetensors.torch", "typer", "rich", "jinja2"),
)
LIMIT_FACTOR, LIMIT_SECONDS = 5.0, 60.0
"""A mutant may take as many times as long as the unchanged module, and at least so many seconds."""


@dataclass(frozen=True)
class Mutant:
    """One change of one module: the lines before and after."""

    path: Path
    operator: str
    text: str

    @property
    def name(self) -> str:
        """Path in the tree."""
        return str(self.path.relative_to(ROOT))

    @property
    def module(self) -> str:
        """Dotted name."""
        return self.name.removesuffix(".py").replace("/", ".")

    def diff(self) -> str:
        """Unified, without context."""
        before = self.path.read_text().splitlines()
        return "\n".join(
            difflib.unified_diff(before, self.text.splitlines(), self.name, self.operator, lineterm="", n=0)
        )


def places_of(path: Path, lines: Collection[int] | None) -> dict[str, list[tuple[str, int]]]:
    """Kind -> every mutant of a module, not yet made: an operator and the number of the place where it acts, on ``lines`` only."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast_from_path

    tree = get_ast_from_path(path)
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for kind, names in KINDS.items():
        for name in names:
            operator = plugins.get_operator(name)()
            found = [position for node in ast_nodes(tree) for position in operator.mutation_positions(node)]
            places[kind] += [(name, at) for at, (start, _) in enumerate(found) if lines is None or start[0] in lines]
    return {kind: found for kind, found in places.items() if found}


def mutant_at(path: Path, name: str, at: int) -> Mutant | None:
    """One of ``places_of``; None where the operator changes nothing."""
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    text = mutate_code(path.read_bytes(), plugins.get_operator(name)(), at)
    return None if text is None else Mutant(path, name, text if isinstance(text, str) else text.decode())


def sample(paths: Sequence[Path], count: int, seed: int, changed: dict[Path, set[int]] | None = None) -> list[Mutant]:
    """At most ``count`` mutants, packages and their modules in turn, each of a random kind that its module has left."""
    rng = random.Random(seed)
    rooms = {package: [one for one in paths if one.relative_to(ROOT).parts[0] == package] for package in PACKAGES}
    for room in rooms.values():
        rng.shuffle(room)
    found: list[Mutant] = []
    tried: dict[Path, set[tuple[str, int]]] = defaultdict(set)
    while len(found) < count and any(rooms.values()):
        for room in (room for room in rooms.values() if room):
            path = room.pop()
            every = places_of(path, None if changed is None else changed[path])
            places = {
                kind: left for kind, of in every.items() if (left := [one for one in of if one not in tried[path]])
            }
            if not places:
                continue
            place = rng.choice(places[rng.choice(sorted(places))])
            tried[path].add(place)
            room.insert(0, path)
            if (made := mutant_at(path, *place)) is not None:
                found.append(made)
    return found[:count]


def changed_lines(base: str) -> dict[Path, set[int]]:
    """Modules of the five packages -> their lines that are new since a commit."""
    found: dict[Path, set[int]] = defaultdict(set)
    diff = subprocess.run(
        ["git", "diff", "-U0", "--diff-filter=AM", base, "--", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    )  # fmt: skip
    path = ROOT
    for line in diff.stdout.splitlines():
        if line.startswith("+++ b/"):
            path = ROOT / line.removeprefix("+++ b/")
        elif (hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)) and path.suffix == ".py":
            found[path] |= set(range(int(hunk[1]), int(hunk[1]) + int(hunk[2] or 1)))
    return dict(found)


def keep(path: Path, mutants: Sequence[Mutant]) -> None:
    """Writes mutants, a line of JSON each."""
    lines = [json.dumps({"path": one.name, "operator": one.operator, "diff": one.diff()}) for one in mutants]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def kept(path: Path, modules: Sequence[Path]) -> list[Mutant]:
    """The kept mutants that can be made in this tree; prints which cannot."""
    found = []
    texts = {one: _stripped(one.read_text().splitlines()) for one in modules}
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        changed = line["diff"].splitlines()[2:]
        before, after = ([text[1:] for text in changed if text.startswith(sign)] for sign in "-+")
        wanted, own = _stripped(before), ROOT / line["path"]
        holders = [own] if wanted in texts.get(own, "") else [one for one, text in texts.items() if wanted in text]
        if len(holders) != 1 or texts[holders[0]].count(wanted) != 1:
            print(f"\nnot here, or more than once\n{line['diff']}", flush=True)
            continue
        found.append(_changed(holders[0], line["operator"], before, after))
    return found


def _stripped(lines: Sequence[str]) -> str:
    return "".join(f"\n{line.strip()}" for line in lines) + "\n"


def _changed(path: Path, operator: str, before: Sequence[str], after: Sequence[str]) -> Mutant:
    """A module with some lines replaced, wherever they stand and however far they are indented."""
    lines = path.read_text().splitlines()
    wanted = [line.strip() for line in before]
    (at,) = [n for n in range(len(lines)) if [line.strip() for line in lines[n : n + len(wanted)]] == wanted]
    indent = len(lines[at]) - len(lines[at].lstrip()) - (len(before[0]) - len(before[0].lstrip()))
    moved = [" " * (len(line) - len(line.lstrip()) + indent) + line.lstrip() for line in after]
    return Mutant(path, operator, "\n".join([*lines[:at], *moved, *lines[at + len(wanted) :], ""]))


def nearest(module: str) -> list[str]:
    """The tests of a module: the file that mirrors it (without one, all of its room, but of no room inside), and those that name
    the module or import what it defines.
    """
    *room, _ = module.split(".")
    own = _mirror(module) or sorted((ROOT / "tests" / Path(*room)).glob("test_*.py"))
    return list(dict.fromkeys(str(path.relative_to(ROOT)) for path in [*own, *_naming(module)]))


def wider(module: str) -> list[str]:
    """More tests: those of modules that use it, and of every defence or attack."""
    pattern = re.compile(rf"\b{re.escape(module)}\b")
    users = [name for name, text in _texts("").items() if name != module and pattern.search(text)]
    common = module.partition(".")[0] in ("defenses", "attacks")
    chosen = [*(path for user in users for path in _mirror(user))]
    chosen += sorted((ROOT / "tests/common").glob("test_*.py")) if common else []
    return [
        name for name in dict.fromkeys(str(path.relative_to(ROOT)) for path in chosen) if name not in nearest(module)
    ]


@functools.cache
def _texts(top: str) -> dict[str, str]:
    """Dotted name -> text of the modules of the five packages, or of one other folder."""
    paths = [path for one in ([top] if top else PACKAGES) for path in sorted((ROOT / one).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text() for path in paths}


def _mirror(module: str) -> list[Path]:
    *room, name = module.split(".")
    path = ROOT.joinpath("tests", *room, f"test_{name}.py")
    return [path] if path.is_file() else []


@functools.cache
def _naming(module: str) -> list[Path]:
    package, text = module.partition(".")[0], _texts("")[module]
    defined = set(re.findall(r"^(?:class|def) ([A-Za-z]\w*)", text, re.MULTILINE))
    named = re.compile(rf"\b{re.escape(module)}\b")
    chosen = []
    for name, test in _texts("tests").items():
        if not name.rpartition(".")[2].startswith("test_"):
            continue
        imported = {
            one for line in re.findall(rf"^from {package} import (.+)$", test, re.MULTILINE) for one in line.split(", ")
        }
        if named.search(test) or defined & imported:
            chosen.append(ROOT / (name.replace(".", "/") + ".py"))
    return chosen


class _Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module in a text instead of its file."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's, with this object as its loader."""
        if name != self.mutant.module:
            return None
        return importlib.util.spec_from_file_location(name, self.mutant.path, loader=self)  # type: ignore[arg-type]

    def exec_module(self, module: ModuleType) -> None:
        """Runs the mutated text."""
        exec(compile(self.mutant.text, str(self.mutant.path), "exec"), module.__dict__)


class _Durations:
    """A pytest plugin that adds up how long each file's tests take, and writes that down at the end."""

    def __init__(self, path: Path) -> None:
        self.path, self.seconds, self.failed, self.broken = path, defaultdict(float), list[str](), list[str]()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Set-up, call and tear-down of every test."""
        self.seconds[report.nodeid.partition("::")[0]] += report.duration
        self.failed += [report.nodeid] if report.failed else []

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported."""
        self.broken += [report.nodeid] if report.failed else []

    def pytest_sessionfinish(self) -> None:
        """The end."""
        self.path.write_text(json.dumps({"seconds": self.seconds, "failed": self.failed, "broken": self.broken}))


class Unmutated:
    """What the tests do without any mutant, each file tried once: their seconds, and which fail and so judge no mutant."""

    def __init__(self, marks: str) -> None:
        self.marks, self.seconds, self.failed = marks, dict[str, float](), set[str]()
        self._lock = threading.Lock()

    def limit(self, files: Sequence[str]) -> float:
        """Seconds that a mutant may take with these files."""
        with self._lock:
            if new := [file for file in files if file not in self.seconds]:
                self._try(new)
        return max(LIMIT_SECONDS, LIMIT_FACTOR * sum(self.seconds[file] for file in files))

    def _try(self, files: Sequence[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "seconds.json"
            in_fork(lambda: _tests_pass(files, self.marks, (), [_Durations(path)]), 3600.0)
            found = json.loads(path.read_text())
        if found["broken"]:  # every mutant near such a file would seem to be killed
            raise RuntimeError(f"cannot be collected without any mutant: {', '.join(found['broken'])}")
        self.seconds |= dict.fromkeys(files, 0.0) | found["seconds"]
        if found["failed"]:
            self.failed |= set(found["failed"])
            print(f"\nfail without any mutant: {', '.join(found['failed'])}", flush=True)


def in_fork(work: Callable[[], bool], seconds: float) -> bool:
    """Whether ``work`` gives True in a fork of this process within ``seconds``."""
    child = os.fork()
    if child == 0:
        os.setsid()
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        good = False
        try:
            good = work()
        finally:
            os._exit(0 if good else 1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _tests_pass(files: Sequence[str], marks: str, without: Collection[str], plugins: Sequence[object] = ()) -> bool:
    import pytest

    unwanted = [word for test in without for word in ("--deselect", test)]
    first = [] if plugins else ["-x"]
    arguments = [*first, "-q", "-m", marks, "-p", "no:cacheprovider", "-p", "no:randomly", *unwanted, *files]
    return int(pytest.main(arguments, plugins=list(plugins))) in (0, 5)


def outcome_of(mutant: Mutant, unmutated: Unmutated) -> str:
    """Runs the nearest tests of a mutant, then wider ones."""

    def passes(files: Sequence[str]) -> bool:
        def mutated() -> bool:
            sys.meta_path.insert(0, _Replaced(mutant))
            return _tests_pass(files, unmutated.marks, unmutated.failed)

        return not files or in_fork(mutated, unmutated.limit(files))

    if not passes(nearest(mutant.module)):
        return KILLED
    return SURVIVED if passes(wider(mutant.module)) else KILLED_WIDER


def report(found: Sequence[Mutant], outcomes: Sequence[str]) -> str:
    """The outcomes by package, a table in Markdown."""
    lines = [
        f"| package | mutants | {KILLED} by the nearest tests | {KILLED_WIDER} | {SURVIVED} |",
        "|---|---|---|---|---|",
    ]
    packages = [one.module.partition(".")[0] for one in found]
    for package in (*PACKAGES, "all"):
        counts = Counter(got for of, got in zip(packages, outcomes, strict=True) if package in (of, "all"))
        lines.append(
            f"| {package} | {counts.total()} | {counts[KILLED]} | {counts[KILLED_WIDER]} | {counts[SURVIVED]} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Samples or reads, tries, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="files to mutate; none: all of the five packages")
    parser.add_argument("--sample", type=int, metavar="N", help="try so many new mutants in place of the kept ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--changed", metavar="BASE", help="sample lines that are new since this commit")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--marks", default="not long", help="which tests, in pytest's words")
    parser.add_argument("--kept", type=Path, metavar="FILE", default=KEPT, help="the mutants to try")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the mutants, and try none")
    parser.add_argument("--root", type=Path, metavar="TREE", default=ROOT, help="the tree to mutate and its tests")
    chosen = parser.parse_args()
    globals()["ROOT"] = chosen.root.resolve()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    paths = [Path(one).resolve() for one in chosen.modules] or [
        path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if path.name != "__init__.py"
    ]
    if chosen.sample is None:
        found = kept(chosen.kept, paths)
    else:
        changed = None if chosen.changed is None else changed_lines(chosen.changed)
        paths = paths if changed is None else [path for path in paths if path in changed]
        found = sample(paths, chosen.sample, chosen.seed, changed)
    if chosen.keep is not None:
        keep(chosen.keep, found)
        return
    print(f"{len(found)} mutants of {len(paths)} modules", flush=True)
    for name in PRELOADED:
        __import__(name)
    unmutated, outcomes = Unmutated(chosen.marks), []
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for mutant, outcome in zip(found, pool.map(lambda one: outcome_of(one, unmutated), found), strict=True):
            outcomes.append(outcome)
            if outcome != KILLED:
                print(f"\n{outcome}\n{mutant.diff()}", flush=True)
    print(f"\n{report(found, outcomes)}")


if __name__ == "__main__":
    main()
