"""The settings of a policy search."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, Self

from clients.data.datasets import is_multi_label, is_table
from clients.data.images import IMAGE_MEMORY
from clients.task.task import WholeModelPlan
from clients.wire.schema import Settings, fields_of, setting
from defenses.checks import Examples, Limit, Rate, Share, Side, WidthOrNone
from simulations.experiment.data_rules import require_dataset, require_model
from simulations.search.space import SIZE
from simulations.settings.defaults import AUTO
from simulations.settings.errors import ConfigError, require_known
from simulations.settings.scenarios import milestones_of

LOWEST_THRESHOLD = -10.0
"""Of S_acc as a mean. Published thresholds are sums over a batch, which nearly every policy would pass."""


class Search(Settings):
    """Settings of a policy search. Keys of files and of the command line have hyphens.

    Raises:
        ConfigError: Naming the key, what came and what is allowed.
    """

    refused: ClassVar[type[ValueError]] = ConfigError

    dataset: str = setting("photos", "data set, see `fedveil list datasets`")
    data_dir: str = setting("", "directory of its files")
    image_size: Side = setting(0, "side to resize images to; 0: as they are")
    model: str = setting("resnet20", "model, see `fedveil list models`")
    width: WidthOrNone = setting(0, "of models that have one; 0 for the default")
    norm: Literal["batch", "group"] = setting("batch", "normalisation layers")
    seed: Annotated[int, Limit(0, 2**31 - 1)] = setting(
        0, "of the sampled policies, of their signs, of models and images"
    )
    candidates: Annotated[int, Limit(1, SIZE)] = setting(1500, "policies to score, C_max")
    images: Annotated[int, Limit(1)] = setting(100, "images of S_pri, |D|")
    accuracy_threshold: str = setting(
        AUTO, "least S_acc, a mean over eigenvalues of at most -1; auto: twice as far below -1 as untransformed images"
    )
    semi_share: Share = setting(0.1, "share of the training images that the semi-trained model learns from")
    semi_epochs: Annotated[int, Limit(1, 10_000)] = setting(50, "passes over them")
    batch_size: Examples = setting(128, "of that training")
    learning_rate: Rate = setting(0.1, "of that training")
    workers: Annotated[int, Limit(0, 1024)] = setting(0, "processes that score; 0: one for each processor")

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Settings from hyphenated keys; ``ConfigError`` on unknown ones, with the nearest, and on bad values."""
        for key in values:
            require_known("setting", key, fields_of(cls), listed="search")
        return cls(**values)

    def check_together(self) -> None:
        """Raise ``ConfigError`` for names that are unknown, and data sets that cannot be searched on."""
        require_dataset("dataset", self.dataset)
        for refused, why in (
            (is_table, "examples are rows of a table; allowed: data sets of images"),
            (is_multi_label, "examples have several labels each; allowed: data sets with one class for an image"),
        ):
            if refused(self.dataset):
                raise ConfigError(f"dataset is {self.dataset!r}, whose {why}")
        require_model(self.model)
        self.threshold()

    def threshold(self) -> float | None:
        """The least S_acc; None where it is calibrated.

        Raises:
            ConfigError: When it is no number that a policy can pass.
        """
        if self.accuracy_threshold == AUTO:
            return None
        with suppress(ValueError):
            if LOWEST_THRESHOLD <= (value := float(self.accuracy_threshold)) <= -1:
                return value
        raise ConfigError(
            f"accuracy-threshold is {self.accuracy_threshold!r}; allowed: 'auto' and numbers from {LOWEST_THRESHOLD:g} to -1, the "
            "score of uncorrelated slopes, which no policy exceeds. It is a mean: the paper's -85 is a sum over 63 images, -1.34"
        )

    def plan(self) -> WholeModelPlan:
        """Training of the semi-trained model: SGD with Nesterov's momentum and three decays, an epoch for a round."""
        rounds = self.semi_epochs
        return WholeModelPlan(
            scenario="search", dataset=self.dataset, data_dir=self.data_dir, download=False, image_size=self.image_size,
            train_limit=0, test_limit=0, model=self.model, width=self.width, norm=self.norm, pipeline="", seed=self.seed,
            rounds=rounds, local_epochs=1, batch_size=self.batch_size, momentum=0.9, weight_decay=5e-4, probe_targets=1,
            probe_images=1, nesterov=True, learning_rate=self.learning_rate,
            milestones=milestones_of("3/8,5/8,7/8", rounds), image_memory=IMAGE_MEMORY,
        )  # fmt: skip
