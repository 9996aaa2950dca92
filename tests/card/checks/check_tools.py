"""Search and protect on a machine with a card, and attacks on files."""

import pytest
import torch

from attacks import InvertingGradients
from attacks.placement import HOST
from clients.training import evaluation
from clients.training.evaluation import device
from simulations.external_app.recorded.attack_file import guess_of
from simulations.search.scorer import Scorer, semi_train
from simulations.search.settings import Search
from tests.attacks.wire import classes, observe, pictures, sigmoid_net
from tests.card import stand_in

SEARCH = Search(dataset="photos", model="cnn", images=2, semi_epochs=1)


def test_policies_are_scored_on_the_card_as_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = semi_train(SEARCH)
    with stand_in.counted() as work:
        found = Scorer(SEARCH, weights)((3, 1, 7), None)
    assert not work["cpu"]
    monkeypatch.setattr(evaluation, "GPU", "cuda")  # of which this machine has none
    assert device() == HOST
    for name, tensor in semi_train(SEARCH).items():
        torch.testing.assert_close(weights[name], tensor)
    wanted = Scorer(SEARCH, weights)((3, 1, 7), None)
    assert found == pytest.approx(wanted)


def test_an_update_from_a_file_is_attacked_on_the_card() -> None:
    seen = observe(sigmoid_net(seed=5), pictures(1, seed=3), classes(1, seed=3))
    with stand_in.counted() as work:
        guess = guess_of(InvertingGradients(iterations=2), seen, 0)
    assert work["card"]
    assert not work["cpu"]
    assert guess.images.device == HOST
