"""The client side: Flower messages (``app``), local training, data and models."""

import os
import sys
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
    from clients.flower_private import worker_options

    if (options := worker_options()) is not None:
        options["max_restarts"] = -1
        options["max_task_retries"] = 1
    if os.environ.get("RAY_ADDRESS"):
        from clients.flower_private import replace_worker_class
        from clients.process.node_workers import NodeWorkers

        replace_worker_class(NodeWorkers)


def __getattr__(name: str) -> object:
    """Import the functions for external apps (``clients.external_app``) on first use."""
    if name in ("answer_audits", "protect_mod", "save_originals", "set_canary_gradients", "with_canaries"):
        from clients.process.own_packages import require_own_packages

        require_own_packages(("attacks", "defenses"))
    if name == "answer_audits":
        from clients.external_app.app import answer_audits

        return answer_audits
    if name == "protect_mod":
        from clients.external_app.protect import protect_mod

        return protect_mod
    if name == "save_originals":
        from clients.external_app.originals import save_originals

        return save_originals
    if name in ("set_canary_gradients", "with_canaries"):
        from clients.external_app import canaries

        return getattr(canaries, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
