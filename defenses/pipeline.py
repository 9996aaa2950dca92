"""Pipelines: defences in a chain, each at its stage of the client's work. "No defence" is the empty chain, not a class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from defenses.base import (
    Batch,
    DefenseError,
    EdgeTrainingDefense,
    InputDefense,
    SmashedDefense,
    Training,
    TrainingDefense,
    UpdateDefense,
)
from defenses.combinations import why_not_together
from defenses.feature_chain import FeatureChain, fold
from defenses.fitting import FittedDefense
from defenses.random_draws import Key, generator_for
from defenses.tensors import Numbers, Shape, Update


@dataclass(frozen=True)
class Pipeline(FeatureChain):
    """A chain of defences, applied in order, each at its stage of the client's work.

    ``FeatureChain`` applies the stages of smashed data.

    Raises:
        DefenseError: On combinations whose guarantee would be false, or that cannot work, with the reason.
    """

    def __post_init__(self) -> None:
        if why := why_not_together(self.defenses):
            raise DefenseError(f"{self}: {why}")

    def require_order(self) -> None:
        """Require that stages on images are written first, because a client always runs them first.

        Raises:
            DefenseError: When a stage on updates or smashed data precedes a stage on images.
        """
        for at, later in enumerate(self.defenses):
            for earlier in self.defenses[:at]:
                if isinstance(later, InputDefense) and isinstance(earlier, UpdateDefense | SmashedDefense):
                    raise DefenseError(
                        f"{self}: {later} protects images and runs before {earlier}: write {later} first"
                    )

    def _input_stages(self) -> tuple[list[tuple[int, InputDefense]], list[tuple[int, InputDefense]]]:
        """Input stages before the first stage that resamples, and the rest, which run anew for every batch."""
        stages: list[tuple[int, InputDefense]] = list(self._stages(InputDefense))
        first = next((at for at, (_, defense) in enumerate(stages) if defense.resamples), len(stages))
        return stages[:first], stages[first:]

    @property
    def protects_batches(self) -> bool:
        """Whether ``protect_batch`` does anything."""
        return bool(self._input_stages()[1])

    def protect_once(self, batch: Batch, key: Key) -> Batch:
        """Apply the input stages that protect an image once; call this method on a client's whole data set."""
        return fold(self._input_stages()[0], "protect_batch", batch, key)

    def protect_batch(self, batch: Batch, key: Key) -> Batch:
        """Apply the remaining input stages, with new randomness for every batch; ``protect_once`` comes before."""
        return fold(self._input_stages()[1], "protect_batch", batch, key)

    def protect_test(self, batch: Batch, key: Key) -> Batch:
        """Apply the input stages that also protect test images (``at_inference``)."""
        return fold([(i, d) for i, d in self._stages(InputDefense) if d.at_inference], "protect_batch", batch, key)

    @property
    def mixes_images(self) -> bool:
        """Whether an input stage mixes several images into one, so that no image can be protected alone."""
        return any(defense.mixes_examples for _, defense in self._stages(InputDefense))

    @property
    def once(self) -> str:
        """Text of the stages of ``protect_once``; "" where there are none."""
        return " | ".join(repr(defense) for _, defense in self._input_stages()[0])

    @property
    def in_tests(self) -> str:
        """Text of the stages of ``protect_test``; "" where there are none."""
        return " | ".join(repr(d) for _, d in self._stages(InputDefense) if d.at_inference)

    def totals(self, batch: Batch, key: Key) -> Numbers:
        """Statistics of all input stages on a batch, each on the output of the stages before; see ``InputDefense.totals``."""
        stages: list[tuple[int, InputDefense]] = list(self._stages(InputDefense))
        telling = [at for at, (_, defense) in enumerate(stages) if type(defense).totals is not InputDefense.totals]
        totals: Numbers = {}
        for index, defense in stages[: max(telling, default=-1) + 1]:
            protected = defense.protect_batch(batch, generator_for(*key, index))
            for name, number in defense.totals(batch.images, protected.images).items():
                totals[name] = totals.get(name, 0) + number
            batch = protected
        return totals

    def unfit(self, channels: int, height: int, width: int) -> str:
        """Reason why a defence of images is unsuitable for images of this shape; "" if all are suitable."""
        reasons = (defense.unfit(channels, height, width) for _, defense in self._stages(InputDefense))
        return next(filter(None, reasons), "")

    def at_size(self, height: int, width: int) -> list[str]:
        """What settings of stages of images mean on images of this size; see ``InputDefense.at_size``."""
        return list(filter(None, (defense.at_size(height, width) for _, defense in self._stages(InputDefense))))

    def idle(self, height: int, width: int) -> list[str]:
        """Reasons why stages have no effect: any by its settings, of images also at this size; see ``InputDefense.idle``."""
        of_size = (defense.idle(height, width) for _, defense in self._stages(InputDefense))
        return list(filter(None, (*(defense.no_defense for defense in self.defenses), *of_size)))

    def extended(self, model: nn.Module, seed: int) -> nn.Module:
        """Add the training stages' layers to a model; the initial weights follow from the public seed."""
        for _, defense in self._stages(TrainingDefense):
            model = defense.extended(model, torch.Generator().manual_seed(seed))
        return model

    def check_model(self, model: nn.Module, input_shape: Shape) -> None:
        """Refuse a model that a stage of training or of updates cannot protect; (C, H, W) is the shape of one image.

        Raises:
            DefenseError: With the property that the model lacks.
        """
        for defense in self.defenses:
            if isinstance(defense, TrainingDefense):
                defense.check_model(model, input_shape)
            elif isinstance(defense, UpdateDefense):
                defense.check_model(model)

    def protect_training(self, training: Training, key: Key) -> Training:
        """Apply all training stages."""
        return fold(self._stages(TrainingDefense), "protect_training", training, key)

    def reported_examples(self, batch_size: int) -> int | None:
        """Number of examples to report if a stage hides the true number, else None; see ``TrainingDefense``."""
        numbers = (defense.reported_examples(batch_size) for _, defense in self._stages(TrainingDefense))
        return next((number for number in numbers if number is not None), None)

    @property
    def bounded(self) -> bool:
        """Whether a stage bounds what one example, or one client's data, can change; then no other number may depend on them."""
        return any(defense.bounds_examples or defense.bounds_client for defense in self.defenses)

    @property
    def neighbours(self) -> str:
        """Neighbouring data sets of the pipeline's guarantee (see ``defenses.neighbours``); "" without a guarantee."""
        return next((defense.neighbours for defense in self.defenses if defense.neighbours), "")

    @property
    def edge_training(self) -> EdgeTrainingDefense | None:
        """The stage that changes the training of a split model's client half; None without such a stage."""
        return next((d for d in self.defenses if isinstance(d, EdgeTrainingDefense)), None)

    def _update_stages(self, per: str) -> list[tuple[int, UpdateDefense]]:
        return [(i, d) for i, d in self._stages(UpdateDefense) if d.per == per]

    def protect_gradient(self, gradient: Update, key: Key) -> Update:
        """Apply all stages that act per step to one step's gradient (name -> tensor), before the client's optimizer."""
        return fold(self._update_stages("step"), "protect_update", gradient, key)

    def protect_update(self, update: Update, key: Key) -> Update:
        """Apply all stages that act per update."""
        return fold(self._update_stages("update"), "protect_update", update, key)

    def recorded(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The training state after the release of one more protected update; see ``UpdateDefense``."""
        kept = dict(state)
        for _, defense in self._update_stages("update"):
            kept = defense.recorded(kept)
        return kept

    def privacy(self, *states: Mapping[str, Any]) -> Numbers:
        """Privacy budget ("epsilon", "delta") of all steps and releases recorded in training states; empty without a guarantee."""
        spent: Numbers = {}
        for defense in self.defenses:
            if isinstance(defense, TrainingDefense | UpdateDefense):
                spent |= defense.privacy(*states)
        return spent

    def privacy_by_accountant(self, *states: Mapping[str, Any]) -> Numbers:
        """Name of an accountant -> its finite epsilon of all recorded steps; empty for a defence without several accountants."""
        epsilons: Numbers = {}
        for _, defense in self._stages(TrainingDefense):
            epsilons |= defense.privacy_by_accountant(*states)
        return epsilons

    @property
    def update_defenses(self) -> tuple[UpdateDefense, ...]:
        """The stages on gradients and updates in the order in which they act: first those per step."""
        return tuple(d for per in ("step", "update") for _, d in self._update_stages(per))

    @property
    def keeps_statistics(self) -> bool:
        """Whether BatchNorm's running averages stay at the client."""
        return any(defense.keeps_statistics for defense in self.update_defenses)

    @property
    def draws_at_inference(self) -> bool:
        """Whether sending a test image twice may give different messages, because a stage draws or mixes images."""
        if any(isinstance(defense, InputDefense) and defense.at_inference for defense in self.defenses):
            return True
        return any(not isinstance(defense, FittedDefense) for defense in self.smashed_defenses)

    @property
    def at_inference(self) -> bool:
        """Whether test images must be protected too."""
        return any(d.at_inference for d in self.defenses)

    @property
    def needs_group_norm(self) -> bool:
        """Whether BatchNorm layers must be replaced."""
        return any(isinstance(d, TrainingDefense) and d.needs_group_norm for d in self.defenses)

    @property
    def adaptive_attacks(self) -> tuple[str, ...]:
        """Names of the adaptive attacks of all stages, in order, without repeats."""
        return tuple(dict.fromkeys(name for d in self.defenses for name in d.adaptive_attacks))
