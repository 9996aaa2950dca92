"""Null baselines, the scale and the line-up of candidates, against their definitions: by hand, from the data itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from attacks.guesses import Reconstruction
from attacks.metrics.guesses import LABEL_ACCURACY
from attacks.metrics.images import RETRIEVAL, RETRIEVAL_CHANCE
from clients.federated.client import LocalClient
from clients.federated.plan import FederatedPlan
from clients.scoring.audit import ALONE, NO_IMAGES, audit_baselines, audit_guesses
from clients.scoring.null_baselines import means_of, transformed
from clients.scoring.retrieval import other_images, retrieval, retrieval_from_round
from clients.task.local_data import LocalData
from simulations.report import Row
from simulations.report.studies.baselines import picked_out
from strategies.audit.score_rows import score_rows
from strategies.audit.threat_card import ThreatCard
from tests.scores import flat

TASK = FederatedPlan(
    scenario="federated",
    dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=400, test_limit=80, model="lenet", width=0,
    norm="group", pipeline="", seed=3, rounds=2, local_epochs=1, batch_size=16, learning_rate=0.1, momentum=0.0,
    weight_decay=0.0, probe_targets=3, probe_images=1,
).at(1)  # fmt: skip
TRAIN, TEST = range(10, 170), range(20, 60)


def client(train: Sequence[int] = TRAIN, test: range = TEST, **changes: object) -> LocalClient:
    return LocalClient(LocalData(TASK.but(**changes), 0, train, test))


def pixels(part: str, indices: range) -> np.ndarray:
    """The bytes of the data set over 255, without the client's code."""
    images = getattr(TASK.plan.load_data(), part).images[list(indices)]
    return images.numpy().astype(np.float64) / 255


def psnr_by_hand(guess: np.ndarray, truth: Tensor) -> float:
    return float(10 * np.log10(1 / ((guess - truth.double().numpy()) ** 2).mean()))


def guess(images: Tensor) -> tuple[Reconstruction, None]:
    return Reconstruction(images, torch.full((len(images),), -1)), None


# Null baselines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 3])
def test_every_null_baseline_is_what_its_name_says(seed: int) -> None:
    """Grey is 0.5, mean is the mean of all of the client's images: pixel by pixel, for every probed image."""
    one = client(seed=seed)
    scores = flat(audit_baselines(one, "probe", pictures=False))
    names = {"grey", "mean", "uniform", "blurred", "class-mean"}
    assert {name.rsplit(":", 1)[0] for name in scores} == names
    everyone = pixels("train", TRAIN)
    blind = {"grey": np.full(everyone.shape[1:], 0.5), "mean": everyone.mean(0)}
    probed = [one.probed(target).original.images for target in range(3)]
    for name, image in blind.items():
        expected = [psnr_by_hand(image[None], truth) for truth in probed]
        assert scores[f"{name}:psnr-original"] == pytest.approx(expected, abs=1e-3)
    # No single image in place of the mean would pass this test.
    mean = scores["mean:psnr-original"]
    singles = [[psnr_by_hand(single[None], truth) for truth in probed] for single in everyone]
    assert min(np.abs(np.subtract(one, mean)).max() for one in singles) > 0.1
    blurred = [gaussian_filter(t.double().numpy(), (0, 0, 2.0, 2.0), mode="nearest", truncate=3.0) for t in probed]
    expected = [psnr_by_hand(image, truth) for image, truth in zip(blurred, probed, strict=True)]
    assert scores["blurred:psnr-original"] == pytest.approx(expected, abs=1e-3)


