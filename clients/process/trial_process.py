"""A user's app, tried in a child process for ``fedveil check-app``.

A file may end its process, crash it, use up its memory or never return. The process that the user watches survives each of
these, and reports which one it was in one sentence.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from clients.process.own_code import OwnCodeError
from clients.wire.texts import plain, shortened

START = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from clients.process.isolation import leave_network, supervise
known = {"isolated": leave_network()} if sys.argv[3:] else {}
supervise()
from clients.process.trial_process import main
main(sys.argv[1], known)
"""
"""Python's path comes first: the child must find the very packages, and the user's modules, that this process finds."""
ORDER, RESULT = "order.json", "result.json"
LONGEST = 20_000
"""Characters of an error that are handed over."""
TAIL = 4096
"""Bytes of the child's output that are kept."""
GRACE = 10.0
"""Seconds for the end of what the child started."""
FIRST_VICTIM = "1000"
"""In ``/proc/self/oom_score_adj``: where memory runs out, the system ends the child before any other process."""


class AbruptError(OwnCodeError):
    """An error of the user's code, or the end of its process, that no function of ours reports. The text begins with a verb."""


def tried(work: str, arguments: Mapping[str, Any], seconds: float, *, offline: bool = False) -> Any:
    """Run a function of ours, ``package.module:function``, on the user's code in a child process with a time limit.

    Arguments and result are what JSON can write. ``offline``: the process leaves the network (``leave_network``), and the function
    gets an argument more, ``isolated``: whether the system let it.

    Raises:
        OwnCodeError: With the text of a ``ValueError`` of the function.
        AbruptError: For whatever else happened: "raises KeyboardInterrupt", "ends its process with exit code 0".
    """
    with tempfile.TemporaryDirectory(prefix="fedveil-trial-") as name:
        folder = Path(name)
        (folder / ORDER).write_text(
            json.dumps({"work": work, "arguments": dict(arguments), "argv": sys.argv}), encoding="utf-8"
        )
        code, printed = _run(folder, seconds, ["offline"] if offline else [])
        try:
            result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            why = _how_it_ended(code) if code is not None else f"is not done after {seconds:g} s"
            raise AbruptError(why + (f"; it printed last: {printed}" if printed else "")) from None
    if "raised" in result:
        raise AbruptError(plain(result["raised"]))
    if "refused" in result:
        raise OwnCodeError(plain(result["refused"]))
    return result["value"]


def _run(folder: Path, seconds: float, words: Sequence[str]) -> tuple[int | None, str]:
    """Runs a child to its end; its exit code, None where it had to be killed, and the last line that it printed."""
    child = subprocess.Popen(
        # without warnings, which the process that the user watches prints again: what the child printed last is the code's own word
        [sys.executable, "-W", "ignore", "-c", START, str(folder), json.dumps(sys.path), *words],
        stdin=subprocess.PIPE,  # its end is this process's end
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        start_new_session=True,  # Ctrl-C is for this process, which then ends the child
    )
    tail = bytearray()
    reader = Thread(target=_keep_tail, args=(child, tail), daemon=True)
    reader.start()
    try:
        code: int | None = child.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        assert child.stdin is not None
        child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
        with suppress(ProcessLookupError, PermissionError):  # what is left where the code has ended its supervisor
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        reader.join(1.0)  # not longer: a process that left the group may hold the other end
    lines = [line for line in bytes(tail).decode(errors="replace").splitlines() if line.strip()]
    return code, shortened(lines[-1].strip()) if lines else ""


def _keep_tail(child: subprocess.Popen[bytes], tail: bytearray) -> None:
    assert child.stdout is not None
    with suppress(OSError, ValueError):
        while chunk := os.read(child.stdout.fileno(), 65_536):
            tail += chunk
            del tail[:-TAIL]


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ends its process with exit code {code}, as os._exit({code}) does"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if -code == signal.SIGKILL:
        return f"is killed by {name}, as the system does where memory runs out"
    return f"crashes its process ({name})"


def main(folder: str, known: Mapping[str, Any]) -> None:
    """Carry out an order in the child process, with the arguments in it and those that are ``known`` here, and end the child."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a command in the background may have ignored
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_VICTIM, encoding="ascii")
    order = json.loads((Path(folder) / ORDER).read_text(encoding="utf-8"))
    sys.argv[:] = order["argv"]  # as the code will find it in the process that the user watches
    try:
        module, _, function = order["work"].partition(":")
        text = json.dumps({"value": getattr(import_module(module), function)(**order["arguments"], **known)})
    except BaseException as error:  # KeyboardInterrupt and SystemExit too: only the code raises them here
        text = json.dumps(_described(error))
    part = Path(folder) / f"{RESULT}.{os.getpid()}"
    part.write_text(text, encoding="utf-8")
    part.replace(Path(folder) / RESULT)
    os._exit(0)  # without what the code would do at the end of its process


def _described(error: BaseException) -> dict[str, str]:
    try:
        text = str(error)[:LONGEST]
    except Exception:  # of a class that cannot say what it is
        text = ""
    if text and isinstance(error, ValueError):
        return {"refused": text}
    return {"raised": f"raises {type(error).__name__}: {text}".rstrip(": ")}
