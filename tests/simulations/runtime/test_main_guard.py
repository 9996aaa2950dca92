"""A script that calls an audit at its top level: every worker would run it again, so it ends before any work."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[3])
BEGIN = "import sys\nsys.path.insert(0, {root!r})\nfrom simulations.runtime.main_guard import require_guard\n"
CALL = 'require_guard("audit", "attack_workers=0")\nprint("called as", __name__)\n'
INDENTED = "".join(f"    {line}\n" for line in CALL.splitlines())
GUARD = "if __name__ == '__main__':\n"
SPAWNS = f"""{GUARD}    from multiprocessing import get_context
    worker = get_context("spawn").Process(target=print)
    worker.start()
    worker.join()
else:
"""
FULL = (
    "import simulations\nfrom simulations.audited import audited\nfrom flwr.serverapp.strategy import FedAvg\n"
    "from tests.strategies.external_app.app import Net\n"
)
REFUSED = "put the call below `if __name__ == '__main__':`"


def script(tmp_path: Path, text: str, *, module: bool = False) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(BEGIN.format(root=ROOT) + text)
    call = ["-m", "program"] if module else ["program.py"]
    return subprocess.run([sys.executable, *call], cwd=tmp_path, capture_output=True, text=True, check=False)


def test_a_call_without_the_guard_is_refused(tmp_path: Path) -> None:
    main = f"def main():\n{INDENTED}\n"
    for text, module in ((CALL, False), (CALL, True), (f"if True:\n{INDENTED}", False), (f"{main}main()\n", False)):
        done = script(tmp_path, text, module=module)
        assert done.returncode == 1, text
        assert done.stderr.splitlines()[-1].endswith(f"{REFUSED}, or set attack_workers=0"), text
    # What a worker imports again is refused there too, whatever the program's own process could tell.
    done = script(tmp_path, SPAWNS + INDENTED)
    assert "called as" not in done.stdout
    assert REFUSED in done.stderr


def test_a_call_below_the_guard_is_allowed(tmp_path: Path) -> None:
    main = f"def main():\n{INDENTED}\n"
    for text, module in (
        (f"{GUARD}{INDENTED}", False), (f"{GUARD}{INDENTED}", True), (f"{main}{GUARD}    main()\n", False),
        (f"if __name__ != '__main__':\n    raise SystemExit\n{CALL}", False),
        (f"exec({CALL!r}) if False else None\nif '__main__' == __name__:\n{INDENTED}", True),
    ):  # fmt: skip
        done = script(tmp_path, text, module=module)
        assert (done.returncode, done.stdout) == (0, "called as __main__\n"), text + done.stderr
    # What is in no file is no program that a worker imports.
    text = BEGIN.format(root=ROOT) + CALL
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "called as __main__\n"), done.stderr


@pytest.mark.long
def test_both_ways_to_an_audit_ask_for_it(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for call in (f"simulations.audit(out={out!r})", f"audited(FedAvg(), {out!r}, Net)"):
        done = script(tmp_path, FULL + call)
        assert done.returncode == 1
        assert REFUSED in done.stderr.splitlines()[-1]
        assert not (tmp_path / "out").exists()