def test_baselines_of_the_transformed_images_are_made_of_transformed_images() -> None:
    """Where pixels change their places, the mean of originals scores less than the mean of what enters the model."""
    one = client(pipeline="VisualMixer(window_lower=28, window_upper=28)", round=2)
    scores = flat(audit_baselines(one, "probe", pictures=False))
    seen = [one.probed(target).seen.images for target in range(3)]
    original = pixels("train", TRAIN)
    # One window is the whole image, so that a transformed pixel is any pixel of it: the mean is flat, up to the draws.
    mean = means_of(one.data, transformed(one.data), one.task.plan.batch_size).mean().double().numpy()
    assert np.abs(mean - original.mean()).max() < 0.15
    assert mean.mean() == pytest.approx(original.mean(), abs=1e-6)
    expected = [psnr_by_hand(mean[None], image) for image in seen]
    assert scores["mean:psnr-transformed"] == pytest.approx(expected, abs=1e-3)
    wrong = [psnr_by_hand(original.mean(0)[None], image) for image in seen]
    assert np.mean(expected) > np.mean(wrong) + 1
    grey = [psnr_by_hand(np.full(mean.shape, 0.5)[None], image) for image in seen]
    assert scores["grey:psnr-transformed"] == pytest.approx(grey, abs=1e-3)
    plain = client()
    assert torch.allclose(
        means_of(plain.data, transformed(plain.data), plain.task.plan.batch_size).mean(),
        plain.data.originals().images.mean(0),
        atol=1e-6,
    )


@pytest.mark.parametrize("images", [1, 3])
def test_beside_each_guess_stands_the_best_null_baseline_of_its_own_image(images: int) -> None:
    """Of several images in one update the assignment says which guess is of which: here they come in reverse order."""
    one = client(probe_images=images)
    truth = [view.original.images for view in one.truths("probe").views]
    found = flat(audit_guesses(one, "probe", [guess(of.flip(0) * 0.9) for of in truth]))
    mean = pixels("train", TRAIN).mean(0)
    by_hand = [
        max(psnr_by_hand(np.full_like(mean, 0.5), image), psnr_by_hand(mean, image))
        for of in truth
        for image in of.flip(0)
    ]
    assert found["psnr-null"] == pytest.approx(by_hand, abs=1e-3)
    assert len(found["psnr-null"]) == len(found["psnr-flat"]) == len(found["psnr-original"]) == 3 * images
    even = [psnr_by_hand(np.full_like(mean, image.mean()), image) for of in truth for image in of.flip(0)]
    assert found["psnr-flat"] == pytest.approx(even, abs=1e-3)
    # Another client of the same data set has another mean, and so other baselines.
    other = client(range(170, 330), probe_images=images)
    theirs = [view.original.images for view in other.truths("probe").views]
    again = flat(audit_guesses(other, "probe", [guess(of) for of in theirs]))["psnr-null"]
    mean = pixels("train", range(170, 330)).mean(0)
    assert again == pytest.approx(
        [max(psnr_by_hand(np.full_like(mean, 0.5), image), psnr_by_hand(mean, image)) for of in theirs for image in of],
        abs=1e-3,
    )


def test_no_null_baseline_lies_above_itself() -> None:
    scores = flat(audit_baselines(client(), "probe", pictures=False))
    for name in ("grey", "mean"):
        pairs = zip(scores[f"{name}:psnr-original"], scores[f"{name}:psnr-null"], strict=True)
        assert all(own <= best + 1e-4 for own, best in pairs)


def test_a_baseline_is_scored_as_an_attack_is() -> None:
    """A grey guess that came as an attack's scores what the baseline does, in every metric."""
    scores = flat(audit_baselines(client(), "probe", pictures=False))
    truth = client().truths("probe").views
    again = flat(audit_guesses(client(), "probe", [guess(torch.full_like(t.original.images, 0.5)) for t in truth]))
    for name in ("psnr-original", "mse-original", "ssim-transformed", "retrieval-original", "retrieval-chance"):
        assert scores[f"grey:{name}"] == pytest.approx(again[name])


# Candidates -----------------------------------------------------------------------------------------------------------


def test_candidates_are_99_other_images_of_the_client_by_a_seeded_draw() -> None:
    one, truth = client(), client().probed(0)
    others = other_images(one.data, truth, 0)
    assert others.shape == (99, *truth.original.images.shape[1:])
    own = {image.tobytes() for image in pixels("train", TRAIN).astype(np.float32)}
    drawn = [image.numpy().tobytes() for image in others]
    assert set(drawn) <= own
    assert len(set(drawn)) == 99
    assert truth.original.images[0].numpy().tobytes() not in drawn
    # The same in every round and under every defence, others for another target and another seed.
    later = client(round=2, pipeline="GaussianNoise(std=0.1)")
    assert torch.equal(other_images(later.data, truth, 0), others)
    assert not torch.equal(other_images(one.data, truth, 1), others)
    assert not torch.equal(other_images(client(seed=4).data, truth, 0), others)


