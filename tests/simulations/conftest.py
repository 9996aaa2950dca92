"""What tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.isolation import put_back, state


@pytest.fixture
def as_its_own_process() -> Iterator[None]:
    """Undoes what a command may leave in its own process: signal handlers, folders of own code on the path, variables of Ray."""
    before = state()
    yield
    put_back(before)
