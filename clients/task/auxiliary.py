"""The server's own examples, and the examples that therefore no client may hold."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.data.datasets import load_dataset
from clients.data.images import DataError, ImageData, Labels, stratified_prefix, with_channels
from clients.task.batches import local_batch
from clients.task.task import FLOAT_BYTES, Plan
from defenses.base import Batch

OWN_AUXILIARY = ("held-out", "private")
"""Values of ``auxiliary-data`` that mean the clients' own data set."""


class Auxiliary:
    """The server's own examples in a run; the plan sets their source (``auxiliary_data``) and number."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def examples(self) -> Batch:
        """The server's own examples (``auxiliary_data``), as floats in [0, 1] with one-hot targets, or label vectors (``check``).

        Another data set is read in the size and colours of the clients' images. Its classes are not theirs.
        """
        self.check()
        part, num_classes, indices = self._part()
        return local_batch(part, indices, num_classes)

    def sensitive(self) -> Tensor | None:
        """The sensitive attribute of each of ``examples``, (N,) int64; None where their data set has none."""
        part, _, indices = self._part()
        return None if part.sensitive is None else part.sensitive[indices]

    def size(self) -> int:
        """Bytes of the images that ``examples`` gives."""
        part, _, indices = self._part()
        return len(indices) * math.prod(part.images.shape[1:]) * FLOAT_BYTES

    def check(self) -> None:
        """Raise ``DataError`` where ``image_memory`` does not hold all, as attacks that learn want; reads none of the images."""
        size, count = self.size(), len(self._part()[2])
        if size > self.plan.image_memory * 2**30:
            fitting = int(self.plan.image_memory * 2**30 * count / size)
            fewer = f"set auxiliary-limit to at most {fitting}, or " if fitting else ""
            raise DataError(
                f"the server's {count} examples are {size / 2**30:.2g} GiB, and image-memory is {self.plan.image_memory:g}; "
                f"{fewer}raise image-memory"
            )

    def _part(self) -> tuple[ImageData, int, Tensor]:
        """The data that the server's examples are from, their number of classes, and which they are."""
        data = self.plan.load_data()
        part, num_classes = data.train, data.num_classes
        if self.plan.auxiliary_data not in OWN_AUXILIARY:
            channels, height, _ = data.input_shape
            other = load_dataset(
                self.plan.auxiliary_data, data_dir=self.plan.data_dir, download=self.plan.download, image_size=height,
                train_limit=self.plan.train_limit, test_limit=1, image_memory=self.plan.image_memory,
            )  # fmt: skip
            part, num_classes = with_channels(other.train, channels), other.num_classes
        return part, num_classes, torch.from_numpy(self.indices(part.strata()))

    def labels(self) -> Tensor:
        """Classes (N,) of ``examples``, without their images."""
        part, _, indices = self._part()
        return part.labels[indices]

    def indices(self, labels: Labels) -> NDArray[np.int64]:
        """Sorted indices of the server's own examples; a share of every class, drawn by the seed.

        All of them where clients own their data (the server's data directory then holds the server's), where the data set is
        another one, and in the worst case of "private". ``labels`` (N,) of the training examples are their ``ImageData.strata``,
        so that the share is one of every value of a sensitive attribute, too.
        """
        whole = self.plan.owns_data or self.plan.auxiliary_data != "held-out"
        count = len(labels) if whole else round(self.plan.auxiliary_fraction * len(labels))
        count = min(count, self.plan.auxiliary_limit or count)
        if not count:
            return np.zeros(0, dtype=np.int64)
        order = np.random.default_rng([self.plan.seed, 1]).permutation(len(labels))
        return np.sort(order[stratified_prefix(labels[order], count)]).astype(np.int64)

    def held_out(self, labels: Labels) -> NDArray[np.int64]:
        """Training examples of the clients' data set that no client may hold, because the server does; see ``indices``."""
        return self.indices(labels) if self.plan.auxiliary_data == "held-out" else np.zeros(0, dtype=np.int64)
