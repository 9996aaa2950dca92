"""Checks of the arguments of ``answer_audits`` when an app is loaded: a mistake would otherwise fail at every node."""

from collections.abc import Sequence
from numbers import Real
from typing import Any

from flwr.clientapp import ClientApp
from torch import nn

from clients.flower_private import functions_of
from clients.wire.texts import shortened

PerChannel = float | tuple[float, ...]
"""One number for all channels, or one for each."""
LARGEST = 10.0
"""Of mean and std, as images lie in [0, 1]: a larger one is meant for [0, 255]."""


def check_arguments(app: Any, model: Any, data: Any, loss: Any, mods: Any) -> None:
    """Raise ``TypeError`` for an argument of the wrong type, ``ValueError`` for an app that already answers audits."""
    listed = isinstance(mods, Sequence) and not isinstance(mods, str) and all(callable(mod) for mod in mods)
    for name, value, good, allowed in (
        ("app", app, isinstance(app, ClientApp), "a ClientApp"),
        ("model", model, callable(model) and not isinstance(model, nn.Module), "a class or function that builds the model"),
        ("data", data, callable(data), "a function of the context, which gives the examples"),
        ("loss", loss, callable(loss) and not isinstance(loss, type),
         "a function of logits and classes, or an object such as nn.CrossEntropyLoss()"),
        ("mods", mods, mods is None or listed, "a list of mods, or None for those of the app"),
    ):  # fmt: skip
        if not good:
            came = " ".join(shortened(value).split())
            raise TypeError(f"answer_audits: {name} is {came}; allowed: {allowed}")
    if "query.setup" in functions_of(app):
        raise ValueError("answer_audits: this app answers audits already; call it once for each app")


def numbers(name: str, value: Any, caller: str = "answer_audits") -> PerChannel:
    """``mean`` or ``std`` of the function ``caller``: a number, or one for each channel, on the scale of images in [0, 1].

    Raises:
        ValueError: When it is anything else.
    """
    each = tuple(value) if isinstance(value, list | tuple) else (value,)
    low, words = (0.0, "above 0") if name == "std" else (-LARGEST, f"from {-LARGEST:g}")
    for number in each:
        if not isinstance(number, Real) or not low <= float(number) <= LARGEST or (name == "std" and not float(number)):
            raise ValueError(
                f"{caller}: {name} is {value!r}; allowed: a number {words}, at most {LARGEST:g}, or one for each channel, as "
                "images lie in [0, 1]"
            )
    return tuple(map(float, each)) if isinstance(value, list | tuple) else float(value)
