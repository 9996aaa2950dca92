"""Whether two trees of fedveil do the same: every attack, every defence, every scenario, every command, at small sizes.

    git clone . /tmp/before && git -C /tmp/before checkout COMMIT
    python benchmarks/same_rows.py /tmp/before

Both trees do the same work side by side, in minutes. Compared are, up to rounding (1e-12) and without times:

- **rows** of each run of ``RUNS``, with their threat cards, which may say more than before;
- **cells with numbers** in the tables of each run's page, and ``rows.csv``;
- what ``--json`` prints of ``run``, ``attack``, ``compare`` and ``check-app``, names that ``list`` prints, and files that
  ``search`` writes;
- a run that was killed after its first round and resumed, and a run through Flower and Ray, beside the same run undisturbed.

A registered attack or defence that no row names is named at the end. Exits with 1 where anything is missing or different.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from attacks.spec import ATTACKS
from clients.models.classifiers import build_model
from defenses.base import DEFENSES
from simulations.run_folder.rows import Row
from tests.clients.data.table_files import write_census

ROOT = Path(__file__).resolve().parents[1]
SHOWN = 5
"""Differences that are printed of each piece of work."""
SPENT = re.compile(r"^[\d.]+ s(?=\S)")
"""The time at the beginning of a cell, in front of what was done in it."""
UNTIMED = re.compile(r"\bseconds?\b|\bs$|directory|page|folder|version|\.time", re.IGNORECASE)
"""Names, and cells, of what differs between two runs of one tree."""


def quick(*names: str, **changes: Any) -> str:
    """Attacks or defences at the size of a second, as their classes have it in ``quick``; what this tree lacks is left out."""
    known = {**ATTACKS, **DEFENSES}
    return "; ".join(
        repr(replace(known[name](), **{**getattr(known[name], "profile", known[name]).quick, **changes}))
        for name in names
        if name in known
    )


def chains(start: str, *names: str) -> str:
    """Refinements, each of them behind the first attack."""
    return "; ".join(f"{start} | {quick(name)}" for name in names if name in ATTACKS)


SHORT = "InvertingGradients(iterations=20)"
COMMON = {
    "dataset": "mnist-5k", "train-limit": 240, "test-limit": 60, "rounds": 1, "local-epochs": 1, "attack-workers": 0,
    "probe-targets": 1, "adaptive": "false", "attack-rounds": "first",
}  # fmt: skip
STEPS = {"batch-size": 16, "learning-rate": 0.01, "learning-rate-milestones": "", "momentum": 0.9}
LENET = STEPS | {"model": "lenet"}
MLP = STEPS | {"model": "mlp", "width": 32}
SPLIT = {
    "scenario": "split", "model": "vit", "width": 32, "depth": 2, "patch-size": 7, "batch-size": 16, "auxiliary-fraction": 0.3,
}  # fmt: skip
FACES = {"dataset": "photo-face", "train-limit": 0, "test-limit": 0, "image-size": 32, "auxiliary-fraction": 0.4}

RUNS: dict[str, dict[str, Any]] = {
    "gradients of single steps": LENET | {
        "defenses": "",
        "probe-attacks": quick(
            "DLG", "LBFGSL2", "AdamCosine", "AdamL1", "AdamL2", "InvertingGradients", "LBFGSCosine", "SGDCosine",
            "GradientInversion", "LabelInference",
        ),
        "update-attacks": quick("SurrogateMatching", "LabelInference"),
    },
    "protected updates": LENET | {
        "defenses": "GaussianNoise(std=0.01, per='step'); LaplaceNoise(scale=0.001); Pruning(); Soteria(); Precode(size=16); "
        "Clip(max_norm=1.0); DPSGD(noise_multiplier=1.0); ClientDP(noise_multiplier=1.0); "
        "FlowerLocalDP(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5); "
        "STAdam() | Clip(max_norm=2.0)",
        "probe-attacks": SHORT + "; " + quick(
            "NoiseModelInversion", "MaskedInversion", "OmittedLayerInversion", "BottleneckInversion", iterations=10,
        ),
        "update-attacks": "LossThreshold()",
    },
    "normalised by batches": LENET | {
        "model": "resnet20", "width": 4, "norm": "batch", "defenses": "SiloBN()", "probe-images": 2,
        "probe-attacks": quick("InvertingGradients", iterations=5), "update-attacks": "", "train-limit": 48, "test-limit": 20,
    },
    "protected images": LENET | {
        "defenses": "VisualMixer(window_lower=4, window_upper=16); ATS(policies='3-1-7+43-18-18'); InstaHide(num_mixed=2); "
        "Blur(); Downsample(factor=2); ImageNoise(std=0.1)",
        "probe-attacks": f"{SHORT}; " + chains(SHORT, "WindowMean", "Jigsaw", "LearnedRestorer"),
        "update-attacks": "LabelInference()",
    },
    "exact, active and sums": MLP | {
        "defenses": "GaussianNoise(std=0.01, per='step')", "probe-images": 4,
        "probe-attacks": quick("SpearPlusPlus", "CocktailParty", "HeadInversion"), "update-attacks": "",
        "active-attacks": quick("ImprintLayer", "TrapWeights", "ClassFishing"),
        "aggregate-clients": "1,2", "aggregate-attacks": SHORT, "adaptive": "true",
    },
    "updates of a transformer": STEPS | {
        "model": "vit_lite", "defenses": "",
        "probe-attacks": quick("PatchEmbeddingInversion"), "update-attacks": "",
    },
    "members": MLP | {
        "defenses": "GaussianNoise(std=0.05, per='update')", "rounds": 3, "attack-rounds": "all", "probe-attacks": "",
        "auxiliary-fraction": 0.34, "train-limit": 360,
        "update-attacks": quick(
            "LossThreshold", "ShadowModels", "LiRA", "RMIA", "GradientAlignment", "ClassGAN",
        ),
    },
    "claims under canaries": MLP | {
        "defenses": "DPSGD(target_epsilon=8.0); ClientDP(target_epsilon=8.0, rounds=2)", "rounds": 2, "dp-canaries": 8,
        "probe-attacks": "", "update-attacks": "LossThreshold()", "attack-rounds": "final", "batch-size": 64,
    },
    "split": SPLIT | {
        "train-edge": "true", "adaptive": "true",
        "defenses": "PatchShuffle(); BatchShuffle(k=0.4); SpectralShuffle(); FeatureNoise(std=0.5); Downsample(factor=4)",
        "smashed-attacks": quick(
            "TokenDecoder", "FeatureInversion", "TokenJigsaw", "AdaptiveDecoder", "ServerPrediction", "HermitianPairing",
            "EdgeUpdateInversion", "TokenPuzzle", "Pix2Pix",
        ) + "; FeatureInversion(iterations=12, permutation='oracle')",
    },
    "split, several rounds": SPLIT | {
        "defenses": "BatchShuffle(k=0.4); AdversarialTraining(); FeatureDP(clip=20.0, noise_multiplier=0.5)", "rounds": 2,
        "attack-rounds": "1,2,final", "probe-images": 4,
        "smashed-attacks": quick("TokenIntersection", "FeatureAveraging", "TokenDecoder"),
    },
    "split, tables": {
        "scenario": "split", "dataset": "census", "data-dir": "{census}", "train-limit": 0, "auxiliary-fraction": 0.3,
        "defenses": "PatchShuffle(); FeatureNoise(std=0.38)", "smashed-attacks": quick("EmbeddingReversal", "FieldReading"),
    },
    "outsourced": LENET | {
        "scenario": "outsourced", "auxiliary-fraction": 0.3, "upload-passes": 2, "probe-images": 2, "attack-rounds": "first,final",
        "defenses": "VisualMixer(window_lower=4, window_upper=16) | STAdam(); InstaHide(num_mixed=2); "
        "ATS(policies='3-1-7+43-18-18')",
        "upload-attacks": "AsUploaded(); " + chains(
            "AsUploaded()", "WindowMean", "Shredder", "Jigsaw", "LearnedRestorer", "PolicyInversion"
        ) + "; " + quick("PassAveraging", "JointEncodingInversion"),
        "model-attacks": quick("LossThreshold", "ClassGAN"),
    },
    "inference": FACES | {
        "scenario": "inference", "model": "vgg_small", "cuts": "conv2", "attack-rounds": "final", "offline-iterations": 20,
        "defenses": "FeatureNoise(std=1.0); DeltaAutoencoder(epochs=1); FeaturePCA(components=8)",
        "query-attacks": quick("QueryInversion", "BackwardReconstruction", "InverseNetwork"),
        "attribute-attacks": quick("AttributeInference") + "; " + quick("AttributeInference", training="static"),
    },
}  # fmt: skip
DISTURBED = LENET | {
    "rounds": 2, "defenses": "GaussianNoise(std=0.01, per='step')", "probe-attacks": SHORT, "update-attacks": "LossThreshold()",
    "attack-rounds": "all",
}  # fmt: skip
"""What is run undisturbed, through Flower, and killed and resumed."""
SEARCHED = ("dataset=mnist-5k", "learning-rate=0.01", "semi-share=0.004", "candidates=12", "images=4", "semi-epochs=1",
            "model=lenet", "workers=1")  # fmt: skip


class Tree:
    """A checkout, and what its command does there."""

    def __init__(self, place: Path) -> None:
        self.place = place.resolve()

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Begins ``fedveil WORDS``, in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-c", "from simulations.cli import main; main()", *words],
            cwd=self.place, env={**os.environ, "PYTHONPATH": str(self.place), "OMP_NUM_THREADS": "1"}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def fedveil(self, *words: str, allowed: tuple[int, ...] = (0,)) -> str:
        """What ``fedveil WORDS`` prints; ``RuntimeError`` where it ends otherwise than allowed."""
        process = self.start(*words)
        printed, said = process.communicate()
        if process.returncode not in allowed:
            raise RuntimeError(f"fedveil {words[0]} ends with {process.returncode}: {(said or printed)[-1500:]}")
        return printed

    def registered(self) -> set[str]:
        """Names of its attacks and defences."""
        code = "import attacks, defenses; print(*attacks.ATTACKS, *defenses.DEFENSES)"
        done = subprocess.run([sys.executable, "-c", code], cwd=self.place, capture_output=True, text=True, check=True,
                              env={**os.environ, "PYTHONPATH": str(self.place)})  # fmt: skip
        return set(done.stdout.split())


Found = dict[str, Any]
"""Name -> rows, cells, or decoded JSON, of one piece of work in one tree."""
Work = Callable[[Tree, Path], Found]


def words_of(settings: dict[str, Any], shared: Path) -> list[str]:
    """Settings on a command line."""
    told = {key: str(value).replace("{census}", str(shared / "census")) for key, value in (COMMON | settings).items()}
    return [word for key, value in told.items() for word in ("-s", f"{key}={value}")]


def run(settings: dict[str, Any], *options: str) -> Work:
    """One run, with its page and CSV."""

    def work(tree: Tree, folder: Path) -> Found:
        command = ("run", "--clients", "2", *words_of(settings, folder.parent), "--out", str(folder / "run"), *options)
        printed = tree.fedveil(*command, "--json", allowed=(0, 3))
        return {"--json": json.loads(printed)} | results_in(folder / "run")

    return work


def killed(settings: dict[str, Any]) -> Work:
    """The run, killed when it has written a row, and resumed."""

    def work(tree: Tree, folder: Path) -> Found:
        rows = folder / "run" / "rows.jsonl"
        process = tree.start(
            "run", "--in-process", "--clients", "2", *words_of(settings, folder.parent), "--out", str(rows.parent)
        )
        while process.poll() is None and not (rows.exists() and re.search(rb'"round": ?1', rows.read_bytes())):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            raise RuntimeError("the run ended before it could be killed")
        tree.fedveil("run", "--in-process", "--resume", str(rows.parent))
        return results_in(rows.parent)

    return work


def results_in(folder: Path) -> Found:
    """Rows, cells of the page and the CSV of a finished run."""
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    # As this tree reads them: an entry that says nothing may be left out or written as null.
    rows = [json.loads(Row.from_json(json.loads(line)).line) for line in lines]
    with (folder / "rows.csv").open(encoding="utf-8", newline="") as file:
        table = [{key: value for key, value in row.items() if not UNTIMED.search(key)} for row in csv.DictReader(file)]
    page = Cells()
    page.feed((folder / "report.html").read_text(encoding="utf-8").replace(str(folder), "FOLDER"))
    return {
        "rows": [{**row, "seconds": None, "computed_on": ""} for row in rows if "second" not in row["metric"]],
        "rows.csv": [row for row in table if "second" not in row.get("metric", "")],
        "page": Counter(
            text
            for cell in page.cells
            if re.search(r"\d", text := SPENT.sub("", " ".join(cell.split()))) and not UNTIMED.search(text)
        ),
    }


class Cells(HTMLParser):
    """Texts of a page's table cells, without those of columns and rows that are named for a time."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self._row: list[str] = []
        self._heads: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:  # noqa: D102
        if tag == "tr":
            self._row = []
        elif tag in ("td", "th"):
            self._row.append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:  # noqa: D102
        if tag == "table":
            self._heads = []
        elif tag == "tr" and not any(re.search(r"\d", cell) for cell in self._row):
            self._heads = self._row
        elif tag == "tr" and not UNTIMED.search(self._row[0]):
            heads = self._heads if len(self._heads) == len(self._row) else self._row
            self.cells += [cell for cell, head in zip(self._row, heads, strict=True) if not UNTIMED.search(head)]
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:  # noqa: D102
        if self._inside:
            self._row[-1] += data


