"""The scripts behind docs/reliability.md: a slice of what they spoil, and that what they draw is what they say."""

import ast
import logging
from collections import Counter

import pytest
from reliability_failing import FAILING, WAYS, way_of
from reliability_real import ANSWER, COMPLETE, changed
from reliability_replies import RUNS, Case, unspoilt

from clients.task.scenarios import COMMON, client_sides
from simulations.runtime.launch import ROOT

pytestmark = pytest.mark.long


def test_the_places_that_are_changed_in_a_copy_of_the_app_are_there() -> None:
    for file, line in (("clients/app.py", ANSWER), ("simulations/server_app.py", COMPLETE)):
        ast.parse(changed((ROOT / file).read_text(), line, f"{line[: len(line) - len(line.lstrip())]}pass\n{line}"))


def test_a_fifth_fails_in_all_ways_and_only_what_is_asked_in_rounds() -> None:
    drawn = [
        way_of("0", kind, at, client) for kind in ("train", "evaluate") for at in range(50) for client in range(50)
    ]
    assert set(drawn) == {"", *WAYS}
    failed = len(drawn) - Counter(drawn)[""]
    # Five standard deviations of a binomial.
    assert abs(failed - FAILING * len(drawn)) < 5 * (len(drawn) * FAILING * (1 - FAILING)) ** 0.5
    assert {way_of("0", "query.setup", 0, client) for client in range(500)} == {""}


@pytest.mark.slow
def test_a_spoilt_reply_has_its_row_and_touches_no_other(subtests: pytest.Subtests) -> None:
    """Of other seeds than the script's usual ones; the script runs hundreds."""
    logging.disable(logging.CRITICAL)
    try:
        for run, number in (("split", 0), ("split-trained", 2), ("inference", 3), ("outsourced", 5), ("sums", 7)):
            with subtests.test(run=run):
                case = Case(9, number, (run,)).check()
                assert not case.faults, f"{case} -> {case.outcome}: {case.faults}"
                assert case.outcome
        handlers = {kind for side in client_sides().values() for kind in side.handlers}
        assert {kind for run in RUNS for kind, _ in unspoilt(run)[0]} == COMMON | handlers
    finally:
        logging.disable(logging.NOTSET)
