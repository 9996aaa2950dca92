"""Defences of images, training, smashed data and updates; importable without Flower, Ray or Opacus.

``defenses.exports`` has a line for each name. It is imported when a name is first looked up: settings, whose ranges come from
``defenses.checks``, are checked without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from defenses.exports import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        return getattr(importlib.import_module("defenses.exports"), name)