def attack(tree: Tree, folder: Path) -> Found:
    """One step of LeNet on a picture, attacked as a file."""
    generator = torch.Generator().manual_seed(0)
    image, label = torch.rand(1, 1, 28, 28, generator=generator), torch.tensor([3])
    model = build_model("lenet", num_classes=10, input_shape=(1, 28, 28), width=0, norm="group", seed=0)
    torch.nn.functional.cross_entropy(model(image), label).backward()
    save_file(
        {name: -0.1 * one.grad for name, one in model.named_parameters() if one.grad is not None}, folder / "update"
    )
    save_file(dict(model.state_dict()), folder / "weights")
    save_file({"images": image, "labels": label}, folder / "truth")
    settings = {
        "model": "lenet", "num-classes": 10, "input-shape": "1,28,28", "learning-rate": 0.1, "weights": folder / "weights",
        "originals": folder / "truth", "update-attacks": f"{SHORT}; LabelInference()",
    }  # fmt: skip
    words = [word for key, value in settings.items() for word in ("-s", f"{key}={value}")]
    if "KEY=VALUE" not in tree.fedveil("attack", "--help"):  # a tree in which settings were options
        older = {"originals": "truth", "update-attacks": "attack"}
        words = [word for key, value in settings.items() for word in (f"--{older.get(key, key)}", str(value))]
    printed = tree.fedveil("attack", str(folder / "update"), *words, "--out", str(folder / "out"), "--json")
    return {"--json": json.loads(printed)}


