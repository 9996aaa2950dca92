"""Search and protect on a machine with a card, attacks on files, and what memory that runs out costs."""

from collections.abc import Iterator

import pytest
import torch

from attacks import InvertingGradients
from attacks.observations import AttackError, ClientUpdate
from attacks.placement import HOST
from clients.training import evaluation
from clients.training.evaluation import device, place
from simulations.external_app.recorded.attack_file import guess_of
from simulations.search.scorer import Scorer, semi_train
from simulations.search.settings import Search
from tests.attacks.wire import classes, observe, pictures, sigmoid_net
from tests.card import stand_in

SEARCH = Search(dataset="photos", model="cnn", images=2, semi_epochs=1)


@pytest.fixture(autouse=True)
def _memory() -> Iterator[None]:
    """As much memory as before."""
    before = stand_in.Memory.limit, stand_in.Memory.free
    yield
    stand_in.Memory.limit, stand_in.Memory.free = before


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


def probes(count: int) -> list[ClientUpdate]:
    model = sigmoid_net(seed=5)
    images, labels = pictures(count, seed=3), classes(count, seed=3)
    return [observe(model, images[at : at + 1], labels[at : at + 1]) for at in range(count)]


def test_an_update_from_a_file_is_attacked_on_the_card() -> None:
    (seen,) = probes(1)
    with stand_in.counted() as work:
        guess = guess_of(InvertingGradients(iterations=2), seen, 0)
    assert work["card"]
    assert not work["cpu"]
    assert guess.images.device == HOST


def guesses(limit: int, **changes: int) -> list[torch.Tensor]:
    stand_in.Memory.limit = limit
    streams = [torch.Generator().manual_seed(at) for at in range(6)]
    found = place().attack_many(InvertingGradients(iterations=2, **changes), probes(6), streams)
    assert not any(guess.failure for guess in found), found[0].failure
    return [guess.images for guess in found]


def test_memory_that_runs_out_costs_a_smaller_chunk_and_changes_no_guess() -> None:
    whole = guesses(1 << 40)
    for guess, want in zip(guesses(60_000), whole, strict=True):
        torch.testing.assert_close(guess, want, rtol=1e-4, atol=1e-5)


def test_memory_that_holds_no_observation_costs_the_attack_and_says_so() -> None:
    stand_in.Memory.limit = 100
    with pytest.raises(AttackError, match="out of memory"):
        place().attack_many(InvertingGradients(iterations=2), probes(2), [torch.Generator(), torch.Generator()])
