"""The scripts behind docs/reliability.md: a slice of what they corrupt."""

import logging

import pytest
from reliability_replies import RUNS, Spoilt, unspoilt

from clients.task.scenarios import COMMON, client_sides

pytestmark = pytest.mark.long


@pytest.mark.slow
def test_a_spoilt_reply_has_its_row_and_touches_no_other(subtests: pytest.Subtests) -> None:
    """Of other seeds than the script's usual ones; the script runs hundreds."""
    logging.disable(logging.CRITICAL)
    try:
        for run, number in (("split", 0), ("split-trained", 2), ("inference", 3), ("outsourced", 5), ("sums", 7)):
            with subtests.test(run=run):
                assert Spoilt(9, number, (run,)).check()
        handlers = {kind for side in client_sides().values() for kind in side.handlers}
        assert {kind for run in RUNS for kind, _ in unspoilt(run)[0]} == COMMON | handlers
    finally:
        logging.disable(logging.NOTSET)
