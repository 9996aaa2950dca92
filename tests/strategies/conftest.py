"""What tests of the server share."""

import pytest

from strategies.exchange import exchange
from tests.strategies.stub_grid import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(exchange, "time", clock)
    return clock
