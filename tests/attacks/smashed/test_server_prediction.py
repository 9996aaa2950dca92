from __future__ import annotations

from dataclasses import replace

import torch

from attacks.smashed.server_prediction import ServerPrediction
from defenses.smashed.patch_shuffle import PatchShuffle
from tests.attacks.smashed_wire import observe, seeded


class Lookup(torch.nn.Module):
    """A server half that says the classes it was made with, whatever it receives."""

    def __init__(self, classes):
        super().__init__()
        self.logits = 5 * torch.nn.functional.one_hot(torch.tensor(classes), 5).float()

    def forward(self, features):
        return self.logits[: len(features)]


def test_a_server_that_knows_the_classes_tells_them():
    observation, _, _ = observe(targets=4, server=Lookup([3, 0, 4, 0, 1, 1]))
    guess = ServerPrediction()(observation, seeded())
    # Those of the targets alone, class i that of image i: smashed data keep an image in its row.
    assert guess.classes.tolist() == [3, 0, 4, 0]
    assert guess.diagnostics["confidence"] > 0.9


def test_predictions_do_not_see_a_patch_shuffle():
    plain, _, _ = observe(targets=6)
    shuffled, _, _ = observe(PatchShuffle(), targets=6)
    one, two = (ServerPrediction()(seen, seeded()) for seen in (plain, replace(shuffled, server=plain.server)))
    assert torch.equal(one.classes, two.classes)


def test_classes_of_noise_are_those_of_nobody():
    observation, _, _ = observe(targets=2)
    noise = torch.randn(1, 400, 9, 32, generator=seeded(3))
    guess = ServerPrediction()(replace(observation, features=noise, num_targets=400), seeded())
    assert guess.diagnostics["confidence"] < 0.5  # an untrained server half is sure of nothing


def test_a_failure_is_a_guess_of_unknown_classes():
    observation, _, _ = observe(targets=2)
    broken = replace(observation, features=observation.features * float("nan"))
    failed, fine = ServerPrediction().attack_many([broken, observation], [seeded()] * 2)
    assert failed.classes.tolist() == [-1, -1]
    assert "NaN" in failed.failure
    assert not fine.failure


def test_configuration():
    assert repr(ServerPrediction()) == "ServerPrediction()"
    attack = ServerPrediction()
    assert not attack.needs_auxiliary
    assert not attack.reveals_order
    assert attack.transmissions == 1
