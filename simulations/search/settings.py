"""The settings of a policy search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, Self

from clients.data.datasets import is_multi_label, is_table
from clients.data.images import IMAGE_MEMORY
from clients.outsourced.plan import OutsourcedPlan
from clients.task.task import WholeModelPlan
from simulations.experiment.known_names import require_dataset, require_model
from simulations.search.space import LONGEST, size_of_space
from simulations.settings.defaults import AUTO
from simulations.settings.errors import ConfigError, require_known
from simulations.settings.fields import (
    IMAGE_SIDE,
    SHARE,
    above,
    at_least,
    between,
    check_values,
    key_of,
    one_of,
    setting,
)
from simulations.settings.whole_models import milestones_of

RELEASED, PAPER = "released", "paper"
"""The two privacy scores; see ``simulations.search.scores``."""

OTHER = {RELEASED: PAPER, PAPER: RELEASED}

WITHOUT_EFFECT = ("workers", "ray-address")
"""Settings that say where policies are scored, not what they score: a search may go on with others."""

LOWEST_THRESHOLD = -10.0
"""Of S_acc as a mean. Published thresholds are sums over a batch, which nearly every policy would pass."""


@dataclass(frozen=True)
class Search:
    """Settings of a policy search. Keys of files and of the command line have hyphens.

    Raises:
        ConfigError: Naming the key, what came and what is allowed.
    """

    defense: str = setting("ATS", "defence whose settings are searched", **one_of("ATS"))
    dataset: str = setting("photos", "data set, see `fedveil list datasets`")
    data_dir: str = setting("", "directory of its files")
    image_size: int = setting(0, "side to resize images to; 0: as they are", **IMAGE_SIDE)
    train_limit: int = setting(0, "use at most so many training images; 0: all", **at_least(0))
    model: str = setting("resnet20", "model, see `fedveil list models`")
    width: int = setting(0, "of models that have one; 0 for the default", **at_least(0))
    norm: str = setting("batch", "normalisation layers", **one_of("batch", "group"))
    seed: int = setting(0, "of the sampled policies, of their signs, of models and images", **between(0, 2**31 - 1))
    sampler: str = setting(
        "search",
        "search: Algorithm 1; random: the control, policies of the same space without a score",
        **one_of("search", "random"),
    )
    candidates: int = setting(1500, "policies to score, C_max", **between(1, size_of_space()))
    policies: int = setting(2, "policies to choose, n; they share no transform", **between(1, 16))
    longest: int = setting(LONGEST, "most transforms of a policy", **between(1, LONGEST))
    images: int = setting(100, "images of S_pri, |D|", **at_least(1))
    path_steps: int = setting(20, "points of each image's way, K", **between(1, 1000))
    privacy_score: str = setting(
        RELEASED,
        "S_pri that chooses; the page shows both. released: of the authors' code, which chose their policies, a mean over "
        "parameter tensors of their own cosines, trapezoid rule; paper: Eqs. 5 and 7, which ranks policies differently",
        **one_of(RELEASED, PAPER),
    )
    signs: int = setting(1, "draws of a policy's signs for each image, averaged", **between(1, 64))
    accuracy_batches: int = setting(10, "batches and initialisations of S_acc", **between(1, 1000))
    accuracy_batch_size: int = setting(128, "images of each at most, all of different classes", **at_least(2))
    accuracy_threshold: str = setting(
        AUTO,
        "least S_acc, a mean over eigenvalues of at most -1; auto: accuracy-factor times as far below -1 as untransformed images",
    )
    accuracy_factor: float = setting(2.0, "see accuracy-threshold", **at_least(0))
    semi_share: float = setting(0.1, "share of the training images that the semi-trained model learns from", **SHARE)
    semi_epochs: int = setting(50, "passes over them", **between(1, 10_000))
    batch_size: int = setting(128, "of that training", **at_least(1))
    learning_rate: float = setting(0.1, "of that training", **above(0, 1e6))
    momentum: float = setting(
        0.9, "of that training, by Nesterov", "0 or more, below 1", lambda value: 0 <= value < 1
    )  # fmt: skip
    weight_decay: float = setting(5e-4, "of that training", **at_least(0))
    controls: int = setting(10, "random hybrids of the same lengths, written beside the result", **between(0, 1000))
    transfer_to: str = setting("", "another data set on which the result is scored, too")
    transfer_dir: str = setting("", "directory of its files")
    workers: int = setting(0, "processes that score; 0: one for each processor", **between(0, 1024))
    ray_address: str = setting("", "a running Ray cluster, as `ray start` prints it; empty: this machine")

    def __post_init__(self) -> None:
        check_values(self)
        for key, name in (("dataset", self.dataset), ("transfer-to", self.transfer_to)):
            if name or key == "dataset":
                require_dataset(key, name)
                if is_table(name):
                    raise ConfigError(
                        f"{key} is {name!r}, whose examples are rows of a table; allowed: data sets of images"
                    )
                if is_multi_label(name):
                    raise ConfigError(
                        f"{key} is {name!r}, whose examples have several labels each; allowed: data sets with one class for an "
                        "image"
                    )
        if self.transfer_dir and not self.transfer_to:
            raise ConfigError(
                f"transfer-dir is {self.transfer_dir!r}, and transfer-to names no data set that it could hold"
            )
        require_model(self.model)
        self.threshold()
        for key, value, unset in (
            ("accuracy-threshold", self.accuracy_threshold, AUTO),
            ("transfer-to", self.transfer_to, ""),
        ):
            if self.sampler == "random" and value != unset:
                raise ConfigError(
                    f"{key} is {value!r}, and sampler=random scores no policy; leave it out, or set sampler=search"
                )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Read hyphenated keys; ``ConfigError`` on unknown ones, with the nearest known one, and on bad values."""
        known = keys()
        for key in values:
            require_known("setting", key, known, listed="search")
        return cls(**{known[key].name: value for key, value in values.items()})

    def to_mapping(self) -> dict[str, Any]:
        """Hyphenated key -> value."""
        return {key: getattr(self, spec.name) for key, spec in keys().items()}

    def threshold(self) -> float | None:
        """The least S_acc; None where it is calibrated.

        Raises:
            ConfigError: When it is no number that a policy can pass.
        """
        if self.accuracy_threshold == AUTO:
            return None
        try:
            value = float(self.accuracy_threshold)
        except ValueError:
            value = float("nan")
        if not LOWEST_THRESHOLD <= value <= -1:
            raise ConfigError(
                f"accuracy-threshold is {self.accuracy_threshold!r}; allowed: 'auto' and numbers from {LOWEST_THRESHOLD:g} to -1, "
                "the score of uncorrelated slopes, which no policy exceeds. It is a mean: the paper's -85 is a sum over 63 images, "
                "-1.34"
            )
        return value

    def plan(self, dataset: str = "", data_dir: str = "") -> WholeModelPlan:
        """Training of the semi-trained model: SGD with three decays, an epoch for a round."""
        rounds = self.semi_epochs
        return OutsourcedPlan(
            scenario="outsourced", dataset=dataset or self.dataset, data_dir=data_dir if dataset else self.data_dir, download=False,
            image_size=self.image_size, train_limit=self.train_limit, test_limit=0, model=self.model, width=self.width,
            norm=self.norm, pipeline="", seed=self.seed, rounds=rounds, local_epochs=1, batch_size=self.batch_size,
            momentum=self.momentum, weight_decay=self.weight_decay, probe_targets=1, probe_images=1, nesterov=self.momentum > 0,
            learning_rate=self.learning_rate, milestones=milestones_of("3/8,5/8,7/8", rounds),
            image_memory=IMAGE_MEMORY,
        )  # fmt: skip


def keys() -> dict[str, Field[Any]]:
    """Key -> field of ``Search``."""
    return {key_of(spec.name): spec for spec in fields(Search)}
