"""What tests of commands share."""

from collections.abc import Iterator

import pytest

from simulations import server_app
from tests.isolation import put_back, state


@pytest.fixture(autouse=True, scope="package")
def one_report() -> Iterator[None]:
    """Runs in this process write their report at the end alone: it is the longest part of a short run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_app, "Throttle", lambda: lambda directory: None)
        yield


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no concern to rows, and the longest part of so short a run."""
    monkeypatch.setattr(server_app, "write_report", lambda path: path)


@pytest.fixture
def as_its_own_process() -> Iterator[None]:
    """Undoes what a command may leave in its own process: signal handlers, folders of own code on the path, variables of Ray."""
    before = state()
    yield
    put_back(before)
