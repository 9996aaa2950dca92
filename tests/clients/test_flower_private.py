"""Private parts of Flower are imported in one file, and the installed Flower has them as fedveil uses them."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clients import flower_private
from simulations.runtime import flower_command
from tests.clients.flower_names import CHECKS, PACKAGES, PATIENCE, PUBLIC, ROOT, imports, is_public
from tests.flower_private import PLACES

ONE_FILE = ROOT / "clients" / "flower_private.py"
ATTRIBUTES = ("_registered_funcs", "_mods", "_call", "_message_id", "_default_options", "_ffn")
"""Private attributes of Flower's objects that the one file reads."""
PRIVATE_TEXT = re.compile(r"flwr(\.\w+)+")


def product_files() -> list[Path]:
    return [path for package in (*PACKAGES, "benchmarks") for path in sorted((ROOT / package).rglob("*.py"))]


def private_imports(paths: list[Path], allowed: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {module} {name}"
        for path in paths
        if path != allowed
        for line, module, name in imports(path)
        if not is_public(module, name)
    ]


def private_texts(path: Path) -> list[str]:
    """Texts that name a private module or attribute of Flower, and reads of such an attribute."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if text in ATTRIBUTES or (PRIVATE_TEXT.fullmatch(text) and text not in PUBLIC):
                found.append(f"{path}:{node.lineno}: {text!r}")
        elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES and not own(node):
            found.append(f"{path}:{node.lineno}: {node.attr}")
    return found


def own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def test_no_other_file_of_the_product_imports_a_private_part_of_flower() -> None:
    assert len(product_files()) > 300
    assert len(list(imports(ONE_FILE))) >= 6
    assert not private_imports(product_files(), ONE_FILE)


def test_no_other_file_of_the_packages_names_a_private_module_or_attribute_of_flower() -> None:
    assert private_texts(ONE_FILE)
    others = [path for path in product_files() if path != ONE_FILE and path.relative_to(ROOT).parts[0] in PACKAGES]
    assert not [found for path in others for found in private_texts(path)]


def test_tests_import_other_private_parts_from_one_file_too() -> None:
    paths = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.name != "flower_names.py"]
    assert not private_imports(paths, ROOT / "tests" / "flower_private.py")


@pytest.mark.parametrize(
    ("line", "private"),
    [
        ("from flwr.app import Message, Error", []),
        ("from flwr.common import log", []),
        ("import flwr.app", []),
        ("from flwr_datasets import FederatedDataset", []),
        ("from flwr.common.serde import message_to_proto", ["flwr.common.serde message_to_proto"]),
        ("from flwr.cli import local_superlink", ["flwr.cli local_superlink"]),
        ("from flwr.app import Message, metadata", ["flwr.app metadata"]),
        ("def f():\n    import flwr.simulation.app", ["flwr.simulation.app "]),
    ],
)
def test_what_counts_as_private(line: str, private: list[str], tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(line)
    assert [one.split(": ")[1] for one in private_imports([tmp_path / "one.py"], ONE_FILE)] == private


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('x = getattr(app, "_mods", [])', 1),
        ("x = app._registered_funcs", 1),
        ("self._mods = []", 0),
        ('import_module("flwr.cli.app")', 1),
        ('import_module("flwr.app")', 0),
    ],
)
def test_which_texts_and_attributes_count(line: str, found: int, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(line)
    assert len(private_texts(tmp_path / "one.py")) == found


@pytest.mark.parametrize("name", CHECKS)
def test_the_installed_flower_has_what_fedveil_uses(name: str) -> None:
    CHECKS[name]()


def test_every_private_name_has_such_a_check() -> None:
    tree = ast.parse(ONE_FILE.read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    constants = {node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]
    assert functions | {name.lower() for name in constants} == CHECKS.keys() - {"public_names"}
    for name in functions:
        text = " ".join((inspect.getdoc(getattr(flower_private, name)) or "").split())
        assert re.search(r"Use: .+ If (it|either) moves: .+|Use and replacement: as", text), name


def test_every_private_name_of_the_tests_is_there() -> None:
    import tests.flower_private as of_tests

    assert not [name for name in PLACES if getattr(of_tests, name, None) is None]


def test_the_constants_are_those_that_our_command_sets() -> None:
    assert set(flower_command.PATIENCE) == set(PATIENCE)


def test_the_script_says_the_version_and_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['pytest'] = None; "
        "from tests.clients.flower_names import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Flower 1.")
    assert done.stdout.count("  ok  ") == len(CHECKS)


def test_the_script_fails_at_a_name_that_moved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.clients.flower_names import main

    assert main() == 0  # and has imported what imports the module that moves
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "flwr.common.serde", None)
    assert main() == 1
    failed = [line.split()[1] for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    users = ["to_wire:", "from_wire:", "secagg_plus_app:", "secagg_plus_round:", "masked_parameters:"]
    assert failed == users, (
        "a name that moved breaks its own users only, and those of a round whose messages are copied"
    )


def test_the_file_imports_nothing_of_flower_before_it_is_needed() -> None:
    code = "import sys, clients.flower_private; print(sorted({'flwr', 'ray', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
