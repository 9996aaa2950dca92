"""Which tests are long or slow: kept in ``durations.json`` by ``pytest --keep-durations``, left out by ``-m "not long"``."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("durations.json")
ROOT = FILE.parents[1]
LONG = 2.5
"""Seconds, of preparing and calling a test, from which on it is long. On two idle cores the others end within ten minutes."""
SLOW = 30.0
"""The same for tests that are slow. ``.ci/run`` leaves these out, as they would take more time than all others together."""
KEPT = 1.0
"""Seconds from which on a duration is kept: shorter ones decide nothing."""


def measured(reports: Iterable[Any], kept: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Test -> seconds of its phases ("setup", "call"), of those that take ``KEPT`` or more together.

    Args:
        reports: Of a session.
        kept: Durations of tests that the session did not run stay, while their file is there.
    """
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for report in reports:
        if getattr(report, "when", "") in ("setup", "call"):
            found[report.nodeid][report.when] = round(report.duration, 1)
    there = {test: dict(phases) for test, phases in kept.items() if (ROOT / test.partition("::")[0]).is_file()}
    return {test: phases for test, phases in sorted({**there, **found}.items()) if sum(phases.values()) >= KEPT}


def mark_long(items: Sequence[pytest.Item], kept: Mapping[str, Mapping[str, float]]) -> None:
    """Marks long and slow tests, but for those that are marked as essential; what a test itself calls slow is long as well.

    What several tests share is prepared for the first of them that runs: where that takes long, all of them are long, unless an
    essential test has it prepared anyway.
    """
    _mark("slow", SLOW, items, kept)
    _mark("long", LONG, items, kept)
    for item in items:
        if item.get_closest_marker("slow") is not None and item.get_closest_marker("essential") is None:
            item.add_marker("long")


def _mark(name: str, seconds: float, items: Sequence[pytest.Item], kept: Mapping[str, Mapping[str, float]]) -> None:
    essential = [item for item in items if item.get_closest_marker("essential") is not None]
    prepared = {fixture for item in essential for fixture in _shared_fixtures(item)}
    costly = [item for item in items if kept.get(item.nodeid, {}).get("setup", 0.0) >= seconds]
    expensive = {fixture for item in costly for fixture in _shared_fixtures(item)} - prepared
    for item in items:
        if item in essential:
            continue
        fixtures, own = _shared_fixtures(item), kept.get(item.nodeid, {})
        setup = own.get("setup", 0.0) if prepared.isdisjoint(fixtures) else 0.0
        if own.get("call", 0.0) + setup >= seconds or not expensive.isdisjoint(fixtures):
            item.add_marker(name)


def _shared_fixtures(item: pytest.Item) -> set[tuple[str, str]]:
    """(place, name) of the fixtures of a test that its module or class prepares once, without those of all tests."""
    known: Mapping[str, Sequence[Any]] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return {
        (definitions[-1].baseid, name)
        for name, definitions in known.items()
        if definitions[-1].scope != "function" and definitions[-1].baseid not in ("", "tests")
    }


def read_kept() -> dict[str, dict[str, float]]:
    """What is kept of an earlier session; nothing where there was none."""
    kept: dict[str, dict[str, float]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    return kept


def keep(found: Mapping[str, Mapping[str, float]]) -> None:
    """Writes durations, a line a test."""
    lines = ",\n".join(f"{json.dumps(test)}: {json.dumps(phases)}" for test, phases in found.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
