"""What changes from step to step: adaptive norms, and noise and norms that fall over epochs; their privacy from closed forms."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.dp_audit.gradient_canaries import audit_dp_sgd
from defenses.base import DefenseError, Training
from defenses.neighbours import REPLACE_ONE
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.training.accounting import PRV, RDP, epsilon_by_accountant
from defenses.training.adaptive_clipping import FARTHEST, AdaptiveNorm, raised_noise
from defenses.training.dp_sgd import DPSGD
from defenses.training.example_gradients import GHOST, PER_EXAMPLE
from defenses.training.noise_search import MOST_LEVELS, noise_for_budget
from defenses.training.step_settings import NORM, SCHEDULE, DecaySchedule
from tests.defenses.training.test_dp_sgd import DELTA, PUBLIC, moves, no_gradient, protect, run, set_up

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:Optimal order is the")
WAYS = (PER_EXAMPLE, GHOST)


def norm_of(**given: Any) -> AdaptiveNorm:
    settings = {"norm": 1.0, "quantile": 0.5, "learning_rate": 0.2, "count_noise": 2.0, "divisor": 10.0, "start": 1.0}
    return AdaptiveNorm(**settings | given, generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]


def linear(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradients are the images, whatever the weights are."""
    return model(images.flatten(1)).mean()  # type: ignore[no-any-return]


def steps_of(defense: DPSGD, **training: Any) -> dict[str, Any]:
    protected = protect(defense, set_up(**training))
    list(run(protected))
    return dict(protected.state)


def rounds_of(defense: DPSGD, **training: Any) -> Iterator[Training]:
    """Trainings of three rounds, each with the state of the round before, through JSON; before they run."""
    state: dict[str, Any] = {}
    for number in range(3):
        protected = protect(defense, set_up(epochs=1, total_epochs=3, state=state, **training), number)
        yield protected
        list(run(protected))
        state = json.loads(json.dumps(protected.state))


# ---- privacy of each step


def test_gradients_and_count_together_have_the_account_of_the_noise_multiplier() -> None:
    for noise, count_noise in product((0.3, 1.0, 7.0), (0.6, 1.0, 2.0, 50.0)):
        gradients, count = raised_noise(noise, count_noise), noise * count_noise
        # How far apart the means of both releases are at most, each in its own noise: mu of a Gaussian mechanism.
        assert math.hypot(1 / gradients, 0.5 / count) == pytest.approx(1 / noise, rel=1e-12)  # one added
        assert math.hypot(2 / gradients, 1 / count) == pytest.approx(2 / noise, rel=1e-12)  # one replaced
        # Theorem 1 of the paper (Andrew et al.), with its sigma_b.
        assert gradients == pytest.approx((noise**-2 - (2 * count) ** -2) ** -0.5, rel=1e-12)


@pytest.mark.numeric
def test_noise_is_raised_for_the_count_follows_the_norm_and_falls_with_each_epoch() -> None:
    for clipping, count_noise in ((PER_EXAMPLE, 0.6), (GHOST, 2.0)):
        adaptive = {"target_quantile": 0.5, "count_noise": count_noise, "clipping": clipping}
        defense = DPSGD(noise_multiplier=2.0, max_grad_norm=3.0, **adaptive)  # type: ignore[arg-type]
        training = replace(set_up(count=4, batch_size=4, epochs=60), loss=no_gradient)
        protected, seen, norms = protect(defense, training), [], [3.0]
        for moved in moves(protected):
            seen.append(moved * 4 / norms[-1])  # times the divisor
            norms.append(protected.state[NORM])
        # 29,000 draws: a standard error of 0.4 %.
        assert float(torch.cat(seen).std()) == pytest.approx(raised_noise(2.0, count_noise), rel=0.025)
        assert norms[-1] < 0.3  # as gradients of length 0 are all within it
        assert protected.state["accountant"]["steps"] == [[1.0, 1.0, 60]]
        defense = DPSGD(noise_multiplier=4.0, max_grad_norm=3.0, noise_decay=0.5, clip_decay=0.8, clipping=clipping)
        protected = protect(defense, replace(set_up(count=6, batch_size=3, epochs=3), loss=no_gradient))
        seen = [3 * moved for moved in moves(protected)]
        for epoch in range(3):  # 968 draws: a standard error of 2.3 %
            noise = torch.cat(seen[2 * epoch : 2 * epoch + 2])
            assert float(noise.std()) == pytest.approx(4.0 * 0.5**epoch * 3.0 * 0.8**epoch, rel=0.12)
        assert protected.state["accountant"]["steps"] == [[2.0, 0.5, 2], [1.0, 0.5, 2], [0.5, 0.5, 2]]


def test_gradients_are_clipped_to_the_norm_of_their_epoch() -> None:
    for clipping in WAYS:
        defense = DPSGD(noise_multiplier=0.0, max_grad_norm=1e-3, clip_decay=0.5, clipping=clipping)
        lengths = [float(moved.norm()) for moved in moves(protect(defense, set_up(count=1, batch_size=1, epochs=4)))]
        assert lengths == pytest.approx([1e-3, 5e-4, 2.5e-4, 1.25e-4], rel=1e-2)


