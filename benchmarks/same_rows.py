"""Whether two trees of fedveil measure the same: one small run of each scenario that both know, with the same seed.

    git clone . /tmp/before && git -C /tmp/before checkout COMMIT
    python benchmarks/same_rows.py /tmp/before

Every row of the tree before must be there in this one, times aside, with the same values up to rounding (1e-12), and with a threat
card that says the same and may say more. Rows and entries of cards that are new are counted. Prints the first differences, and
exits with 1 where there are any. The runs have two clients and no adaptive attacks, crops or resumes: what they do not use they do
not compare.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from attacks.metrics.costs import LOSSES
from attacks.metrics.names import Role
from simulations.run_folder.rows import Row

ROOT = Path(__file__).resolve().parents[1]
COMMON = (
    "dataset=mnist-5k", "train-limit=240", "test-limit=60", "rounds=2", "local-epochs=1", "attack-workers=0",
    "probe-targets=2", "adaptive=false",
)  # fmt: skip
RUNS = {
    "federated": (
        "model=lenet", "learning-rate-milestones=",
        "defenses=VisualMixer(window_lower=4, window_upper=16); GaussianNoise(std=0.01); DPSGD(noise_multiplier=1.0)",
        "probe-attacks=InvertingGradients(iterations=20); InvertingGradients(iterations=20) | WindowMean(); LabelInference()",
    ),
    "split": (
        "scenario=split", "model=vit", "width=32", "depth=2", "patch-size=7", "train-edge=true", "batch-size=16",
        "defenses=PatchShuffle(); FeatureNoise(std=0.5)",
        "smashed-attacks=TokenDecoder(iterations=20); FeatureInversion(iterations=20); "
        "FeatureInversion(iterations=20, permutation='oracle')",
    ),
    "outsourced": (
        "scenario=outsourced", "model=lenet", "learning-rate-milestones=",
        "defenses=VisualMixer(window_lower=4, window_upper=16); InstaHide(num_mixed=2)",
        "upload-attacks=AsUploaded(); AsUploaded() | WindowMean()",
    ),
    "inference": (
        "scenario=inference", "model=vgg_small", "cuts=conv2", "auxiliary-fraction=0.5", "attack-rounds=final",
        "defenses=FeatureNoise(std=1.0)", "query-attacks=QueryInversion(iterations=20)",
    ),
}  # fmt: skip

ROLES = {"baseline:painted:": Role.NULL_CONTROL, "baseline:": Role.NULL_BASELINE, "scale:": Role.SCALE}
"""What older trees wrote before the name of an attack -> the role."""
WORDS = {"not told the ": "not given the ", "told the ": "knows the ", '"labels_told"': '"labels_known"'}
"""What older trees wrote on cards -> what this one writes."""
OTHER_WORST = [one.name for one in LOSSES]
"""Of these metrics older trees wrote the highest value as the worst, where the lowest tells of the best guess."""

FIRST = ("federated", "split")
"""Scenarios that every tree knows, whatever its folders are called."""


def rows_of(tree: Path, settings: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of one run of a tree, without times."""
    with tempfile.TemporaryDirectory() as folder:
        changes = [word for setting in (*COMMON, *settings) for word in ("-s", setting)]
        command = [sys.executable, "-c", "from simulations.cli import main; main()", "run", "--clients", "2", *changes]
        subprocess.run(
            [*command, "--out", f"{folder}/run"],
            check=True, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        lines = Path(folder, "run", "rows.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    # Both as this tree reads them: an entry that says nothing may be left out or written as null.
    rows = [json.loads(Row.from_json(renamed(json.loads(in_words_of_now(line)))).to_json()) for line in lines]
    rows = [row | ({"worst": None} if row["metric"] in OTHER_WORST else {}) for row in rows]
    return [{**row, "seconds": None, "computed_on": ""} for row in rows if "second" not in row["metric"]]


def in_words_of_now(line: str) -> str:
    """A line of rows with what was renamed."""
    for old, new in WORDS.items():
        line = line.replace(old, new)
    return line


def renamed(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its role, which older trees wrote before the name of the attack, and its card, which they called the setting."""
    if "setting" in row:
        row["card"] = row.pop("setting")
    for prefix, role in ROLES.items():
        if row["attack"].startswith(prefix):
            return {**row, "attack": row["attack"].removeprefix(prefix), "role": role}
    return row


def name_of(row: dict[str, Any]) -> str:
    """What a row is about."""
    parts = (
        row["defense"] or "none", row["role"], row["attack"], f"round {row['round']}", row["metric"], row["reference"],
        row["card"].get("observation"), row.get("client"), row.get("message"),
    )  # fmt: skip
    return " | ".join(str(part) for part in parts if part not in ("", None))


def by_name(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Name -> its rows, in order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(name_of(row), []).append(row)
    return found


def alike(old: Any, new: Any) -> bool:
    """Whether two entries are the same, but for the last bits of a number: sums may be taken in another order."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(alike(*pair) for pair in zip(old, new, strict=True))
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=1e-12, abs_tol=1e-15)
    return bool(old == new)


def differences(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> tuple[list[str], Counter[str]]:
    """What of the rows before is missing or other after, in words; and how often anything is new."""
    odd, new = [], Counter[str]()
    ours, theirs = by_name(before), by_name(after)
    for name, rows in theirs.items():
        new[f"rows of {rows[0]['metric']}"] += max(len(rows) - len(ours.get(name, [])), 0)
    for name, rows in ours.items():
        for at, old in enumerate(rows):
            if at >= len(theirs.get(name, [])):
                odd.append(f"{name}: missing")
                continue
            row = theirs[name][at]
            new.update(f"{key} on cards" for key in row["card"].keys() - old["card"].keys())
            told = {**row, "card": {key: value for key, value in row["card"].items() if key in old["card"]}}
            if keys := [key for key in {*old, *told} if not alike(old.get(key), told.get(key))]:
                odd.append(f"{name}: " + "; ".join(f"{key} {old.get(key)!r} -> {told.get(key)!r}" for key in keys))
    return odd, +new


def main() -> None:
    """Runs, compares, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="checkout of the other tree")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    different = False
    for name, settings in RUNS.items():
        if not (chosen.before / "clients" / name).is_dir() and name not in FIRST:
            print(f"{name}: the other tree has no such scenario")
            continue
        before, after = (rows_of(tree, (*settings, f"seed={chosen.seed}")) for tree in (chosen.before.resolve(), ROOT))
        odd, new = differences(before, after)
        different |= bool(odd)
        print(f"{name}: {len(before)} rows before, {len(odd)} of them missing or different; {len(after)} after")
        for words in odd[:5]:
            print(f"  {words}")
        print("  new: " + (", ".join(f"{count} {what}" for what, count in sorted(new.items())) or "nothing"))
    raise SystemExit(different)


if __name__ == "__main__":
    main()
