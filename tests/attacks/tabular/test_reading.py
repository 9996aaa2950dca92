"""Attacks on embeddings of rows: a shuffle hides nothing from who knows the embeddings, and noise what Bayes' rule says."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks import AttackError, Cells, EmbeddingReversal, FieldReading, Knowledge
from attacks.sender import Sender, smash
from attacks.smashed.base import SmashedData
from attacks.tabular.base import Dictionary, categories_of, table_of
from attacks.tabular.field_reading import closest, matched_mean
from clients.models.split.halves import EdgeHalf
from clients.models.split.split_models import SplitShape, build_split_model
from defenses import BatchShuffle, FeatureNoise, PatchShuffle
from defenses.base import Batch, Defense
from defenses.pipeline import Pipeline
from tests.common.any_attack import pipelines_against, quick

SIZES = (4, 6, 3, 8, 5)
EDGE, SERVER = build_split_model(
    "difm", num_classes=2, input_shape=(1, 5, 1), shape=SplitShape(1, 4, 1, 4, 0), seed=0, cardinalities=SIZES
)
TABLE_ATTACKS = [FieldReading, EmbeddingReversal]


class Known:
    mean, std = (0.0,), (1.0,)


def seeded(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def rows(count: int, seed: int) -> Tensor:
    """Columns are independent, category c of a column has the probability 2 (c + 1) / (K (K + 1)); 0 is never used."""
    columns = [
        torch.multinomial(torch.arange(1.0, size), count, replacement=True, generator=seeded(100 * seed + at)) + 1
        for at, size in enumerate(SIZES)
    ]
    return torch.stack(columns, 1).float()[:, None, :, None]


def knowledge(*defenses: Defense, count: int = 400) -> Knowledge:
    def train(*_: Any) -> Any:
        raise AssertionError("no attack on smashed data trains a model of the clients'")

    pipeline = Pipeline(defenses)
    auxiliary = Batch(rows(count, 1), torch.ones(count, 1))
    return Knowledge(auxiliary, pipeline, Known.mean, Known.std, train, Sender(EDGE, pipeline, Known.mean, Known.std))


def observe(*defenses: Defense, targets: int = 40, transmissions: int = 1) -> tuple[SmashedData, Tensor]:
    clean, pipeline = rows(targets, 2), Pipeline(defenses)
    with torch.no_grad():
        sent = [smash(EDGE, pipeline, clean, Known(), ("client", at)) for at in range(transmissions)]
    seen = SmashedData(torch.stack(sent), targets, EDGE, SERVER.eval(), (1, 5, 1), Known.mean, Known.std)
    return seen, categories_of(clean)


def share(guess: Cells, truth: Tensor) -> float:
    assert not guess.failure
    return float((guess.categories == truth).double().mean())


@pytest.mark.parametrize("defenses", [(), (PatchShuffle(),)])
def test_without_noise_every_cell_is_read_whatever_the_order(defenses: tuple[Defense, ...]) -> None:
    seen, truth = observe(*defenses)
    guess = FieldReading().fit(knowledge(*defenses), seeded())(seen, seeded())
    assert torch.equal(guess.categories, truth)
    torch.testing.assert_close(guess.embeddings, EDGE.embed(rows(40, 2)).detach())
    assert guess.diagnostics["holdout_cells_right"] == 1
    assert guess.diagnostics["noise_std"] == 0


def test_under_noise_in_place_it_is_bayes_rule() -> None:
    """The best guess of every cell by a loop over all categories of its column; no reader of one transmission does better."""
    noise = FeatureNoise(std=0.8)
    seen, truth = observe(noise, targets=200)
    known = knowledge(noise, count=4000)
    attack = FieldReading(transmissions=1).fit(known, seeded())
    guess = attack(seen, seeded())
    assert attack.learned is not None
    assert attack.learned.variance == pytest.approx(0.64, rel=0.05)
    counts = [
        torch.bincount(column, minlength=max(SIZES)).double() for column in categories_of(known.auxiliary.images).T
    ]
    starts = torch.tensor([0, *SIZES]).cumsum(0)
    best = torch.zeros_like(truth)
    for column, size in enumerate(SIZES):
        table = EDGE.embedding.table.weight[starts[column] : starts[column] + size].detach()
        for row, token in enumerate(seen.features[0, :, column]):
            odds = [counts[column][c] * torch.exp(-(token - table[c]).square().sum() / (2 * 0.64)) for c in range(size)]
            best[row, column] = int(torch.stack(odds).argmax())
    assert float((guess.categories == best).double().mean()) > 0.98  # shares and variance are estimates
    assert share(guess, truth) == pytest.approx(float((best == truth).double().mean()), abs=0.01)


def test_transmissions_average_in_their_slots_and_behind_a_shuffle_once_they_are_matched() -> None:
    found = {}
    for std in (0.6, 1.0):
        for defenses in ((FeatureNoise(std=std),), (PatchShuffle(), FeatureNoise(std=std))):
            seen, truth = observe(*defenses, targets=100, transmissions=6)
            fitted = FieldReading(transmissions=6, batch_size=32).fit(knowledge(*defenses), seeded())
            assert fitted.learned is not None
            once = replace(fitted, learned=replace(fitted.learned, together=1))
            found[std, len(defenses)] = share(once(seen, seeded()), truth), share(fitted(seen, seeded()), truth)
    assert found[1.0, 1][1] > found[1.0, 1][0] + 0.1
    assert found[0.6, 2][1] > found[0.6, 2][0] + 0.05
    assert found[1.0, 2][1] < found[1.0, 1][1]


@pytest.mark.parametrize(("std", "together"), [(0.0, 1), (0.4, 4), (30.0, 1)])
def test_one_transmission_or_many_is_chosen_by_the_servers_own_rows(std: float, together: int) -> None:
    """Without noise more add nothing; under noise that hides which token is which, they are matched by chance."""
    defenses = (PatchShuffle(), FeatureNoise(std=std))
    fitted = FieldReading(transmissions=4, batch_size=32).fit(knowledge(*defenses), seeded())
    assert fitted.learned is not None
    assert fitted.learned.together == fitted.learned.diagnostics["transmissions_read"] == together
    seen, truth = observe(*defenses, transmissions=4)
    swapped = fitted(seen, seeded())
    assert share(swapped, truth) >= (0.9 if std < 1 else 0)
    if together == 1:
        assert torch.equal(swapped.categories, fitted(replace(seen, features=seen.features[:1]), seeded()).categories)


def test_matching_finds_the_tokens_of_every_transmission() -> None:
    """Tokens far apart under small noise: the mean over transmissions is that of the unshuffled ones, in the first one's order."""
    tokens = 10 * torch.randn(6, 7, 4, generator=seeded(3))
    noisy = tokens + 0.1 * torch.randn(5, 6, 7, 4, generator=seeded(4))
    orders = torch.rand(5, 6, 7, generator=seeded(5)).argsort(2)
    sent = noisy.gather(2, orders.unsqueeze(3).expand(-1, -1, -1, 4))
    first = orders[0].unsqueeze(2).expand(-1, -1, 4)
    torch.testing.assert_close(matched_mean(sent), noisy.mean(0).gather(1, first))
    torch.testing.assert_close(closest(tokens, sent[1]), noisy[1])


