"""Networks that learn to decode smashed data: single tokens, means and sets of transmissions, and a conditional GAN."""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.image_measures import mse
from attacks.observations import AttackError
from attacks.sender import Sender
from attacks.smashed import pix2pix
from attacks.smashed.base import SmashedData
from attacks.smashed.decoder_training import independent_transmissions
from attacks.smashed.pix2pix import Pix2Pix
from attacks.smashed.tokens.decoder import AdaptiveDecoder, FeatureAveraging, RecurringTokens, TokenDecoder
from clients.data.datasets import load_dataset
from clients.models.split.split_models import SplitShape, build_split_model
from defenses.base import Batch, Defense
from defenses.pipeline import Pipeline
from defenses.smashed.feature_noise import FeatureNoise
from defenses.smashed.patch_shuffle import PatchShuffle
from tests.attacks.wire import generators, untrained
from tests.attacks.wire import stream as seeded

AUXILIARY, TARGETS, BATCH = 240, 16, 32
SHAPE = (1, 28, 28)
MEAN, STD = (0.13,), (0.31,)


class Unreadable:
    """Stands where an attack must not look."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"the attack read {name} of what it must not see")

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("the attack read what it must not see")


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Auxiliary images, and others that belong to a client."""
    images = load_dataset("mnist-5k").train.images.float() / 255
    images = images[torch.randperm(len(images), generator=seeded())]
    return images[:AUXILIARY], images[AUXILIARY : AUXILIARY + 400]


def sender(*defenses: Defense) -> Sender:
    shape = SplitShape(7, 32, 2, 2, 1)
    edge, _ = build_split_model("vit", num_classes=10, input_shape=SHAPE, shape=shape, seed=3)
    return Sender(edge.eval().requires_grad_(False), Pipeline(defenses), MEAN, STD)


def observe(client: Sender, transmissions: int = 1) -> SmashedData:
    """A client sends the same targets several times, each time with other images as the rest of the batch."""
    own, stream = digits()[1], seeded(11)
    rounds = []
    for _ in range(transmissions):
        rest = own[TARGETS:][torch.randperm(len(own) - TARGETS, generator=stream)[: BATCH - TARGETS]]
        with torch.no_grad():
            rounds.append(client.send(torch.cat([own[:TARGETS], rest]), stream))
    return SmashedData(torch.stack(rounds), TARGETS, client.edge, nn.Identity(), SHAPE, MEAN, STD, orders=Unreadable())


def error(guess: Reconstruction) -> float:
    assert not guess.failure
    return float(mse(guess.images, digits()[1][: len(guess.images)]).mean())


def error_of_mean_image() -> float:
    truth = digits()[1][:TARGETS]
    return float(mse(digits()[0].mean(0).expand_as(truth), truth).mean())


SETTINGS = {"iterations": 80, "width": 32, "depth": 2, "learning_rate": 3e-3}
SMALL = TokenDecoder(**SETTINGS)
PIX2PIX = Pix2Pix(iterations=50, width=4, batch_size=16, learning_rate=4e-3)
NOISE = FeatureNoise(std=4.0)


def fit(attack, *defenses, count=AUXILIARY):
    """The attack after it has learned from auxiliary images."""
    auxiliary = Batch(digits()[0][:count], torch.ones(count, 1))
    return attack.fit(Knowledge(auxiliary, Pipeline(), MEAN, STD, untrained, sender(*defenses)), seeded())


@pytest.fixture(scope="module")
def fitted():
    return fit(SMALL)


def reads_digits_and_not_noise(attack, *defenses, below=0.5):
    """Images it never saw, far below the error of the mean image; and no better than that from noise of the same size."""
    seen = observe(sender(*defenses), attack.transmissions)
    guess = attack(seen, seeded())
    assert error(guess) < below * error_of_mean_image(), attack
    noise = seen.features.std() * torch.randn(seen.features.shape, generator=seeded(5)) + seen.features.mean()
    assert error(attack(replace(seen, features=noise), seeded())) > 0.98 * error_of_mean_image(), attack
    return guess


@pytest.mark.numeric
def test_decodes_digits_it_never_saw_from_their_own_features_alone(fitted) -> None:
    guess, seen = reads_digits_and_not_noise(fitted), observe(sender())
    assert guess.diagnostics["holdout_psnr"] > guess.diagnostics["holdout_psnr_mean_image"] + 3
    assert guess.images.shape == (TARGETS, *SHAPE)
    assert torch.equal(guess.labels, torch.full((TARGETS,), -1))
    assert error(fitted(replace(seen, features=seen.features.roll(1, 1)), seeded())) > error_of_mean_image()
    # The rest of the batch takes no part, and one bad observation harms no other.
    alone = replace(seen, features=seen.features[:, :TARGETS])
    broken = {
        "NaN": torch.full_like(seen.features, torch.nan),
        "shape": seen.features[..., :-1],
        "transmissions": seen.features[:0],
    }
    cases = [alone, *(replace(seen, features=features) for features in broken.values())]
    found, *failed = fitted.attack_many(cases, generators(4))
    assert torch.equal(found.images, guess.images)
    for why, one in zip(broken, failed, strict=True):
        assert why in one.failure
        assert torch.equal(one.images, torch.full((TARGETS, *SHAPE), 0.5))


