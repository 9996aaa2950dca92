"""Searches tell how far they are, to whoever listens and in its own context alone."""

from __future__ import annotations

import pytest
import torch

from attacks.progress import reported, watched
from attacks.spec import parse_attacks
from tests.attacks.wire import linear_net, observe, pictures


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("InvertingGradients(iterations=12, restarts=1)", 12),
        ("DLG(iterations=3, restarts=1)", 3),
        ("LBFGSL2(iterations=3, restarts=1)", 3),
        ("AdamL2(iterations=5, restarts=1)", 5),
    ],
)
def test_every_search_tells_each_of_its_steps(text: str, steps: int) -> None:
    (attack,) = parse_attacks(text)
    observation = observe(linear_net(), pictures(1), torch.tensor([2]))
    heard: list[tuple[int, int]] = []
    with watched(lambda done, total: heard.append((done, total))):
        watched_guess = attack(observation, torch.Generator().manual_seed(0))
    assert heard == [(step, steps) for step in range(1, len(heard) + 1)]
    assert 1 <= len(heard) <= steps
    if "Inverting" in text or "Adam" in text:  # which never end early
        assert len(heard) == steps
    alone = attack(observation, torch.Generator().manual_seed(0))
    assert torch.equal(watched_guess.images, alone.images)
    assert len(heard) <= steps, "nobody listens outside"


def test_steps_are_told_when_they_are_done() -> None:
    heard: list[int] = []
    with watched(lambda done, _: heard.append(done)):
        steps = reported(range(2), 2)
        assert (next(steps), heard) == (0, [])
        assert (next(steps), heard) == (1, [1])
        assert (next(steps, None), heard) == (None, [1, 2])
