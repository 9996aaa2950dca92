"""What updates of a partly trained vision transformer give away, of single images: labels, features of the head, pixels.

A small network (32 x 32 pixels, 16 patches, width 96, depth 2) at its initial weights, whose updates are those of one step on one
photograph. A line of JSON for each part, seed and attack:

    python benchmarks/inversion/fine_tuning.py --parts head,lora --seeds 0,1 --images 16

"lora" needs the package peft.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import torch
from fine_tuned_vit import with_trained_part
from paired_guesses import CANDIDATES
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.exact.head_inversion import HeadInversion
from attacks.exact.patch_embedding_inversion import PatchEmbeddingInversion
from attacks.gradient.labels import LabelInference
from attacks.gradient.presets import InvertingGradients
from attacks.image_measures import psnr
from attacks.observations import ClientUpdate, trained_parameters
from attacks.scoring.metrics import retrieved
from clients.data.datasets import load_dataset, to_float
from defenses.module_calls import calls_of

MEAN, STD, RATE, CLASSES = (0.5,) * 3, (0.25,) * 3, 0.1, 8
ATTACKS = {
    "labels": LabelInference(),
    "features": HeadInversion(),
    "matching": InvertingGradients(),
    "patches": PatchEmbeddingInversion(),
}


def network(part: str, seed: int) -> nn.Module:
    """The network with one part trained."""
    torch.manual_seed(seed)
    model = VisionTransformer(
        img_size=32, patch_size=8, num_classes=CLASSES, embed_dim=96, depth=2, num_heads=4, mlp_ratio=2.0
    )
    return with_trained_part(model, part)


def observed(model: nn.Module, image: Tensor, label: Tensor) -> ClientUpdate:
    """What the server sees of one step of SGD on one image (1, 3, 32, 32)."""
    weights = trained_parameters(model)
    loss = F.cross_entropy(model((image - MEAN[0]) / STD[0]), label)
    slopes = torch.autograd.grad(loss, list(weights.values()))
    # As weights in single precision have it.
    update = {
        name: (weight.detach() - RATE * slope) - weight.detach()
        for (name, weight), slope in zip(weights.items(), slopes, strict=True)
    }
    return ClientUpdate(model, update, (3, 32, 32), MEAN, STD, 1, 1, 1, RATE)


def feature_error(seen: ClientUpdate, image: Tensor) -> float:
    """Relative distance of the head's true input and the one that follows from its gradient."""
    gradient = seen.gradient()
    weight, bias = (
        next(value for name, value in gradient.items() if "head" in name and name.endswith(end))
        for end in ("weight", "bias")
    )
    heads = [one for one in seen.model.modules() if isinstance(one, nn.Linear) and one.out_features == CLASSES]
    with torch.no_grad(), calls_of(heads) as calls:
        seen.model((image - MEAN[0]) / STD[0])
    features = calls[0][1][0]
    row = int(bias.abs().argmax())
    return float((weight[row] / bias[row] - features).norm() / features.norm())


def rows(parts: list[str], seeds: list[int], count: int, attacks: list[str]) -> Iterator[dict[str, Any]]:
    """The results, one for each part, seed and attack."""
    data = load_dataset("photos").train
    for seed in seeds:
        chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:CANDIDATES]
        images, labels = to_float(data.images[chosen]), data.labels[chosen]
        mean = images[count:].mean(0)
        for name in attacks:
            for part in parts:
                model, begun, guesses = network(part, seed), time.process_time(), []
                seen = [observed(model, images[at : at + 1], labels[at : at + 1]) for at in range(count)]
                streams = [torch.Generator().manual_seed(at) for at in range(count)]
                row: dict[str, Any] = {"part": part, "seed": seed, "attack": name, "n": count}
                guesses = ATTACKS[name].attack_many(seen, streams)
                failures = {one.failure for one in guesses if one.failure}
                if name == "labels":
                    right = sum(int(one.classes[0]) == int(labels[at]) for at, one in enumerate(guesses))
                    zeros = [key for key, value in seen[0].update.items() if not value.any()]
                    errors = [feature_error(one, images[at : at + 1]) for at, one in enumerate(seen)]
                    row |= {"labels": right, "feature-error": max(errors), "tensors": len(seen[0].update)}
                    row |= {"tensors of zeros": len(zeros), "numbers": sum(v.numel() for v in seen[0].update.values())}
                elif len(failures) < count and not (failures and name == "patches"):
                    found = torch.cat([one.images for one in guesses])
                    row["psnr"] = float(psnr(found, images[:count]).mean())
                    row["identified"] = int(sum(retrieved(found, images, torch.arange(count))))
                    row["gradient"] = guesses[0].diagnostics.get(
                        "gradient_distance", guesses[0].diagnostics.get("objective")
                    )
                row |= {"failures": sorted(failures), "processor-seconds": time.process_time() - begun}
                row["mean image"] = float(psnr(mean.expand(count, -1, -1, -1), images[:count]).mean())
                yield row


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="whole,head,last block,lora", help="separated by commas")
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--images", type=int, default=16, help=f"attacked images, fewer than {CANDIDATES}")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="separated by commas")
    given = parser.parse_args()
    seeds = [int(one) for one in given.seeds.split(",")]
    for row in rows(given.parts.split(","), seeds, given.images, given.attacks.split(",")):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
