"""The matched filter on updates whose noise is known, against a search over all directions, and where it does not apply."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.base import Knowledge
from attacks.exact.matched_filter import MatchedFilter
from attacks.observations import ClientUpdate
from defenses.base import Batch
from tests.attacks.exact.solving import assert_refused, noise_for
from tests.attacks.wire import CLASSES, classes, observe, pictures, relu_net, sigmoid_net, stream

NET = relu_net(60)


def of_class(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pictures that are alike within a class, and their classes."""
    labels = classes(count, seed=seed)
    return (pictures(CLASSES, seed=50)[labels] + pictures(count, seed=seed)) / 2, labels


OWN = of_class(150, seed=1)
THEIRS = of_class(40, seed=2)


def fitted(images: Tensor = OWN[0], labels: Tensor = OWN[1]) -> MatchedFilter:
    own = Batch(images, F.one_hot(labels, CLASSES).float())
    known = Knowledge(auxiliary=own, pipeline=None, mean=(0.4,), std=(0.3,), train=None)  # type: ignore[arg-type]
    return MatchedFilter().fit(known, stream())


def noisy(at: int, strength: float, **changes: object) -> ClientUpdate:
    """The update of an image of unknown class under noise of ``strength`` times its gradient's length on every entry."""
    seen = replace(observe(NET, THEIRS[0][at : at + 1], THEIRS[1][at : at + 1]), labels=None)
    length = torch.cat([u.flatten() for u in seen.update.values()]).norm()
    spread = {name: strength * length * one for name, one in noise_for(seen, seed=100 + at).items()}
    return replace(seen, update={n: u + spread[n] for n, u in seen.update.items()}, **changes)  # type: ignore[arg-type]


def likeness(guess: Tensor, truth: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([guess.flatten(), truth.flatten()]))[0, 1])


def test_without_noise_the_picture_is_exact_but_for_mean_and_contrast_and_its_class_is_found() -> None:
    for at in range(8):
        guess = fitted()(noisy(at, 0.0), stream())
        assert likeness(guess.images[0].double(), THEIRS[0][at].double()) > 0.9999
        assert guess.labels.tolist() == THEIRS[1][at : at + 1].tolist()
        assert (float(guess.images.min()), float(guess.images.max())) == (0.0, 1.0)


@pytest.mark.numeric
def test_under_noise_it_reads_more_than_the_best_row_of_the_layer_and_nearly_what_the_true_direction_does() -> None:
    """Signal over noise of rows, of the true direction d (the best there is, which no server knows) and of the class's mean."""
    by_filter, by_row, by_truth = [], [], []
    for at in range(len(THEIRS[0])):
        seen, clean = noisy(at, 0.05), noisy(at, 0.0)
        weight, true = (-one.update["1.weight"] for one in (seen, clean))
        direction = -clean.update["1.bias"]
        guess = fitted()(replace(seen, labels=THEIRS[1][at : at + 1]), stream())
        truth = THEIRS[0][at]
        by_filter.append(likeness(guess.images[0].to(truth), truth))
        strongest = true.norm(dim=1).argmax()
        by_row.append(likeness(weight[strongest] * direction[strongest].sign(), truth))
        by_truth.append(likeness(direction @ weight, truth))
    row, ours, best = (sum(one) / len(one) for one in (by_row, by_filter, by_truth))
    assert row + 0.1 < ours < best + 0.02
    assert ours > 0.8 * best


def test_several_images_have_one_guess_for_each_class_unless_their_classes_are_known() -> None:
    seen = replace(observe(NET, THEIRS[0][:8], THEIRS[1][:8]), labels=None)
    guess = fitted()(seen, stream())
    assert (guess.found, guess.failure) == (CLASSES, f"found {CLASSES} of 8 examples: one of each class")
    assert sorted(guess.labels.tolist()) == [-1, -1, -1, *range(CLASSES)]
    assert fitted()(replace(seen, labels=THEIRS[1][:8]), stream()).labels.tolist() == THEIRS[1][:8].tolist()


def test_wrong_labels_and_classes_of_one_image_behind_batch_statistics_are_left_out() -> None:
    odd = replace(noisy(0, 0.0), labels=torch.tensor([-1]))
    assert_refused(
        fitted(), [(odd, "of a class of the update"), (replace(odd, labels=torch.tensor([CLASSES])), "of a class")]
    )


def test_without_pixels_a_gradient_or_an_image_of_the_class_it_does_not_apply() -> None:
    first = THEIRS[1][:1]
    others = fitted(*(part[OWN[1] != first] for part in OWN))
    still = observe(NET, THEIRS[0][:1], first)
    still = replace(still, update={name: torch.zeros_like(one) for name, one in still.update.items()})
    assert_refused(fitted(), [(observe(sigmoid_net(), THEIRS[0][:1], first), "sees the pixels"), (still, "is zero")])
    assert_refused(others, [(noisy(0, 0.0, labels=first), "no image of the server of a class")])
    sure = relu_net(60)
    sure[3].bias.data[first] = 1e4  # type: ignore[index,union-attr]
    assert first.item() not in others(noisy(0, 0.0), stream()).labels
    seen = replace(observe(sure, THEIRS[0][:1], (first + 1) % CLASSES), labels=None)
    assert first.item() not in fitted()(seen, stream()).labels
