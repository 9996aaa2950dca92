"""Attacks on embeddings of rows: a shuffle hides nothing from who knows the embeddings, and noise what Bayes' rule says."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attacks import AttackError, Cells, EmbeddingReversal, FieldReading, Knowledge
from attacks.sender import Sender, smash
from attacks.smashed.base import SmashedData
from attacks.tabular.base import Dictionary, categories_of, table_of
from attacks.tabular.field_reading import closest, matched_mean
from clients.models.split.halves import EdgeHalf, ServerHalf
from clients.models.split.split_models import SplitShape, build_split_model
from defenses import BatchShuffle, FeatureNoise, PatchShuffle
from defenses.base import Batch, Defense
from defenses.pipeline import Pipeline
from tests.attacks.wire import stream as seeded
from tests.attacks.wire import untrained
from tests.common.any_attack import pipelines_against, quick

SIZES = (4, 6, 3, 8, 5)


def halves(name: str) -> tuple[EdgeHalf, ServerHalf]:
    shape = SplitShape(1, 4, 1, 4, 0)
    edge, server = build_split_model(
        name, num_classes=2, input_shape=(1, 5, 1), shape=shape, seed=0, cardinalities=SIZES
    )
    return edge.eval(), server.eval()


EDGE, SERVER = halves("difm")


class Known:
    mean, std = (0.0,), (1.0,)


def rows(count: int, seed: int) -> Tensor:
    """Columns are independent, category c of a column has the probability 2 (c + 1) / (K (K + 1)); 0 is never used."""
    streams = [seeded(100 * seed + at) for at in range(len(SIZES))]
    pairs = zip(SIZES, streams, strict=True)
    columns = [torch.arange(1.0, k).multinomial(count, replacement=True, generator=one) + 1 for k, one in pairs]
    return torch.stack(columns, 1).float()[:, None, :, None]


def knowledge(*defenses: Defense, count: int = 400) -> Knowledge:
    pipeline = Pipeline(defenses)
    auxiliary = Batch(rows(count, 1), torch.ones(count, 1))
    return Knowledge(
        auxiliary, pipeline, Known.mean, Known.std, untrained, Sender(EDGE, pipeline, Known.mean, Known.std)
    )


def observe(*defenses: Defense, targets: int = 40, transmissions: int = 1) -> tuple[SmashedData, Tensor]:
    clean, pipeline = rows(targets, 2), Pipeline(defenses)
    with torch.no_grad():
        sent = [smash(EDGE, pipeline, clean, Known(), ("client", at)) for at in range(transmissions)]
    seen = SmashedData(torch.stack(sent), targets, EDGE, SERVER, (1, 5, 1), Known.mean, Known.std)
    return seen, categories_of(clean)


def share(guess: Cells, truth: Tensor) -> float:
    assert not guess.failure
    return float((guess.categories == truth).double().mean())


def test_without_noise_every_cell_is_read_whatever_the_order() -> None:
    for defenses in ((), (PatchShuffle(),)):
        seen, truth = observe(*defenses)
        guess = FieldReading().fit(knowledge(*defenses), seeded())(seen, seeded())
        assert torch.equal(guess.categories, truth)
        torch.testing.assert_close(guess.embeddings, EDGE.embed(rows(40, 2)).detach())
        assert guess.diagnostics["holdout_cells_right"] == 1
        assert guess.diagnostics["noise_std"] == 0
    # A category that no auxiliary row shows is read from the table that the server holds.
    known, (seen, truth) = knowledge(), observe()
    unseen = int(truth[0, 3])
    kept = known.auxiliary.images[known.auxiliary.images[:, 0, 3, 0] != unseen]
    fitted = FieldReading().fit(replace(known, auxiliary=Batch(kept, torch.ones(len(kept), 1))), seeded())
    assert torch.equal(fitted(seen, seeded()).categories, truth)


@pytest.mark.numeric
def test_under_noise_in_place_it_is_bayes_rule() -> None:
    """The best guess of every cell by a loop over all categories of its column; no reader of one transmission does better."""
    noise = FeatureNoise(std=0.8)
    seen, truth = observe(noise, targets=200)
    known = knowledge(noise, count=4000)
    attack = FieldReading(transmissions=1).fit(known, seeded())
    guess = attack(seen, seeded())
    assert attack.learned.variance == pytest.approx(0.64, rel=0.05)
    best, start = torch.zeros_like(truth), 0
    for column, size in enumerate(SIZES):
        table = EDGE.embedding.table.weight[start : start + size].detach()
        prior = categories_of(known.auxiliary.images)[:, column].bincount(minlength=size).double().log()
        for row, token in enumerate(seen.features[0, :, column]):
            odds = [prior[c] - (token - table[c]).square().sum() / (2 * 0.64) for c in range(size)]
            best[row, column] = int(torch.stack(odds).argmax())
        start += size
    assert float((guess.categories == best).double().mean()) > 0.98  # shares and variance are estimates
    assert share(guess, truth) == pytest.approx(float((best == truth).double().mean()), abs=0.01)


@pytest.mark.numeric
def test_transmissions_are_averaged_where_the_servers_own_rows_say_that_it_helps() -> None:
    """Without noise more add nothing; under noise that hides which token is which, they are matched by chance."""
    for defenses, together in (
        ((PatchShuffle(),), 1), ((FeatureNoise(std=1.0),), 4), ((PatchShuffle(), FeatureNoise(std=0.4)), 4),
        ((PatchShuffle(), FeatureNoise(std=30.0)), 1),
    ):  # fmt: skip
        fitted = FieldReading(transmissions=4, batch_size=32).fit(knowledge(*defenses), seeded())
        assert fitted.learned.together == fitted.learned.diagnostics["transmissions_read"] == together
        seen, truth = observe(*defenses, targets=100, transmissions=4)
        guess = fitted(seen, seeded())
        single = replace(fitted, learned=replace(fitted.learned, together=1))(seen, seeded())
        if together == 1:
            assert torch.equal(guess.categories, single.categories)
        else:
            assert share(guess, truth) > share(single, truth) + 0.03


def test_matching_finds_the_tokens_of_every_transmission() -> None:
    """Tokens far apart under small noise: the mean over transmissions is that of the unshuffled ones, in the first one's order."""
    tokens = 10 * torch.randn(6, 7, 4, generator=seeded(3))
    noisy = tokens + 0.1 * torch.randn(5, 6, 7, 4, generator=seeded(4))
    orders = torch.rand(5, 6, 7, generator=seeded(5)).argsort(2)
    sent = noisy.gather(2, orders.unsqueeze(3).expand(-1, -1, -1, 4))
    first = orders[0].unsqueeze(2).expand(-1, -1, 4)
    torch.testing.assert_close(matched_mean(sent), noisy.mean(0).gather(1, first))
    torch.testing.assert_close(closest(tokens, sent[1]), noisy[1])


