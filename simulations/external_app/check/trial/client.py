"""Registrations of a ClientApp: functions, mods, and answers to audits."""

from __future__ import annotations

from typing import Any

from flwr.clientapp import ClientApp

from clients.external_app.mods import app_mods, budgets, described, mods_of
from clients.flower_private import functions_of, has_client_fn


def look_at_client(app: ClientApp) -> dict[str, Any]:
    """Functions by Flower's names, and the mods with their settings, the outermost first."""
    registered = functions_of(app)
    found: dict[str, Any] = {
        "functions": sorted(registered), "answers": "query.setup" in registered,
        "client_fn": has_client_fn(app),
        "app_mods": [described(one) for one in app_mods(app)], "train_mods": [], "differ": "", "budgets": [],
    }  # fmt: skip
    own = [name for name in registered if name.startswith("train.") and name != "train.probe"]
    try:
        around = mods_of(app) if own and not found["answers"] else []
        # Flower puts the app's mods around each function, too.
        begins = [id(one) for one in around[: len(app_mods(app))]] == [id(one) for one in app_mods(app)]
        inner = around[len(app_mods(app)) :] if begins else around
        found["train_mods"] = [described(one) for one in inner]
        found["budgets"] = [[*one, one.holds] for one in budgets([*app_mods(app), *inner])]
    except ValueError as error:
        found["differ"] = str(error)
    return found


def watch_answers() -> list[dict[str, Any]]:
    """Look at each app that calls ``answer_audits`` as it was before: the functions of training are wrapped then."""
    import clients.external_app.app as answers

    original, seen = answers.answer_audits, list[dict[str, Any]]()

    def answer_audits(app: ClientApp, **given: Any) -> None:
        seen.append(look_at_client(app))
        original(app, **given)

    answers.answer_audits = answer_audits
    return seen
