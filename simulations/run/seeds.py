"""``fedveil run --seeds 0..4``: the same experiment with several seeds, one by one or side by side, and their comparison."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from clients.process.machine import memory_of_machine
from simulations.console.command_line import errors
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.forecast.memory import size_text
from simulations.run.in_process import run_in_process
from simulations.run_folder.folder_lock import is_there, require_new
from simulations.run_folder.run_config import check_same, read_config
from simulations.runtime.launch import Resources, undisturbed
from simulations.runtime.local_run import EXIT_ATTACKS_FAILED, run_locally
from simulations.settings.errors import ConfigError
from simulations.trackers import EXIT_NOT_TRACKED

COMPARISON = "comparison.html"
EXIT_STOPPED = 130
Ended = Iterable[tuple[Experiment, int]]
"""Experiments with the exit codes of their runs, in the order in which they ended."""


def of_seeds(experiment: Experiment, seeds: Sequence[int]) -> list[Experiment]:
    """The experiments left to run: finished ones are left out, begun ones are resumed if their settings are the same."""
    left, out = [], Path(experiment.output_dir)
    require_new(out, "output-dir", leftovers=(COMPARISON, "seed-*"))
    for seed in seeds:
        folder = out / f"seed-{seed}"
        one = experiment.but(seed=seed, output_dir=str(folder))
        config = folder / "config.json"
        if is_there(config, "output-dir"):
            kept = read_config(config, "--seeds")
            one = one.but(resume=True)
            check_same(one, kept)
            if kept.get("progress", {}).get("finished") is True:
                continue
        left.append(one)
    return left


def one_by_one(
    console: Terminal, experiments: Sequence[Experiment], run: Callable[[Experiment], int]
) -> Iterator[tuple[Experiment, int]]:
    """Run the experiments one after the other."""
    for at, one in enumerate(experiments, 1):
        console.say(f"seed {one.seed}: run {at} of {len(experiments)}")
        yield one, run(one)


def finish_seeds(console: Terminal, out: Path, seeds: Sequence[int], ended: Ended) -> int:
    """Wait for all runs, print which failed, and write the comparison when all are there; the exit code.

    The folder ``out`` has one for each seed; ``ended`` are the runs that were left. A run that fails, or ends without some of
    its attacks' scores, does not end the others; one that is stopped does. The same command again goes on with what is left.
    """
    from simulations.compare.groups import grouped, print_groups
    from simulations.compare.page import write_comparison

    worst, failed = 0, list[int]()
    for one, code in ended:
        if code == EXIT_STOPPED:
            console.say("all seeds: the same command goes on with what is left")
            return code
        if code not in (0, EXIT_ATTACKS_FAILED, EXIT_NOT_TRACKED):
            failed.append(one.seed)
        worst = max(worst, code)
    if failed:
        which = (
            f"failed, for the reasons above: seed {', '.join(map(str, sorted(failed)))}; {len(seeds) - len(failed)} of "
        )
        errors.say(f"{which}{len(seeds)} seeds are finished. The same command goes on with what is left")
        return 1
    done = [folder for seed in seeds if (folder := out / f"seed-{seed}").is_dir()]
    groups = grouped(done)
    write_comparison(groups, out / COMPARISON)
    if not console.quiet:
        print_groups(console, groups)
    console.say(f"all seeds: {out / COMPARISON}")
    return worst


SECONDS_TO_STOP = 60
"""Seconds from the signal to stop until a run is killed; its guardian then ends its processes."""


def require_jobs(jobs: int) -> None:
    """Raise ``ConfigError`` where ``--jobs`` requests more runs at the same time than there are cores."""
    if jobs > (cores := os.cpu_count() or 1):
        raise ConfigError(f"--jobs is {jobs}; allowed: 0 to {cores}, the cores of this machine")


def runs_at_once(jobs: int, left: int, needed: float, *, busy: int, cards: float = 0) -> int:
    """Number of the ``left`` runs that go on at the same time; each keeps ``busy`` cores and ``needed`` bytes of memory.

    One goes on after the other where each uses graphics ``cards``. ``jobs`` is ``--jobs``; 0 leaves the choice here: as many as
    have cores and free memory.

    Raises:
        ConfigError: When ``jobs`` is more than fit.
    """
    require_jobs(jobs)
    cores, memory = os.cpu_count() or 1, memory_of_machine()
    if jobs * needed > memory:
        raise ConfigError(
            f"--jobs is {jobs}, and one run needs about {size_text(needed)}; this machine has {size_text(memory)} in all: allowed "
            f"here: 0 to {int(memory // needed)}"
        )
    if jobs:
        return max(1, min(jobs, left))
    if cards or cores < 2 * busy:
        return 1
    free = min(memory, psutil.virtual_memory().available)
    return max(1, min(left, cores // busy, int(free // needed)))


def side_by_side(
    console: Terminal, experiments: Sequence[Experiment], resources: Resources, at_once: int, *, in_process: bool
) -> Iterator[tuple[Experiment, int]]:
    """Run several experiments with one number of clients, ``at_once`` at the same time, and print their lines behind their seeds.

    Stopping or killing the command stops all of them, as they read from a pipe that ends with it. ``in_process``: without Flower's
    runtime. Yields each experiment with its exit code, as it ends.
    """
    order = {"resources": asdict(resources), "in_process": in_process}
    todo, lines = iter(experiments), queue.SimpleQueue[tuple[_Run, str | None]]()
    with ExitStack() as stack:
        open_runs: set[_Run] = set()
        stack.callback(_stop, open_runs, console, lines)
        for one in islice(todo, at_once):
            open_runs.add(_Run(one, order, lines))
        while open_runs:
            run, line = lines.get()
            if line is not None:
                _print(console, run, line)
                continue
            open_runs.discard(run)
            code = run.process.wait()
            if code:
                _print(console, run, f"ended with exit code {code}")
            if (following := next(todo, None)) is not None:
                open_runs.add(_Run(following, order, lines))
            yield run.experiment, code


class _Run:
    """A run in a process of its own (``main``), with a thread that reads what it prints."""

    def __init__(self, experiment: Experiment, order: Mapping[str, Any], lines: Lines) -> None:
        self.experiment = experiment
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}
        # Else each computes with all cores, and they wait for each other.
        env.setdefault("OMP_NUM_THREADS", str(order["resources"]["cores"]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "simulations.run.seeds"],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=env,
            start_new_session=True,  # Ctrl-C is sent to all processes of a terminal's group: here only we pass it on
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"settings": experiment.to_mapping(), **order}) + "\n")
        self.process.stdin.flush()
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: Lines) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.put((self, line.rstrip()))
        lines.put((self, None))


def _stop(open_runs: set[_Run], console: Terminal, lines: Lines) -> None:
    """Ends the runs that are still there, and prints what they say last."""
    with undisturbed():
        for run in open_runs:
            assert run.process.stdin is not None
            run.process.stdin.close()  # asks it to end, as Ctrl-C does
        while open_runs:
            try:
                run, line = lines.get(timeout=SECONDS_TO_STOP)
            except queue.Empty:
                for one in open_runs:
                    one.process.kill()
                continue
            if line is None:
                open_runs.discard(run)
                run.process.wait()
            else:
                _print(console, run, line)


def _print(console: Terminal, run: _Run, line: str) -> None:
    if line:
        console.say(f"seed {run.experiment.seed} | {line}")


Lines = queue.SimpleQueue[tuple[_Run, str | None]]
"""What the runs print, line by line; None at the end of one."""


SECONDS_TO_END = 50
"""Seconds from the signal to stop until the process ends in any case."""


def main() -> int:
    """Carry out the order in the first line of the input, in a process that ends when its input does; the exit code."""
    order = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_stop_with_input, daemon=True).start()
    one, resources = Experiment.from_mapping(order["settings"]), Resources(**order["resources"])
    console = Terminal(highlight=False)
    if order["in_process"]:
        return run_in_process(console, one, resources.cpus_per_client)
    return run_locally(console, one, resources)


def _stop_with_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(SECONDS_TO_END)
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