def test_a_category_that_no_auxiliary_row_shows_is_read_from_the_table_that_the_server_holds() -> None:
    known = knowledge()
    kept = known.auxiliary.images[known.auxiliary.images[:, 0, 3, 0] != 7]
    fitted = FieldReading().fit(replace(known, auxiliary=Batch(kept, torch.ones(len(kept), 1))), seeded())
    seen, truth = observe()
    assert (truth[:, 3] == 7).any()
    assert torch.equal(fitted(seen, seeded()).categories, truth)


def test_the_dictionary_counts() -> None:
    """Two rows with category 1 of the first column and one with 2, of 0 to 3; the unseen ones share one row's worth."""
    given = torch.tensor([[1, 0], [2, 0], [1, 0]])
    table = [torch.arange(8.0).view(4, 2), torch.arange(8.0, 10.0).view(1, 2)]
    found = Dictionary.of(given, table)
    assert found.columns.tolist() == [0, 0, 0, 0, 1]
    assert found.categories.tolist() == [0, 1, 2, 3, 0]
    assert found.embeddings.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    torch.testing.assert_close(found.log_prior.exp(), torch.tensor([0.25, 2.25, 1.25, 0.25, 4]) / 4)
    assert found.seen(3).categories.tolist() == [1, 2, 0]


def test_the_table_is_what_the_client_half_looks_up() -> None:
    sender = knowledge().sender
    assert sender is not None
    assert torch.equal(torch.cat(table_of(sender)), EDGE.embedding.table.weight)
    pictures = EdgeHalf(torch.nn.Identity(), [], torch.zeros(1, 1, 4), grid=(2, 2), patch_size=4, dim=4)
    with pytest.raises(AttackError, match="no table of embeddings"):
        table_of(replace(sender, edge=pictures))


