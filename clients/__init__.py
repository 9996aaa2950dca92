"""The client side: Flower messages (``app``), local training, data and models."""

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

if Path(sys.argv[0]).stem == "flwr-simulation":
    # Ray puts the driver's working directory first on every worker's path, and a Flower simulation inherits that directory
    # from the first process that started the local runtime: workers would import the `clients` package of another checkout, without
    # an error. The ClientApp is imported in the driver before Ray starts, so moving there makes them find this very bundle. Flower
    # puts the folder of the app that it runs first on the path: another app that imports fedveil stays where it was started.
    _root = Path(__file__).resolve().parents[1]
    if Path(sys.path[0]).resolve() == _root:
        os.chdir(_root)

    # In the simulation of a plain `flwr run`, Ray would listen on every address of the machine, and obey any process.
    if not os.environ.get("RAY_ADDRESS"):
        from clients.process.ray_cluster import keep_ray_here

        keep_ray_here()

    # Flower puts a dead worker back into its pool, on top, where it fails every message that it is given. Ray can restart it,
    # but Flower offers no setting for that; these defaults are private to Ray, so they are set only where they exist. Until a
    # worker is back, a message to it fails at once unless Ray may retry it: with one retry it waits, however long the start
    # takes, and only a message that itself ends two workers is lost.
    from clients.flower_private import look_for_messages_sooner, worker_options

    look_for_messages_sooner()
    if (options := worker_options()) is not None:
        options["max_restarts"] = -1
        options["max_task_retries"] = 1


_FOR_APPS = {
    "answer_audits": "app",
    "protect_mod": "protect",
    "save_originals": "originals",
    "set_canary_gradients": "canaries",
    "with_canaries": "canaries",
}
"""Function for external apps -> its module of ``clients.external_app``."""


def require_own_packages(names: Iterable[str]) -> None:
    """Raise an ``ImportError`` that names the folder which hides one of our packages, instead of failing somewhere inside.

    ``simulations`` runs this file by its place, as ``clients`` may be the one that is not found.
    """
    ours = Path(__file__).resolve().parents[1]
    for name in names:
        spec = importlib.util.find_spec(name)
        places = [Path(place).resolve() for place in (spec.submodule_search_locations or [])] if spec else []
        if ours / name not in places:
            where = f"{spec.origin or places[0]} is imported" if spec else "nothing of that name is found"
            raise ImportError(
                f"fedveil's package {name!r} is at {ours / name}, but {where}: rename that folder, or start from another one, "
                "where it is not first on Python's path"
            )


def __getattr__(name: str) -> object:
    """Import the functions for external apps on first use."""
    if name not in _FOR_APPS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_own_packages(("attacks", "defenses"))
    return getattr(importlib.import_module(f"clients.external_app.{_FOR_APPS[name]}"), name)
