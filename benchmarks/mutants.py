"""How many small faults in the arithmetic of the five packages the tests notice; run by hand, not in CI.

    uv run --with cosmic-ray python benchmarks/mutants.py --mutants 200 --seed 0 --jobs 2 > mutants.txt

Cosmic Ray's operators swap + and -, * and /, < and <=, and and or, take signs off and change numbers by one. A seeded sample of all
such mutants (the same number of each module's, as far as it has them) is tried: the process has torch and Flower imported, forks
for each mutant, puts the mutated module in the place of the real one and runs the tests that know it (``tests_of``), but for those
marked slow. No file is changed. A mutant is caught when a test fails or when the tests take five times as long as they should.
All these tests are first run once without any mutant, in the same way: they must pass, and say how long each file takes.
Prints every survivor as a diff, for a person to judge: some are equivalent to the program that they came from.

Two trees are compared by ``--keep FILE`` in one and ``--again FILE`` in the other: that tries the same changes there, of lines that
stand in exactly one module. ``--marks "not long"`` tries what README's test command runs.
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
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("defenses", "attacks", "clients", "strategies", "simulations")
OPERATORS = (
    *("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Pow_Mul", "FloorDiv_Div", "FloorDiv_Mul", "Mod_Add"),
    *("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq"),
)
NAMES = (
    *(f"core/ReplaceBinaryOperator_{name}" for name in OPERATORS[:8]),
    *(f"core/ReplaceComparisonOperator_{name}" for name in OPERATORS[8:]),
    *("core/ReplaceUnaryOperator_Delete_USub", "core/ReplaceUnaryOperator_Delete_Not", "core/NumberReplacer"),
    *("core/ReplaceAndWithOr", "core/ReplaceOrWithAnd"),
)
CAUGHT, SURVIVED, TOO_SLOW = 1, 0, 2
LIMIT_FACTOR, LIMIT_SECONDS = 5.0, 60.0
"""A mutant may take as many times as long as the unchanged module, and at least so many seconds."""


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    path: Path
    operator: str
    text: str

    @property
    def module(self) -> str:
        """Dotted name."""
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts)

    def diff(self) -> str:
        """Unified, without context."""
        before = self.path.read_text().splitlines()
        name = str(self.path.relative_to(ROOT))
        return "\n".join(difflib.unified_diff(before, self.text.splitlines(), name, self.operator, lineterm="", n=0))


def places_of(path: Path) -> list[tuple[str, int]]:
    """Every mutant of a module, not yet made: an operator and the number of the place where it acts."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast_from_path

    tree = get_ast_from_path(path)
    places = []
    for name in NAMES:
        operator = plugins.get_operator(name)()
        count = sum(len(list(operator.mutation_positions(node))) for node in ast_nodes(tree))
        places += [(name, at) for at in range(count)]
    return places


def mutant_at(path: Path, name: str, at: int) -> Mutant | None:
    """One of ``places_of``; None where the operator changes nothing."""
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    text = mutate_code(path.read_bytes(), plugins.get_operator(name)(), at)
    return None if text is None else Mutant(path, name, text if isinstance(text, str) else text.decode())


