"""What settings allow, from both sides of each limit."""

from collections.abc import Callable
from typing import Any

import pytest


def assert_limits(cls: Callable[..., Any], **limits: tuple[Any, Any]) -> None:
    """Each field refuses the first value by name and takes the second."""
    for name, (refused, allowed) in limits.items():
        with pytest.raises(ValueError, match=name):
            cls(**{name: refused})
        cls(**{name: allowed})
