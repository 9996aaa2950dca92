"""Which mods act on an app's replies, read from the app."""

from __future__ import annotations

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod, message_size_mod
from flwr.clientapp.typing import Mod

from clients import answer_audits, protect_mod
from clients.audited.mods import inner_mods, mods_of, named
from tests.strategies.audited.app import Net, digits

NOISE = LocalDpMod(1.0, 1.0, 10.0, 1e-5)
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
    assert named(mods_of(app)) == f"{CLIP.text} | LocalDpMod | fixedclipping_mod | message_size_mod"
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
    with pytest.raises(ValueError, match=r"different mods \(LocalDpMod; Clip"):
        answer_audits(app, model=Net, data=digits)
    answer_audits(app, model=Net, data=digits, mods=[NOISE])
