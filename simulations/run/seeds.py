"""``fedveil run --seeds 0..4``: the same experiment with several seeds, one by one or side by side, and their comparison."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import psutil

from clients.process.machine import memory_of_machine
from simulations.console.command_line import errors
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.preflight import size_text
from simulations.run.in_process import run_in_process
from simulations.run_folder.folder_lock import is_there, require_new
from simulations.run_folder.run_config import check_same, read_config
from simulations.runtime.launch import Resources, undisturbed
from simulations.runtime.local_run import EXIT_ATTACKS_FAILED, run_locally
from simulations.settings.errors import ConfigError

COMPARISON = "comparison.html"
EXIT_STOPPED = 130
SECONDS_TO_END = 50
"""Seconds from the signal to stop until a run's process ends in any case."""
SECONDS_TO_STOP = 60
"""Seconds from the signal to stop until a run is killed; its guardian then ends its processes."""
Lines = queue.SimpleQueue[tuple[int, str | None]]
"""Seeds of runs, and what they print, line by line; None at the end of one."""


def run_one(console: Terminal, experiment: Experiment, resources: Resources) -> int:
    """Run a checked experiment in this process or in Flower's runtime, print how it ended, and return the exit code."""
    return (run_in_process if resources.in_process else run_locally)(console, experiment, resources)


def of_seeds(experiment: Experiment, seeds: Sequence[int]) -> list[Experiment]:
    """The experiments left to run: finished ones are left out, begun ones are resumed if their settings are the same."""
    left, out = [], Path(experiment.output_dir)
    require_new(out, "output-dir", leftovers=(COMPARISON, "seed-*"))
    for seed in seeds:
        folder = out / f"seed-{seed}"
        seeded = experiment.but(seed=seed, output_dir=str(folder))
        config = folder / "config.json"
        if is_there(config, "output-dir"):
            kept = read_config(config, "--seeds")
            seeded = seeded.but(resume=True)
            check_same(seeded, kept)
            if kept.get("progress", {}).get("finished") is True:
                continue
        left.append(seeded)
    return left


def one_by_one(
    console: Terminal, experiments: Sequence[Experiment], run: Callable[[Experiment], int]
) -> Iterator[tuple[Experiment, int]]:
    """Run the experiments one after the other."""
    for at, experiment in enumerate(experiments, 1):
        console.say(f"seed {experiment.seed}: run {at} of {len(experiments)}")
        yield experiment, run(experiment)


def finish_seeds(console: Terminal, out: Path, seeds: Sequence[int], ended: Iterable[tuple[Experiment, int]]) -> int:
    """Wait for all runs, print which failed, and write the comparison when all are there; the exit code.

    The folder ``out`` has one for each seed; ``ended`` are the runs that were left, with their exit codes. A run that fails, or
    ends without some of its attacks' scores, does not end the others; one that is stopped does. The same command again goes on with
    what is left.
    """
    from simulations.compare.groups import grouped, print_groups
    from simulations.compare.page import write_comparison

    worst, failed = 0, list[int]()
    for experiment, code in ended:
        if code == EXIT_STOPPED:
            console.say("all seeds: the same command goes on with what is left")
            return code
        if code not in (0, EXIT_ATTACKS_FAILED):
            failed.append(experiment.seed)
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


def require_jobs(jobs: int) -> None:
    """Raise ``ConfigError`` where ``--jobs`` requests more runs at the same time than there are cores."""
    if jobs > (cores := os.cpu_count() or 1):
        raise ConfigError(f"--jobs is {jobs}; allowed: 0 to {cores}, the cores of this machine")


def runs_at_once(jobs: int, left: int, needed: float, *, busy: int, cards: float = 0) -> int:
    """Number of the ``left`` runs that go on at the same time; each keeps ``busy`` cores and ``needed`` bytes of memory.

    One follows the other where each uses graphics ``cards``. ``jobs`` is ``--jobs``; 0: as many as cores and free memory hold.
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
    console: Terminal, experiments: Sequence[Experiment], resources: Resources, at_once: int
) -> Iterator[tuple[Experiment, int]]:
    """Run several experiments with one number of clients, ``at_once`` at the same time, and print their lines behind their seeds.

    Stopping or killing the command stops all of them, as they read from a pipe that ends with it. Yields each experiment with its
    exit code, as it ends.
    """
    todo, lines, open_runs = iter(experiments), Lines(), dict[int, subprocess.Popen[str]]()
    by_seed = {experiment.seed: experiment for experiment in experiments}

    def begin(count: int) -> None:
        for experiment in islice(todo, count):
            open_runs[experiment.seed] = _begun(experiment, resources, lines)

    try:
        begin(at_once)
        while open_runs:
            seed, line = lines.get()
            if line is not None:
                _print(console, seed, line)
                continue
            if code := open_runs.pop(seed).wait():
                _print(console, seed, f"ended with exit code {code}")
            begin(1)
            yield by_seed[seed], code
    finally:
        _stop(open_runs, console, lines)


def _begun(experiment: Experiment, resources: Resources, lines: Lines) -> subprocess.Popen[str]:
    """A run in a process of its own (``main``), whose lines a thread reads."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}
    env.setdefault(
        "OMP_NUM_THREADS", str(resources.cores)
    )  # else each computes with all cores, and they wait for each other
    process = subprocess.Popen(
        [sys.executable, "-m", "simulations.run.seeds"], cwd=Path(__file__).resolve().parents[2], env=env,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace",
        start_new_session=True,  # Ctrl-C is sent to all processes of a terminal's group: here only we pass it on
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps({"settings": experiment.to_mapping(), "resources": asdict(resources)}) + "\n")
    process.stdin.flush()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put((experiment.seed, line.rstrip()))
        lines.put((experiment.seed, None))

    threading.Thread(target=read, daemon=True).start()
    return process


def _stop(open_runs: dict[int, subprocess.Popen[str]], console: Terminal, lines: Lines) -> None:
    """Ends the runs that are still there, and prints what they say last."""
    with undisturbed():
        for process in open_runs.values():
            assert process.stdin is not None
            process.stdin.close()  # asks it to end, as Ctrl-C does
        while open_runs:
            try:
                seed, line = lines.get(timeout=SECONDS_TO_STOP)
            except queue.Empty:
                for process in open_runs.values():
                    process.kill()
                continue
            if line is None:
                open_runs.pop(seed).wait()
            else:
                _print(console, seed, line)


def _print(console: Terminal, seed: int, line: str) -> None:
    if line:
        console.say(f"seed {seed} | {line}")


def main() -> int:
    """Carry out the order in the first line of the input, in a process that ends when its input does; the exit code."""
    order = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_stop_with_input, daemon=True).start()
    return run_one(
        Terminal(highlight=False), Experiment.from_mapping(order["settings"]), Resources(**order["resources"])
    )


def _stop_with_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(SECONDS_TO_END)
    os._exit(EXIT_STOPPED)


if __name__ == "__main__":
    sys.exit(main())
