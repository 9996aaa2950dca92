"""Window bounds against the paper's table, enumeration, numerical integration and other operators."""

import itertools
import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F

from defenses.images.vfe import vfe_normalised
from defenses.images.visual_mixer_windows import (
    public_probability,
    window_lower_bound,
    window_outputs,
    window_upper_bound,
    within_probability,
)

TABLE_I = {
    "0": 200, "w1": 457, "w2": 212, "w3": 70, "w4": 9, "w1 + w2": 473, "w1 + w3": 247, "w1 + w4": 60, "w2 + w3": 140,
    "w2 + w4": 15, "w3 + w4": 3, "w1 + w2 + w3": 411, "w1 + w2 + w4": 92, "w1 + w3 + w4": 28, "w2 + w3 + w4": 5,
    "w1 + w2 + w3 + w4": 138,
}  # fmt: skip


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# ---- lower bound


def test_lower_bound_is_the_smallest_window_that_reaches_the_target() -> None:
    for target, window in ((0, 1), (4, 2), (60, 6), (112, 8), (112.01, 9), (200, 11)):
        assert window_lower_bound(target) == window == math.ceil((1 + math.sqrt(1 + 2 * target)) / 2)
        assert 2 * window * (window - 1) >= target > 2 * (window - 1) * (window - 2) - (target == 0)
    pixels = torch.rand(3000, 6, 6, generator=generator(), dtype=torch.float64)
    assert float(vfe_normalised(pixels, 6).mean()) == pytest.approx(60, rel=0.01)


# ---- upper bound


def test_outputs_equal_convolution_and_pooling() -> None:
    weights = torch.randn(7, 4, generator=generator(), dtype=torch.float64)
    binary = torch.tensor(list(itertools.product((0.0, 1.0), repeat=9)), dtype=torch.float64).view(512, 1, 3, 3)
    expected = F.max_pool2d(F.conv2d(binary, weights.view(7, 1, 2, 2)), 2).flatten(1)
    torch.testing.assert_close(window_outputs(weights), expected)


KNOWN = {4: 0.926, 5: 0.981}


@pytest.mark.numeric
def test_probabilities_and_bounds_are_those_of_an_independent_simulation() -> None:
    """Which gave these values with a sampling error of its own."""
    samples = 20_000
    for d, known in KNOWN.items():
        error = math.sqrt(2 * known * (1 - known) / samples)
        assert abs(within_probability(d, generator(), samples) - known) < 4.5 * error + 5e-4, d
    for base, window in ((0.764, 5), (0.962, 11), (0.923, 7), (0.981, 15)):
        m = (window - 3) // 2
        assert window_upper_bound(base, 0.5) == window
        assert base ** (m * m) >= 0.5 > base ** ((m + 1) ** 2)


def test_upper_bounds_that_do_not_exist_are_refused() -> None:
    for use, message in (
        (lambda: window_upper_bound(within_probability(100, generator(), 100)), "every sampled kernel"),
        (lambda: window_upper_bound(within_probability(0, generator(), 100)), "no sampled kernel"),
    ):
        with pytest.raises(ValueError, match=message):
            use()
    assert window_upper_bound(0.8, 0.9) == 3


@pytest.mark.numeric
def test_the_public_stream_gives_everyone_the_same_bound() -> None:
    """The same number whatever was drawn before, within sampling error of another stream's."""
    torch.manual_seed(3)
    first = public_probability(5.0)
    torch.manual_seed(4)
    assert public_probability.__wrapped__(5.0) == first
    other = within_probability(5, generator())
    assert other != first
    assert abs(other - first) < 4.5 * math.sqrt(2 * first * (1 - first) / 200_000)


def test_table_1_of_the_paper() -> None:
    """How often each sum of weights is the output, over 512 binary windows and 5 sign classes (2560 cases).

    Super-increasing kernels (w1 > w2 > w3 > w4), one per number of positive weights, each with the weight opposite to w1 in the
    2 x 2 kernel. The paper does not state them; this is the arrangement that reproduces its table.
    """
    names, counts = ["w1", "w2", "w3", "w4"], Counter[str]()
    arrangements = [
        ((-1, -2, -4, -8), 3), ((1, -2, -4, -8), 2), ((2, 1, -4, -8), 3), ((4, 2, 1, -8), 2), ((8, 4, 2, 1), 2),
    ]  # fmt: skip
    for values, opposite in arrangements:
        # Row-major (w1, x, y, opposite); x and y are interchangeable, because transposing all windows changes no count.
        order = [0, *(i for i in (1, 2, 3) if i != opposite - 1), opposite - 1]
        outputs = window_outputs(torch.tensor([[float(values[i]) for i in order]])).squeeze(1)
        label = {
            sum(itertools.compress(values, chosen)): " + ".join(itertools.compress(names, chosen)) or "0"
            for chosen in itertools.product((0, 1), repeat=4)
        }
        counts.update(label[int(output)] for output in outputs)
    assert counts == TABLE_I
    assert counts.total() == 2560
