"""The plan of an external app's audit: it has no data set by name, and the app builds the model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Self

import torch
from torch import nn

from clients.data.images import ImageData, ImageDataset
from clients.federated.plan import FederatedPlan
from clients.models.own import plain
from clients.process.own_code import own_code
from defenses.base import Defense, DefenseError
from defenses.checks import MOST_EXAMPLES, Limit, StepsOrNone
from defenses.pipeline import Pipeline
from defenses.registry import RegistryError
from defenses.spec import SpecError, parse

SCENARIO = "audited"
OWN_DATA = "the app's own"
"""What rows say of the data set."""
ModelFactory = Callable[[], nn.Module]


@dataclass(frozen=True)
class AppPlan(FederatedPlan):
    """A plan for clients that are not fedveil's own. ``model`` is ``package.module:function``, called without arguments.

    ``local_epochs`` and ``batch_size`` are 0 where the server does not know them. ``pipeline`` may also hold the names of mods that
    fedveil does not know; attacks then know of the others alone.
    """

    local_epochs: StepsOrNone
    batch_size: Annotated[int, Limit(0, MOST_EXAMPLES)]

    @classmethod
    def known(cls, **known: Any) -> Self:
        """Build a plan from the known facts about an app; all other settings are neutral."""
        neutral: dict[str, Any] = {
            "data_dir": "", "download": False, "image_size": 0, "train_limit": 0, "test_limit": 0, "width": 0, "norm": "batch",
            "pipeline": "", "local_epochs": 1, "batch_size": 1, "probe_targets": 1, "probe_images": 1,
            "momentum": 0.0, "weight_decay": 0.0,
        }  # fmt: skip
        return cls(**neutral | known)

    def load_data(self) -> ImageDataset:
        """A black image in place of the examples, which the server does not have."""
        card = self.data_card()
        image = ImageData(torch.zeros(1, *card.input_shape, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
        names = tuple(map(str, range(card.num_classes)))
        return ImageDataset(image, image, names, card.mean, card.std, name=OWN_DATA)

    @functools.cached_property
    def defenses(self) -> Pipeline:
        """The pipeline's defences that fedveil knows; all other stages are mods of the app or of Flower."""
        known: list[Defense] = []
        for stage in self.pipeline.split(" | "):
            try:
                known += parse(stage).defenses
            except (SpecError, RegistryError, DefenseError):
                continue
        return Pipeline(tuple(known))

    def build_model(self) -> nn.Module:
        """Build the app's model; its weights do not matter, because those of the round replace them."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            return built(own_code(self.model))


def built(factory: ModelFactory) -> nn.Module:
    """Build a model by an app's function or class, ``plain``; ``ValueError`` when it builds none without arguments."""
    allowed = "allowed: a class or function that builds the model without arguments"
    try:
        model = factory()
    except Exception as error:
        raise ValueError(f"model is {factory!r}, which fails: {type(error).__name__}: {error}; {allowed}") from error
    if not isinstance(model, nn.Module) or isinstance(factory, nn.Module):
        raise ValueError(f"model is {factory!r}, which gives {type(model).__name__}; {allowed}")
    return plain(f"model is {factory!r}", model)


def name_of(factory: ModelFactory) -> str:
    """``package.module:function``, by which attackers in other processes find it.

    Raises:
        ValueError: When they could not: a lambda, a function within another, a partial, or one of ``__main__``.
    """
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if module in ("", "__main__") or not name.isidentifier():
        raise ValueError(
            f"model is {factory!r}; allowed: a class or function at the top level of a module, callable without arguments, as "
            "attacks build the model in processes of their own"
        )
    return f"{module}:{name}"
