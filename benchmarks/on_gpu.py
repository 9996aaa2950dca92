"""Whole audits and the inversion engine on a graphics card, each beside the processor of the same machine, in ten minutes.

Audits need Flower; they run in one process, so that neither Ray nor its start is measured. What is not installed is named, and the
rest is measured. A part that the time is too short for is named as well. The table of the engine is that of
``benchmarks/inversion/attack_speed.py``; its goals on a card are 20 times the processor at 64 targets and 6 times breaching, and
that of the default audit is 60 seconds.

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, "-c", "from simulations.cli import app; app()")
ENGINE = (sys.executable, str(ROOT / "benchmarks" / "inversion" / "attack_speed.py"))
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
"""Variables that leave the processor alone."""


PARTS = {
    "default audit": ("run", "--preset", "quickstart", "--in-process"),
    "quick": ("run", "--preset", "quick", "--in-process"),
    "split": ("run", "--preset", "split", "--in-process", "-s", "rounds=2", "-s", "attack-rounds=final"),
    "search": ("search", "-s", "workers=1", "-s", "candidates=12"),
}
"""Commands that are timed on the card and on the processor."""
HEAD = "| what | on the card, s | on the processor, s | ratio | of it attacks, s | computed on |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Timed:
    """A command's seconds, the seconds of its attacks and their device; or why there is no time."""

    seconds: float = 0.0
    attacks: float = 0.0
    computed_on: str = ""
    failure: str = ""

    def __str__(self) -> str:
        return self.failure or f"{self.seconds:.0f}"


def timed(part: tuple[str, ...], environment: Mapping[str, str], limit: float) -> Timed:
    """Run a command in a new folder, with these variables over the environment, for ``limit`` seconds at most."""
    if importlib.util.find_spec("flwr") is None:
        return Timed(failure="not measured: flwr is not installed")
    if limit <= 0:
        return Timed(failure="not measured: no time was left")
    with tempfile.TemporaryDirectory() as folder:
        out, start = Path(folder) / "out", time.perf_counter()
        try:
            done = subprocess.run(
                [*COMMAND, *part, "--out", str(out)], env={**os.environ, **environment}, cwd=ROOT, capture_output=True,
                text=True, timeout=limit, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Timed(failure=f"longer than {limit:.0f} s")
        seconds, path = time.perf_counter() - start, out / "rows.jsonl"
        if done.returncode not in (0, 3):
            return Timed(failure=f"failed: {(done.stderr.strip() or done.stdout.strip())[-200:]}")
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = [row for row in map(json.loads, lines) if row["metric"] == "attack-seconds"]
    return Timed(seconds, sum(row["value"] for row in rows), ", ".join(sorted({row["computed_on"] for row in rows})))


def line(name: str, card: Timed, processor: Timed) -> str:
    """A line of the table."""
    ratio = f"{processor.seconds / card.seconds:.1f}" if card.seconds and processor.seconds else "-"
    attacks = f"{card.attacks:.0f} / {processor.attacks:.0f}" if card.attacks or processor.attacks else "-"
    return (
        f"| {name} | {card} | {processor} | {ratio} | {attacks} | {card.computed_on or processor.computed_on or '-'} |"
    )


def engine(options: argparse.Namespace, limit: float) -> str:
    """The table of the engine, as far as it came within ``limit`` seconds."""
    chosen = ["--device", "cpu" if options.processor_only else "cuda", "--repeats", "1", "--cases", *options.cases]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
        command = [*ENGINE, *chosen, "--targets", *map(str, options.targets)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=printed, stderr=subprocess.STDOUT)
        try:
            end = f"\n\nExit code {process.wait(max(limit, 0.0))}."
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
        text += ["", engine(options, end - time.monotonic())]
        print("\n" + text[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
