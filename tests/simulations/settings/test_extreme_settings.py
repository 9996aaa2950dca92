"""Every numeric setting with extreme values: refused by its key, or a run that a dry run checks soon and in little memory."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from clients.task.scenarios import client_sides
from clients.wire.limits import LIMITS
from simulations.experiment.experiment import Experiment, all_settings, owners
from simulations.forecast.preflight import preflight
from simulations.settings.errors import ConfigError
from simulations.settings.fields import LARGEST
from simulations.settings.plain import SETTINGS, fields_of, refuse_plain
from tests.bounded import bounded

EXTREMES: list[Any] = [
    *(0, -1, 1e-300, 1e-160, 5e-324, -5e-324, 1e300, 10**10, 2**63, 2**70, 10**5000),
    *(math.nan, math.inf, -math.inf, True, "1", None, [1], 1j),
]
NUMERIC = sorted(key for key, spec in all_settings().items() if type(spec.default) in (int, float))
HARMLESS = {
    *("train-limit", "test-limit", "auxiliary-limit", "attribute-queries", "path-images", "num-clients"),
    *("seed", "probe-targets", "probe-images", "crop-padding"),
}
"""Counts of what there is, of which more than all is all or is refused with the data; and a number that only names a stream."""
QUICK = {"dataset": "mnist-5k", "train_limit": 200, "test_limit": 80, "num_clients": 2, "rounds": 2, "defenses": ""}


def with_one(key: str, value: Any) -> Experiment | None:
    """An experiment with one extreme setting, or None where it is refused: by its key, what came, and what is allowed."""
    given = {"scenario": owners(key)[0], **QUICK, key.replace("-", "_"): value}
    try:
        with bounded(5, 2**28):
            return Experiment.of(**given)
    except ConfigError as error:
        told = str(error)
    assert re.search(rf"\b{key}\b", told), told
    assert re.search("allowed|expected", told), told
    assert len(told) < 1000
    return None


@pytest.mark.parametrize("key", NUMERIC)
def test_a_number_is_refused_by_its_key_or_has_an_end(key: str) -> None:
    for value in EXTREMES:
        experiment = with_one(key, value)
        if experiment is None:
            with pytest.raises(ConfigError, match=rf"\b{key}\b"):  # the same before torch is loaded
                refuse_plain({"scenario": owners(key)[0], key: value})
            continue
        assert type(value) in (int, float)
        assert not math.isnan(value)
        assert value <= (LARGEST if key in HARMLESS else 10**9)


@pytest.mark.parametrize("key", NUMERIC)
def test_a_dry_run_of_an_extreme_number_ends_soon(key: str, tmp_path: Any) -> None:
    for value in (*EXTREMES, 10**9, 10**6, 4096):
        experiment = with_one(key, value)
        if experiment is None or value == fields_of(SETTINGS)[key].default:
            continue
        told = key
        try:
            with bounded(30, 2**31):
                preflight(replace(experiment, output_dir=str(tmp_path / "out")), lambda _: None)
        except ConfigError as error:
            told = str(error)
        assert re.search(rf"\b{key}\b|memory: ", told), told


@pytest.mark.parametrize("scenario", sorted({"federated", "inference", "outsourced", "split"}))
def test_a_node_takes_what_the_settings_allow(scenario: str) -> None:
    """And has a limit for each number of a plan: a setting and a node's limit of the same name fit each other."""
    known = all_settings()
    plan = client_sides()[scenario].plan
    numbers = [spec for spec in plan.__dataclass_fields__.values() if str(spec.type) in ("int", "float")]
    assert {spec.name for spec in numbers} <= set(LIMITS)
    for spec in numbers:
        limit, setting = LIMITS[spec.name], known[spec.name.replace("_", "-")]
        assert limit.allows(limit.least)
        assert limit.allows(limit.most) != limit.below
        check = setting.metadata["check"] or (lambda _: True)
        kind = type(setting.default)
        for value in (0, 1, 2, 10**3, 10**6, 10**9, 10**12, LARGEST, 1e-12, 1e-3, 0.5, 0.999):
            if type(value) is kind and check(value):
                assert limit.allows(value), (spec.name, value)


def test_a_plan_of_the_default_audit_is_within_the_limits() -> None:
    plan = Experiment.of(num_clients=4).plan()
    assert type(plan).of(plan.__dict__ | {"card": None}) == plan
