"""Settings of edge-cloud inference that cannot work together, told from the settings alone."""

from __future__ import annotations

from pathlib import Path

from clients.models.cuts import CUTS
from clients.models.packaged_weights import PACKAGED
from defenses.base import InputDefense, SmashedDefense
from defenses.pipeline import Pipeline
from simulations.experiment.attribute_rules import check_attribute_attacks, require_attribute
from simulations.experiment.inference import InferenceExperiment
from simulations.settings.errors import ConfigError, require_known
from strategies.inference.observations import ATTRIBUTE, KINDS


def check_settings(experiment: InferenceExperiment) -> None:
    """Refuses models that nobody has cut, defences of what is never sent, and training views that nobody makes.

    Raises:
        ConfigError: Naming the setting, what came and what is allowed.
    """
    name = experiment.scenario
    _check_model(experiment)
    if experiment.local_steps:
        raise ConfigError(
            f"local-steps is {experiment.local_steps}; allowed with scenario = {name!r}: 0, as the server trains on "
            "whole passes"
        )
    if experiment.crop_padding or experiment.horizontal_flip:
        raise ConfigError(
            f"crop-padding is {experiment.crop_padding} and horizontal-flip {experiment.horizontal_flip}; allowed with "
            f"scenario = {name!r}: 0 and False, as clients train nothing"
        )
    if not experiment.auxiliary_fraction and experiment.partition != "node":
        raise ConfigError(
            f"auxiliary-fraction is {experiment.auxiliary_fraction:g}; allowed with scenario = {name!r}: above 0, as the "
            "server trains the model on these images"
        )
    on = [kind for kind in KINDS if experiment.attacks[kind]]
    if experiment.attacked_rounds and not experiment.attacks_final and on:
        raise ConfigError(
            f"attack-rounds is {experiment.attack_rounds!r}, and queries are attacked once all are answered: add final, or set "
            f"{' and '.join(kind.setting for kind in on)} = ''"
        )
    check_attribute_attacks(experiment, ATTRIBUTE)
    for pipeline in experiment.pipelines:
        _check_pipeline(pipeline, name)
        if pipeline.needs_adversary:
            why = f"defenses: {pipeline} learns from an adversary of a sensitive attribute"
            require_attribute(experiment, why, "delta='max', which needs none")


def _check_model(experiment: InferenceExperiment) -> None:
    require_known("model", experiment.model, dict.fromkeys(CUTS), also="")
    experiment.check_whole_model()
    words = [word.strip() for word in experiment.cuts.split(",")] if experiment.cuts else []
    allowed = CUTS[experiment.model]
    if set(words) - set(allowed) or len(set(words)) < len(words):
        raise ConfigError(
            f"cuts is {experiment.cuts!r}; allowed with model = {experiment.model!r}: {', '.join(allowed)}, each once, "
            "separated by commas, and empty for the first"
        )
    if packaged := PACKAGED.get(experiment.weights):
        if experiment.model != packaged.model:
            raise ConfigError(
                f"weights is {experiment.weights!r}; allowed with model = {packaged.model!r} only, not {experiment.model!r}"
            )
    elif experiment.weights and not Path(experiment.weights).is_absolute():
        raise ConfigError(
            f"weights is {experiment.weights!r}; expected {' or '.join(map(repr, PACKAGED))}, or an absolute path, because the "
            "server's folder is not yours"
        )


def _check_pipeline(pipeline: Pipeline, name: str) -> None:
    for defense in pipeline.defenses:
        if isinstance(defense, InputDefense):
            if not defense.at_inference:
                raise ConfigError(
                    f"defenses: {defense} protects images that are trained on, and with scenario = {name!r} clients send "
                    "test images, which it leaves as they are"
                )
        elif not isinstance(defense, SmashedDefense):
            raise ConfigError(
                f"defenses: {defense} protects what a client trains, and with scenario = {name!r} clients train nothing; "
                "allowed: defences of test images, and of the feature maps that are sent"
            )
        elif not defense.takes_maps:
            raise ConfigError(
                f"defenses: {defense} protects tokens, and with scenario = {name!r} clients send feature maps (B, C, H, W)"
            )