def test_epsilon_of_full_batches_is_the_closed_form() -> None:
    count = math.hypot(2 / raised_noise(6.0, 2.0), 1 / 12.0)
    for more, mu in (
        ({"noise_multiplier": 6.0, "target_quantile": 0.5}, 2 * count),
        ({"noise_multiplier": 8.0, "noise_decay": 0.7}, math.sqrt(sum((2 / (8.0 * 0.7**at)) ** 2 for at in range(4)))),
    ):
        state = steps_of(DPSGD(**more), count=6, batch_size=6, epochs=4)  # type: ignore[arg-type]
        found = epsilon_by_accountant(state, DELTA, REPLACE_ONE)
        assert found["exact"] == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-9)


# ---- the adaptive norm


@pytest.mark.numeric
def test_the_count_has_the_promised_noise_and_a_public_divisor() -> None:
    norm, found = norm_of(learning_rate=1e-3), []
    for _ in range(4000):
        before = math.log(norm.norm)
        found.append((before - math.log(norm.move(3.0))) / 1e-3 * 10.0)
    assert torch.tensor(found).std() == pytest.approx(6.0, rel=5 / 8000**0.5)
    assert torch.tensor(found).mean() == pytest.approx(0.0, abs=5 * 6 / 4000**0.5)
    # A batch twice as large, all within the norm, moves the norm by twice as much: no division by the true number.
    for drawn, expected in ((0, 0.0), (5, -0.2 * 0.25), (10, -0.2 * 0.5)):
        norm = norm_of(count_noise=1.0)
        norm.measure(torch.zeros(drawn))
        assert math.log(norm.move(0.0)) == pytest.approx(expected)


def test_without_noise_the_norm_reaches_the_quantile_and_stays_within_limits() -> None:
    lengths = torch.logspace(-1, 1, 40)
    cases = ((PER_EXAMPLE, 0.5, 0.01), (GHOST, 0.5, 40.0), (PER_EXAMPLE, 0.2, 1.0), (GHOST, 0.9, 1.0))
    for clipping, quantile, start in cases:
        training = set_up(40, 40, model=nn.Sequential(nn.Linear(36, 1, bias=False)).train(), epochs=150)
        images, _ = training.loader.dataset.tensors  # type: ignore[attr-defined]
        images *= (lengths / images.flatten(1).norm(dim=1)).view(-1, 1, 1, 1)
        defense = DPSGD(noise_multiplier=0.0, max_grad_norm=start, target_quantile=quantile, clipping=clipping)
        protected = protect(defense, replace(training, loss=linear))
        assert len(list(run(protected))) == 150
        within = float((lengths <= protected.state[NORM]).double().mean())
        assert within == pytest.approx(quantile, abs=1.5 / 40), (clipping, quantile, start)
    norm = norm_of(learning_rate=10.0)
    for lengths, limit in ((torch.full((10,), math.nan), FARTHEST), (torch.zeros(10**6), 1 / FARTHEST)):
        for _ in range(10):
            norm.measure(lengths)  # of a training that diverged, and of one that stands still
            last = norm.move(0.0)
        assert last == pytest.approx(limit)


def test_empty_batches_move_the_norm_by_noise_alone() -> None:
    for clipping in WAYS:
        protected = protect(DPSGD(noise_multiplier=0.0, target_quantile=0.25, clipping=clipping), set_up())
        empty = torch.zeros(0, 1, 6, 6), torch.zeros(0, 3)
        for number in range(1, 4):
            protected.optimizer.zero_grad()
            protected.loss(protected.model, *empty).backward()  # type: ignore[no-untyped-call]
            protected.optimizer.step()
            # Half of no gradients is within the norm, as far as a count of none says.
            assert protected.state[NORM] == pytest.approx(math.exp(-0.2 * (0.5 - 0.25) * number))


# ---- budgets


def test_a_target_epsilon_and_the_samples_are_those_without_an_adaptive_norm() -> None:
    for more in ({}, PUBLIC | {"sample_rate": 1}):
        states, sizes = [], []
        for quantile in (None, 0.5):
            defense = DPSGD(target_epsilon=3.0, target_quantile=quantile, **more)
            protected = protect(defense, set_up(count=5, batch_size=5, epochs=3))
            sizes.append(list(run(protected)))
            states.append(protected.state["accountant"])
        assert (states[0], sizes[0]) == (states[1], sizes[1])


def test_a_target_epsilon_is_met_and_used() -> None:
    full: dict[str, Any] = {"count": 5, "batch_size": 5, "epochs": 4}
    limited: dict[str, Any] = {"count": 20, "batch_size": 5, "epochs": 2, "total_steps": 7, "total_epochs": 2}
    cases = ((40.0, 0.6, RDP, full, 4), (3.0, 0.8, PRV, full, 4), (2.0, 0.8, RDP, limited, 7))
    for target, decay, accountant, training, total in cases:
        defense = DPSGD(target_epsilon=target, noise_decay=decay, accountant=accountant)
        protected = protect(defense, set_up(**training))
        assert len(list(islice(run(protected), total))) == total
        steps = protected.state["accountant"]["steps"]
        assert sum(count for *_, count in steps) == total
        assert 0.99 * target <= defense.privacy(protected.state)["epsilon"] <= target
        assert [noise for noise, *_ in steps] == pytest.approx([steps[0][0] * decay**at for at in range(len(steps))])
        assert len(steps) > 1


