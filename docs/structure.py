"""Draws the folders of fedveil, their files and their imports, read from the source, and checks rules of them.

    python docs/structure.py          # prints the page that the site has of it
    python docs/structure.py --check  # reports every broken rule

The rules: packages import to the left only (``defenses <- attacks <- clients <- strategies <- simulations``). No modules import
each other in a circle (imports for types and inside functions count). In every folder, files and rooms have an order in which
imports point down only. A folder holds at most ``MOST_FILES`` Python files. The same holds for benchmarks. Only modules that may
hold the truth compare guesses with it. No size exceeds its budget (``BUDGETS``); ``--check`` prints the balance.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("defenses", "attacks", "clients", "strategies", "simulations")
ORDER = (*PACKAGES, "benchmarks")
"""Each imports only from those before it. Scripts of benchmarks import each other as siblings, or from the folder above."""
COUNTED = (*ORDER, "tests")
"""Folders in which no folder may hold more than ``MOST_FILES``."""
MOST_FILES = 15
"""Python files of one folder, without its ``__init__.py``."""
BUDGETS = {
    "product lines": 61_113, "product nodes": 451_800, "product files": 475, "lines under benchmarks/": 9_095,
    "lines under tests/": 41_530, "quick tests": 3_000, "words of documentation": 26_260, "words of results": 30_200,
    "setting keys": 95, "options": 44,
}  # fmt: skip
"""The most of each: nodes are those of the syntax tree, quick tests those that README's test command runs."""
JUDGES = ("attacks.scoring.metrics",)
"""What compares guesses with true images and labels."""
HOLDERS = ("attacks.scoring.", "benchmarks.", "clients.", "simulations.external_app.recorded.originals")
"""Who may: scores themselves, clients (the truth is theirs), and `fedveil attack`, as its user has it.
The package ``attacks`` itself only lists what there is."""


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name -> file of every module; a package is its ``__init__``."""
    found = {}
    for package in ORDER:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports() -> dict[str, frozenset[str]]:
    """Module -> the modules of the five packages that it imports, for types or inside functions too."""
    known = modules()
    return {
        name: frozenset(imported(ast.parse(path.read_text()), known, _siblings(name))) - {name}
        for name, path in known.items()
    }


def _siblings(name: str) -> dict[str, str]:
    """By what a script of benchmarks calls it, each script of its folder and of the folders above."""
    room = name.split(".")[:-1]
    if room[:1] != ["benchmarks"]:
        return {}
    above = {".".join(room[:depth]) for depth in range(1, len(room) + 1)}
    return {other.rpartition(".")[2]: other for other in modules() if other.rpartition(".")[0] in above}


@functools.cache
def judging_names() -> dict[str, str]:
    """Names that the package ``attacks`` lists of what judges -> the module that defines them."""
    tree = ast.parse((ROOT / "attacks" / "__init__.py").read_text())
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in JUDGES)
    return {alias.asname or alias.name: str(node.module) for node in found for alias in node.names}


def imported(
    tree: ast.Module, known: Mapping[str, Path], siblings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """The modules among ``known`` that a file imports, or ``siblings`` by the names that it uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in siblings:
            yield siblings[node.module]
            continue
        if isinstance(node, ast.Import):
            names = [siblings.get(alias.name, alias.name) for alias in node.names]
            yield from (name for name in names if name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in known:
                    yield inner
                elif node.module in known:
                    yield node.module
                if node.module == "attacks" and alias.name in judging_names():
                    yield judging_names()[alias.name]
                if node.module == "attacks.scoring" and alias.name == "*":
                    yield from JUDGES
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in judging_names():
            yield from [judging_names()[node.attr]] if node.value.id == "attacks" else []


def circles() -> list[list[str]]:
    """Groups of modules that import each other, directly or by way of others."""
    return components(imports())


def components(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node, by Tarjan's algorithm."""
    index, low, stack, found = {}, {}, [], []  # type: ignore[var-annotated]

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(group := stack[at:]) > 1:
                found.append(sorted(group))
            del stack[at:]

    for name in graph:
        if name not in index:
            visit(name)
    return sorted(found)


def within(folder: str) -> dict[str, set[str]]:
    """What stands in a folder (dotted; "" is the root), files and rooms -> those beside it that it imports."""
    found: dict[str, set[str]] = defaultdict(set)
    inside = f"{folder}." if folder else ""
    for name, others in imports().items():
        if (own := child(name, inside)) is not None:
            seen = (child(other, inside) for other in others)
            beside = {other for other in seen if other is not None}
            found[own] |= beside - {own}
    return found


def child(module: str, inside: str) -> str | None:
    """The file or room of a folder (``inside``, with its dot) that holds a module; None when the module lies elsewhere."""
    if module + "." == inside:
        return "__init__"
    return module.removeprefix(inside).partition(".")[0] if module.startswith(inside) else None


def folders() -> list[str]:
    """All rooms, dotted, the root ("") first."""
    return ["", *sorted({room_of(name) for name in modules()})]


def arrows_up() -> list[str]:
    """Folders whose files and rooms have no order in which imports point down only, with the imports that prevent one."""
    found = []
    for folder in folders():
        for group in components(within(folder)):
            inside = f"{folder}." if folder else ""
            tied = [
                f"{name} imports {other}"
                for name, others in sorted(imports().items())
                for other in sorted(others)
                if child(name, inside) != child(other, inside)
                and {child(name, inside), child(other, inside)} <= set(group)
            ]
            found.append(f"{folder or 'the root'}: {', '.join(group)} need each other ({'; '.join(tied)})")
    return found


def crowded() -> list[str]:
    """Folders of code, tests and benchmarks with too many Python files."""
    found: dict[Path, int] = defaultdict(int)
    for top in COUNTED:
        for path in (ROOT / top).rglob("*.py"):
            found[path.parent] += path.name != "__init__.py"
    return sorted(
        f"{folder.relative_to(ROOT)} holds {count} files; allowed: {MOST_FILES}"
        for folder, count in found.items()
        if count > MOST_FILES
    )


def sizes() -> dict[str, int]:
    """What ``BUDGETS`` bounds, but the number of quick tests: for that, ``quick_tests``."""
    product = [path.read_text() for name, path in modules().items() if name.startswith(PACKAGES)]
    lines = {top: sum(path.read_text().count("\n") for path in (ROOT / top).rglob("*.py")) for top in COUNTED}
    return {
        "product lines": sum(lines[package] for package in PACKAGES),
        "product nodes": sum(1 for text in product for _ in ast.walk(ast.parse(text))),
        "product files": len(product),
        "lines under benchmarks/": lines["benchmarks"],
        "lines under tests/": lines["tests"],
        "words of documentation": _words(ROOT / "README.md", *(ROOT / "docs").rglob("*.md")),
        "words of results": _words(*(ROOT / "benchmarks" / "results").rglob("*.md")),
        "setting keys": len(setting_keys()),
        "options": options(),
    }


def options() -> int:
    """How many options all commands of `fedveil` have, without `--help` and `--version`."""
    from typer.main import get_group

    from simulations.cli import app

    commands = get_group(app).commands.values()
    return sum(one.param_type_name == "option" for command in commands for one in command.params)


def setting_keys() -> set[str]:
    """Names of settings that a user can write: of a run, a search, an attack, the audit of an app, a node. A name counts once."""
    run = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    deployment = (ROOT / "docs" / "deployment.md").read_text()
    table = deployment.partition("| key of `--node-config` |")[2].partition("\n\n")[0]
    return {*run, *re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE), *_declared()}


def _declared() -> Iterator[str]:
    for module, name in (
        ("simulations.search.settings", "Search"),
        ("strategies.external_app.settings", "AuditSettings"),
        ("simulations.external_app.recorded.settings", "AttackSettings"),
    ):
        for cls in ast.parse(modules()[module].read_text()).body:
            if isinstance(cls, ast.ClassDef) and cls.name == name:
                fields = (one for one in cls.body if isinstance(one, ast.AnnAssign))
                named = (ast.unparse(one.target) for one in fields if "ClassVar" not in ast.unparse(one.annotation))
                yield from (one.replace("_", "-") for one in named)


def _words(*pages: Path) -> int:
    """Words of pages, as ``wc -w`` counts them."""
    return sum(len(page.read_text().split()) for page in pages)


def quick_tests() -> int:
    """How many tests README's command runs, as pytest counts them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not long"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    counted = re.search(r"^(\d+)(?:/\d+)? tests collected", done.stdout, re.MULTILINE)
    if counted is None or done.returncode:
        raise SystemExit(f"pytest counts no tests: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return int(counted[1])


def over_budget(found: Mapping[str, int]) -> list[str]:
    """Sizes that exceed their budget."""
    return [
        f"{name}: {size:,}; the budget is {BUDGETS[name]:,}" for name, size in found.items() if size > BUDGETS[name]
    ]


def floors(folder: str) -> list[list[str]]:
    """Files and rooms of a folder from the ground up: each floor imports only from those below it."""
    left, built = {name: set(others) for name, others in within(folder).items()}, []
    while left:
        floor = sorted(name for name, others in left.items() if not others & set(left))
        if not floor:  # a circle: ``arrows_up`` reports it
            return [*built, sorted(left)]
        built.append(floor)
        for name in floor:
            del left[name]
    return built


def arrows_to_the_right() -> list[str]:
    """Imports of a package by one that stands left of it."""
    rank = {package: at for at, package in enumerate(ORDER)}
    return sorted(
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in others
        if rank[other.partition(".")[0]] > rank[name.partition(".")[0]]
    )


def who_may_not_judge() -> list[str]:
    """Imports of what compares a guess with the truth, by modules that must not hold the truth."""
    return sorted(
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in others
        if other in JUDGES and name != "attacks" and not name.startswith(HOLDERS)
    )


def room_of(module: str) -> str:
    """The folder of a module: a package, or a folder in one."""
    path = modules()[module]
    return ".".join(path.parent.relative_to(ROOT).parts)


def page() -> str:
    """The drawing, in Markdown."""
    rooms = defaultdict(list)
    for name in modules():
        if modules()[name].name != "__init__.py":
            rooms[room_of(name)].append(name)
    used = defaultdict(set)
    for name, others in imports().items():
        for other in others:
            if room_of(name) != room_of(other) and modules()[name].name != "__init__.py":
                used[room_of(name)].add(room_of(other))
    lines = [
        "# Structure",
        "",
        "`python docs/structure.py` draws this page from the imports. What is found by name when it is first asked for (scenarios,",
        "their clients, sections of the report, entry points) is not counted as an import.",
        "Packages import leftwards, and a folder holds at most 15 Python files:",
        "",
        "    " + " <- ".join(PACKAGES),
        "",
        "In each package, what stands in a layer imports only from the layers below it. Names that end in `/` are folders.",
        "Below the layers each file has its line.",
        "",
    ]
    for package in PACKAGES:
        lines += [
            f"## {package}/",
            "",
            *_drawn(package),
            "",
        ]
        for room in sorted(rooms):
            if room.partition(".")[0] == package:
                others = ", ".join(f"`{other.replace('.', '/')}`" for other in sorted(used[room])) or "nothing"
                lines += [f"### {room.replace('.', '/')}/", "", f"{_about(room)} Imports from {others}.", ""]
                lines += [f"- `{name.rpartition('.')[2]}`: {_about(name)}" for name in sorted(rooms[room])]
                lines.append("")
    return "\n".join(lines)


def _drawn(package: str) -> list[str]:
    """The floors of a package, the highest first."""
    rooms = {room.removeprefix(f"{package}.") for room in folders() if room.startswith(f"{package}.")}
    built = [
        [f"{name}/" if name in rooms else name for name in floor if name != "__init__"] for floor in floors(package)
    ]
    shown = [floor for floor in built if floor]
    return [f"    {at:2}  {'  '.join(floor)}" for at, floor in reversed(list(enumerate(shown, 1)))]


def _about(module: str) -> str:
    """The first paragraph of what a file, or the package of a folder, says of itself."""
    text = ast.get_docstring(ast.parse(modules()[module].read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def main() -> None:
    """Prints or checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        print(page())
        return
    faults = [f"circle: {', '.join(group)}" for group in circles()]
    found = sizes() | {"quick tests": quick_tests()}
    print("; ".join(f"{name} {size:,} of {BUDGETS[name]:,}" for name, size in found.items()))
    faults += arrows_up() + arrows_to_the_right() + who_may_not_judge() + crowded() + over_budget(found)
    raise SystemExit("\n".join(faults) or None)


if __name__ == "__main__":
    main()
