"""Flower's SecAgg+ run for real: the server gets the sum, and single messages are masks."""

import numpy as np
import pytest
import secagg_plus
import torch
from secagg_plus import MODULUS, Round, Wire, scored, step_of, uniformity
from secagg_private import secagg_plus_app, secagg_plus_round

pytestmark = pytest.mark.long


Arrays = list[np.ndarray]


def parameters(clients: int, seed: int = 0) -> list[Arrays]:
    draw = np.random.default_rng(seed)
    return [[draw.normal(size=size).astype(np.float32) for size in ((40, 30), 7)] for _ in range(clients)]


def protocol(local: list[Arrays], counts: list[int], max_weight: float) -> tuple[Arrays, Wire]:
    grid = Wire(len(local), secagg_plus_app(lambda client: (local[client], counts[client])))
    settings = {"num_shares": 1.0, "reconstruction_threshold": 0.5, "max_weight": max_weight}
    return secagg_plus_round(grid, local[0], **settings), grid


def test_the_server_gets_the_mean_by_examples_within_the_steps_of_the_quantisation(subtests: pytest.Subtests) -> None:
    for clients in [2, 3, 4]:
        with subtests.test(clients=clients):
            local, counts = parameters(clients), [1 + at for at in range(clients)]
            mean, _ = protocol(local, counts, max_weight=float(clients))
            for at, found in enumerate(mean):
                wanted = np.average([one[at] for one in local], 0, counts)
                # Each client's n x parameters is rounded by a step at most, and the sum divided by all examples.
                step = step_of(float(clients)) * clients / sum(counts)
                error = float(np.abs(found - wanted).max())
                assert error < 1.5 * step
                assert error > 0.01 * step, "nothing was quantised"


def test_a_single_message_is_a_mask() -> None:
    """Uniform integers that two runs of the same parameters do not share; the parameters themselves are not uniform."""
    local = parameters(3)
    _, first = protocol(local, [1, 1, 1], 1.0)
    _, again = protocol(local, [1, 1, 1], 1.0)
    assert first.masked.keys() == again.masked.keys() == set(first.contexts)
    for node, vector in first.masked.items():
        assert uniformity(vector) > 1e-6
        assert [one.shape for one in vector[1:]] == [one.shape for one in local[0]]
        one, other = (np.concatenate([part.ravel() for part in wire.masked[node]]) for wire in (first, again))
        assert 0 <= one.min() <= one.max() < MODULUS
        assert (one == other).mean() < 0.01
        true = np.concatenate([part.ravel() for part in local[node - min(first.masked)]])
        assert abs(np.corrcoef(one[-len(true) :], true)[0, 1]) < 5 / len(true) ** 0.5
    quantised = [np.round((part + 8) * (2**22 / 16)) for part in local[0]]
    assert uniformity(quantised) < 1e-6


def test_the_sum_is_as_open_to_an_exact_attack_as_an_assumed_one_and_a_message_is_not() -> None:
    this = Round("mlp", 2, seed=0)
    mean, masked = this.protocol(1.0)
    attack = secagg_plus.ATTACKS["mlp"]["SpearPlusPlus"]
    alone = secagg_plus.unmasked_guess(next(iter(masked.values())), 1.0)
    sums = {"assumed": this.assumed(), "protocol": mean}
    counts = {}
    for name, update in sums.items():
        guess = attack(this.observation(update, 2), torch.Generator().manual_seed(0))
        counts[name] = scored(guess, this.images, this.others)["recovered"]
    assert counts == {"assumed": 2, "protocol": 2}
    one = [vector - start for vector, start in zip(alone, this.start, strict=True)]
    guess = attack(this.observation(one, 1), torch.Generator().manual_seed(0))
    assert scored(guess, this.images[:1], this.others)["recovered"] == 0
