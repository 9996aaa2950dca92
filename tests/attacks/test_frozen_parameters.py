"""Attacks on updates of clients that train a part of their model: frozen parameters are neither matched nor needed."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from attacks.exact.head_inversion import HeadInversion
from attacks.gradient.costs import COSTS
from attacks.gradient.labels import LabelInference
from attacks.gradient.noise_models import MaskedInversion
from attacks.gradient.presets import InvertingGradients
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem, attackable
from attacks.local_model import local_model
from attacks.observations import AttackError, ClientUpdate, require_trained, trained_parameters
from tests.attacks.wire import CLASSES, MEAN, STD, classes, observe, pictures, relu_net, sigmoid_net


def stream() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def frozen(model: nn.Module, *prefixes: str) -> nn.Module:
    """A copy that does not train parameters with these beginnings."""
    copied = copy.deepcopy(model)
    for name, parameter in copied.named_parameters():
        parameter.requires_grad_(not name.startswith(prefixes))
    return copied


def partly(model: nn.Module, image: Tensor, label: Tensor, *prefixes: str, zeros: bool) -> ClientUpdate:
    """The update of a client that froze these, sent as zeros or left out."""
    seen = observe(model, image, label)
    update = {
        name: torch.zeros_like(value) if name.startswith(prefixes) else value
        for name, value in seen.update.items()
        if zeros or not name.startswith(prefixes)
    }
    return replace(seen, model=frozen(model, *prefixes), update=update)


def test_the_gradient_is_that_of_trained_parameters() -> None:
    model, image, label = relu_net(), pictures(1), classes(1)
    whole = observe(model, image, label).gradient()
    for zeros in (True, False):
        seen = partly(model, image, label, "1.", zeros=zeros)
        gradient = seen.gradient()
        assert list(gradient) == ["3.weight", "3.bias"]
        assert all(torch.equal(value, whole[name]) for name, value in gradient.items())
        moved = local_model(seen).state_dict()
        assert torch.equal(moved["1.weight"], model.state_dict()["1.weight"])
        torch.testing.assert_close(moved["3.bias"], model.state_dict()["3.bias"] + seen.update["3.bias"])
        with pytest.raises(AttackError, match=r"the update lacks \['3.bias'\] \(1 of 2 parameters\)"):
            replace(seen, update={"3.weight": seen.update["3.weight"]}).gradient()
    # A model of which nothing requires gradients says nothing about the clients.
    every = list(dict(model.named_parameters()))
    assert list(trained_parameters(model)) == every
    assert list(trained_parameters(copy.deepcopy(model).requires_grad_(False))) == every


def test_a_frozen_parameter_that_an_attack_needs_is_named_and_one_trained_part_of_the_head_is_enough() -> None:
    require_trained({"a": torch.zeros(1)}, "the head", "a")
    with pytest.raises(AttackError, match="does not apply: the head is frozen: no gradient of 'b'"):
        require_trained({"a": torch.zeros(1)}, "the head", "a", "b")
    seen = partly(relu_net(), pictures(1), classes(1), "3.", zeros=True)
    failure = LabelInference()(seen, stream()).failure
    assert "the last fully connected layer is frozen: no gradient of '3.weight'" in failure
    for part in ("3.weight", "3.bias"):
        for at in range(3):
            seen = partly(relu_net(), pictures(at + 1)[at:], classes(at + 1)[at:], "1.", part, zeros=False)
            assert LabelInference()(seen, stream()).classes.tolist() == classes(at + 1)[at:].tolist()


def test_the_true_image_has_the_least_objective_by_the_trained_layers_alone() -> None:
    """If what is sent of frozen layers were matched as a gradient of zero, the true image would be far from it."""
    model, image, label = relu_net(), pictures(1), classes(1)
    seen = partly(model, image, label, "1.", zeros=True)
    matched = {name: value[None] for name, value in seen.gradient().items()}
    believed = matched | {
        name: torch.zeros_like(value)[None] for name, value in model.named_parameters() if name[0] == "1"
    }
    losses = []
    for targets in (matched, believed):
        objective = GradientMatching(
            MatchingProblem(
                attackable(seen.model, True), (1, 1, 12, 12), CLASSES, targets, label[None], COSTS["cosine"], 0.0
            )
        )
        loss, _ = objective(((image - MEAN[0]) / STD[0]).flatten(1), torch.arange(1))
        losses.append(float(loss))
    assert losses[0] < 1e-5 < 1e-2 < losses[1]


@pytest.mark.numeric
def test_matching_and_whole_rounds_need_no_frozen_layer() -> None:
    model, image, label = sigmoid_net(), pictures(1), classes(1)
    known = replace(partly(model, image, label, "0.", zeros=False), labels=label)
    for kind in (InvertingGradients, MaskedInversion):
        guess = kind(iterations=80, restarts=1, total_variation=0.0)(known, stream())
        assert not guess.failure
        assert guess.diagnostics["objective"] < 3e-2
        assert guess.diagnostics["differenced"] == 0.0
    guess = InvertingGradients(iterations=2, restarts=1)(replace(known, local_steps=2), stream())
    assert not guess.failure
    assert guess.diagnostics["unrolled"] == 1.0


def test_the_first_trained_linear_layer_is_solved() -> None:
    seen = partly(relu_net(), pictures(1), classes(1), "1.", zeros=True)
    guess = HeadInversion(iterations=2)(seen, stream())
    assert not guess.failure
    assert torch.equal(guess.labels, classes(1))
    none = partly(relu_net(), pictures(1), classes(1), "1.", "3.weight", zeros=True)
    assert "no trained linear layer of Sequential" in HeadInversion(iterations=2)(none, stream()).failure