def search(tree: Tree, folder: Path) -> Found:
    """A small search of policies."""
    tree.fedveil("search", *(word for one in SEARCHED for word in ("-s", one)), "--out", str(folder / "search"))
    return {"policies": json.loads((folder / "search" / "policies.json").read_text(encoding="utf-8"))}


def check_app(name: str) -> Work:
    """What an audit says beforehand of an app."""
    return lambda tree, _: {
        "--json": json.loads(tree.fedveil("check-app", str(ROOT / "examples" / name), "--json", allowed=(0, 2)))
    }


def compared(settings: dict[str, Any]) -> Work:
    """Two runs of different seeds side by side."""

    def work(tree: Tree, folder: Path) -> Found:
        for seed in (0, 1):
            tree.fedveil("run", "--in-process", "--clients", "2", *words_of(settings | {"seed": seed}, folder.parent),
                         "--out", str(folder / str(seed)))  # fmt: skip
        return {"--json": json.loads(tree.fedveil("compare", str(folder / "0"), str(folder / "1"), "--json"))}

    return work


def listed(tree: Tree, _: Path) -> Found:
    """Names that ``list`` prints: lines without an indent, up to a bracket."""
    printed = tree.fedveil("list").splitlines()
    return {"names": sorted({line.split("(")[0].split()[0] for line in printed if line and not line[0].isspace()})}


