"""Import Opacus without a change of the root logger."""

import importlib
import logging
from typing import Any


def opacus_module(name: str) -> Any:
    """Import ``opacus.NAME`` and leave the handlers of the root logger as they were.

    Opacus calls ``logging.basicConfig`` when it is imported. Flower's logger passes its lines on to the root logger, so the new
    handler would print every line of Flower a second time.

    Raises:
        ImportError: When Opacus is not installed.
    """
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        return importlib.import_module(f"opacus.{name}")
    finally:
        for handler in [added for added in root.handlers if added not in before]:
            root.removeHandler(handler)
