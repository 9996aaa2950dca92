"""VFE of protected images (Figures 2 and 3 of Li et al. 2024), of the defences of a configuration.

The mean over windows of 8 x 8 pixels, images and seeds, with its interval over seeds. In theory the windows of w pixels, once
shuffled, have 4 sigma^2 w (w - 1) each in expectation, and noise of standard deviation s adds 4 s^2 w (w - 1) before values are
cut to [0, 1].

    python benchmarks/mixer/vm_vfe.py simulations/configs/vm_windows.toml --images 500 --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tomllib
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for a script of the folder above

from audit_tables import table

from clients.data.datasets import load_dataset, to_float
from defenses.base import Batch
from defenses.images.vfe import vfe_image
from defenses.random_draws import generator_for
from defenses.spec import parse_pipelines, read_files
from simulations.report.studies.score import interval

WINDOW = 8


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--norm", choices=("window", "eq3"), default="window", help="of VFE: mean over windows, or Eq. 3 as printed"
    )
    chosen = parser.parse_args()
    settings = tomllib.loads(chosen.config.read_text())
    data = load_dataset(settings["dataset"], data_dir=settings.get("data-dir", "")).train
    lines = []
    for pipeline in parse_pipelines(read_files(settings["defenses"])):
        means = []
        for seed in chosen.seeds:
            order = torch.randperm(len(data), generator=generator_for("vfe", seed))[: chosen.images]
            images = to_float(data.images[order])
            key = ("vfe", seed)
            batch = pipeline.protect_once(Batch(images, torch.ones(len(images), 1)), key)
            images = pipeline.protect_batch(batch, key).images
            means.append(float(vfe_image(images, WINDOW, chosen.norm).mean()))
        low, high = interval(means)
        ends = f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else ""
        lines.append([f"`{pipeline}`" if pipeline.defenses else "none", f"{statistics.fmean(means):.2f}{ends}"])
    print(f"{settings['dataset']}, {chosen.images} images for each of the seeds {chosen.seeds}\n")
    print(table(["defence", "VFE (95 % interval over seeds)"], lines))


if __name__ == "__main__":
    main()