def sample(paths: Sequence[Path], count: int, seed: int) -> list[Mutant]:
    """About ``count`` mutants, evenly over the modules."""
    rng = random.Random(seed)
    paths = sorted(paths, key=lambda _: rng.random())
    each = max(1, count // len(paths))
    found: list[Mutant] = []
    for path in paths:
        places = places_of(path)
        chosen = rng.sample(places, min(each, len(places)))
        found += [mutant for place in chosen if (mutant := mutant_at(path, *place)) is not None]
        if len(found) >= count:
            break
    rng.shuffle(found)
    return found[:count]


def keep(path: Path, mutant: Mutant, outcome: int) -> None:
    """Appends a mutant and its outcome, as a line of JSON."""
    kept = {"path": str(mutant.path.relative_to(ROOT)), "operator": mutant.operator, "diff": mutant.diff()}
    with path.open("a") as file:
        file.write(json.dumps({**kept, "outcome": outcome}) + "\n")


def again(path: Path, modules: Sequence[Path]) -> list[Mutant]:
    """The kept mutants that can be made here; prints which cannot."""
    found = []
    texts = {one: _stripped(one.read_text().splitlines()) for one in modules}
    for kept in map(json.loads, path.read_text().splitlines()):
        changed = kept["diff"].splitlines()[2:]
        before, after = ([line[1:] for line in changed if line.startswith(sign)] for sign in "-+")
        wanted, own = _stripped(before), ROOT / kept["path"]
        holders = [own] if wanted in texts.get(own, "") else [one for one, text in texts.items() if wanted in text]
        if len(holders) != 1 or texts[holders[0]].count(wanted) != 1:
            print(f"\nnot here, or more than once\n{kept['diff']}", flush=True)
            continue
        found.append(_changed(holders[0], kept["operator"], before, after))
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


def tests_of(module: str) -> list[str]:
    """Its own tests, others that name it or import what it defines, the own files of modules that use it, common tests."""
    pattern = re.compile(rf"\b{re.escape(module)}\b")
    users = [name for name in _modules() if name != module and pattern.search(_source(name))]
    package = module.partition(".")[0]
    common = sorted((ROOT / "tests/common").glob("test_*.py")) if package in ("defenses", "attacks") else []
    used_by = [path for user in users for path in _mirror(user)]
    chosen = [*own_tests(module), *_naming(module), *used_by, *common]
    return list(dict.fromkeys(str(path.relative_to(ROOT)) for path in chosen))


@functools.cache
def _modules() -> list[str]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


def _source(module: str) -> str:
    return (ROOT / (module.replace(".", "/") + ".py")).read_text()


def own_tests(module: str) -> list[Path]:
    """The file that mirrors it, tests/PACKAGE/ROOM/test_MODULE.py; where there is none, all of its room, but of no room inside."""
    room = ROOT / "tests" / Path(*module.split(".")[:-1])
    return _mirror(module) or sorted(room.glob("test_*.py"))


def _mirror(module: str) -> list[Path]:
    *room, name = module.split(".")
    path = ROOT.joinpath("tests", *room, f"test_{name}.py")
    return [path] if path.is_file() else []


@functools.cache
def _naming(module: str) -> list[Path]:
    package = module.partition(".")[0]
    names = set(re.findall(r"^(?:class|def) ([A-Za-z]\w*)", _source(module), re.MULTILINE))
    chosen = []
    helpers = _naming_helpers(module)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if any(re.search(rf"\b{re.escape(helper)}\b", text) for helper in helpers):
            chosen.append(path)
            continue
        lines = re.findall(rf"^from {package} import (.+)$", text, re.MULTILINE)
        exported = {name for line in lines for name in line.split(", ")}
        if re.search(rf"\b{re.escape(module)}\b", text) or names & exported:
            chosen.append(path)
    return chosen


def _naming_helpers(module: str) -> list[str]:
    """Modules of the tests that are no tests and import it, such as the grid in which runs meet the ClientApp."""
    helpers = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith(("test_", "__", "conftest"))]
    pattern = re.compile(rf"^from {re.escape(module)} import ", re.MULTILINE)
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in helpers if pattern.search(path.read_text())
    ]


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
        self.path, self.seconds, self.failed = path, defaultdict(float), list[str]()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Set-up, call and tear-down of every test."""
        self.seconds[report.nodeid.partition("::")[0]] += report.duration
        self.failed += [report.nodeid] if report.failed else []

    def pytest_sessionfinish(self) -> None:
        """The end."""
        self.path.write_text(json.dumps({"seconds": self.seconds, "failed": self.failed}))


def durations(files: Sequence[str], marks: str) -> dict[str, float]:
    """Seconds of each test file in a fork of this process without any mutant.

    Raises:
        SystemExit: When a test fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seconds.json"
        outcome = in_fork(lambda: _tests_pass(files, marks, [_Durations(path)]), 3600.0)
        found = json.loads(path.read_text()) if path.is_file() else {"failed": ["none: pytest did not end"]}
        if outcome != SURVIVED:
            raise SystemExit(f"tests fail without any mutant: {', '.join(found['failed'])}")
        return {name: float(seconds) for name, seconds in found["seconds"].items()}


def run(mutant: Mutant, seconds: float, marks: str) -> int:
    """Runs the tests of a mutant in a fork of this process; CAUGHT, SURVIVED or TOO_SLOW."""

    def mutated() -> bool:
        sys.meta_path.insert(0, _Replaced(mutant))
        return _tests_pass(tests_of(mutant.module), marks)

    return in_fork(mutated, seconds)


def in_fork(work: Callable[[], bool], seconds: float) -> int:
    """SURVIVED if ``work`` gives True in a fork of this process, TOO_SLOW if it takes longer than ``seconds``, else CAUGHT."""
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
            return SURVIVED if os.waitstatus_to_exitcode(status) == 0 else CAUGHT
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TOO_SLOW


def _tests_pass(files: Sequence[str], marks: str, plugins: Sequence[object] = ()) -> bool:
    import pytest

    code = int(pytest.main(["-x", "-q", "-m", marks, "-p", "no:cacheprovider", *files], plugins=list(plugins)))
    return code in (0, 5)


def main() -> None:
    """Samples, tries, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="files to mutate; none: all of the five packages")
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--marks", default="not slow", help="which tests, in pytest's words")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="append every mutant and its outcome")
    parser.add_argument("--again", type=Path, metavar="FILE", help="try the mutants that another tree kept")
    chosen = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    for name in ("torch", "torchvision", "flwr.app", "flwr.serverapp", "flwr.clientapp", "scipy.stats", "pytest"):
        __import__(name)
    paths = [Path(one).resolve() for one in chosen.modules] or [
        path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if path.name != "__init__.py"
    ]
    found = again(chosen.again, paths) if chosen.again else sample(paths, chosen.mutants, chosen.seed)
    print(f"{len(found)} mutants of {len(paths)} modules, seed {chosen.seed}", flush=True)
    files = sorted({file for mutant in found for file in tests_of(mutant.module)})
    with ThreadPoolExecutor(chosen.jobs) as pool:
        parts = pool.map(
            lambda one: durations(one, chosen.marks), [files[at :: chosen.jobs] for at in range(chosen.jobs)]
        )
        seconds = {name: taken for part in parts for name, taken in part.items()}

    def limit(mutant: Mutant) -> float:
        return max(LIMIT_SECONDS, LIMIT_FACTOR * sum(seconds.get(file, 0.0) for file in tests_of(mutant.module)))

    outcomes = []
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for mutant, outcome in zip(found, pool.map(lambda one: run(one, limit(one), chosen.marks), found), strict=True):
            outcomes.append(outcome)
            if chosen.keep:
                keep(chosen.keep, mutant, outcome)
            if outcome == SURVIVED:
                print(f"\nsurvived\n{mutant.diff()}", flush=True)
    counts = {
        name: outcomes.count(code)
        for name, code in (("caught", CAUGHT), ("too slow", TOO_SLOW), ("survived", SURVIVED))
    }
    print(f"\n{counts}")


if __name__ == "__main__":
    main()
