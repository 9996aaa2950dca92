"""How many images of an update the null baselines must guess."""

from __future__ import annotations

import pytest

from attacks.spec import parse_attacks
from clients.scoring.audit import NO_IMAGES
from strategies.federated.audit import fewest_guesses
from strategies.federated.observations import SeenUpdate

SEEN = [SeenUpdate(0, 0, 40), SeenUpdate(1, 0, 60)]


@pytest.mark.parametrize(
    ("attacks", "images"),
    [
        ("LabelInference(); LossThreshold(); ShadowModels()", NO_IMAGES),
        ("PropertyInference()", NO_IMAGES),
        ("InvertingGradients(max_images=5); LabelInference()", 5),
        ("InvertingGradients(max_images=5); InvertingGradients(max_images=3)", 3),
        ("HeadInversion()", 60),
    ],
)
def test_null_baselines_guess_as_many_images_as_the_attack_that_guesses_fewest(attacks: str, images: int) -> None:
    assert fewest_guesses(parse_attacks(attacks), SEEN) == images
