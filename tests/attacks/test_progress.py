"""Searches tell how far they are, to whoever listens and in its own context alone."""

from __future__ import annotations

import torch

from attacks.progress import reported, watched
from attacks.spec import parse_attacks
from tests.attacks.wire import linear_net, observe, pictures


def test_every_search_reports_each_of_its_steps_to_its_own_context() -> None:
    observation = observe(linear_net(), pictures(1), torch.tensor([2]))
    for text, steps, never_ends_early in (
        ("InvertingGradients(iterations=12, restarts=1)", 12, True),
        ("DLG(iterations=3, restarts=1)", 3, False),
        ("AdamL2(iterations=5, restarts=1)", 5, True),
    ):
        (attack,) = parse_attacks(text)
        heard: list[tuple[int, int]] = []
        with watched(lambda done, total, heard=heard: heard.append((done, total))):
            watched_guess = attack(observation, torch.Generator().manual_seed(0))
        assert heard == [(step, steps) for step in range(1, len(heard) + 1)]
        assert 1 <= len(heard) <= steps
        assert len(heard) == steps or not never_ends_early
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
