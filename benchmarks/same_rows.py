"""Whether two trees of fedveil measure the same: one small federated and one small split run of each, with the same seed.

    git clone . /tmp/before && git -C /tmp/before checkout COMMIT
    python benchmarks/same_rows.py /tmp/before

Every row must be there twice, times aside. Prints the first differences and exits with 1 where there are any.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMON = (
    "dataset=mnist-5k", "train-limit=240", "test-limit=60", "rounds=2", "local-epochs=1", "attack-workers=0",
    "probe-targets=2", "adaptive=false", "learning-rate-milestones=",
)  # fmt: skip
RUNS = {
    "federated": (
        "model=lenet",
        "defenses=VisualMixer(window_lower=4, window_upper=16); GaussianNoise(std=0.01); DPSGD(noise_multiplier=1.0)",
        "probe-attacks=InvertingGradients(iterations=20); InvertingGradients(iterations=20) | WindowMean(); LabelInference()",
    ),
    "split": (
        "scenario=split", "model=vit", "width=32", "depth=2", "patch-size=7", "train-edge=true", "batch-size=16",
        "defenses=PatchShuffle(); FeatureNoise(std=0.5)",
        "smashed-attacks=TokenDecoder(iterations=20); FeatureInversion(iterations=20)",
    ),
}  # fmt: skip


def rows_of(tree: Path, settings: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of one run of a tree, without times."""
    with tempfile.TemporaryDirectory() as folder:
        changes = [word for setting in (*COMMON, *settings) for word in ("-s", setting)]
        command = [sys.executable, "-c", "from simulations.cli import main; main()", "run", "--clients", "2", *changes]
        subprocess.run(
            [*command, "--out", f"{folder}/run"],
            check=True, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        lines = Path(folder, "run", "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{**row, "seconds": None} for row in rows if "second" not in row["metric"]]


def name_of(row: dict[str, Any]) -> str:
    """What a row is about."""
    parts = (row["defense"] or "none", row["attack"], f"round {row['round']}", row["metric"], row["reference"])
    return " | ".join(str(part) for part in parts if part)


def main() -> None:
    """Runs, compares, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="checkout of the other tree")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    different = False
    for name, settings in RUNS.items():
        before, after = (rows_of(tree, (*settings, f"seed={chosen.seed}")) for tree in (chosen.before.resolve(), ROOT))
        odd = [(old, new) for old, new in zip(before, after, strict=False) if old != new]
        different |= bool(odd) or len(before) != len(after)
        print(f"{name}: {len(before)} rows before, {len(after)} after, {len(odd)} different")
        for old, new in odd[:5]:
            keys = [key for key in {*old, *new} if old.get(key) != new.get(key)]
            print(f"  {name_of(old)}: " + "; ".join(f"{key} {old.get(key)!r} -> {new.get(key)!r}" for key in keys))
    raise SystemExit(different)


if __name__ == "__main__":
    main()
