"""How tests that run every defence or attack run it: by what it says of itself, and against the defences that name it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from defenses.base import DEFENSES, Defense
from defenses.pipeline import Pipeline


def registered(classes: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """All of a registry, or the classes that the environment variable TEST_ONLY names: "Posterise" while one is written."""
    only = os.environ.get("TEST_ONLY", "").split()
    return {name: cls for name, cls in classes.items() if not only or name in only}


def quick(cls: Callable[..., Any]) -> Any:
    first = cls()
    return replace(first, **getattr(first, "profile", first).quick)


def pipelines_against(name: str, kind: type[Defense] = Defense) -> dict[str, Pipeline]:
    """Defence -> it alone, by its defaults, for each of this kind whose adaptive attack this is; else "plain": no defence."""
    named = [defense for defense in DEFENSES.values() if name in defense.adaptive_attacks]
    found = {cls.__name__: Pipeline((cls(),)) for cls in named if issubclass(cls, kind)}
    return found or {"plain": Pipeline(())}
