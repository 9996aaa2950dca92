"""SiloBN: BatchNorm's running averages stay at the client, and attacks that match them have nothing to match."""

from __future__ import annotations

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
from strategies.audit.threat_card import strength
from strategies.federated.audit import _statistics
from strategies.federated.observations import PROBE
from tests.attacks.gradient.trial_gradients.test_batch_statistics import bn_net, sent
from tests.attacks.wire import classes, generators, pictures
from tests.clients.federated.test_client import TASK, weights

BN_TASK = TASK.but(model="convnet", width=2, norm="batch", pipeline="SiloBN()", batch_size=8)


def test_running_averages_alone_become_zero() -> None:
    update = {
        name: torch.ones(3)
        for name in ("0.weight", "0.running_mean", "running_var", "layer.1.running_var", "running_mean_head.weight")
    }
    protected = SiloBN().protect_update(update, generator_for(0))
    assert [name for name, value in protected.items() if not value.any()] == [
        "0.running_mean", "running_var", "layer.1.running_var",
    ]  # fmt: skip
    assert all(torch.equal(value, update[name]) for name, value in protected.items() if value.any())


def test_a_model_that_keeps_no_averages_is_refused() -> None:
    SiloBN().check_model(bn_net())
    for model in (
        build_model("resnet20", num_classes=3, input_shape=(1, 12, 12), width=1, norm="group", seed=0),
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4, track_running_stats=False)),
    ):
        with pytest.raises(DefenseError, match=r"SiloBN\(\): the model has no BatchNorm layer with running averages"):
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


def test_training_sends_everything_but_the_averages() -> None:
    shares = (range(0, 40), range(0, 20))
    kept, plain = (
        LocalClient(LocalData(task, 0, *shares)).train(weights(task), {}).updates[0]
        for task in (BN_TASK, BN_TASK.but(pipeline=""))
    )
    for name, value in plain.items():
        if "running" in name:
            assert value.any()
            assert not kept[name].any()
        else:
            assert torch.equal(kept[name], value)


def test_clients_judge_the_model_with_averages_of_their_own_images() -> None:
    client = LocalClient(LocalData(BN_TASK, 0, range(0, 40), range(0, 20)))
    model = BN_TASK.plan.build_model()
    layer = next(one for one in model.modules() if isinstance(one, nn.BatchNorm2d))
    momentum = layer.momentum
    entered: list[torch.Tensor] = []
    hook = layer.register_forward_hook(lambda _, inputs, __: entered.append(inputs[0]))
    own_statistics(client.data, model)
    hook.remove()
    assert [len(batch) for batch in entered] == [8, 8, 8, 8, 8]
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert torch.allclose(layer.running_mean, torch.cat(entered).mean((0, 2, 3)), atol=1e-5)
    within = torch.stack([batch.var((0, 2, 3)) for batch in entered]).mean(0)
    assert torch.allclose(layer.running_var, within, atol=1e-5)
    assert (layer.momentum, layer.training) == (momentum, False)
    # What the server has would be judged otherwise.
    losses = [
        LocalClient(LocalData(task, 0, range(0, 40), range(0, 20))).evaluate(weights(task))["test-loss-original"]
        for task in (BN_TASK, BN_TASK.but(pipeline=""))
    ]
    assert losses[0] != losses[1]


def test_what_is_kept_of_instance_norm_is_recomputed_as_well() -> None:
    layers = (nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True), nn.BatchNorm2d(4, momentum=None))
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
    SiloBN().check_model(model)
    entered: list[torch.Tensor] = []
    model[1].register_forward_hook(lambda _, inputs, __: entered.append(inputs[0]))
    own_statistics(LocalClient(LocalData(BN_TASK, 0, range(0, 40), range(0, 20))).data, model)
    assert len(entered) == 5
    assert torch.allclose(model[1].running_mean, torch.cat(entered).mean((0, 2, 3)), atol=1e-5)
    assert (model[1].momentum, model[2].momentum) == (0.1, None)


def test_a_layer_that_is_called_twice_averages_over_all_its_calls() -> None:
    norm = nn.BatchNorm2d(4)
    layers = (
        nn.Conv2d(1, 4, 3),
        norm,
        nn.Conv2d(4, 4, 3),
        norm,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 10),
    )
    model, entered = nn.Sequential(*layers), list[torch.Tensor]()
    norm.register_forward_hook(lambda _, inputs, __: entered.append(inputs[0].mean((0, 2, 3))))
    own_statistics(LocalClient(LocalData(BN_TASK, 0, range(0, 40), range(0, 20))).data, model)
    assert len(entered) == 10
    assert norm.running_mean is not None
    assert torch.allclose(norm.running_mean, torch.stack(entered).mean(0), atol=1e-5)


def test_running_averages_that_no_client_recomputes_are_refused() -> None:
    class Own(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
            self.register_buffer("running_mean", torch.zeros(4))

    with pytest.raises(DefenseError, match=r"running_mean belongs to no BatchNorm or InstanceNorm layer of torch"):
        SiloBN().check_model(nn.Sequential(Own()))


def test_the_threat_card_says_that_the_client_keeps_them() -> None:
    assert _statistics(BN_TASK, True) == "kept by the client"
    assert _statistics(BN_TASK.but(pipeline=""), True) == "sent as they are"
    assert strength(BN_TASK, one_step=True) == {}
    seen: Any = [SimpleNamespace(num_examples=8)]
    missing: Any = None
    auditor = Auditor(missing, missing, missing, share_images=False)
    accuracies = [auditor.card(task, PROBE, seen, 0.58).model_accuracy for task in (BN_TASK, BN_TASK.but(pipeline=""))]
    assert accuracies == [None, 0.58], "attacks read another model than the one that clients judge"
    assert parse("Clip() | SiloBN()").keeps_statistics
    assert not parse("Clip()").keeps_statistics