@pytest.mark.long
@pytest.mark.numeric
def test_several_transmissions_and_a_conditional_gan_decode_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    reads_digits_and_not_noise(fit(AdaptiveDecoder(**SETTINGS, transmissions=4)))
    sixteen = fit(FeatureAveraging(**SETTINGS, transmissions=16), NOISE)
    guess = reads_digits_and_not_noise(sixteen, NOISE, below=0.8)
    assert error(guess) < 0.7 * error(fit(SMALL, NOISE)(observe(sender(NOISE), 16), seeded()))
    gan = fit(PIX2PIX)
    reads_digits_and_not_noise(gan)
    monkeypatch.setattr(pix2pix, "L1_WEIGHT", 0.0)
    free = fit(PIX2PIX)
    # The absolute error holds the generator to the truth.
    assert gan.learned.diagnostics["holdout_psnr"] > free.learned.diagnostics["holdout_psnr"] + 3


def test_shuffled_tokens_are_read_as_a_set_and_others_in_their_slots(fitted) -> None:
    client, quick = sender(PatchShuffle()), {"iterations": 2, "width": 32}
    for attack in (TokenDecoder(**quick), AdaptiveDecoder(**quick, transmissions=4, num_images=16)):
        learned, seen = fit(attack, PatchShuffle()), observe(client, attack.transmissions)
        again = replace(seen, features=seen.features.flip(0, 2))
        assert torch.allclose(learned(seen, seeded()).images, learned(again, seeded()).images, atol=1e-3), attack
    seen = observe(client)
    flipped = replace(seen, features=seen.features.flip(2))
    assert not torch.allclose(fitted(seen, seeded()).images, fitted(flipped, seeded()).images, atol=1e-2)


def test_every_decoder_learns_the_same_from_the_same_images_and_needs_sixteen() -> None:
    short = {"iterations": 2, "width": 8, "batch_size": 8}
    several = short | {"transmissions": 3, "num_images": 24}
    for attack in (TokenDecoder(**short), AdaptiveDecoder(**several), FeatureAveraging(**several), Pix2Pix(**short)):
        seen = observe(sender(NOISE), attack.transmissions)
        one, same = (fit(attack, NOISE, count=40)(seen, seeded()).images for _ in "ab")
        assert torch.equal(one, same), attack
        assert one.shape == (TARGETS, *SHAPE)
        with pytest.raises(AttackError, match="16 auxiliary"):
            fit(attack, NOISE, count=15)


def test_averaging_reads_the_mean_of_as_many_transmissions_as_it_was_fitted_for() -> None:
    averaging = fit(FeatureAveraging(iterations=2, width=8, batch_size=8, transmissions=3, num_images=24), NOISE)
    seen = observe(sender(NOISE), 3)
    same = replace(seen, features=seen.features.mean(0, keepdim=True).expand(3, -1, -1, -1))
    assert torch.allclose(averaging(same, seeded()).images, averaging(seen, seeded()).images, atol=1e-5)
    few = averaging(observe(sender(NOISE), 2), seeded())
    assert "needs the 3 transmissions that it was fitted for, there are 2" in few.failure


@dataclass
class Recorder:
    """Stands for a sender: "sends" the number of each image and that of the transmission, and remembers each batch."""

    batches: list[list[int]] = field(default_factory=list)

    def send(self, images: Tensor, generator: torch.Generator) -> Tensor:
        self.batches.append(images[:, 0, 0, 0].long().tolist())
        number = torch.full((len(images), 1, 1), float(len(self.batches)))
        return torch.cat([images[:, :1, 0, :1], number], 2)


def test_transmissions_are_independent_and_the_rest_of_the_batch_differs() -> None:
    for count, size in ((32, 8), (35, 8), (2, 32), (3, 32), (9, 2)):
        images, recorder = torch.arange(float(count)).view(-1, 1, 1, 1), Recorder()
        sent = independent_transmissions(recorder, images, 6, size, seeded())
        # Each image kept its row, and no two of its rows came from the same transmission.
        assert torch.equal(sent[:, :, 0, 0], torch.arange(float(count)).expand(6, -1))
        assert all(len(set(sent[:, row, 0, 1].tolist())) == 6 for row in range(count))
        assert all(len(batch) <= size and len(set(batch)) == len(batch) for batch in recorder.batches)
        if count > 2 * size:
            for image in range(count):
                company = [set(batch) for batch in recorder.batches if image in batch]
                assert len({frozenset(batch) for batch in company}) > 1
                # Half of the batch stays together.
                assert size // 4 <= len(set.intersection(*company)) <= size // 2, (count, size)


def test_finds_exactly_the_tokens_that_recur() -> None:
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
    # Each is in half of the transmissions on average, and two of its kind are 0.01 * sqrt(12) = 0.035 apart.
    assert found[..., -1].mean().item() == pytest.approx(0.5 * torch.exp(torch.tensor(-0.24)).item(), abs=0.1)