def test_images_that_repeat_the_attacked_one_are_no_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    one = client(train=range(10, 20), test=range(0))
    monkeypatch.setattr(one.data, "_train", torch.tensor([10, 11, 10, 12, 11]))
    truth = one.data.view(torch.tensor([0]), ("any",))
    assert len(other_images(one.data, truth, 0)) == 2


def test_a_client_with_few_images_lines_up_fewer_and_says_so() -> None:
    few = client(train=range(10, 22), test=range(8))
    truth = few.truths("probe").views
    others = other_images(few.data, truth[0], 0)
    assert len(others) == 11 + 8  # the training examples but one, then test examples
    scores = flat(audit_guesses(few, "probe", [guess(t.original.images) for t in truth]))
    assert scores["retrieval-chance"] == [1 / 20] * 3
    assert scores["retrieval-original"] == [1.0] * 3
    alone = client(train=range(10, 11), test=range(0))
    scores = flat(audit_guesses(alone, "probe", [guess(t.original.images) for t in alone.truths("probe").views]))
    assert "retrieval-original" not in scores, "nobody else: who is alone in a line-up is always found"
    assert "psnr-original" in scores


@pytest.mark.long
def test_free_assignment_gives_a_blind_guess_no_more_than_one_in_a_hundred() -> None:
    """Of a batch of B images a guess is paired with the nearest; B times as many others make up for the choice."""
    one = client(train=range(400), probe_images=4, probe_targets=1)
    seen = one.truths("probe").views[0]
    truth = seen.original.images
    assert len(other_images(one.data, seen, 0)) == 4 * 99
    hits, chances, digits = [], set(), torch.from_numpy(pixels("train", range(400))).float()
    for seed in range(200):
        stream = torch.Generator().manual_seed(seed)
        # Guesses with something of other digits, so that the nearest image is not always the same dark one.
        other = digits[torch.randperm(400, generator=stream)[:4]].roll((3, 3), (2, 3))
        blind = 0.2 * torch.rand(truth.shape, generator=stream) + 0.8 * other
        scores = flat(audit_guesses(one, "probe", [guess(blind)]))
        hits += scores["retrieval-original"]
        chances |= set(scores["retrieval-chance"])
    assert chances == {0.01}
    # 800 guesses, of which 8 hit by chance; more than 20 would be one run in ten thousand.
    assert sum(hits) <= 20


def test_of_paired_guesses_each_has_candidates_of_its_own() -> None:
    one = client(train=range(400))
    truth = one.data.own_images(torch.arange(3))
    others = other_images(one.data, one.data.view(torch.arange(3), ("any",)), 0)
    at = torch.arange(3)
    found = retrieval(guess(truth)[0], (at, at), truth, others, paired=True)
    assert found == {RETRIEVAL.of("original"): [1.0] * 3, RETRIEVAL_CHANCE.of(): [0.01] * 3}
    # The first other image of each: it is among the candidates of that image alone.
    wrong = torch.stack([others[0], others[99], truth[2]])
    assert retrieval(guess(wrong)[0], (at, at), truth, others, paired=True)[RETRIEVAL.of("original")] == [0.0, 0.0, 1.0]


CROPPED = {"crop_padding": 4, "horizontal_flip": True}


