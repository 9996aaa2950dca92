"""Values as JSON has them; nothing here imports torch, which a reader of a recording does not need."""

from collections.abc import Callable, Mapping
from typing import Any


def changed(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A value with texts for the keys of its mappings, lists for its sequences, and ``leaf`` of all that is neither."""
    if isinstance(value, Mapping):
        return {str(key): changed(inner, leaf) for key, inner in value.items()}
    return [changed(inner, leaf) for inner in value] if isinstance(value, list | tuple) else leaf(value)
