"""What networks learn from features: kept ones teach the same as ones made at every step, and are kept only if they may be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import attacks.queries.training as training
from attacks.queries.inverse_network import InverseNetwork
from attacks.queries.training import features_by_row
from defenses import FeatureNoise
from defenses.base import SmashedDefense
from tests.attacks.queries.query_wire import knowledge, seeded


class Counting(nn.Module):
    """Counts how many images pass it."""

    def __init__(self, half: nn.Module) -> None:
        super().__init__()
        self.client_half, self.images = half, 0

    def forward(self, images: Tensor) -> Tensor:
        self.images += len(images)
        features: Tensor = self.client_half(images)
        return features


def learned(kind: str, *defenses: SmashedDefense) -> tuple[dict[str, Tensor], int]:
    known = knowledge(*defenses, count=16)
    assert known.sender is not None
    half = Counting(known.sender.edge)
    object.__setattr__(known.sender, "edge", half)
    network = InverseNetwork(kind, iterations=5, width=4, batch_size=8).fit(known, seeded(3)).learned
    assert network is not None
    return dict(network.network.state_dict()), half.images


@pytest.mark.parametrize("kind", ["static", "retrained"])
def test_kept_features_teach_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, passed = learned(kind)
    with monkeypatch.context() as patch:
        patch.setattr(training, "MOST_KEPT", 0)
        anew, more = learned(kind)
    assert more > passed
    for name, tensor in kept.items():
        torch.testing.assert_close(tensor, anew[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "defenses", "same"),
    [
        ("static", (), True),
        ("static", (FeatureNoise(std=0.5),), True),
        ("retrained", (), True),
        ("retrained", (FeatureNoise(std=0.5),), False),
    ],
)
def test_only_what_nothing_is_drawn_for_is_kept(kind: str, defenses: tuple[SmashedDefense, ...], same: bool) -> None:
    known = knowledge(*defenses, count=16)
    assert known.sender is not None
    features = features_by_row(known.sender, kind, known.auxiliary.images, seeded(0))
    rows = torch.tensor([5, 2, 5])
    found, again = features(rows), features(rows)
    assert torch.equal(found, again) == same
    plain = known.sender.features(known.auxiliary.images[rows])
    assert torch.allclose(found, plain, atol=1e-5) == same