def test_of_cropped_images_the_attacked_one_is_no_candidate_and_the_others_are_cropped_too() -> None:
    """By its place in the data: its pixels differ from those of its view."""
    one = client(train=range(10, 60), test=range(20, 30), probe_targets=8, **CROPPED)
    bordered = []
    for target, truth in enumerate(one.truths("probe").views):
        others = other_images(one.data, truth, target)
        assert len(others) == 49 + 10
        views = [v for shift in range(81) for v in shifted(one.data.own_images(truth.positions)[0], shift)]
        assert not any(torch.equal(other, view) for other in others for view in views)
        assert torch.equal(others, other_images(client(train=range(10, 60), test=range(20, 30), round=2, probe_targets=8,
                                                       **CROPPED).data, truth, target))  # fmt: skip
        plain = client(train=range(10, 60), test=range(20, 30))
        raw = other_images(plain.data, truth, target)
        for at in range(3):
            assert any(torch.equal(others[at], view) for shift in range(81) for view in shifted(raw[at], shift))
        bordered.append(float((others.flatten(1) != raw.flatten(1)).any(1).float().mean()))
    assert min(bordered) > 0.9


def shifted(image: Tensor, shift: int) -> list[Tensor]:
    """A crop by hand, and its mirror image."""
    padded = torch.nn.functional.pad(image, [4] * 4)
    top, left = divmod(shift, 9)
    view = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
    return [view, view.flip(2)]


@pytest.mark.long
def test_a_black_border_picks_nobody_out_of_cropped_photographs() -> None:
    """The finding: a mean image with black edges was nearest to the only cropped candidate, without looking (12 of 128)."""
    hits: list[float] = []
    for part in range(4):
        one = client(
            dataset="photos", model="cnn", train_limit=0, test_limit=0, train=range(part * 130, part * 130 + 130),
            test=range(part * 30, part * 30 + 30), probe_targets=16, crop_padding=4,
        )  # fmt: skip
        blind = one.data.originals().images.mean(0, keepdim=True)
        for edge in (slice(0, 2), slice(-2, None)):
            blind[..., edge, :] = 0
            blind[..., edge] = 0
        hits += flat(audit_guesses(one, "probe", [guess(blind)] * 16))["retrieval-original"]
    assert sum(hits) <= 3  # of 64, where chance gives 0.64; 4 or more in one run of two hundred


def test_the_mean_image_of_cropped_images_is_the_mean_of_their_views() -> None:
    one = client(**CROPPED)
    probed = [one.probed(target).original.images for target in range(3)]
    views = torch.stack(
        [v for image in one.data.originals().images for shift in range(81) for v in shifted(image, shift)]
    )
    expected = [psnr_by_hand(views.double().mean(0).numpy()[None], truth) for truth in probed]
    scores = flat(audit_baselines(one, "probe", pictures=False))
    assert scores["mean:psnr-original"] == pytest.approx(expected, abs=1e-3)


# What who knows only the class could guess -----------------------------------------------------------------------------


def test_the_class_mean_is_of_the_clients_other_images_of_the_class() -> None:
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
    assert set(scores["class-mean:retrieval-original"]) <= {0.0, 1.0}


def test_of_the_only_image_of_its_class_the_class_mean_is_the_mean_of_the_others() -> None:
    labels = TASK.plan.load_data().train.labels.tolist()
    second = next(at for at in range(11, 400) if labels[at] != labels[10])
    lone = client(train=(10, second), test=range(8), probe_targets=1)
    assert len(set(lone.data.originals().targets.argmax(1).tolist())) == 2
    truth = lone.probed(0)
    other = lone.data.originals().images[1 - int(truth.positions[0])]
    scores = flat(audit_baselines(lone, "probe", pictures=False))
    expected = psnr_by_hand(other[None].double().numpy(), truth.original.images)
    assert scores["class-mean:psnr-original"] == pytest.approx([expected], abs=1e-3)


def test_where_all_images_are_attacked_nothing_is_called_a_class_mean() -> None:
    """It would be the mean of the attacked images themselves."""
    few, whole = client(train=(10,), test=range(8), probe_targets=1), client(test=range(8))
    for scores in (
        flat(audit_baselines(few, "probe", pictures=False)),
        flat(audit_baselines(whole, "update", pictures=False)),
    ):
        assert [name for name in scores if name.startswith("mean:psnr")]
        assert [name for name in scores if name.startswith("class-mean")] == []


