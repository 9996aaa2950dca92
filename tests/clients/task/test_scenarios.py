"""The clients' side of scenarios: what other packages may add to a node, and what they may not replace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.task.scenarios import client_side, client_sides
from defenses.registry import RegistryError
from tests.other_package import offer

GROUP = "fedveil.clients"
SIDE = (
    "from clients.task.client import Client\nfrom clients.task.scenarios import ClientSide\n"
    "from clients.task.task import Plan\n"
    "MINE = ClientSide({}, Client, Plan, {})"
)


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    """Entry points are read once in a process."""
    client_sides.cache_clear()
    yield
    client_sides.cache_clear()


def test_a_side_of_another_package_is_one_like_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RuntimeError,
        match=r"scenario 'mine' is not known to this node; known: audited, federated, inference, outsourced, split$",
    ):
        client_side("mine")
    client_sides.cache_clear()
    offer(monkeypatch, tmp_path, GROUP, SIDE.format("'mine'", "{'train.upload': print}"))
    assert client_side("mine").handlers == {"train.upload": print}
    assert list(client_sides()) == ["audited", "federated", "inference", "outsourced", "split", "mine"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        # A node would run a stranger's code in place of what protects its images.
        (SIDE.format("'split'", "{}"), ": there is another scenario 'split'; rename one of them"),
        (
            SIDE.format("'mine'", "{'train': print, 'query.audit': print}"),
            " cannot be loaded: ValueError: query.audit is a message of all scenarios",
        ),
        ("MINE = 'split'", " is no ClientSide but str"),
        ("1 / 0", " cannot be loaded: ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_entry_point_is_named_and_no_package_replaces_a_side_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, why: str
) -> None:
    where = offer(monkeypatch, tmp_path, GROUP, source)
    with pytest.raises(RegistryError) as caught:
        client_sides()
    assert str(caught.value) == f"{where}{why}"