def test_the_dictionary_counts_what_the_table_of_the_client_half_holds() -> None:
    """Two rows with category 1 of the first column and one with 2, of 0 to 3; the unseen ones share one row's worth."""
    given = torch.tensor([[1, 0], [2, 0], [1, 0]])
    found = Dictionary.of(given, [torch.arange(8.0).view(4, 2), torch.arange(8.0, 10.0).view(1, 2)])
    assert found.columns.tolist() == [0, 0, 0, 0, 1]
    assert found.categories.tolist() == [0, 1, 2, 3, 0]
    assert found.embeddings.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    torch.testing.assert_close(found.log_prior.exp(), torch.tensor([0.25, 2.25, 1.25, 0.25, 4]) / 4)
    assert found.seen(3).categories.tolist() == [1, 2, 0]
    sender = knowledge().sender
    assert torch.equal(torch.cat(table_of(sender)), EDGE.embedding.table.weight)
    pictures = EdgeHalf(torch.nn.Identity(), [], torch.zeros(1, 1, 4), grid=(2, 2), patch_size=4, dim=4)
    with pytest.raises(AttackError, match="no table of embeddings"):
        table_of(replace(sender, edge=pictures))


@pytest.mark.numeric
def test_the_papers_attacker_beats_the_mean_embedding_without_a_defence_and_not_under_a_shuffle() -> None:
    found = {}
    for defenses in ((), (PatchShuffle(),)):
        seen, _ = observe(*defenses)
        told = EmbeddingReversal(iterations=100).fit(knowledge(*defenses, count=1000), seeded())(seen, seeded())
        assert told.embeddings.shape == (40, 5, 4)
        found[defenses] = told.diagnostics["holdout_mse"] / told.diagnostics["holdout_mse_mean_embedding"]
    # Attention among the fields does not notice an order, so that something of the row is left under a shuffle.
    assert found[()] < 0.8
    assert found[()] + 0.05 < found[PatchShuffle(),] < 1.05


