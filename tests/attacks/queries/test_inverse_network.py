"""The inverse network: it inverts what can be inverted, learns from what it is shown, and says how well it does."""

from functools import cache

import pytest
import torch

import attacks.queries.training as training
from attacks.image_measures import psnr
from attacks.queries.inverse_network import InverseNetwork, MapDecoder
from attacks.queries.training import features_by_row
from defenses import FeatureNoise
from defenses.base import SmashedDefense
from tests.attacks.queries.query_wire import Negate, knowledge, pictures, query, seeded


@cache
def fitted(kind: str, *defenses: SmashedDefense) -> InverseNetwork:
    return InverseNetwork(kind, iterations=150, width=16).fit(knowledge(*defenses), seeded(2))


def quality(attack: InverseNetwork, *defenses: SmashedDefense) -> float:
    images, _ = pictures(16, seed=6)
    return float(psnr(attack(query(images, *defenses), seeded(0)).images, images).mean())


@pytest.mark.long
@pytest.mark.numeric
def test_it_beats_the_mean_image_and_only_the_retrained_network_sees_through_what_can_be_undone() -> None:
    learned = fitted("retrained").learned.diagnostics
    assert learned["holdout_psnr"] > learned["holdout_psnr_mean_image"] + 4
    # What it says of auxiliary images holds for others.
    assert quality(fitted("retrained")) == pytest.approx(learned["holdout_psnr"], abs=2)
    assert quality(fitted("retrained", Negate()), Negate()) > quality(fitted("static", Negate()), Negate()) + 4
    assert quality(fitted("static", Negate())) == quality(fitted("static"))


def test_images_of_any_size_come_out_in_their_range_and_a_dead_channel_is_not_blown_up() -> None:
    for image, shape in (((1, 16, 16), (4, 16, 16)), ((3, 17, 13), (2, 5, 4)), ((1, 56, 56), (8, 7, 7))):
        sample = torch.randn(5, *shape, generator=seeded(0)) * 100
        found = MapDecoder(sample, image, 8, seeded(1))(sample)
        assert found.shape == (5, *image)
        assert 0 <= found.min() < found.max() <= 1
    sample = torch.randn(5, 2, 4, 4, generator=seeded(0))
    sample[:, 1] = 0
    decoder = MapDecoder(sample, (1, 8, 8), 8, seeded(1))
    assert (decoder(sample + 1e-4) - decoder(sample)).abs().max() < 0.3


def test_only_features_for_which_nothing_is_drawn_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.tensor([5, 2, 5])
    for kind in ("static", "retrained"):
        for defenses in ((), (FeatureNoise(std=0.5),)):
            known = knowledge(*defenses, count=16)
            features = features_by_row(known.sender, kind, known.auxiliary.images, seeded(0))
            found, again = features(rows), features(rows)
            same = kind == "static" or not defenses
            assert torch.equal(found, again) == same
            assert torch.allclose(found, known.sender.features(known.auxiliary.images[rows]), atol=1e-5) == same
            with monkeypatch.context() as patch:
                patch.setattr(training, "MOST_KEPT", 0)
                anew = features_by_row(known.sender, kind, known.auxiliary.images, seeded(0))(rows)
            torch.testing.assert_close(found, anew, rtol=1e-4, atol=1e-5)
