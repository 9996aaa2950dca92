"""Nothing that a file or a message holds is run: the few places of the packages that could are listed, each with its reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("defenses", "attacks", "clients", "strategies", "simulations")
MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml", "jsonpickle"}
"""Whose readers run what they read."""
BUILT_IN = {"eval", "exec", "compile", "__import__"}
IMPORT = "import_module"
KNOWN = {
    # an unpickler of arrays that refuses every name but numpy's stand-ins
    ("clients/data/files/array_files.py", "import pickle"),
    # the name of an error, for a message
    ("clients/models/pretrained.py", "import pickle"),
    # code that a person named; on a deployed node, that its operator listed
    ("clients/process/own_code.py", IMPORT),
    ("clients/process/own_code.py", "compile"),
    ("clients/process/own_code.py", "exec"),
    # functions for external apps, by constant names
    ("clients/__init__.py", IMPORT),
    # the exports of the package itself
    ("defenses/__init__.py", IMPORT),
    # a module of our own, which the parent process names
    ("clients/process/trial_process.py", IMPORT),
    # modules of Ray and of Opacus, by constant names
    ("clients/process/ray_cluster.py", IMPORT),
    ("defenses/training/quiet_import.py", IMPORT),
    # jobs for worker processes that this process started, and their results, through pipes of the two
    ("strategies/audit/pool.py", "import pickle"),
    # the app that a person named, in a child process; packages of data sets, by constant names
    ("simulations/external_app/check/trial/work.py", IMPORT),
    # files of their own folder: one for each scenario's settings, one for each metric
    ("attacks/metrics/registry.py", IMPORT),
    # modules of our own and of installed packages, by their entry points
    ("defenses/registry.py", IMPORT),
}


def risks(tree: ast.AST) -> Iterator[str]:
    """What could run what it is given, by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in MODULES:
            yield f"import {node.module}"
        elif isinstance(node, ast.Call):
            yield from _of_a_call(node)


def _of_a_call(node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func)
    given = {one.arg: ast.unparse(one.value) for one in node.keywords}
    last = called.rpartition(".")[2]
    of_text = last == "load_state_dict" and node.args and "str(" in ast.unparse(node.args[0])
    if called in BUILT_IN or last == "import_module":
        yield last
    elif (called == "torch.load" or of_text) and given.get("weights_only") != "True":
        yield f"{called} without weights_only"
    elif given.get("allow_pickle", "False") != "False":
        yield f"{called} with allow_pickle"
    elif given.get("shell", "False") != "False" or called in {"os.system", "os.popen"}:
        yield f"{called} in a shell"


@pytest.mark.long
def test_no_other_place_runs_what_it_reads() -> None:
    found = {
        (str(path.relative_to(ROOT)), risk)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for risk in risks(ast.parse(path.read_text()))
    }
    assert found == KNOWN


def test_a_new_place_would_be_found_and_what_is_safe_is_not_reported() -> None:
    for code, risk in {
        "import pickle": "import pickle", "from joblib import load": "import joblib", "eval(text)": "eval",
        "torch.load(path)": "torch.load without weights_only",
        "torch.load(path, weights_only=False)": "torch.load without weights_only",
        "np.load(path, allow_pickle=True)": "np.load with allow_pickle",
        "subprocess.run(text, shell=True)": "subprocess.run in a shell",
    }.items():  # fmt: skip
        assert list(risks(ast.parse(code))) == [risk]
    safe = "torch.load(path, weights_only=True); model.eval(); np.load(path); re.compile(text); model.load_state_dict(found)"
    assert not list(risks(ast.parse(safe)))
