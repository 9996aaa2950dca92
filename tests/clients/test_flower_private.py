"""Private parts of Flower are imported in one file, and the installed Flower has them as fedveil uses them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import ray  # noqa: F401  which changes sys.path when it is first imported

import tests.flower_private as of_tests
from simulations.runtime import flower_command
from tests.clients.flower_names import CHECKS, PACKAGES, PATIENCE, ROOT, imports, is_public

ONE_FILE = ROOT / "clients" / "flower_private.py"
OF_BENCHMARKS = ROOT / "benchmarks" / "flower_apps" / "secagg_private.py"


def private_imports(paths: list[Path], allowed: Path) -> list[str]:
    others = [path for path in paths if path != allowed]
    return [
        f"{path}:{at}: {module} {name}"
        for path in others
        for at, module, name in imports(path)
        if not is_public(module, name)
    ]


@pytest.mark.long
def test_private_parts_of_flower_are_imported_and_named_in_one_file() -> None:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(paths) > 300
    assert len(list(imports(ONE_FILE))) >= 6
    assert not private_imports(paths, ONE_FILE)
    assert not private_imports(sorted((ROOT / "benchmarks").rglob("*.py")), OF_BENCHMARKS)
    tests = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.name != "flower_names.py"]
    assert not private_imports(tests, ROOT / "tests" / "flower_private.py")


def test_the_installed_flower_has_what_fedveil_uses(subtests: pytest.Subtests) -> None:
    for name in CHECKS.keys() - {"public_names"}:  # which the script checks below
        with subtests.test(name):
            assert CHECKS[name]()
    assert not [name for name in of_tests.PLACES if getattr(of_tests, name, None) is None]
    assert set(flower_command.PATIENCE) == set(PATIENCE)
    body = [node for path in (ONE_FILE, OF_BENCHMARKS) for node in ast.parse(path.read_text(encoding="utf-8")).body]
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    constants = {node.targets[0].id for node in body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]
    assert functions | {name.lower() for name in constants} == CHECKS.keys() - {"public_names"}


@pytest.mark.long
def test_the_script_says_the_version_and_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['pytest'] = None\n"
        "import clients.flower_private; assert not {'flwr', 'ray'} & set(sys.modules), 'imported before it is needed'\n"
        "from tests.clients.flower_names import main; assert main() == 0\n"
        "sys.modules['flwr.common.serde'] = None; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("Flower 1.")
    # A name that moved breaks its own users only.
    failed = [line.split()[1] for line in done.stdout.splitlines() if "FAILED" in line]
    assert failed == ["to_wire:", "from_wire:"]
    assert done.stdout.count("  ok  ") == 2 * len(CHECKS) - len(failed)
