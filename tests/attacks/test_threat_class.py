"""Letters of threat models: what an attack is given, by the taxonomy of Carletti et al."""

from __future__ import annotations

import pytest

from attacks import (
    ClassFishing,
    ClassGAN,
    ImprintLayer,
    InvertingGradients,
    LabelInference,
    LearnedRestorer,
    LearningToInvert,
    LossThreshold,
    PatchEmbeddingInversion,
    PropertyInference,
    QueryInversion,
    ShadowModels,
    Spear,
    SurrogateMatching,
    TokenDecoder,
    TrapWeights,
    TunedInversion,
)
from attacks.base import Attack
from attacks.refinement.base import Chain
from attacks.registry import ATTACKS
from attacks.uploads.base import AsUploaded


@pytest.mark.parametrize(
    ("attack", "letter"),
    [
        (InvertingGradients(), "C"),
        (InvertingGradients(batch_norm_prior=0.0), "C"),
        (LabelInference(), "C"),
        (SurrogateMatching(), "B"),
        (Spear(), "B"),
        (PatchEmbeddingInversion(), "B"),
        (LearningToInvert(), "D"),
        (TunedInversion(), "D"),
        (ClassFishing(), "F"),
        (ImprintLayer(), "G"),
        (TrapWeights(), "G"),
        (Chain((ClassFishing(), LearnedRestorer())), "G"),
        (LossThreshold(), "C"),
        (ClassGAN(), "C"),
        (ShadowModels(), "D"),
        (PropertyInference(), "D"),
        (Chain((InvertingGradients(), LearnedRestorer())), "D"),
        (TokenDecoder(), ""),
        (QueryInversion(), ""),
        (AsUploaded(), ""),
        (Chain((AsUploaded(), LearnedRestorer())), ""),
    ],
    ids=repr,
)
def test_the_letter_is_that_of_what_an_attack_is_given(attack: Attack, letter: str) -> None:  # type: ignore[type-arg]
    assert attack.threat_class == letter


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_own_data_are_never_less_than_d(name: str) -> None:
    attack = ATTACKS[name]()
    assert attack.threat_class in ("", *"BCDEFGH")
    assert not attack.needs_auxiliary or attack.threat_class in ("", *"DEGH")
