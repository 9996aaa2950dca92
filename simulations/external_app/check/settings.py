"""The numbers of training that an audit needs, and where it would find each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simulations.external_app.check.report import Setting
from simulations.external_app.check.source.origins import Origin
from simulations.external_app.check.source.training import Optimizer, SeenTraining
from strategies.recording.usual_names import BATCHES, EPOCHS, RATES, first_number

DEFAULT_RATE = 0.001
"""Of ``torch.optim.SGD`` and of its other optimizers, mostly."""


def optimizer_of(training: SeenTraining) -> Optimizer | None:
    """The one that trains, as far as the source shows: SGD, if there are several."""
    sgd = [one for one in training.optimizers if one.name == "SGD"]
    return next(iter(sgd or training.optimizers), None)


def settings_of(
    training: SeenTraining, message: Mapping[str, Any], run_config: Mapping[str, Any]
) -> tuple[Setting, ...]:
    """Learning rate, epochs and batch size as ``audited`` would find them, and the optimizer's numbers as its arguments."""
    optimizer = optimizer_of(training)
    rate = None if optimizer is None else optimizer.arguments.get("lr")
    if rate is None and optimizer is not None and optimizer.name == "SGD":
        rate = Origin("constant", DEFAULT_RATE, "the default of PyTorch", optimizer.where)
    size = training.batch_sizes[0] if len(training.batch_sizes) == 1 else None
    found = [
        _looked_for("learning_rate", RATES, rate, message, run_config),
        _looked_for("local_epochs", EPOCHS, training.epochs, message, run_config),
        _looked_for("batch_size", BATCHES, size, message, run_config),
    ]
    return (*found, *_of_optimizer(optimizer, message, run_config))


def _looked_for(
    name: str, names: tuple[str, ...], origin: Origin | None, message: Mapping[str, Any], run_config: Mapping[str, Any]
) -> Setting:
    own = None if origin is None else _number(origin.found(message, run_config))
    seen = first_number([message, run_config], names)
    text = "" if origin is None else origin.described()
    if seen is None:
        return Setting(name, own, text or "could not be seen", argument=own is not None)
    alone = first_number([message], names) is None
    key = next(one for one in names if one in (run_config if alone else message))
    conflict = text if own is not None and own != seen else ""
    return Setting(name, seen, f"`{key}` of the {_place(alone)}", from_settings=alone, conflict=conflict)


def _place(alone: bool) -> str:
    return "run configuration" if alone else "message of training"


def _of_optimizer(
    optimizer: Optimizer | None, message: Mapping[str, Any], run_config: Mapping[str, Any]
) -> Iterator[Setting]:
    for name, default in (("momentum", 0.0), ("weight_decay", 0.0), ("nesterov", False)):
        if optimizer is None or optimizer.name != "SGD":
            continue
        origin = optimizer.arguments.get(name)
        if origin is None:
            yield Setting(name, default, "the default of PyTorch")
            continue
        value = origin.found(message, run_config)
        known = isinstance(value, int | float)
        yield Setting(name, value if known else None, origin.described(), argument=known and bool(value))


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