def test_two_images_of_a_class_are_no_guess_of_each_other() -> None:
    """The mean without the first would be the second, and the other way round: together a perfect guess of both."""
    labels = TASK.plan.load_data().train.labels.tolist()
    twin = next(at for at in range(11, 400) if labels[at] == labels[10])
    others = [at for at in range(11, 400) if labels[at] != labels[10]][:3]
    one = client(train=(10, twin, *others), test=range(8), probe_targets=1, probe_images=4)
    scores = flat(audit_baselines(one, "probe", pictures=False))["class-mean:psnr-original"]
    assert max(scores) < 30


def test_blind_guesses_are_as_many_as_the_attacks_and_the_class_mean_knows_none_of_the_attacked() -> None:
    one = client(train=range(10, 34), test=range(8), probe_targets=1, probe_images=16)
    found = {images: flat(audit_baselines(one, "probe", pictures=False, images=images)) for images in (0, 4, 16)}
    each = {images: np.array(scores["mean:psnr-original"]) for images, scores in found.items()}
    assert [len(each[images]) for images in (4, 16)] == [4, 16]
    np.testing.assert_array_equal(each[0], each[16])
    # Of equal guesses the assignment gives each the image that it is nearest to, so that few of them have the easy images.
    np.testing.assert_allclose(np.sort(each[4]), np.sort(each[16])[-4:])
    assert max(found[4]["class-mean:psnr-original"]) < 30


def test_without_an_attack_on_images_no_null_baseline_guesses_images() -> None:
    one = client(train=range(10, 34), test=range(8), probe_targets=1, probe_images=16)
    scores = audit_baselines(one, "probe", pictures=True, images=NO_IMAGES)
    assert {metric for of in scores.scores.values() for metric in of} == {LABEL_ACCURACY.of()}
    assert set(scores.pictures) == {"original-0", "protected-0"}


def test_of_a_round_a_copy_among_the_other_images_is_a_tie_and_no_identification() -> None:
    truth = torch.rand(20, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    others = torch.rand(9, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    pairs = torch.arange(20), torch.arange(20)
    for copied, hits in ((others, 20), (torch.cat([others, truth]), 0)):
        found = retrieval_from_round(Reconstruction(truth, torch.zeros(20).long()), pairs, truth, copied)
        assert sum(found[RETRIEVAL.of("original")]) == hits


# Whole rounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local_steps", [0, 1, 3])
@pytest.mark.parametrize(("dataset", "model"), [("photos", "cnn"), ("mnist-5k", "lenet")])
def test_exact_images_of_a_round_are_picked_out_and_blind_guesses_are_not(
    dataset: str, model: str, local_steps: int
) -> None:
    """Two clients with 8 guesses each: copies of true images clear ten times the chance, images of the kind do not."""
    found: dict[str, dict[str, list[float]]] = {}
    for part in range(2):
        one = client(
            dataset=dataset, model=model, train_limit=0, test_limit=0, train=range(part * 130, part * 130 + 130),
            test=range(part * 30, part * 30 + 30), local_steps=local_steps,
        )  # fmt: skip
        truth = one.trained_views()
        others = other_images(one.data, truth, 0, 99)
        own = {image.numpy().tobytes() for image in truth.original.images}
        assert len(others) <= 99
        assert not own & {image.numpy().tobytes() for image in others}
        stranger = client(
            dataset=dataset, model=model, train_limit=0, test_limit=0, train=range(300, 308), test=range(0)
        ).data.originals()
        mean = one.data.originals().images.mean(0).expand(8, -1, -1, -1)
        exact = truth.original.images[:8]
        for name, images in {"exact": exact, "stranger": stranger.images, "mean": mean, "black": 0 * exact}.items():
            scores = audit_guesses(one, "update", [guess(images)]).scores[ALONE]
            for metric in (RETRIEVAL.of("original"), RETRIEVAL_CHANCE.of()):
                found.setdefault(name, {}).setdefault(metric, []).extend(scores[metric])
    for name, scores in found.items():
        (row,) = [Row(**one) for one in score_rows(scores, ThreatCard(observation="training update"))]
        assert row.card.chance >= 0.01
        assert picked_out(row) == (name == "exact"), (name, row.value, row.card.chance)
