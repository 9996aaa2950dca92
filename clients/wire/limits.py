"""Smallest and largest numbers of a plan, for an experiment's settings and for nodes that receive a plan; without torch.

A node checks them itself: a server may send anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

MOST_STEPS = 10**9
"""Of local passes or steps: eleven days at a thousandth of a second each."""
MOST_ROUNDS = 10**6
"""Eleven days at a second each."""
MOST_SIDE = 4096
"""Of an image in pixels: a 16-megapixel photograph, 200 MB as floats."""
MOST_IMAGES = 2**20
"""Of a batch, or of batches in a message: sixteen times the largest published batches (65,536)."""
MOST_CANARIES = 65_536
"""Of one client: its training holds a gradient of the whole model for each of those in a batch."""
MOST_WIDTH = 65_536
"""Channels or values of one layer: five times those of the widest published transformers (12,288)."""
MOST_DEPTH = 1000
"""Blocks, or attention heads of one: ten times those of the deepest published transformers (96)."""
MOST_COUNTED = 2**63 - 1
"""What TOML, Flower and torch hold of a whole number: for counts of which more than there is means all."""
LEAST_RATE, MOST_RATE = 1e-12, 1e6
"""Of learning: float32 holds 7 digits, so that a smaller step changes no weight, and a larger one leaves nothing of it."""
MOST_TEXT = 4096
"""Characters of a name, a path or a list in words: the longest path of a file."""


@dataclass(frozen=True)
class Limit:
    """A range.

    Attributes:
        least: The smallest number, included.
        most: The largest, included unless ``below``.
        below: The largest is excluded.
        zero: 0 is allowed besides.
    """

    least: float
    most: float
    below: bool = False
    zero: bool = False

    def allows(self, value: float) -> bool:
        """Whether a number is within."""
        inside = self.least <= value <= self.most and not (self.below and value == self.most)
        return inside or (self.zero and value == 0)

    def __str__(self) -> str:
        end = f"below {self.most:g}" if self.below else f"at most {_number(self.most)}"
        return f"{'0, or ' if self.zero else ''}at least {_number(self.least)}, {end}"


def _number(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


COUNT = Limit(0, MOST_COUNTED)
SHARE = Limit(math.ulp(0.0), 1)  # above 0
LIMITS: Mapping[str, Limit] = {
    "image_size": Limit(2, MOST_SIDE, zero=True),
    "train_limit": COUNT,
    "test_limit": COUNT,
    "auxiliary_limit": COUNT,
    "attribute_queries": COUNT,
    "seed": COUNT,
    "width": Limit(0, MOST_WIDTH),
    "rounds": Limit(1, MOST_ROUNDS),
    "local_epochs": Limit(1, MOST_STEPS),
    "local_steps": Limit(0, MOST_STEPS),
    "batch_size": Limit(1, MOST_IMAGES),
    "momentum": Limit(0, 1, below=True),
    "weight_decay": Limit(0, MOST_RATE),
    "probe_targets": Limit(1, MOST_IMAGES),
    "probe_images": Limit(1, MOST_IMAGES),
    "dp_canaries": Limit(0, MOST_CANARIES),
    "crop_padding": Limit(0, MOST_SIDE),
    "auxiliary_fraction": Limit(0, 1, below=True),
    "image_memory": Limit(1e-9, 1e6),  # GiB: from one byte
    "learning_rate": Limit(LEAST_RATE, MOST_RATE),
    "learning_rate_factor": SHARE,
    "patch_size": Limit(1, MOST_SIDE),
    "depth": Limit(1, MOST_DEPTH),
    "heads": Limit(1, MOST_DEPTH),
    "edge_blocks": Limit(0, MOST_DEPTH),
    "upload_passes": Limit(1, MOST_ROUNDS),
}
"""Field of a plan -> its range."""
