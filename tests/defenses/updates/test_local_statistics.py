"""SiloBN: BatchNorm's running averages stay at the client, and attacks that match them have nothing to match."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from attacks.gradient.presets import InvertingGradients
from attacks.gradient.trial_gradients.batch_statistics import sent_statistics
from attacks.observations import AttackError
from clients.federated.client import LocalClient
from clients.models.classifiers import build_model
from clients.task.local_data import LocalData
from clients.training.evaluation import own_statistics
from defenses import DefenseError, SiloBN, parse
from defenses.random_draws import generator_for
from strategies.audit.auditor import Auditor
from strategies.federated.observations import PROBE
from tests.attacks.gradient.trial_gradients.test_batch_statistics import bn_net, sent
from tests.attacks.wire import classes, generators, pictures
from tests.clients.federated.test_client import TASK

BN_TASK = TASK.but(model="convnet", width=2, norm="batch", pipeline="SiloBN()", batch_size=8)


def client() -> LocalClient:
    return LocalClient(LocalData(BN_TASK, 0, range(0, 40), range(0, 20)))


def test_running_averages_alone_become_zero() -> None:
    names = ("0.weight", "0.running_mean", "running_var", "layer.1.running_var", "running_mean_head.weight")
    update = {name: torch.ones(3) for name in names}
    protected = SiloBN().protect_update(update, generator_for(0))
    assert [name for name, value in protected.items() if not value.any()] == [*names[1:4]]
    assert all(torch.equal(value, update[name]) for name, value in protected.items() if value.any())
    assert parse("Clip() | SiloBN()").keeps_statistics
    assert not parse("Clip()").keeps_statistics


def test_a_model_whose_averages_no_client_keeps_or_recomputes_is_refused() -> None:
    class Own(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
            self.register_buffer("running_mean", torch.zeros(4))

    SiloBN().check_model(bn_net())
    group_norm = build_model("resnet20", num_classes=3, input_shape=(1, 12, 12), width=1, norm="group", seed=0)
    untracked = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4, track_running_stats=False))
    for model, message in (
        (group_norm, r"SiloBN\(\): the model has no BatchNorm layer with running averages"),
        (untracked, r"SiloBN\(\): the model has no BatchNorm layer with running averages"),
        (nn.Sequential(Own()), "running_mean belongs to no BatchNorm or InstanceNorm layer of torch"),
    ):
        with pytest.raises(DefenseError, match=message):
            SiloBN().check_model(model)


def test_an_attack_has_no_statistics_to_match_and_guesses_as_if_they_were_not_sent() -> None:
    observation = sent(bn_net(), pictures(2), classes(2))
    assert sent_statistics(observation)
    kept = replace(observation, update=SiloBN().protect_update(observation.update, generator_for(0)))
    with pytest.raises(AttackError, match="no running averages"):
        sent_statistics(kept)
    bare = replace(kept, update={name: value for name, value in kept.update.items() if "running" not in name})
    attack = InvertingGradients(iterations=3)
    guesses = [attack(one, generators(1)[0]) for one in (kept, bare, observation)]
    assert torch.equal(guesses[0].images, guesses[1].images)
    assert not torch.equal(guesses[0].images, guesses[2].images)
    assert [guess.diagnostics["batch_norm_layers"] > 0 for guess in guesses] == [False, False, True]


def test_clients_judge_the_model_with_averages_of_their_own_images() -> None:
    model = BN_TASK.plan.build_model()
    layer = next(one for one in model.modules() if isinstance(one, nn.BatchNorm2d))
    momentum, entered = layer.momentum, list[torch.Tensor]()
    hook = layer.register_forward_hook(lambda _, inputs, __: entered.append(inputs[0]))
    own_statistics(client().data, model)
    hook.remove()
    assert [len(batch) for batch in entered] == [8, 8, 8, 8, 8]
    torch.testing.assert_close(layer.running_mean, torch.cat(entered).mean((0, 2, 3)), atol=1e-5, rtol=1e-5)
    within = torch.stack([batch.var((0, 2, 3)) for batch in entered]).mean(0)
    torch.testing.assert_close(layer.running_var, within, atol=1e-5, rtol=1e-5)
    assert (layer.momentum, layer.training) == (momentum, False)
    seen: Any = [SimpleNamespace(num_examples=8)]
    auditor = Auditor(*[None] * 3, share_images=False)  # type: ignore[arg-type]
    cards = [auditor.card(task, PROBE, seen, 0.58) for task in (BN_TASK, BN_TASK.but(pipeline=""))]
    assert [card.model_accuracy for card in cards] == [None, 0.58], "attacks read another model than clients judge"


def test_averages_of_instance_norm_and_of_a_layer_that_is_called_twice_are_recomputed_as_well() -> None:
    instance, twice = nn.InstanceNorm2d(4, track_running_stats=True), nn.BatchNorm2d(4, momentum=None)
    layers = (nn.Conv2d(1, 4, 3), instance, twice, nn.Conv2d(4, 4, 3), twice, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model, entered = nn.Sequential(*layers, nn.Linear(4, 10)), {one: list[torch.Tensor]() for one in (instance, twice)}
    SiloBN().check_model(model)
    for norm, seen in entered.items():
        norm.register_forward_hook(lambda _, inputs, __, seen=seen: seen.append(inputs[0].mean((0, 2, 3))))
    own_statistics(client().data, model)
    for norm, calls in ((instance, 5), (twice, 10)):
        assert len(entered[norm]) == calls
        torch.testing.assert_close(norm.running_mean, torch.stack(entered[norm]).mean(0), atol=1e-5, rtol=1e-5)
    assert (instance.momentum, twice.momentum) == (0.1, None)
