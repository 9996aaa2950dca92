"""Every numeric setting with extreme values: refused by its key, or a run that a dry run checks in little memory."""

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from clients.task.scenarios import client_sides
from clients.wire.schema import fields_in, fields_of
from clients.wire.texts import shown
from defenses.checks import MOST_COUNTED, Limit, OneLine
from simulations.experiment.experiment import Experiment, all_settings, owners
from simulations.preflight import preflight
from simulations.settings.common import read
from simulations.settings.errors import ConfigError
from simulations.settings.scenarios import SETTINGS
from tests.bounded import bounded

EXTREMES: list[Any] = [
    *(0, -1, 1e-300, 1e-160, 5e-324, -5e-324, 1e300, 10**10, 2**63, 2**70, 10**5000),
    *(math.nan, math.inf, -math.inf, True, "1", None, [1], 1j),
]
NUMERIC = sorted(key for key, spec in all_settings().items() if type(spec.default) in (int, float))
HARMLESS = {
    *("train-limit", "test-limit", "auxiliary-limit", "num-clients"),
    *("seed", "probe-targets", "probe-images", "crop-padding"),
}
"""Counts of what there is, of which more than all is all or is refused with the data; and a number that only names a stream."""
QUICK = {"dataset": "mnist-5k", "train_limit": 200, "test_limit": 80, "num_clients": 2, "rounds": 2, "defenses": ""}
HANGS = 120
"""Processor seconds after which something is taken to hang."""


def test_ranges_include_the_ends_that_they_name() -> None:
    for limit, holds, fails in (
        (Limit(2), (2, 3, MOST_COUNTED), (1, MOST_COUNTED + 1)), (Limit(2, 4), (2, 4), (1, 5)),
        (Limit(0, 1, above=True), (1e-9, 1), (0, 1.1)), (Limit(0, 1, below=True), (0, 0.9), (1,)),
        (Limit(2, 4, also=-1, word="auto"), (-1, 2), (0, 1)), (OneLine(3), ("", "abc"), ("abcd", "\n")),
    ):  # fmt: skip
        assert all(map(limit.allows, holds))
        assert not any(map(limit.allows, fails))
    assert shown("x" * 158) == repr("x" * 158)
    assert shown("x" * 159) == f"'{'x' * 159}... (161 characters)"


def with_one(key: str, value: Any) -> Experiment | None:
    """An experiment with one extreme setting, or None where it is refused: by its key, what came, and what is allowed."""
    given = {"scenario": owners(key)[0], **QUICK, key.replace("-", "_"): value}
    try:
        with bounded(HANGS, 2**28):
            return Experiment.of(**given)
    except ConfigError as error:
        told = str(error)
    assert re.search(rf"\b{key}\b", told), told
    assert re.search("allowed|expected", told), told
    assert len(told) < 1000
    return None


def try_numbers(key: str, values: Iterable[Any]) -> None:
    for value in values:
        if with_one(key, value) is None:
            with pytest.raises(ConfigError, match=rf"\b{key}\b"):  # the same before torch is loaded
                read({"scenario": owners(key)[0], key: value}, SETTINGS)
            continue
        if (key, value) == ("probe-images", "1"):  # a ladder of sizes is a text
            continue
        assert type(value) in (int, float), key
        assert not math.isnan(value), key
        assert value <= (MOST_COUNTED if key in HARMLESS else 10**9), key


def test_a_number_is_refused_by_its_key_or_has_an_end() -> None:
    for at, key in enumerate(NUMERIC):
        try_numbers(key, EXTREMES[at % 5 :: 5])


@pytest.mark.long
def test_every_extreme_number_is_refused_by_its_key_or_has_an_end() -> None:
    for key in NUMERIC:
        try_numbers(key, EXTREMES)


def try_dry_runs(keys: Iterable[str], out: Path) -> None:
    for key in keys:
        for value in (*EXTREMES, 10**9, 10**6, 4096):
            experiment = with_one(key, value)
            if experiment is None or value == fields_of(*SETTINGS.values())[key].default:
                continue
            told = key
            try:
                with bounded(HANGS, 2**31):
                    preflight(experiment.but(output_dir=str(out)), lambda _: None)
            except ConfigError as error:
                told = str(error)
            assert re.search(rf"\b{key}\b|memory: ", told), told


def test_a_dry_run_of_an_extreme_number_needs_little_memory(tmp_path: Path) -> None:
    try_dry_runs(("batch-size", "num-clients", "image-size"), tmp_path / "out")


@pytest.mark.long
def test_a_dry_run_of_every_extreme_number_needs_little_memory(tmp_path: Path) -> None:
    try_dry_runs(NUMERIC, tmp_path / "out")


def test_a_node_takes_what_the_settings_allow() -> None:
    """And has a limit for each number of a plan: that of the setting of the same name."""
    known = all_settings()
    for scenario in ("federated", "inference", "outsourced", "split"):
        for name, spec in fields_in(client_sides()[scenario].plan).items():
            if spec.annotation in (int, float) and name not in ("probe_images", "probe_steps"):  # one setting has both
                (limit,) = spec.metadata
                assert [limit] == known[name.replace("_", "-")].metadata, name
                assert limit.allows(limit.least) != limit.above
                assert limit.allows(limit.most) != limit.below
    default = Experiment.of(num_clients=4).plan()
    assert type(default).of(default.__dict__ | {"card": None}) == default
