"""How long the command takes to answer what needs no work, over `import torch` in the same run.

    uv run python benchmarks/start_up.py            # the table
    uv run python benchmarks/start_up.py --check    # and an exit code: 1 where an answer takes more than its bound

Each command is run in turn with the reference, several times; told are medians of the processor seconds of each process (user and
system, which other work on the machine hardly changes) and their ratio. `list` reads what it printed before; the last line
says what the first one after a change of the code takes, which imports torch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

FEDVEIL = [str(Path(sys.executable).parent / "fedveil")]
REFERENCE = [sys.executable, "-c", "import torch"]
REFUSED = 2


def seconds(command: Sequence[str], code: int, env: Mapping[str, str]) -> float:
    """Processor seconds of a command, which must end with that code."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != code:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}, not {code}")
    return usage.ru_utime + usage.ru_stime


def commands(folder: Path) -> dict[str, tuple[list[str], int, float]]:
    """Name -> arguments, exit code, and what the ratio must stay below."""
    found: dict[str, tuple[list[str], int, float]] = {
        "--help": (["--help"], 0, 0.5),
        "--version": (["--version"], 0, 0.5),
        "run --help": (["run", "--help"], 0, 0.5),
        "refused: unknown key": (["run", "-s", "ronds=3"], REFUSED, 0.5),
        "refused: unknown scenario": (["run", "-s", "scenario=splitt"], REFUSED, 0.5),
    }
    own = {
        "federated": "fraction-train=0",
        "inference": "query-batches=0",
        "outsourced": "upload-passes=0",
        "split": "depth=0",
    }
    for scenario, setting in own.items():
        key, _, value = setting.partition("=")
        file = folder / f"{scenario}.toml"
        file.write_text(f'scenario = "{scenario}"\n{key} = {value}\n')
        found[f"refused: {scenario}, -s {setting}"] = (
            ["run", "-s", f"scenario={scenario}", "-s", setting],
            REFUSED,
            0.5,
        )
        found[f"refused: {scenario}, the same in TOML"] = (["run", str(file)], REFUSED, 0.5)
    return found | {"list": (["list"], 0, 1.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    slow = []
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "XDG_CACHE_HOME": folder}
        first = seconds([*FEDVEIL, "list"], 0, env)
        torch = [seconds(REFERENCE, 0, env)]
        print(f"{'command':<46} {'seconds':>8} {'torch':>8} {'ratio':>6}  bound")
        for name, (arguments, code, bound) in commands(Path(folder)).items():
            ours, theirs = [], []
            for _ in range(options.repeats):
                theirs.append(seconds(REFERENCE, 0, env))
                ours.append(seconds([*FEDVEIL, *arguments], code, env))
            torch += theirs
            ratio = statistics.median(ours) / statistics.median(theirs)
            print(f"{name:<46} {statistics.median(ours):8.2f} {statistics.median(theirs):8.2f} {ratio:6.2f}  {bound}")
            if ratio > bound:
                slow.append(name)
        print(
            f"{'the first list, once':<46} {first:8.2f} {statistics.median(torch):8.2f} {first / statistics.median(torch):6.2f}"
        )
    if options.check and slow:
        sys.exit(f"slower than their bound: {'; '.join(slow)}")


if __name__ == "__main__":
    main()
