"""Letters of threat models: what an attack is given, by the taxonomy of Carletti et al."""

import pytest

from attacks import InvertingGradients, LearnedRestorer
from attacks.base import Attack
from attacks.refinement.base import Chain
from attacks.spec import ATTACKS
from attacks.uploads.base import AsUploaded

LETTERS = {
    "B": "SurrogateMatching HeadInversion PatchEmbeddingInversion",
    "C": "InvertingGradients LabelInference LossThreshold ClassGAN",
    "D": "ShadowModels LiRA", "F": "ClassFishing", "G": "ImprintLayer TrapWeights",
    "": "TokenDecoder QueryInversion AsUploaded",
}  # fmt: skip


def test_the_letter_is_that_of_what_an_attack_is_given() -> None:
    for letter, names in LETTERS.items():
        assert {ATTACKS[name]().threat_class for name in names.split()} == {letter}
    assert InvertingGradients(batch_norm_prior=0.0).threat_class == "C"
    for first, letter in ((ATTACKS["ClassFishing"](), "G"), (InvertingGradients(), "D"), (AsUploaded(), "")):
        assert Chain((first, LearnedRestorer())).threat_class == letter
    for name, kind in ATTACKS.items():
        attack = kind()
        assert attack.threat_class in ("", *"BCDEFGH"), name
        assert not attack.needs_auxiliary or attack.threat_class in ("", *"DEGH"), f"{name}: own data are D at least"


def test_what_a_class_once_stated_in_its_body_is_refused_with_the_new_way() -> None:
    for name in ("needs_auxiliary", "needs_step"):
        with pytest.raises(TypeError, match=rf"Own sets {name} .* class Own\(\.\.\., needs_auxiliary=True\)"):
            type("Own", (Attack,), {name: True})