def test_the_papers_attacker_is_drawn_from_the_generator_of_its_fit() -> None:
    seen, _ = observe()
    first, other, again = (
        EmbeddingReversal(iterations=3).fit(knowledge(), seeded(at))(seen, seeded()).embeddings for at in (1, 2, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_the_papers_attacker_beats_the_mean_embedding_without_a_defence_and_not_under_a_shuffle() -> None:
    found = {}
    for defenses in ((), (PatchShuffle(),)):
        seen, _ = observe(*defenses)
        told = EmbeddingReversal(iterations=100).fit(knowledge(*defenses, count=1000), seeded())(seen, seeded())
        assert told.embeddings.shape == (40, 5, 4)
        found[defenses] = told.diagnostics["holdout_mse"] / told.diagnostics["holdout_mse_mean_embedding"]
    # Attention among the fields does not notice an order, so that something of the row is left under a shuffle.
    assert found[()] < 0.7
    assert found[()] + 0.1 < found[PatchShuffle(),] < 1


def test_behind_both_branches_a_shuffle_moves_the_vector_wise_factors_and_leaves_the_embeddings_in_order() -> None:
    """The paper's edge (Fig. 8): what the prediction layer takes beside m_vec is the row."""
    edge, server = build_split_model(
        "difm-factors", num_classes=2, input_shape=(1, 5, 1), shape=SplitShape(1, 4, 1, 4, 0), seed=0, cardinalities=SIZES
    )  # fmt: skip
    edge.eval()
    defenses = (PatchShuffle(),)
    pipeline, clean = Pipeline(defenses), rows(40, 2)
    with torch.no_grad():
        sent = torch.stack([smash(edge, pipeline, clean, Known(), ("client", at)) for at in range(2)])
        assert torch.equal(sent[0][..., 1:], edge(clean)[..., 1:])
        assert (sent[0][..., 0] - edge(clean)[..., 0]).abs().max() > 1e-3
        assert (sent[0][..., 0] - sent[1][..., 0]).abs().max() > 1e-3
    seen = SmashedData(sent, 40, edge, server.eval(), (1, 5, 1), Known.mean, Known.std)
    known = replace(knowledge(*defenses), sender=Sender(edge, pipeline, Known.mean, Known.std))
    read = FieldReading().fit(known, seeded())(seen, seeded())
    assert torch.equal(read.categories, categories_of(clean))
    assert read.diagnostics["noise_std"] == 0
    reversed_ = quick(EmbeddingReversal).fit(known, seeded())(seen, seeded())
    assert not reversed_.failure
    assert reversed_.embeddings.shape == (40, 5, 4)


def test_the_papers_attacker_needs_the_factors() -> None:
    seen, _ = observe()
    other = replace(seen, server=torch.nn.Linear(4, 2))
    guess = quick(EmbeddingReversal).fit(knowledge(), seeded())(other, seeded())
    assert "DIFM; Linear has none" in guess.failure


# Properties that tests/common asks of attacks on images ---------------------------------------------------------------------

AGAINST = [(cls, one) for cls in TABLE_ATTACKS for one in pipelines_against(cls.__name__).values()]
AGAINST += [(FieldReading, Pipeline((BatchShuffle(k=0.4),)))]


@pytest.mark.parametrize(("cls", "pipeline"), AGAINST, ids=str)
def test_every_table_attack(cls: Any, pipeline: Pipeline) -> None:
    known, (seen, truth) = knowledge(*pipeline.defenses), observe(*pipeline.defenses, transmissions=2)
    fitted = quick(cls).fit(known, seeded())
    assert fitted == quick(cls), "what was learned is no hyper-parameter"
    before = copy.deepcopy(seen.features)
    torch.manual_seed(1)
    first = fitted(seen, seeded())
    torch.manual_seed(2)
    again = fitted(seen, seeded())
    assert torch.equal(first.categories, again.categories)
    assert torch.equal(first.embeddings, again.embeddings)
    assert torch.equal(before, seen.features)
    told = replace(seen, orders=torch.zeros(seen.features.shape[:3], dtype=torch.int64))
    assert torch.equal(first.categories, fitted(told, seeded()).categories)
    assert not fitted.upper_bound
    assert first.categories.shape == truth.shape
    broken = replace(seen, features=seen.features[..., :3])
    guesses = fitted.attack_many([seen, broken], [seeded(), seeded()])
    assert torch.equal(guesses[0].categories, first.categories)
    assert "shape" in guesses[1].failure
    assert (guesses[1].categories == -1).all()
    noise = torch.randn(seen.features.shape, generator=seeded(5)) * seen.features.std()
    frequent = float((truth == truth.mode(0).values).double().mean())
    assert share(fitted(replace(seen, features=noise), seeded()), truth) < frequent + 0.05


@pytest.mark.parametrize("cls", TABLE_ATTACKS)
def test_what_is_not_enough_is_refused(cls: Any) -> None:
    seen, _ = observe()
    with pytest.raises(AttackError, match="call fit first"):
        quick(cls)(seen, seeded())
    with pytest.raises(AttackError, match="at least 16 auxiliary examples, got 3"):
        cls().fit(knowledge(count=3), seeded())
    with pytest.raises(AttackError, match="and split learning"):
        cls().fit(replace(knowledge(), sender=None), seeded())
    pictures = Batch(torch.rand(20, 1, 5, 5), torch.ones(20, 1))
    with pytest.raises(AttackError, match="allowed: rows of a table"):
        cls().fit(replace(knowledge(), auxiliary=pictures), seeded())
