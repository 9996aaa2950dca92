"""Null baselines, scales, candidates, against their definitions."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.ndimage import gaussian_filter
from torch import Tensor

from attacks.guesses import Labels, Reconstruction
from attacks.metrics.guesses import LABEL_ACCURACY
from attacks.metrics.images import MSE_PAPER, PSNR_PAPER
from attacks.scoring.metrics import label_hits
from clients.data.card import DataCard
from clients.federated.client import LocalClient
from clients.scoring.audit import ALONE, NO_IMAGES, audit_baselines, audit_guesses
from clients.scoring.image_scores import paper_scale, paper_scores, score_both, uniform_label_accuracy
from clients.scoring.null_baselines import means_of, transformed
from clients.scoring.retrieval import KnownImages, attacked_images, other_images
from clients.split.training import SplitClient
from clients.task.local_data import LocalData
from clients.task.task import Task
from clients.task.truths import Probed
from defenses.base import Batch
from strategies.audit.score_rows import score_rows
from strategies.audit.threat_card import ThreatCard
from tests.clients.federated.test_client import TASK as PLAIN
from tests.clients.federated.test_client import torchvision_views
from tests.clients.split.test_training import TASK as SPLIT_TASK
from tests.scores import flat

TASK = PLAIN.but(train_limit=400, test_limit=80, weight_decay=0.0, probe_targets=3, probe_images=1)
TRAIN, TEST = range(10, 170), range(20, 60)


def client(train: Sequence[int] = TRAIN, test: range = TEST, **changes: object) -> LocalClient:
    return LocalClient(LocalData(TASK.but(**changes), 0, train, test))


def pixels(part: str, indices: range) -> np.ndarray:
    images = getattr(TASK.plan.load_data(), part).images[list(indices)]
    return images.numpy().astype(np.float64) / 255


def psnr_by_hand(guess: np.ndarray, truth: Tensor) -> float:
    return float(10 * np.log10(1 / ((guess - truth.double().numpy()) ** 2).mean()))


def guess(images: Tensor) -> tuple[Reconstruction, None]:
    return Reconstruction(images, torch.full((len(images),), -1)), None


def test_every_null_baseline_is_what_its_name_says() -> None:
    # Grey is 0.5, mean is the mean of all of the client's images: pixel by pixel, for every probed image.
    one = client()
    scores = flat(audit_baselines(one, "probe", pictures=False))
    assert {name.rsplit(":", 1)[0] for name in scores} == {"grey", "mean", "uniform", "blurred", "class-mean"}
    everyone = pixels("train", TRAIN)
    probed = [one.probed(target).original.images for target in range(3)]
    blind = {"grey": np.full(everyone.shape[1:], 0.5), "mean": everyone.mean(0)}
    for name, image in blind.items():
        expected = [psnr_by_hand(image[None], truth) for truth in probed]
        assert scores[f"{name}:psnr-original"] == pytest.approx(expected, abs=1e-3)
    blurred = [gaussian_filter(t.double().numpy(), (0, 0, 2.0, 2.0), mode="nearest", truncate=3.0) for t in probed]
    expected = [psnr_by_hand(image, truth) for image, truth in zip(blurred, probed, strict=True)]
    assert scores["blurred:psnr-original"] == pytest.approx(expected, abs=1e-3)
    # A grey guess that came as an attack's scores what the baseline does, in every metric.
    again = flat(audit_guesses(one, "probe", [guess(torch.full_like(truth, 0.5)) for truth in probed]))
    for name in ("psnr-original", "mse-original", "ssim-transformed", "identified-original", "identified-chance"):
        assert scores[f"grey:{name}"] == pytest.approx(again[name])


@pytest.mark.numeric
def test_baselines_of_the_transformed_images_are_made_of_transformed_images() -> None:
    # Where pixels change their places, the mean of originals scores less than the mean of what enters the model. One window is
    # the whole image, so that a transformed pixel is any pixel of it: the mean is flat, up to the draws.
    one, original = client(pipeline="VisualMixer(window_lower=28, window_upper=28)", round=2), pixels("train", TRAIN)
    scores = flat(audit_baselines(one, "probe", pictures=False))
    seen = [one.probed(target).seen.images for target in range(3)]
    mean = means_of(one.data, transformed(one.data), one.task.plan.batch_size).mean().double().numpy()
    assert np.abs(mean - original.mean()).max() < 0.15
    assert mean.mean() == pytest.approx(original.mean(), abs=1e-6)
    expected = [psnr_by_hand(mean[None], image) for image in seen]
    assert scores["mean:psnr-transformed"] == pytest.approx(expected, abs=1e-3)
    assert np.mean(expected) > np.mean([psnr_by_hand(original.mean(0)[None], image) for image in seen]) + 1
    grey = [psnr_by_hand(np.full(mean.shape, 0.5)[None], image) for image in seen]
    assert scores["grey:psnr-transformed"] == pytest.approx(grey, abs=1e-3)


def test_beside_each_guess_stand_the_mean_colour_and_the_place_of_its_own_image() -> None:
    # Of several images in one update the assignment says which guess is of which: here they come in reverse order.
    for images in (1, 3):
        one = client(probe_images=images)
        truth = [view.original.images.flip(0) for view in one.truths("probe").views]
        found = flat(audit_guesses(one, "probe", [guess(of * 0.9) for of in truth]))
        even = [psnr_by_hand(np.full(image.shape, float(image.mean())), image) for of in truth for image in of]
        assert found["psnr-flat"] == pytest.approx(even, abs=1e-3)
        assert len(found["psnr-original"]) == 3 * images
        places = torch.arange(3 * images).view(3, images).flip(1)
        assert found["image-place"] == places.flatten().tolist()
    # Of a whole round they are the places in the client's data: defences may draw other images.
    one = client(local_steps=1)
    truth = one.trained_views()
    found = flat(audit_guesses(one, "update", [guess(truth.original.images[:4])]))
    assert found["image-place"] == truth.positions[:4].tolist()


def test_candidates_are_other_images_of_the_class_by_a_seeded_draw() -> None:
    one, truth = client(), client().probed(0)
    others = other_images(one.data, truth, 0)
    labels = {part: getattr(TASK.plan.load_data(), part).labels for part in ("train", "test")}
    (digit,) = attacked_images(one.data, truth).classes.tolist()
    assert digit == labels["train"][list(TRAIN)][truth.positions]
    same = {part: [at for at in of if labels[part][at] == digit] for part, of in (("train", TRAIN), ("test", TEST))}
    count = len(same["train"]) + len(same["test"]) - 1
    assert others.classes.tolist() == [digit] * count, "as many as there are, where there are no 99"
    own = {image.tobytes() for part, of in same.items() for image in pixels(part, of).astype(np.float32)}
    drawn = [image.numpy().tobytes() for image in others.images]
    assert set(drawn) == own - {truth.original.images[0].numpy().tobytes()}
    assert len(other_images(one.data, truth, 0, 5).images) == 5
    # The same in every round and under every defence, others for another target and another seed.
    later = client(round=2, pipeline="GaussianNoise(std=0.1)")
    assert torch.equal(other_images(later.data, truth, 0).images, others.images)
    assert not torch.equal(other_images(one.data, truth, 1, 5).images, others.images[:5])
    assert not torch.equal(other_images(client(seed=4).data, truth, 0, 5).images, others.images[:5])
    scores = flat(audit_guesses(one, "probe", [guess(one.probed(target).original.images) for target in range(3)]))
    assert scores["identified-chance"][0] == 1 / (1 + count)
    assert scores["identified-original"] == [1.0] * 3
    alone = client(train=range(10, 11), test=range(0))
    scores = flat(audit_guesses(alone, "probe", [guess(t.original.images) for t in alone.truths("probe").views]))
    assert scores["identified-original"] == [0.0] * 3, "a single candidate is always found"
    assert scores["identified-chance"] == [0.999] * 3


CROPPED = {"crop_padding": 4, "horizontal_flip": True}


def test_of_cropped_images_the_attacked_one_is_no_candidate_and_the_others_are_cropped_too() -> None:
    # By its place in the data: its pixels differ from those of its view.
    parts = {"train": range(10, 60), "test": range(20, 30), "probe_targets": 8}
    one, later, plain = client(**parts, **CROPPED), client(**parts, **CROPPED, round=2), client(**parts)
    for target, truth in enumerate(one.truths("probe").views):
        others, raw = (other_images(of.data, truth, target).images for of in (one, plain))
        assert len(others) >= 3
        views = torchvision_views(one.data.own_images(truth.positions)[0], 4, flip=True)
        assert not any(torch.equal(other, view) for other in others for view in views)
        assert torch.equal(others, other_images(later.data, truth, target).images)
        for at in range(3):
            assert any(torch.equal(others[at], view) for view in torchvision_views(raw[at], 4, flip=True))
        assert (others.flatten(1) != raw.flatten(1)).any(1).float().mean() > 0.9


def test_the_class_mean_is_of_the_clients_other_images_of_the_class_and_never_of_an_attacked_one() -> None:
    one = client()
    scores = flat(audit_baselines(one, "probe", pictures=False))
    labels, everyone = TASK.plan.load_data().train.labels[list(TRAIN)].numpy(), pixels("train", TRAIN)
    expected, with_own = [], []
    for target in range(3):
        truth = one.probed(target)
        (at,) = truth.positions.tolist()
        same = labels == labels[at]
        with_own.append(psnr_by_hand(everyone[same].mean(0)[None], truth.original.images))
        same[at] = False
        expected.append(psnr_by_hand(everyone[same].mean(0)[None], truth.original.images))
    assert scores["class-mean:psnr-original"] == pytest.approx(expected, abs=1e-3)
    assert min(np.subtract(with_own, expected)) > 0.05
    assert set(scores["class-mean:identified-original"]) <= {0.0, 1.0}
    labels = TASK.plan.load_data().train.labels.tolist()
    # Of the only image of its class it is the mean of the others.
    second = next(at for at in range(11, 400) if labels[at] != labels[10])
    lone = client(train=(10, second), test=range(8), probe_targets=1)
    truth = lone.probed(0)
    other = lone.data.originals().images[1 - int(truth.positions[0])]
    scores = flat(audit_baselines(lone, "probe", pictures=False))
    expected = psnr_by_hand(other[None].double().numpy(), truth.original.images)
    assert scores["class-mean:psnr-original"] == pytest.approx([expected], abs=1e-3)
    # Where all images are attacked it would be the mean of the attacked images themselves.
    few, whole = client(train=(10,), test=range(8), probe_targets=1), client(test=range(8))
    for one, observation in ((few, "probe"), (whole, "update")):
        names = [name.split(":")[0] for name in flat(audit_baselines(one, observation, pictures=False))]
        assert "mean" in names
        assert "class-mean" not in names
    # Of two attacked images of a class the mean without the first would be the second, and the other way round.
    twin = next(at for at in range(11, 400) if labels[at] == labels[10])
    others = [at for at in range(11, 400) if labels[at] != labels[10]][:3]
    both = client(train=(10, twin, *others), test=range(8), probe_targets=1, probe_images=4)
    assert max(flat(audit_baselines(both, "probe", pictures=False))["class-mean:psnr-original"]) < 30


def test_blind_guesses_are_as_many_as_the_attacks() -> None:
    one = client(train=range(10, 34), test=range(8), probe_targets=1, probe_images=16)
    found = {images: flat(audit_baselines(one, "probe", pictures=False, images=images)) for images in (0, 4, 16)}
    each = {images: np.array(scores["mean:psnr-original"]) for images, scores in found.items()}
    assert [len(each[images]) for images in (4, 16)] == [4, 16]
    np.testing.assert_array_equal(each[0], each[16])
    # Of equal guesses the assignment gives each the image that it is nearest to, so that few of them have the easy images.
    np.testing.assert_allclose(np.sort(each[4]), np.sort(each[16])[-4:])
    assert max(found[4]["class-mean:psnr-original"]) < 30
    scores = audit_baselines(one, "probe", pictures=True, images=NO_IMAGES)
    assert {metric for of in scores.scores.values() for metric in of} == {LABEL_ACCURACY.of()}
    assert set(scores.pictures) == {f"{kind}-0-{place}" for kind in ("original", "protected") for place in range(16)}
    assert not audit_baselines(one, "probe", pictures=False).pictures


@pytest.mark.numeric
def test_of_a_whole_round_exact_images_are_identified_and_images_of_the_kind_are_not() -> None:
    # Two clients with 8 guesses each, which train on nearly all of their images.
    common = {"dataset": "photos", "model": "cnn", "train_limit": 0, "test_limit": 0}
    stranger = client(range(300, 308), range(0), **common).data.originals()
    found: dict[str, dict[str, list[float]]] = {}
    for part in range(2):
        train, test = range(part * 130, part * 130 + 130), range(part * 30, part * 30 + 30)
        one = client(train, test, local_steps=1, **common)
        truth = one.trained_views()
        others = other_images(one.data, truth, 0).images
        own = {image.numpy().tobytes() for image in truth.original.images}
        assert not own & {image.numpy().tobytes() for image in others}
        mean, exact = one.data.originals().images.mean(0).expand(8, -1, -1, -1), truth.original.images[:8]
        for name, images in {"exact": exact, "stranger": stranger.images, "mean": mean, "black": 0 * exact}.items():
            scores = audit_guesses(one, "update", [guess(images)]).scores[ALONE]
            for metric, values in scores.items():
                found.setdefault(name, {}).setdefault(metric, []).extend(values)
    for name, scores in found.items():
        rows = {row["metric"]: row for row in score_rows(scores, ThreatCard(observation="training update"))}
        row = rows["identified"]
        assert row["card"].chance >= 0.01
        p = stats.binom.sf(round(16 * row["value"]) - 1, 16, row["card"].chance)
        assert (p <= 0.01) == (name == "exact"), (name, row["value"], row["card"].chance)
        assert (rows["recognisable"]["value"] > 0) == (name == "exact")


FACES = DataCard(2, (3, 32, 32), (0.5,) * 3, (0.5,) * 3)


def truth(classes: list[int], num_classes: int = 10) -> Probed:
    targets = torch.nn.functional.one_hot(torch.tensor(classes), num_classes).float()
    batch = Batch(torch.rand(len(classes), 1, 8, 8, generator=torch.Generator().manual_seed(0)), targets)
    return Probed(batch, batch, torch.arange(len(batch)))


def test_labels_of_smashed_data_are_paired_with_their_images() -> None:
    known, turned = truth([3, 1, 4, 1]), Labels(torch.tensor([1, 3, 1, 4]))
    assert score_both(turned, known, paired=True) == {LABEL_ACCURACY.of(): [0.0, 0.0, 0.0, 0.0]}
    assert score_both(turned, known) == {LABEL_ACCURACY.of(): [1.0]}
    half = Labels(torch.tensor([3, 4, 4, 3]))
    assert score_both(half, known, paired=True) == {LABEL_ACCURACY.of(): [1.0, 0.0, 1.0, 0.0]}
    assert uniform_label_accuracy(truth(list(range(10))).original, paired=True) == [0.1] * 10
    with pytest.raises(ValueError, match="3 guessed classes for 4"):
        label_hits(Labels(torch.tensor([3, 4, 4])), torch.tensor([3, 1, 4, 1]))


def test_guesses_from_smashed_data_are_paired_and_get_both_kinds_of_score() -> None:
    client = SplitClient(LocalData(SPLIT_TASK.but(probe_images=4), 0, range(40), range(20)))
    scores = flat(audit_baselines(client, "smashed", pictures=False))
    (chance,) = [values for name, values in scores.items() if name.endswith("uniform:label-accuracy")]
    assert chance == [0.1] * 8  # two targets of four images
    right = [Labels(client.audits.truth(at).original.targets.argmax(1)) for at in (0, 1)]
    found = flat(audit_guesses(client, "smashed", [(guess, None) for guess in right]))
    assert found == {"label-accuracy": [1.0] * 8}
    client = SplitClient(LocalData(SPLIT_TASK.but(probe_images=2), 0, range(40), range(20)))
    grey = [Reconstruction(torch.full((2, 1, 28, 28), 0.5), torch.full((2,), -1)) for _ in range(2)]
    scores = flat(audit_guesses(client, "smashed", [(guess, None) for guess in grey]))
    std = client.data.card.std[0]
    expected = [value / std**2 for value in scores["mse-original"]]
    assert scores["mse-paper"] == pytest.approx(expected, rel=1e-4)


def task(dataset: str, card: DataCard) -> Task:
    return SPLIT_TASK.but(dataset=dataset, card=card)


def test_images_are_compared_on_the_scale_of_the_papers_code() -> None:
    one, other = torch.full((1, 3, 32, 32), 0.3), torch.full((1, 3, 32, 32), 0.4)
    for dataset in ("celeba:Smiling", "lfw:30"):
        scale = paper_scale(task(dataset, FACES))
        assert str(scale) == "images in [-1, 1], peak 1"
        faces = paper_scores(one, other, scale)
        # 20 dB in [0, 1]: twice the difference is 6.02 dB less.
        assert faces[MSE_PAPER.of()] == pytest.approx([0.04], rel=1e-5)
        assert faces[PSNR_PAPER.of()] == pytest.approx([20 - 20 * math.log10(2)], abs=1e-4)
    scale = paper_scale(task("cifar10", DataCard(10, (3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))))
    assert (scale.mean, scale.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    # By hand: the mean of (0.1 / std)^2 over the channels, and a peak of 1.
    mse = sum((0.1 / std) ** 2 for std in scale.std) / 3
    found = paper_scores(one, other, scale)
    assert found[MSE_PAPER.of()] == pytest.approx([mse], rel=1e-5)
    assert found[PSNR_PAPER.of()] == pytest.approx([-10 * math.log10(mse)], abs=1e-4)
    # What has 28.1 dB in [-1, 1] has 20.2 dB here.
    assert 28.1 + found[PSNR_PAPER.of()][0] - faces[PSNR_PAPER.of()][0] == pytest.approx(20.18, abs=0.01)
    # A data set that the paper does not have is compared as its network sees it.
    card = DataCard(2, (3, 32, 32), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    scale = paper_scale(task("photos", card))
    assert (scale.mean, scale.std) == (card.mean, card.std)


def test_known_images_are_those_that_differ_by_less_than_half_a_grey_level() -> None:
    for shape in [(1, 28, 28), (3, 9, 7), (1, 2, 2)]:
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(30, *shape, generator=generator)
        mean, std = 0.1307, 0.3081
        again = (((images - mean) / std) * std + mean).clamp(0, 1)
        assert not torch.equal(again, images), "else nothing is tested"
        other = images.clone()
        other[:, 0, 0, 0] += torch.where(images[:, 0, 0, 0] > 0.5, -1.0, 1.0) / 255  # by one grey level, in one place
        asked = torch.cat([images, again, other, torch.rand(30, *shape, generator=generator)])
        every = (asked[:, None] - images[None]).abs().flatten(2).amax(2).amin(1) < 0.5 / 255
        known = KnownImages(images)
        assert [image in known for image in asked] == every.tolist()
        assert every.tolist() == [True] * 60 + [False] * 60
    images = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    known = KnownImages(images[:0])
    assert [known.adds(image) for image in images] == [True] * 200, "more than there was room for at first"
    assert not any(known.adds(image + 1e-6) for image in images)
