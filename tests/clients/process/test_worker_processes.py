"""Results from worker processes: those of this process, from processes of one thread, and an end where one is killed."""

import multiprocessing
import os
import signal
from concurrent.futures.process import BrokenProcessPool

import pytest
import torch

from clients.process.worker_processes import AT_ONCE, in_workers


def work(number: int, fatal: int) -> tuple[int, int, int]:
    if number == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2, torch.get_num_threads(), os.getpid()


def test_every_input_is_worked_on_once_in_other_processes_of_one_thread() -> None:
    found = list(in_workers(work, [(at, -1) for at in range(9)], 2))
    assert sorted(one for one, _, _ in found) == [at**2 for at in range(9)]
    assert {threads for _, threads, _ in found} == {1}
    assert os.getpid() not in {process for _, _, process in found}


def test_a_killed_process_ends_the_work_and_a_closed_one_begins_no_more() -> None:
    with pytest.raises(BrokenProcessPool):
        list(in_workers(work, [(at, 4) for at in range(9)], 2))
    drawn = []
    results = in_workers(work, ((drawn.append(at) or at, -1) for at in range(100)), 2)  # type: ignore[func-returns-value]
    next(results)
    results.close()
    assert len(drawn) <= 2 * 2 * AT_ONCE
    assert not multiprocessing.active_children()
