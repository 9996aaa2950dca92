"""The model that a client ended with, and attacks on updates of clients that train a part of their model."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from attacks.exact.head_inversion import HeadInversion
from attacks.gradient.labels import LabelInference
from attacks.local_model import local_model
from attacks.normalisation import normalise
from attacks.observations import AttackError, ClientUpdate, require_trained, trained_parameters
from tests.attacks.wire import CLASSES, classes, observe, pictures, relu_net, stream

SIZE = 144


@cache
def trained() -> tuple[ClientUpdate, nn.Module]:
    """What a client with BatchNorm sends after 60 steps, and the model that it has then."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        start = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(SIZE), nn.Linear(SIZE, CLASSES))
    local, images, labels = copy.deepcopy(start).train(), pictures(50), classes(50)
    seen = observe(start, images, labels)
    optimizer = torch.optim.SGD(local.parameters(), 0.1)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(local(normalise(images, seen)), labels).backward()
        optimizer.step()
    old = dict(start.named_parameters()) | dict(start.named_buffers())
    new = dict(local.named_parameters()) | dict(local.named_buffers())
    update = {name: (new[name] - old[name]).detach() for name in new if new[name].is_floating_point()}
    return replace(seen, model=start, update=update), local.eval()


def test_answers_as_the_client_does_and_leaves_the_global_model_alone():
    seen, local = trained()
    before = copy.deepcopy(seen.model.state_dict())
    rebuilt, images = local_model(seen), normalise(pictures(50), seen)
    for name, weight in seen.model.named_parameters():
        assert torch.equal(dict(rebuilt.named_parameters())[name], weight + seen.update[name])
    with torch.no_grad():
        torch.testing.assert_close(rebuilt(images), local(images), atol=1e-4, rtol=1e-4)
    assert not rebuilt.training
    assert not any(p.requires_grad for p in rebuilt.parameters())
    assert seen.model.training
    assert all(torch.equal(value, seen.model.state_dict()[name]) for name, value in before.items())


def test_buffers_that_are_not_sent_keep_their_values_counters_are_ignored_and_no_variance_is_negative():
    seen, _ = trained()
    without = {name: value for name, value in seen.update.items() if "running" not in name}
    kept = dict(local_model(replace(seen, update=without)).named_buffers())
    assert torch.equal(kept["1.running_mean"], dict(seen.model.named_buffers())["1.running_mean"])
    counted = replace(seen, update=seen.update | {"1.num_batches_tracked": torch.tensor(60)})
    expected, found = local_model(seen).state_dict(), local_model(counted).state_dict()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    noisy = local_model(replace(seen, update=seen.update | {"1.running_var": torch.full((SIZE,), -5.0)}))
    assert float(dict(noisy.named_buffers())["1.running_var"].min()) == 0
    assert torch.isfinite(noisy(normalise(pictures(4), seen))).all()


def test_an_update_or_statistics_that_do_not_fit_are_refused():
    seen, _ = trained()
    update = seen.update
    cases = [({}, ""), (update | {"odd": torch.zeros(1)}, "")]
    cases += [({name: change(v) for name, v in update.items()}, "") for change in (lambda v: v[None], lambda v: v / 0)]
    for name in ("1.running_mean", "1.running_var"):
        cases += [(update | {name: bad}, name) for bad in (torch.zeros(3), torch.full((SIZE,), torch.nan))]
    for case, named in cases:
        with pytest.raises(AttackError, match=named or None):
            local_model(replace(seen, update=case))


def test_normalisation_is_per_channel():
    seen = replace(trained()[0], mean=(0.1, 0.2, 0.7), std=(0.5, 0.25, 2.0))
    for dtype in (torch.float32, torch.float64):
        images = torch.stack([torch.full((4, 5), level, dtype=dtype) for level in (0.6, 0.2, 0.7 - 2.0)])
        expected = torch.tensor([1.0, 0.0, -1.0], dtype=dtype)[:, None, None].expand(3, 4, 5)
        for shown in (normalise(images, seen), normalise(images[None], seen)[0]):
            torch.testing.assert_close(shown, expected)


# ---- frozen parameters are neither matched nor needed


def frozen(model: nn.Module, *prefixes: str) -> nn.Module:
    """A copy that does not train parameters with these beginnings."""
    copied = copy.deepcopy(model)
    for name, parameter in copied.named_parameters():
        parameter.requires_grad_(not name.startswith(prefixes))
    return copied


def partly(model: nn.Module, image: Tensor, label: Tensor, *prefixes: str, zeros: bool) -> ClientUpdate:
    """The update of a client that froze these, sent as zeros or left out."""
    seen = observe(model, image, label)
    update = {name: value for name, value in seen.update.items() if not name.startswith(prefixes)}
    nothing = {name: torch.zeros_like(value) for name, value in seen.update.items()} if zeros else {}
    return replace(seen, model=frozen(model, *prefixes), update=nothing | update)


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


def test_the_first_trained_linear_layer_is_solved() -> None:
    seen = partly(relu_net(), pictures(1), classes(1), "1.", zeros=True)
    guess = HeadInversion(iterations=2)(seen, stream())
    assert not guess.failure
    assert torch.equal(guess.labels, classes(1))
    none = partly(relu_net(), pictures(1), classes(1), "1.", "3.weight", zeros=True)
    assert "no trained linear layer of Sequential" in HeadInversion(iterations=2)(none, stream()).failure
