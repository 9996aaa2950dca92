from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch

from attacks.smashed.adaptive_decoder import AdaptiveDecoder, RecurringTokens, side_by_side
from attacks.smashed.decoder_training import independent_transmissions, mean_of_transmissions
from defenses.smashed.feature_noise import FeatureNoise
from defenses.smashed.patch_shuffle import BatchShuffle, PatchShuffle
from tests.attacks.decoding import TARGETS, digits, error, error_of_mean_image, knowledge, observe, seeded, sender

SMALL = AdaptiveDecoder(iterations=80, width=32, depth=2, learning_rate=3e-3, transmissions=4)


@dataclass
class Recorder:
    """Stands for a sender: "sends" the number of each image and that of the transmission, and remembers who was sent with whom."""

    batches: list[list[int]] = field(default_factory=list)

    def send(self, images, generator):
        self.batches.append(images[:, 0, 0, 0].long().tolist())
        number = torch.full((len(images), 1, 1), float(len(self.batches)))
        return torch.cat([images[:, :1, 0, :1], number], 2)


@pytest.mark.parametrize(("count", "batch_size"), [(32, 8), (35, 8), (2, 32), (3, 32), (9, 2)])
def test_transmissions_are_independent_and_the_rest_of_the_batch_differs(count, batch_size):
    images, recorder = torch.arange(float(count)).view(-1, 1, 1, 1), Recorder()
    sent = independent_transmissions(recorder, images, 6, batch_size, seeded())
    assert sent.shape == (6, count, 1, 2)
    # Each image kept its row, and no two of its rows came from the same transmission.
    assert torch.equal(sent[:, :, 0, 0], torch.arange(float(count)).expand(6, -1))
    assert all(len(set(sent[:, row, 0, 1].tolist())) == 6 for row in range(count))
    assert all(len(batch) <= batch_size and len(set(batch)) == len(batch) for batch in recorder.batches)
    company = [{frozenset(b) for b in recorder.batches if image in b} for image in range(count)]
    if count > 2 * batch_size:
        assert all(len(batches) > 1 for batches in company)
        # Half of the batch stays together.
        always = [set.intersection(*map(set, batches)) for batches in company]
        assert all(batch_size // 4 <= len(together) <= batch_size // 2 for together in always)


def test_training_pairs_are_transmissions_with_fresh_shuffles():
    """The same multiset of tokens in each transmission, in unrelated orders: not one shuffle of another's output."""
    client = sender(PatchShuffle(), edge_blocks=0)
    images = digits()[0][:8]
    with torch.no_grad():
        clean = replace(client, pipeline=type(client.pipeline)()).send(images, seeded())
    sent = independent_transmissions(client, images, 20, 4, seeded())
    assert torch.allclose(sent.sort(2).values, clean.sort(1).values.expand_as(sent), atol=1e-6)
    positions = (sent.unsqueeze(3) - clean[None, :, None]).norm(dim=4).argmin(3)[:, 0]
    assert len({tuple(order) for order in positions.tolist()}) == 20


def test_finds_exactly_the_tokens_that_recur():
    own, stream = 3 * torch.randn(5, 4, 6, generator=seeded(1)), seeded(2)
    sent = 3 * torch.randn(12, 5, 4, 6, generator=stream)  # foreign tokens, new ones each time
    for r in range(12):
        for image in range(5):  # half of the image's own, in any slot
            slots, tokens = (torch.randperm(4, generator=stream)[:2] for _ in range(2))
            sent[r, image, slots] = own[image, tokens] + 0.01 * torch.randn(2, 6, generator=stream)
    found = RecurringTokens(distance=0.05)(sent)
    apart = torch.cdist(found[..., :-1], own)
    assert apart.min(2).values.max() < 0.03
    assert torch.equal(apart.argmin(2).sort(1).values, torch.arange(4).expand(5, -1))
    assert ((found[..., -1] > 0.1) & (found[..., -1] <= 1)).all()


def test_finds_the_native_tokens_of_a_batch_shuffle():
    client = sender(BatchShuffle(k=0.5))
    with torch.no_grad():
        clean = replace(client, pipeline=type(client.pipeline)()).send(digits()[0][:32], seeded())
    sent = independent_transmissions(client, digits()[0][:32], 12, 32, seeded())
    pool = AdaptiveDecoder(transmissions=12).pool_of(client, digits()[0], seeded())
    assert isinstance(pool, RecurringTokens)

    def missed(tokens):
        """How far the nearest of the tokens is from each of the image's own, on average."""
        return torch.cdist(clean, tokens).min(2).values.mean()

    assert missed(pool(sent)[..., :-1]) < 0.3 * missed(sent[0])


def test_pools_what_the_defences_leave():
    images = digits()[0]
    assert AdaptiveDecoder(pooling="concat").pool_of(sender(PatchShuffle()), images, seeded()) is side_by_side
    assert AdaptiveDecoder().pool_of(sender(FeatureNoise()), images, seeded()) is mean_of_transmissions
    features = torch.randn(3, 2, 4, 5, generator=seeded())
    assert torch.equal(side_by_side(features)[1, 2], torch.cat([features[r, 1, 2] for r in range(3)]))


@pytest.fixture(scope="module")
def fitted():
    return SMALL.fit(knowledge(sender()), seeded())


def test_decodes_digits_it_never_saw(fitted):
    seen = observe(sender(), 4)
    assert error(fitted(seen, seeded())) < 0.5 * error_of_mean_image()
    noise = seen.features.std() * torch.randn(seen.features.shape, generator=seeded(5)) + seen.features.mean()
    assert error(fitted(replace(seen, features=noise), seeded())) > 0.98 * error_of_mean_image()


def test_order_of_tokens_and_transmissions_does_not_matter_under_a_shuffle():
    client = sender(PatchShuffle())
    attack = replace(SMALL, iterations=2, num_images=16).fit(knowledge(client), seeded())
    seen = observe(client, 4)
    other = replace(seen, features=seen.features.flip(0, 2))
    assert torch.allclose(attack(seen, seeded()).images, attack(other, seeded()).images, atol=1e-3)


def test_needs_its_transmissions(fitted):
    assert fitted.transmissions == 4
    assert AdaptiveDecoder().transmissions == 30
    guess = fitted(observe(sender(), 3), seeded())
    assert "needs the 4 transmissions that it was fitted for, there are 3" in guess.failure
    assert guess.images.shape[0] == TARGETS


@pytest.mark.parametrize("change", [{"transmissions": 0}, {"num_images": 1}, {"pooling": "mean"}])
def test_refuses_bad_values(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        AdaptiveDecoder(**change)
