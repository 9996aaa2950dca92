"""The private parts of Flower that only tests use; those of the product are in ``clients/flower_private.py``."""

from importlib import import_module
from typing import Any

PLACES = {
    # Whether Flower bundles our app and reads what it bundled.
    "build_fab_from_disk": "flwr.cli.build",
    "build_fab_from_files": "flwr.cli.build",
    "collect_files": "flwr.cli.utils",
    "get_fab_metadata": "flwr.cli.config_utils",
    # The checks of ``flwr app publish``.
    "_collect_file_paths": "flwr.cli.app_cmd.publish",
    "_validate_app_name": "flwr.cli.app_cmd.publish",
    "_validate_description": "flwr.cli.app_cmd.publish",
    "_validate_files": "flwr.cli.app_cmd.publish",
    # Whether Flower reads settings, resources and keys as our pages and our launcher write them.
    "SuperLinkConnection": "flwr.cli.typing",
    "_parse_federation_config_overrides": "flwr.cli.run.run",
    "get_fused_config_from_dir": "flwr.common.config",
    "parse_config_args": "flwr.common.config",
    "try_load_public_key": "flwr.cli.supernode.register",
    # What a server receives: the bytes of a message.
    "message_pb2": "flwr.proto",
}
"""Name -> module. Where one moved, name its new place here; where it is gone, the tests that import it say what it checked."""


def __getattr__(name: str) -> Any:
    """Import one of ``PLACES`` on first use, as Flower's command and its simulation take seconds."""
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(PLACES[name])
    # `import_module` again: a submodule need not be an attribute yet, and an attribute may hide a submodule.
    return getattr(module, name) if hasattr(module, name) else import_module(f"{PLACES[name]}.{name}")