def test_levels_of_noise_are_searched_up_to_a_number_and_one_is_the_search_without() -> None:
    one_level = noise_for_budget(3.0, DELTA, 1.0, 12, RDP, REPLACE_ONE, ((1.0, 12),))
    assert one_level == noise_for_budget(3.0, DELTA, 1.0, 12, RDP)
    training = set_up(count=5, batch_size=5, epochs=MOST_LEVELS + 1)
    with pytest.raises(DefenseError, match="noise that changes 64 times takes too long to account; allowed: up to 63"):
        protect(DPSGD(target_epsilon=8.0, noise_decay=0.99), training)
    assert len(list(run(protect(DPSGD(noise_multiplier=1.0, noise_decay=0.99), training)))) == MOST_LEVELS + 1
    with pytest.raises(DefenseError, match="no noise keeps"):
        noise_for_budget(1.0, DELTA, 1.0, 60, RDP, REPLACE_ONE, tuple((0.01**at, 1) for at in range(60)))


# ---- places


def test_rounds_go_on_with_the_norm_and_in_the_schedule() -> None:
    falling, states = DPSGD(noise_multiplier=4.0, noise_decay=0.5), []
    (*_, last) = rounds_of(falling)
    assert last.state == steps_of(falling, epochs=3)
    # A server may hand a node more spent steps than there were: they must not lower its noise.
    spent = {"accountant": {"steps": [[1.0, 0.25, 10**9]]}}
    protected = protect(falling, set_up(state=spent, epochs=1, total_epochs=3))
    assert protected.optimizer.noise_multiplier == 4.0  # type: ignore[attr-defined]
    for clipping in WAYS:
        norms = []
        for training in rounds_of(DPSGD(noise_multiplier=0.5, target_quantile=0.7, clipping=clipping)):
            norms.append(training.optimizer.max_grad_norm)  # type: ignore[attr-defined]
        assert len(set(norms)) == 3
        states.append(training.state)
    assert states[0] == states[1]
    assert set(steps_of(DPSGD(noise_multiplier=1.0), epochs=2)) == {"accountant"}
    both = steps_of(DPSGD(noise_multiplier=4.0, noise_decay=0.5, target_quantile=0.5), epochs=2)
    assert both["accountant"]["steps"] == [[2.0, 0.25, 4], [1.0, 0.25, 4]]
    assert both[NORM] != 1.0


def test_steps_beyond_the_training_have_the_last_noise() -> None:
    schedule = DecaySchedule(0.5, 1.0, epoch_steps=4, total_steps=10)
    assert [schedule.epoch(done) for done in (0, 3, 4, 8, 9, 10, 10**9)] == [0, 0, 1, 2, 2, 2, 2]
    assert schedule.levels() == ((1.0, 4), (0.5, 4), (0.25, 2))
    whole = DecaySchedule(0.5, 1.0, epoch_steps=4, total_steps=8)
    assert ([whole.epoch(done) for done in (7, 8)], whole.levels()) == ([1, 1], ((1.0, 4), (0.5, 4)))


def test_a_probe_has_the_noise_and_norm_of_the_next_step_and_moves_nothing() -> None:
    for more, state, noise, norm in (
        ({"noise_decay": 0.5, "clip_decay": 0.5}, {SCHEDULE: [9, 2]}, 1.0, 0.25),
        ({"target_quantile": 0.5}, {NORM: 0.125}, 4.0, 0.125),  # no count is released
    ):
        defense = DPSGD(noise_multiplier=4.0, **more)  # type: ignore[arg-type]
        protected = protect(defense, replace(set_up(count=4, batch_size=4), probe=True, state=state))
        optimizer: Any = protected.optimizer
        assert (optimizer.noise_multiplier, optimizer.max_grad_norm) == (noise, norm)
        list(run(protected))
        assert protected.state == state | {"accountant": {"steps": [[noise / 2, 1.0, 1]]}}


def test_canaries_bound_falling_noise_below_its_claim_and_refuse_a_norm_that_changes() -> None:
    found = audit_dp_sgd(DPSGD(noise_multiplier=4.0, noise_decay=0.5), runs=2, rounds=2, seed=0)
    assert 0 < found.shown.epsilon <= found.claimed
    assert not found.refuted
    for changing in ({"target_quantile": 0.5}, {"clip_decay": 0.9}):
        with pytest.raises(ValueError, match="clipping norm that changes"):
            audit_dp_sgd(DPSGD(noise_multiplier=1.0, **changing), runs=1, rounds=1)  # type: ignore[arg-type]
