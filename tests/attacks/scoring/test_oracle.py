"""The oracle and the scores of class representatives."""

import math

import pytest
import torch
from torch.nn import functional as F

from attacks.guesses import Representatives
from attacks.observations import AttackError
from attacks.scoring.oracle import train_oracle
from attacks.scoring.representatives import score_representatives
from clients.data.datasets import load_dataset, to_float
from defenses.base import Batch


@pytest.fixture(scope="module")
def digits():
    train = load_dataset("mnist-5k").train
    order = torch.randperm(len(train.images), generator=torch.Generator().manual_seed(0))
    return to_float(train.images)[order], train.labels[order]


def batch(images, labels):
    return Batch(images, F.one_hot(labels, 10).float())


@pytest.fixture(scope="module")
def oracle(digits):
    return train_oracle(batch(digits[0][:800], digits[1][:800]), seed=0)


@pytest.mark.long
def test_reads_digits_that_it_never_saw_as_well_as_it_says(oracle, digits):
    unseen = (oracle.classify(digits[0][800:1800]) == digits[1][800:1800]).float().mean().item()
    assert unseen >= 0.9
    # The hold-out has 100 images: three standard deviations of its estimate.
    assert abs(oracle.accuracy - unseen) < 3 * math.sqrt(unseen * (1 - unseen) / 100) + 0.01


@pytest.mark.long
def test_noise_and_shuffled_labels_teach_nothing(digits):
    labels = digits[1][:400][torch.randperm(400, generator=torch.Generator().manual_seed(1))]
    taught = train_oracle(batch(digits[0][:400], labels), seed=0, epochs=2)
    answers = taught.classify(digits[0][800:1800]) == digits[1][800:1800]
    # The network is one, so its errors are not independent: a loose bound.
    assert answers.float().mean() < 0.3
    assert taught.accuracy < 0.4


@pytest.mark.long
def test_depends_on_its_arguments_alone(digits):
    few = batch(digits[0][:64], digits[1][:64])
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = train_oracle(few, seed=3, epochs=1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = train_oracle(few, seed=3, epochs=1), train_oracle(few, seed=4, epochs=1)
    logits = [judge.network(digits[0][:8]) for judge in (first, again, other)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


@pytest.mark.parametrize("shape", [(3, 12, 9), (1, 5, 5)])
def test_takes_any_shape_and_classifies_images_one_by_one(shape):
    images = torch.rand(32, *shape, generator=torch.Generator().manual_seed(0))
    judge = train_oracle(batch(images, torch.arange(32) % 10), seed=0, epochs=1)
    answers = judge.classify(images)
    assert answers.dtype == torch.int64
    assert torch.equal(answers, torch.cat([judge.classify(image[None]) for image in images]))
    assert judge.classify(images[:0]).shape == (0,)
    with pytest.raises(ValueError, match="shape"):
        judge.classify(torch.rand(1, 1, 4, 4))


def test_too_few_images():
    with pytest.raises(AttackError, match="at least 16"):
        train_oracle(batch(torch.rand(8, 1, 8, 8), torch.zeros(8, dtype=torch.int64)), seed=0)


def test_scores_by_hand():
    truth = torch.stack([torch.full((1, 8, 8), value) for value in (0.2, 0.4, 0.9)])
    guess = Representatives(
        torch.stack([torch.full((1, 8, 8), v) for v in (0.4, 0.3, 0.9, 0.5)]), torch.tensor([0, 0, 2, 1])
    )
    scores = score_representatives(guess, truth, torch.tensor([0, 0, 2]), torch.tensor([0, 1, 2, 0]))
    assert scores["recognition"] == [1.0, 0.0, 1.0, 0.0]
    # Class 0 has the mean 0.3: the first is 0.1 off, MSE 0.01, 20 dB; the client has no class 1.
    psnr = scores["class-mean-psnr"]
    assert len(psnr) == len(scores["class-mean-ssim"]) == 3
    assert psnr[0] == pytest.approx(20, abs=1e-3)
    assert psnr[1] > 100
    assert psnr[2] == math.inf
    assert scores["class-mean-ssim"][2] == pytest.approx(1)


def test_a_client_without_the_classes_and_answers_that_do_not_fit():
    guess = Representatives(torch.full((2, 1, 8, 8), 0.5), torch.tensor([3, 4]))
    truth, classes = torch.rand(2, 1, 8, 8), torch.tensor([0, 1])
    scores = score_representatives(guess, truth, classes, torch.tensor([3, 3]))
    assert scores == {"recognition": [1.0, 0.0], "class-mean-psnr": [], "class-mean-ssim": []}
    with pytest.raises(ValueError, match="answers"):
        score_representatives(guess, truth, classes, torch.tensor([3]))
    with pytest.raises(ValueError, match="classes of shape"):
        score_representatives(guess, truth, classes[:1], torch.tensor([3, 3]))
