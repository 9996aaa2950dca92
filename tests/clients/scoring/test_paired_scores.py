"""Guesses from smashed data are scored image by image, and in the convention of the shuffling paper on the paper's scale."""

from __future__ import annotations

import math

import pytest
import torch

from attacks.guesses import Labels, Reconstruction
from attacks.metrics.guesses import LABEL_ACCURACY
from attacks.metrics.images import MSE_PAPER, PSNR_PAPER
from attacks.scoring.metrics import label_hits
from clients.data.card import DataCard
from clients.data.datasets import load_dataset
from clients.scoring.audit import audit_baselines, audit_guesses
from clients.scoring.image_scores import paper_scale, paper_scores, score_both, uniform_label_accuracy
from clients.split.training import SplitClient
from clients.task.local_data import LocalData
from clients.task.task import Task
from clients.task.truths import Probed
from defenses.base import Batch
from tests.clients.split.test_training import TASK
from tests.scores import flat

FACES = DataCard(2, (3, 32, 32), (0.5,) * 3, (0.5,) * 3)


def truth(classes: list[int], num_classes: int = 10) -> Probed:
    targets = torch.nn.functional.one_hot(torch.tensor(classes), num_classes).float()
    batch = Batch(torch.rand(len(classes), 1, 8, 8, generator=torch.Generator().manual_seed(0)), targets)
    return Probed(batch, batch, torch.arange(len(batch)))


def test_labels_of_smashed_data_are_paired_with_their_images() -> None:
    """The right classes in the wrong places are worth nothing; for an update, which has no places, they are all right."""
    known, turned = truth([3, 1, 4, 1]), Labels(torch.tensor([1, 3, 1, 4]))
    assert score_both(turned, known, paired=True) == {LABEL_ACCURACY.of(): [0.0, 0.0, 0.0, 0.0]}
    assert score_both(turned, known) == {LABEL_ACCURACY.of(): [1.0]}
    half = Labels(torch.tensor([3, 4, 4, 3]))
    assert score_both(half, known, paired=True) == {LABEL_ACCURACY.of(): [1.0, 0.0, 1.0, 0.0]}
    with pytest.raises(ValueError, match="3 guessed classes for 4"):
        label_hits(Labels(torch.tensor([3, 4, 4])), torch.tensor([3, 1, 4, 1]))


def test_a_random_guess_of_paired_labels_is_at_chance() -> None:
    """As a multiset, 16 random digits of 16 hit several by luck, and a random guess would look like a leak."""
    generator = torch.Generator().manual_seed(1)
    paired, multiset = [], []
    for _ in range(400):
        classes, guess = (torch.randint(10, (16,), generator=generator) for _ in range(2))
        known = truth(classes.tolist())
        paired += score_both(Labels(guess), known, paired=True)[LABEL_ACCURACY.of()]
        multiset += score_both(Labels(guess), known)[LABEL_ACCURACY.of()]
    chance = uniform_label_accuracy(truth(list(range(10))).original, paired=True)
    assert chance == [0.1] * 10
    # Five standard deviations of the mean of 6,400 guesses.
    assert abs(sum(paired) / len(paired) - 0.1) < 5 * math.sqrt(0.09 / len(paired))
    assert sum(multiset) / len(multiset) > 0.4


def test_the_baseline_of_an_audit_is_paired_as_its_attacks_are() -> None:
    client = SplitClient(LocalData(TASK.but(probe_images=4), 0, range(40), range(20)))
    scores = flat(audit_baselines(client, "smashed", pictures=False))
    (chance,) = [values for name, values in scores.items() if name.endswith("uniform:label-accuracy")]
    assert chance == [0.1] * 8  # two targets of four images
    right = [Labels(client.audits.truth(at).original.targets.argmax(1)) for at in (0, 1)]
    found = flat(audit_guesses(client, "smashed", [(guess, None) for guess in right]))
    assert found == {"label-accuracy": [1.0] * 8}


# The paper's convention --------------------------------------------------------------------------------------------------


def task(dataset: str, card: DataCard) -> Task:
    return TASK.but(dataset=dataset, card=card)


@pytest.mark.parametrize("dataset", ["celeba:Smiling", "lfw:30"])
def test_faces_are_compared_in_minus_one_to_one(dataset: str) -> None:
    scale = paper_scale(task(dataset, FACES))
    assert str(scale) == "images in [-1, 1], peak 1"
    one, other = torch.full((1, 3, 32, 32), 0.3), torch.full((1, 3, 32, 32), 0.4)
    found = paper_scores(one, other, scale)
    # 20 dB in [0, 1]: twice the difference is 6.02 dB less.
    assert found[MSE_PAPER.of()] == pytest.approx([0.04], rel=1e-5)
    assert found[PSNR_PAPER.of()] == pytest.approx([20 - 20 * math.log10(2)], abs=1e-4)


def test_cifar_is_compared_as_z_scores_by_the_numbers_of_the_papers_code() -> None:
    scale = paper_scale(task("cifar10", DataCard(10, (3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))))
    assert scale.mean == (0.4914, 0.4822, 0.4465)
    assert scale.std == (0.2023, 0.1994, 0.2010)
    one, other = torch.full((1, 3, 32, 32), 0.3), torch.full((1, 3, 32, 32), 0.4)
    # By hand: the mean of (0.1 / std)^2 over the channels, and a peak of 1.
    mse = sum((0.1 / std) ** 2 for std in scale.std) / 3
    found = paper_scores(one, other, scale)
    assert found[MSE_PAPER.of()] == pytest.approx([mse], rel=1e-5)
    assert found[PSNR_PAPER.of()] == pytest.approx([-10 * math.log10(mse)], abs=1e-4)
    # What has 28.1 dB in [-1, 1] has 20.2 dB here.
    faces = paper_scores(one, other, paper_scale(task("celeba:Smiling", FACES)))
    assert 28.1 + found[PSNR_PAPER.of()][0] - faces[PSNR_PAPER.of()][0] == pytest.approx(20.18, abs=0.01)


def test_a_data_set_that_the_paper_does_not_have_is_compared_as_its_network_sees_it() -> None:
    photos = load_dataset("photos")
    scale = paper_scale(task("photos", DataCard.of(photos)))
    assert scale.mean == tuple(photos.mean)
    assert scale.std == tuple(photos.std)
    assert str(scale).startswith(f"z-scores (mean {photos.mean[0]:.4f}, ")


def test_a_guess_from_smashed_data_gets_both_kinds_of_score() -> None:
    client = SplitClient(LocalData(TASK.but(probe_images=2), 0, range(40), range(20)))
    grey = [Reconstruction(torch.full((2, 1, 28, 28), 0.5), torch.full((2,), -1)) for _ in range(2)]
    scores = flat(audit_guesses(client, "smashed", [(guess, None) for guess in grey]))
    std = client.data.card.std[0]
    expected = [value / std**2 for value in scores["mse-original"]]
    assert scores["mse-paper"] == pytest.approx(expected, rel=1e-4)
