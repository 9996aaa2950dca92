"""Which mods act on an app's replies, read from the app."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, fixedclipping_mod, message_size_mod

from clients import answer_audits, protect_mod
from clients.external_app.mods import Budget, budgets, described, inner_mods, mods_of, named
from clients.messages.node import Mod
from clients.wire.records import to_record, to_tensors
from defenses.base import DefenseError
from tests.strategies.external_app.app import Net, digits

NOISE = LocalDpMod(1.0, 1.0, 10.0, 1e-5)
NOISE_TEXT = "LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-05)"
CLIP = protect_mod("Clip(max_norm=1.0, per='update')")


def app_with(of_app: list[Mod], *of_training: list[Mod]) -> ClientApp:
    app = ClientApp(mods=of_app)
    for at, mods in enumerate(of_training):
        app.train("default" if at == 0 else f"other{at}", mods=mods)(answer)
    return app


def answer(message: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=message)


def test_mods_are_found_in_the_order_in_which_flower_calls_them() -> None:
    app = app_with([message_size_mod], [fixedclipping_mod, NOISE, CLIP])
    assert mods_of(app) == [message_size_mod, fixedclipping_mod, NOISE, CLIP]
    assert inner_mods(app, mods_of(app)) == [fixedclipping_mod, NOISE, CLIP]
    # On a reply the last one acts first.
    assert named(mods_of(app)) == f"{CLIP.text} | {NOISE_TEXT} | fixedclipping_mod", "that logs sizes protects nothing"
    assert named([message_size_mod, arrays_size_mod]) == ""
    assert mods_of(app_with([], [])) == []


def test_a_function_that_closes_over_other_things_is_no_mod() -> None:
    app, inner = ClientApp(), answer

    @app.train(mods=[NOISE])
    def train(message: Message, context: Context) -> Message:
        return inner(message, context)

    assert mods_of(app) == [NOISE]


def test_an_app_that_trains_nothing_yet_is_refused() -> None:
    with pytest.raises(ValueError, match=r"call it after @app\.train"):
        answer_audits(ClientApp(), model=Net, data=digits)


def test_different_mods_of_two_trainings_must_be_named() -> None:
    app = app_with([], [NOISE], [CLIP])
    with pytest.raises(ValueError, match=r"different mods \(LocalDpMod\(clipping_norm=1.0, .*\); Clip"):
        answer_audits(app, model=Net, data=digits)
    answer_audits(app, model=Net, data=digits, mods=[NOISE])


def scale(message: Message, context: Context, call_next: Any, factor: float = 1.0, *, seed: int = 3) -> Message:
    return message


def scaled_by(factor: float, note: str) -> Mod:
    def scaling(message: Message, context: Context, call_next: Any) -> Message:
        return call_next(message, context) if factor and note else message

    return scaling


@dataclass
class Noise:
    std: Any = 0.5
    on: bool = True
    secret_seed: int = 7
    layers: Any = None

    def act(self, message: Message, context: Context, call_next: Any) -> Message:
        return message


@dataclass
class Clip:
    """Of somebody's own, with the name of a defence of fedveil's."""

    max_norm: float = 1.0


@pytest.mark.parametrize(
    ("mod", "text"),
    [
        (NOISE, NOISE_TEXT),
        (fixedclipping_mod, "fixedclipping_mod"),
        (scaled_by(0.5, "a | b; c"), "scaling(factor=0.5, note='a / b, c')"),
        (scale, "scale(factor=1.0, seed=int)"),
        (functools.partial(scale, factor=2), "scale(seed=int, factor=2)"),
        (Noise(np.float32(0.25)), "Noise(std=0.25, on=True, secret_seed=int, layers=None)"),
        (Noise(layers=[1, 2]).act, "Noise.act(std=0.5, on=True, secret_seed=int, layers=list)"),
        (Clip(), "tests.clients.external_app.test_mods.Clip(max_norm=1.0)"),
    ],
)
def test_a_mod_is_told_with_its_plain_settings_and_without_secrets(mod: Any, text: str) -> None:
    assert described(mod) == text


def test_long_settings_are_cut_and_still_told_apart() -> None:
    one, other = (described(scaled_by(1.0, "x" * 500 + end)) for end in "ab")
    assert len(one) < 100
    assert one != other
    many, more = (described(functools.partial(scale, *range(200), end)) for end in (1, 2))
    assert len(many) < 250
    assert many != more


def test_only_local_dp_tells_what_it_spends() -> None:
    assert budgets([NOISE, CLIP, fixedclipping_mod]) == [Budget(10.0, 1e-5, 1.0, 1.0)]


@pytest.mark.parametrize("text", ["SiloBN()", "SiloBN() | Clip()", "Clip() | SiloBN()"])
def test_silo_bn_is_refused_in_any_order(text: str) -> None:
    with pytest.raises(DefenseError, match=r"SiloBN\(\) is not allowed"):
        protect_mod(text)


@pytest.mark.parametrize(
    ("text", "sent"), [("Clip()", [5, 0, 9]), ("ClientDP()", [1, 1, 1]), ("FlowerLocalDP()", [1, 1, 1])]
)
def test_whole_numbers_are_not_sent_where_a_bound_is_claimed(text: str, sent: list[int]) -> None:
    """Noise does not protect them, and a count of examples by class reveals the data."""
    before = {"w": torch.zeros(3), "by_class": torch.ones(3, dtype=torch.int64)}
    after = {"w": torch.ones(3), "by_class": torch.tensor([5, 0, 9])}

    def message(tensors: dict[str, torch.Tensor]) -> Any:
        content = RecordDict({"arrays": to_record(tensors)})
        return SimpleNamespace(content=content, metadata=SimpleNamespace(message_type="train"), has_error=lambda: False)

    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    reply = protect_mod(text)(message(before), context, lambda *_: message(after))
    found = to_tensors(reply.content["arrays"])  # type: ignore[arg-type]
    assert found["by_class"].tolist() == sent
    assert not torch.equal(found["w"], after["w"])
