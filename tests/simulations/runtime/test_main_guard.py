"""A script that calls an audit at its top level: every worker would run it again, so it ends before any work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[3])
BEGIN = "import sys\nsys.path.insert(0, {root!r})\nfrom simulations.runtime.main_guard import require_guard\n"
CALL = 'require_guard("audit", "attack_workers=0")\nprint("called as", __name__)\n'
INDENTED = "".join(f"    {line}\n" for line in CALL.splitlines())
SPAWNS = """if __name__ == "__main__":
    from multiprocessing import get_context
    worker = get_context("spawn").Process(target=print)
    worker.start()
    worker.join()
else:
"""
FULL = (
    "import simulations\nfrom simulations.audited import audited\nfrom flwr.serverapp.strategy import FedAvg\n"
    "from tests.strategies.external_app.app import Net\n"
)


def script(tmp_path: Path, text: str, *, module: bool = False) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(BEGIN.format(root=ROOT) + text)
    call = ["-m", "program"] if module else ["program.py"]
    return subprocess.run(
        [sys.executable, *call], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("text", [CALL, f"if True:\n{INDENTED}", f"def main():\n{INDENTED}\nmain()\n"])
def test_a_call_without_the_guard_is_refused(text: str, module: bool, tmp_path: Path) -> None:
    done = script(tmp_path, text, module=module)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "put the call below `if __name__ == '__main__':`, or set attack_workers=0"
    )


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        f"if __name__ == '__main__':\n{INDENTED}",
        f"def main():\n{INDENTED}\nif __name__ == '__main__':\n    main()\n",
        f"if __name__ != '__main__':\n    raise SystemExit\n{CALL}",
        f"exec({CALL!r}) if False else None\nif '__main__' == __name__:\n{INDENTED}",
    ],
)
def test_a_call_below_the_guard_is_none_of_our_business(text: str, module: bool, tmp_path: Path) -> None:
    done = script(tmp_path, text, module=module)
    assert (done.returncode, done.stdout) == (0, "called as __main__\n"), done.stderr


def test_what_a_worker_imports_again_is_refused_there_too(tmp_path: Path) -> None:
    """Whatever the program's own process could tell."""
    done = script(tmp_path, SPAWNS + INDENTED)
    assert "called as" not in done.stdout
    assert "put the call below `if __name__ == '__main__':`" in done.stderr


def test_no_file_is_no_program_that_a_worker_imports(tmp_path: Path) -> None:
    text = BEGIN.format(root=ROOT) + CALL
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "called as __main__\n"), done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "call", ["simulations.audit(out={out!r})", "audited(FedAvg(), {out!r}, Net)"], ids=["audit", "audited"]
)
def test_both_ways_to_an_audit_ask_for_it(call: str, tmp_path: Path) -> None:
    done = script(tmp_path, FULL + call.format(out=str(tmp_path / "out")))
    assert done.returncode == 1
    assert "put the call below `if __name__ == '__main__':`" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()
