"""Numbers of training: where ``audited`` would find each, and which it must be told."""

from __future__ import annotations

from typing import Any

import pytest

from simulations.external_app.check.settings import settings_of
from simulations.external_app.check.source.origins import Origin
from simulations.external_app.check.source.training import Optimizer, SeenTraining


def constant(value: Any) -> Origin:
    return Origin("constant", value, repr(value), "task.py:1")


def training(rate: Origin | None, name: str = "SGD", **others: Origin) -> SeenTraining:
    given = {**({"lr": rate} if rate else {}), **others}
    return SeenTraining(
        optimizers=(Optimizer(name, "task.py:1", given),), epochs=constant(2), batch_sizes=(constant(16),)
    )


@pytest.mark.parametrize(
    ("rate", "message", "run_config", "expected"),
    [
        (constant(0.1), {}, {}, (0.1, True, False, "")),
        (None, {}, {}, (0.001, True, False, "")),  # the default of torch.optim.SGD
        (Origin("message", "lr", "", ""), {"lr": 0.2}, {}, (0.2, False, False, "")),
        (Origin("message", "eta", "", ""), {"eta": 0.3}, {}, (0.3, True, False, "")),
        (Origin("run_config", "learning-rate", "", ""), {}, {"learning-rate": 0.4}, (0.4, False, True, "")),
        (Origin("unknown", None, "f()", "a.py:2"), {}, {}, (None, False, False, "")),
        (constant(0.1), {}, {"learning-rate": 0.4}, (0.4, False, True, "0.1 (task.py:1)")),
        (constant(0.1), {"lr": 0.1}, {"learning-rate": 0.4}, (0.1, False, False, "")),
    ],
)
def test_a_learning_rate(
    rate: Origin | None, message: dict[str, Any], run_config: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    found = {one.name: one for one in settings_of(training(rate), message, run_config)}
    one = found["learning_rate"]
    assert (one.value, one.argument, one.from_settings, one.conflict) == expected
    assert (found["local_epochs"].value, found["local_epochs"].argument) == (2, True)
    assert (found["batch_size"].value, found["batch_size"].argument) == (16, True)


def test_numbers_of_sgd_are_told_where_they_are_not_zero() -> None:
    found = settings_of(training(constant(0.1), momentum=constant(0.9), nesterov=constant(False)), {}, {})
    told = {one.name: one.value for one in found if one.argument}
    assert told == {"learning_rate": 0.1, "local_epochs": 2, "batch_size": 16, "momentum": 0.9}


def test_momentum_of_adam_is_none_of_sgd() -> None:
    found = settings_of(training(constant(0.1), "Adam", momentum=constant(0.9)), {}, {})
    assert [one.name for one in found] == ["learning_rate", "local_epochs", "batch_size"]


def test_a_momentum_that_could_not_be_seen_is_unknown() -> None:
    unknown = Origin("unknown", None, "best()", "task.py:3")
    (one,) = (one for one in settings_of(training(constant(0.1), momentum=unknown), {}, {}) if one.name == "momentum")
    assert (one.value, one.argument) == (None, False)
