"""Where policies are scored in several processes: on this machine unless a cluster is named, which has to answer."""

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from simulations.search.settings import Search
from simulations.search.workers import score_all
from simulations.settings.errors import ConfigError

pytestmark = pytest.mark.usefixtures("as_its_own_process")


def start(monkeypatch: pytest.MonkeyPatch, search: Search, raised: Exception) -> tuple[dict[str, Any], str]:
    """What Ray is asked for by a search, and what is told when it raises."""
    asked: dict[str, Any] = {}

    def init(**given: Any) -> None:
        asked.update(given)
        raise raised

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ConfigError) as caught:
        list(score_all((), [(1,), (2,)], None, search))
    return asked, str(caught.value)


def test_no_address_is_this_machine_whatever_clusters_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    asked, told = start(monkeypatch, Search(workers=2), RuntimeError("no memory"))
    assert (asked["address"], asked["num_cpus"]) == ("local", 2)
    assert told == "workers is 2, and Ray cannot start them on this machine; workers=1 does without it: no memory"


def test_an_address_where_nothing_answers_is_told_by_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.create_connection", lambda *_: SimpleNamespace(close=lambda: None))
    for raised in (AssertionError(), RuntimeError("x"), ConnectionError("x"), ValueError("x"), OSError("x")):
        asked, told = start(monkeypatch, Search(workers=2, ray_address="h:1"), raised)
        assert asked["address"] == "h:1"
        assert "num_cpus" not in asked
        assert "ray-address is 'h:1', and no cluster answers there; allowed: " in told
        assert told.endswith(str(raised) or "AssertionError")
