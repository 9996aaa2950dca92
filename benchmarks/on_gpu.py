"""Whole audits and the inversion engine on a graphics card, each beside the processor of the same machine, in ten minutes.

Audits need Flower; they run in one process, so that neither Ray nor its start is measured. What is not installed is named, and the
rest is measured. A part that the time is too short for is named as well. The table of the engine is that of
``benchmarks/inversion/engine_on_gpu.py``, whose goals are 20 times the processor at 64 targets and 6 times breaching; that of the
default audit is 60 seconds.

    python benchmarks/on_gpu.py --out on_gpu.md
    python benchmarks/on_gpu.py --processor-only --minutes 2 --parts quick
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, "-c", "from simulations.cli import app; app()")
ENGINE = (sys.executable, str(ROOT / "benchmarks" / "inversion" / "engine_on_gpu.py"))
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
"""Variables that leave the processor alone."""


@dataclass(frozen=True)
class Part:
    """A command that is timed on the card and on the processor."""

    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ("flwr",)
    rows: bool = True


PARTS = {
    "default audit": Part(("run", "--in-process")),
    "quick": Part(("run", "--preset", "quick", "--in-process")),
    "split": Part(("run", "--preset", "split", "--in-process", "-s", "rounds=2", "-s", "attack-rounds=final")),
    "search": Part(("search", "-s", "workers=1", "-s", "candidates=12"), rows=False),
}
HEAD = "| what | on the card, s | on the processor, s | ratio | of it attacks, s | computed on |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Timed:
    """A command's seconds, the seconds of its attacks, what computed them; or why there is no time."""

    seconds: float = 0.0
    attacks: float = 0.0
    computed_on: str = ""
    failure: str = ""

    def __str__(self) -> str:
        return self.failure or f"{self.seconds:.0f}"


def timed(part: Part, environment: Mapping[str, str], limit: float) -> Timed:
    """Runs a part in a new folder, with these variables over the environment, for ``limit`` seconds at most."""
    if missing := [name for name in part.needs if importlib.util.find_spec(name) is None]:
        return Timed(failure=f"not measured: {', '.join(missing)} is not installed")
    if limit <= 0:
        return Timed(failure="not measured: no time was left")
    with tempfile.TemporaryDirectory() as folder:
        out, start = Path(folder) / "out", time.perf_counter()
        try:
            done = subprocess.run(
                [*COMMAND, *part.arguments, "--out", str(out)], env={**os.environ, **environment}, cwd=ROOT,
                capture_output=True, text=True, timeout=limit, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Timed(failure=f"longer than {limit:.0f} s")
        seconds = time.perf_counter() - start
        if done.returncode not in (0, 3):
            return Timed(failure=f"failed: {(done.stderr.strip() or done.stdout.strip())[-200:]}")
        lines = (out / "rows.jsonl").read_text(encoding="utf-8").splitlines() if part.rows else []
    rows = [row for row in map(json.loads, lines) if row["metric"] == "attack-seconds"]
    names = sorted({row["computed_on"] for row in rows})
    return Timed(seconds, sum(row["value"] for row in rows), ", ".join(names))


def line(name: str, card: Timed, processor: Timed) -> str:
    """A line of the table."""
    ratio = f"{processor.seconds / card.seconds:.1f}" if card.seconds and processor.seconds else "-"
    attacks = f"{card.attacks:.0f} / {processor.attacks:.0f}" if card.attacks or processor.attacks else "-"
    return (
        f"| {name} | {card} | {processor} | {ratio} | {attacks} | {card.computed_on or processor.computed_on or '-'} |"
    )


def engine(targets: Sequence[int], cases: Sequence[str], limit: float, *, processor_only: bool) -> str:
    """The table of the engine, as far as it came within ``limit`` seconds."""
    device = "cpu" if processor_only else "cuda"
    chosen = ["--device", device, "--no-tests", "--cases", *cases, "--targets", *map(str, targets)]
    if limit <= 0:
        return "Engine: not measured, no time was left."
    with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
        process = subprocess.Popen([*ENGINE, *chosen], cwd=ROOT, stdout=printed, stderr=subprocess.STDOUT)
        try:
            process.wait(limit)
            end = "" if process.returncode == 0 else f"\n\nIt ended with exit code {process.returncode}."
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            end = f"\n\nEnded after {limit:.0f} s."
        printed.seek(0)
        return printed.read().strip() + end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="for everything; half of it is kept for the engine")
    parser.add_argument("--parts", nargs="*", default=["default audit", "split", "search"], choices=list(PARTS))
    parser.add_argument("--cases", nargs="*", default=["lenet", "resnet20", "convnet"], help="of the engine")
    parser.add_argument("--targets", nargs="*", type=int, default=[1, 16, 64, 256], help="of the engine")
    parser.add_argument("--processor-only", action="store_true", help="for a machine without a card")
    parser.add_argument("--out", type=Path, help="Markdown file for the same")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    import torch

    if not options.processor_only and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --processor-only runs the same on the processor")
    about = "no card" if options.processor_only else torch.cuda.get_device_name()
    text = [f"{about}; {os.cpu_count()} cores; torch {torch.__version__}. Whole commands, one run each:", "", HEAD]
    print("\n".join(text), flush=True)
    kept = 30 * options.minutes if options.cases else 0.0
    for name in options.parts:

        def left() -> float:
            return end - time.monotonic() - kept

        card = Timed(failure="no card") if options.processor_only else timed(PARTS[name], {}, left())
        text.append(line(name, card, timed(PARTS[name], HIDDEN, left())))
        print(text[-1], flush=True)
    if options.cases:
        text += [
            "",
            engine(options.targets, options.cases, end - time.monotonic(), processor_only=options.processor_only),
        ]
        print("\n" + text[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
