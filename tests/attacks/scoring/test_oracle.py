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


def batch(images, labels):
    return Batch(images, F.one_hot(labels, 10).float())


@pytest.mark.long
@pytest.mark.numeric
def test_reads_digits_that_it_never_saw_as_well_as_it_says_and_nothing_where_labels_are_shuffled():
    train = load_dataset("mnist-5k").train
    order = torch.randperm(len(train.images), generator=torch.Generator().manual_seed(0))[:1800]
    images, labels = to_float(train.images)[order], train.labels[order]
    oracle = train_oracle(batch(images[:800], labels[:800]), seed=0)
    unseen = (oracle.classify(images[800:]) == labels[800:]).float().mean().item()
    assert unseen >= 0.88
    # The hold-out has 100 images: four standard deviations of its estimate.
    assert abs(oracle.accuracy - unseen) < 4 * math.sqrt(unseen * (1 - unseen) / 100) + 0.01
    shuffled = labels[:400][torch.randperm(400, generator=torch.Generator().manual_seed(1))]
    taught = train_oracle(batch(images[:400], shuffled), seed=0, epochs=2)
    # The network is one, so its errors are not independent: a loose bound.
    assert (taught.classify(images[800:]) == labels[800:]).float().mean() < 0.35
    assert taught.accuracy < 0.4


def test_depends_on_its_arguments_alone_and_classifies_images_of_any_shape_one_by_one():
    for shape in ((3, 12, 9), (1, 5, 5)):
        images = torch.rand(32, *shape, generator=torch.Generator().manual_seed(0))
        few = batch(images, torch.arange(32) % 10)
        state = torch.get_rng_state()
        judge = train_oracle(few, seed=3, epochs=1)
        assert torch.equal(torch.get_rng_state(), state)
        torch.manual_seed(2)
        again, other = train_oracle(few, seed=3, epochs=1), train_oracle(few, seed=4, epochs=1)
        logits = [one.network(images) for one in (judge, again, other)]
        assert torch.equal(logits[0], logits[1])
        assert not torch.equal(logits[0], logits[2])
        answers = judge.classify(images)
        assert answers.dtype == torch.int64
        assert torch.equal(answers, torch.cat([judge.classify(image[None]) for image in images]))
        assert judge.classify(images[:0]).shape == (0,)
        with pytest.raises(ValueError, match="shape"):
            judge.classify(torch.rand(1, 1, 4, 4))
    with pytest.raises(AttackError, match="at least 16"):
        train_oracle(batch(torch.rand(8, 1, 8, 8), torch.zeros(8, dtype=torch.int64)), seed=0)


def test_scores_by_hand():
    def flat(*values):
        return torch.tensor(values).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)

    guess = Representatives(flat(0.4, 0.3, 0.9, 0.5), torch.tensor([0, 0, 2, 1]))
    truth, classes = flat(0.2, 0.4, 0.9), torch.tensor([0, 0, 2])
    scores = score_representatives(guess, truth, classes, torch.tensor([0, 1, 2, 0]))
    assert scores["recognition"] == [1.0, 0.0, 1.0, 0.0]
    # Class 0 has the mean 0.3: the first is 0.1 off, MSE 0.01, 20 dB; the client has no class 1.
    psnr = scores["class-mean-psnr"]
    assert len(psnr) == len(scores["class-mean-ssim"]) == 3
    assert psnr[0] == pytest.approx(20, abs=1e-3)
    assert psnr[1] > 100
    assert psnr[2] == math.inf
    assert scores["class-mean-ssim"][2] == pytest.approx(1)
    # A client without the classes, and answers that do not fit.
    other = Representatives(flat(0.5, 0.5), torch.tensor([3, 4]))
    answers = torch.tensor([3, 3])
    scores = score_representatives(other, truth, classes, answers)
    assert scores == {"recognition": [1.0, 0.0], "class-mean-psnr": [], "class-mean-ssim": []}
    for labels, said, message in ((classes, answers[:1], "answers"), (classes[:1], answers, "classes of shape")):
        with pytest.raises(ValueError, match=message):
            score_representatives(other, truth, labels, said)