def test_behind_both_branches_a_shuffle_moves_the_vector_wise_factors_and_leaves_the_embeddings_in_order() -> None:
    """The paper's edge (Fig. 8): what the prediction layer takes beside m_vec is the row."""
    (edge, server), clean, pipeline = halves("difm-factors"), rows(40, 2), Pipeline((PatchShuffle(),))
    with torch.no_grad():
        sent = torch.stack([smash(edge, pipeline, clean, Known(), ("client", at)) for at in range(2)])
        assert torch.equal(sent[0][..., 1:], edge(clean)[..., 1:])
        assert (sent[0][..., 0] - edge(clean)[..., 0]).abs().max() > 1e-3
        assert (sent[0][..., 0] - sent[1][..., 0]).abs().max() > 1e-3
    seen = SmashedData(sent, 40, edge, server, (1, 5, 1), Known.mean, Known.std)
    known = replace(knowledge(PatchShuffle()), sender=Sender(edge, pipeline, Known.mean, Known.std))
    read = FieldReading().fit(known, seeded())(seen, seeded())
    assert torch.equal(read.categories, categories_of(clean))
    assert read.diagnostics["noise_std"] == 0


AGAINST = [(cls, one) for cls in (FieldReading, EmbeddingReversal) for one in pipelines_against(cls.__name__).values()]
AGAINST += [(FieldReading, Pipeline((BatchShuffle(k=0.4),)))]


@pytest.mark.numeric
def test_table_attacks_repeat_themselves_see_no_order_fail_alone_and_are_at_chance_on_noise() -> None:
    for cls, pipeline in AGAINST:
        known, (seen, truth) = knowledge(*pipeline.defenses), observe(*pipeline.defenses, transmissions=2)
        fitted, other = (quick(cls).fit(known, seeded(at)) for at in (0, 1))
        assert fitted == quick(cls), "what was learned is no hyper-parameter"
        before = copy.deepcopy(seen.features)
        first = fitted(seen, seeded())
        torch.manual_seed(2)
        again = quick(cls).fit(known, seeded())(seen, seeded())
        told = fitted(replace(seen, orders=torch.zeros(seen.features.shape[:3], dtype=torch.int64)), seeded())
        for one in (again, told):
            assert torch.equal(first.categories, one.categories)
            assert torch.equal(first.embeddings, one.embeddings)
        assert cls is FieldReading or not torch.equal(first.embeddings, other(seen, seeded()).embeddings)
        assert torch.equal(before, seen.features)
        assert not fitted.upper_bound
        assert first.categories.shape == truth.shape
        broken = replace(seen, features=seen.features[..., :3])
        guesses = fitted.attack_many([seen, broken], [seeded(), seeded()])
        assert torch.equal(guesses[0].categories, first.categories)
        assert "shape" in guesses[1].failure
        assert (guesses[1].categories == -1).all()
        noise = torch.randn(seen.features.shape, generator=seeded(5)) * seen.features.std()
        frequent = float((truth == truth.mode(0).values).double().mean())
        assert share(fitted(replace(seen, features=noise), seeded()), truth) < frequent + 0.1


def test_what_is_not_enough_is_refused() -> None:
    pictures = Batch(torch.rand(20, 1, 5, 5), torch.ones(20, 1))
    known, (seen, _) = knowledge(), observe()
    for cls in (FieldReading, EmbeddingReversal):
        with pytest.raises(AttackError, match="call fit first"):
            quick(cls)(seen, seeded())
        for given, message in (
            (knowledge(count=3), "at least 16 auxiliary examples, got 3"),
            (replace(known, sender=None), "and split learning"),
            (replace(known, auxiliary=pictures), "allowed: rows of a table"),
        ):
            with pytest.raises(AttackError, match=message):
                cls().fit(given, seeded())
    other = replace(seen, server=torch.nn.Linear(4, 2))
    assert "DIFM; Linear has none" in quick(EmbeddingReversal).fit(known, seeded())(other, seeded()).failure
