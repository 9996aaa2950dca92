"""What the modules of a network get and return while it runs."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

Call = tuple[nn.Module, Any, Any]
"""A module, its first argument (None without one) and what it returned."""


@contextmanager
def calls_of(modules: Iterable[nn.Module]) -> Iterator[list[Call]]:
    """The calls of modules while the context is open, in the order in which they end."""
    seen: list[Call] = []

    def keep(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        seen.append((module, given[0] if given else None, output))

    hooks = [module.register_forward_hook(keep) for module in modules]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
