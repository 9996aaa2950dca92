"""Which attacks run because a pipeline names them: those that know its defences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attacks.base import Attack
from attacks.gradient.inversion import GradientInversion
from attacks.refinement.base import Refinement
from attacks.registry import ATTACKS
from defenses.pipeline import Pipeline


def adaptive_attacks(
    pipeline: Pipeline, pipelines: Sequence[Pipeline], chosen: Sequence[Attack[Any, Any]], observation: str
) -> list[str]:
    """Texts of a pipeline's adaptive attacks on one kind of observation, with their default settings.

    An attack that the run uses anyway, with settings of its own, is not added again. A refinement is written behind the first
    inversion that the run uses anyway, so that it costs little. The pipeline without a defence gets the other pipelines' attacks
    that stand alone, as their positive control.

    Args:
        pipeline: The attacked one.
        pipelines: All of the run.
        chosen: The attacks on this kind of observation that the run uses in any case.
        observation: "probe", "update" or "smashed".
    """
    known = ATTACKS
    names = pipeline.adaptive_attacks
    controls = not pipeline.defenses
    if controls:
        names = tuple(dict.fromkeys(name for one in pipelines for name in one.adaptive_attacks))
    inversions = [repr(a) for a in chosen if isinstance(a, GradientInversion)][:1]
    found = []
    for name in names:
        attack = known[name]()
        if attack.observes != observation or any(type(one) is type(attack) for one in chosen):
            continue
        if not isinstance(attack, Refinement):
            found.append(repr(attack))
        elif not controls:
            found += [f"{inversion} | {attack!r}" for inversion in inversions]
    return found


def adaptive_names(pipeline: Pipeline, observations: Sequence[str]) -> list[str]:
    """Names of a pipeline's adaptive attacks that can run where the server sees these kinds of observations."""
    known = ATTACKS
    return [name for name in pipeline.adaptive_attacks if known[name]().observes in observations]
