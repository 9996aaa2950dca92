"""Pictures of the masks that a delta autoencoder learns from."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attacks.normalisation import normalise
from defenses import FitContext, parse
from defenses.base import Batch
from strategies.inference.mask_pictures import OBSERVATION, overlay, picture_masks
from strategies.inference.public_model import PublicTraining
from tests.clients.inference.test_queries import PLAN as QUERIES

PLAN = replace(
    QUERIES, dataset="photo-face", image_size=28, train_limit=160, test_limit=40, width=4, cuts="conv4", auxiliary_fraction=0.75
)  # fmt: skip
KEY = ("fit", 3)


@pytest.fixture(scope="module")
def own() -> Batch:
    return PublicTraining(PLAN).examples()


def a_context(own: Batch, *, adversary: bool = False) -> FitContext:
    model, card = PLAN.build_cut("conv4"), PLAN.data_card()
    black = normalise(torch.zeros(1, *card.input_shape), card)[0, :, 0, 0]
    against = replace(PLAN, seed=4).build_cut("conv4").server if adversary else None
    return FitContext(model.client, model.server, against, normalise(own.images, card), own.targets.argmax(1), black)


def shown(text: str, own: Batch, *, adversary: bool) -> list[dict[str, Any]]:
    pictures: list[dict[str, Any]] = []
    recorder: Any = SimpleNamespace(picture=lambda _, image, **fields: pictures.append({"image": image, **fields}))
    context = a_context(own, adversary=adversary)
    picture_masks(parse(text).fit(context, KEY), context, KEY, "conv4", PLAN.at(1), recorder)
    return pictures


def test_pictures_show_image_maps_mask_and_what_is_left(own: Batch) -> None:
    """Outside the mask the masked image is the image, inside it is black: by what was drawn alone."""
    found = shown("DeltaAutoencoder(delta='min', fill='black', epochs=0)", own, adversary=True)
    assert [one["kind"] for one in found[::3]] == ["image", "server-cam", "adversary-cam", "mask", "masked"]
    assert {one["observation"] for one in found} == {OBSERVATION}
    assert [one["caption"] for one in found[:3]] == [f"cut at conv4, image {at}" for at in (1, 2, 3)]
    image, mask, masked = (
        torch.stack([one["image"] for one in found if one["kind"] == k]) for k in ("image", "mask", "masked")
    )
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(masked, image * (1 - mask), atol=1e-6, rtol=0)
    torch.testing.assert_close(image[0], own.images[0], atol=1e-6, rtol=0)


def test_an_overlay_runs_from_blue_over_green_to_red() -> None:
    """Against Matplotlib's rule for "jet" at its corners, half of it on a black image."""
    cams = torch.tensor([[[0.0, 0.25, 0.5, 0.75, 1.0]]])
    drawn = overlay(torch.zeros(1, 1, 1, 5), cams)[0, :, 0].T * 2
    expected = [[0, 0, 0.5], [0, 0.5, 1], [0.5, 1, 0.5], [1, 0.5, 0], [0.5, 0, 0]]
    torch.testing.assert_close(drawn, torch.tensor(expected))
    assert float(overlay(torch.ones(1, 3, 1, 5), cams).max()) <= 1


def test_defences_without_masks_have_no_pictures(own: Batch) -> None:
    for text, kinds in (
        ("DeltaAutoencoder(delta='max', epochs=0) | FeatureNoise(std=0.1)", {"image", "server-cam", "mask", "masked"}),
        ("FeaturePCA(components=2)", set()),
        ("", set()),
    ):
        assert {one["kind"] for one in shown(text, own, adversary=False)} == kinds, text