WORKS: dict[str, Work] = {
    **{name: run(settings, "--in-process") for name, settings in RUNS.items()},
    "undisturbed": run(DISTURBED, "--in-process"), "through Flower": run(DISTURBED), "killed": killed(DISTURBED),
    "compare": compared(DISTURBED | {"rounds": 1}), "attack": attack, "search": search, "list": listed,
    **{f"check-app {name}": check_app(name) for name in ("quickstart_pytorch", "local_dp_pytorch", "resnet_pytorch")},
}  # fmt: skip


def same_or(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """What of ``old`` is missing or other in ``new``, in words; what ``new`` has besides does not count. Times are left out."""
    if UNTIMED.search(place.rsplit(".", 1)[-1]):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            yield from same_or(value, new.get(key, "missing"), f"{place}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, pair in enumerate(zip(old, new, strict=True)):
            yield from same_or(*pair, f"{place}.{at}")
    elif not alike(old, new):
        yield f"{place.lstrip('.')} {shortened(old)} -> {shortened(new)}"


def shortened(value: Any) -> str:
    """A value, cut for a line."""
    text = repr(value)
    return text if len(text) < 150 else f"{text[:150]}..."


def alike(old: Any, new: Any) -> bool:
    """Whether two entries are the same, but for the last bits of a number: sums may be taken in another order."""
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=1e-12, abs_tol=1e-15) or (math.isnan(old) and math.isnan(new))
    return bool(old == new)


def name_of(row: dict[str, Any]) -> str:
    """What a row is about."""
    parts = (
        row["defense"] or "none", row.get("role"), row["attack"], f"round {row['round']}", row["metric"], row["reference"],
        row["card"].get("observation"), row.get("client"), row.get("message"),
    )  # fmt: skip
    return " | ".join(str(part) for part in parts if part not in ("", None))


def by_name(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Name -> its rows, in order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(name_of(row), []).append(row)
    return found


def differences(before: Found, after: Found) -> list[str]:
    """What of a piece of work is missing or other after, in words."""
    odd: list[str] = []
    for kind, old in before.items():
        new = after.get(kind)
        if kind == "rows":
            odd += same_or(by_name(old), by_name(new or []), "rows")
        elif isinstance(old, Counter):
            odd += [
                f"{kind}: {number} stands there {count} times less"
                for number, count in (old - (new or Counter())).items()
            ]
        else:
            odd += same_or(old, new, kind)
    return odd


def side_by_side(work: Work, trees: list[Tree], shared: Path, name: str) -> list[tuple[Found | Exception, float]]:
    """What the same work of both trees gives, at the same time, and its seconds."""

    def one(at: int) -> tuple[Found | Exception, float]:
        folder, begin = shared / f"{re.sub('[^a-z]', '_', name)}_{at}", time.monotonic()
        folder.mkdir()
        try:
            return work(trees[at], folder), time.monotonic() - begin
        except Exception as error:
            return error, time.monotonic() - begin

    with ThreadPoolExecutor(len(trees)) as pool:
        return list(pool.map(one, range(len(trees))))


def main() -> None:
    """Runs, compares, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="checkout of the other tree")
    parser.add_argument(
        "--only", default="", metavar="NAME,NAME", help="pieces of work whose names contain one of these"
    )
    parser.add_argument("--all", action="store_true", help="print every difference")
    chosen = parser.parse_args()
    trees, found, different = [Tree(chosen.before), Tree(ROOT)], {}, 0
    wanted = [name for name in WORKS if any(part in name for part in chosen.only.split(","))]
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "census").mkdir()
        write_census(Path(place) / "census")
        for name in wanted:
            (before, old), (after, new) = side_by_side(WORKS[name], trees, Path(place), name)
            if isinstance(before, Exception) or isinstance(after, Exception):
                odd = [
                    f"{which}: {one}"
                    for which, one in (("before", before), ("after", after))
                    if isinstance(one, Exception)
                ]
            else:
                odd, found[name] = differences(before, after), after
            different += len(odd)
            print(f"{name}: {len(odd)} differences; {old:.0f} s before, {new:.0f} s after", flush=True)
            for words in odd if chosen.all else odd[:SHOWN]:
                print(f"  {words}", flush=True)
    if same := found.get("undisturbed"):
        for name in {"through Flower", "killed"} & found.keys():
            odd = differences({"rows": same["rows"]}, {"rows": found[name]["rows"]})
            different += len(odd)
            print(f"{name} against undisturbed: {len(odd)} differences")
            print("".join(f"  {words}\n" for words in odd[:SHOWN]), end="")
    known, ours = trees[0].registered(), trees[1].registered()
    named = " ".join(f"{row['defense']} {row['attack']}" for one in found.values() for row in one.get("rows", []))
    print("gone:", ", ".join(sorted(known - ours)) or "nothing")
    if not chosen.only:
        left = sorted(name for name in known & ours if not re.search(rf"\b{name}\(", named))
        different += len(left)
        print("no row names:", ", ".join(left) or "nothing is left out")
    raise SystemExit(bool(different))


if __name__ == "__main__":
    main()
