"""Runs the long tests that a change touches: ``python .ci/touched.py BASE [--seconds N]``.

Touched are test files that changed since the commit BASE, and those that import a changed module, directly or by way of other
modules (docs/structure.py has the imports). What a test reaches by its helpers, by name or in a subprocess
is not seen, nor are files that are not Python. The nearest begin, first those of changed modules' own test files, and N seconds
after the first no further test does: `.ci/nightly` runs all.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import structure  # noqa: E402


def changed(base: str) -> list[str]:
    """Python files that are there and differ from a commit."""
    command = ["git", "diff", "--name-only", "--diff-filter=AMR", base, "--", "*.py"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def distances(files: list[str]) -> dict[str, int]:
    """Changed modules, and all that import them -> the number of imports between."""
    users: dict[str, set[str]] = {name: set() for name in structure.modules()}
    for name, others in structure.imports().items():
        for other in others:
            users[other].add(name)
    found = {name: 0 for name, path in structure.modules().items() if str(path.relative_to(ROOT)) in files}
    front = list(found)
    for name in front:  # which grows: breadth first
        new = [user for user in sorted(users[name]) if user not in found]
        found |= dict.fromkeys(new, found[name] + 1)
        front += new
    return found


def touched(files: list[str], far: Mapping[str, int]) -> list[str]:
    """Test files, the nearest first; those that changed and those of changed modules are before all others."""
    ranked, mirrored = [], {f"tests/{Path(file).parent}/test_{Path(file).name}" for file in files}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        near = [far[one] for one in structure.imported(tree, structure.modules()) if one in far]
        if name in files or name in mirrored or near:
            ranked.append((-1 if name in mirrored or name in files else min(near), name))
    return [name for _, name in sorted(ranked)]


def main() -> None:
    """Finds them, and runs pytest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE")
    parser.add_argument("--seconds", type=float, default=180.0)
    chosen = parser.parse_args()
    files = changed(chosen.base)
    found = touched(files, distances(files))
    print(
        f"{len(files)} files changed since {chosen.base}; their long tests are among those of {len(found)} test files",
        flush=True,
    )
    if found:
        words = [
            "-n",
            "2",
            "--dist",
            "loadfile",
            "-p",
            "no:randomly",
            "-m",
            "long and not slow",
            "--begin-within",
            str(chosen.seconds),
        ]
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", *words, *found], cwd=ROOT, check=False)
        raise SystemExit(0 if done.returncode == 5 else done.returncode)  # 5: none of them is long


if __name__ == "__main__":
    main()
