"""A run in a private local Flower runtime from start to end, for the command line."""

import re
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import Popen, TimeoutExpired

from rich.markup import escape

from clients.process.ray_cluster import ray_reason, spaced_path
from simulations.console.command_line import errors
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.runtime.launch import LocalRuntime, Resources, end_politely
from simulations.runtime.progress import follow, has_worked, is_complete, read_progress

EXIT_ATTACKS_FAILED = 3
"""The run went to its end, but attacks gave no score."""
STARTS = 2
"""Of Flower's local SuperLink and of Ray, which a busy machine does not always bring up in time."""
NOT_STARTED = "Failed to start local SuperLink"
"""How Flower begins to say so."""
_BOX = re.compile(r"^(?:╭─|\+-) Error [─-]+(?:╮|\+)\n(.*?)^(?:╰─|\+-)", re.DOTALL | re.MULTILINE)
_ENGINE = re.compile(r"An exception occurr?ed ?!! ?(.*?)(?=^\w+ *: |^Traceback |\Z)", re.DOTALL | re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOGS = re.compile(r"\s*See logs at .+\.$")


def run_locally(console: Terminal, experiment: Experiment, resources: Resources) -> int:
    """Runs an experiment that has an output folder and passed its checks, and says how it ended; the exit code.

    A SuperLink that does not start is started once again, with another home and port. So is a Ray that ends before any round does.
    """
    if path := spaced_path():
        errors.say(
            f"error: Ray starts no worker from a path with a space, such as {path!r}; run with --in-process, or use a checkout and "
            "an environment whose paths have none"
        )
        return 2
    out, started = Path(experiment.output_dir), time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    end_politely()
    for start in range(1, STARTS + 1):
        log = out / "flower.log"
        begin, before = log.stat().st_size if log.is_file() else 0, read_progress(out)
        with LocalRuntime(log) as runtime:
            process = runtime.start(experiment.to_mapping(), resources)
            try:
                # Ray and Flower take seconds to end in order, and nothing is left to be kept.
                follow(console, partial(_is_over, process, out, begin), out, begin)
                if is_complete(out, begin):
                    runtime.stop(at_once=True)
                    return conclude(console, out, started)
                text = _read(log, begin)
                box, engine = box_text(text), engine_failure(text)
                if engine and start < STARTS and not has_worked(read_progress(out), before):
                    console.say(f"Ray failed: {engine}; started again")
                    # The folder may already say that it holds a run, which has failed.
                    experiment = experiment.but(resume=(out / "config.json").is_file())
                    continue
                if not box.startswith(NOT_STARTED):
                    if not read_progress(out).get("finished"):
                        runtime.keep_logs()
                    return _ended(console, out, runtime.status(), engine or box, started)
            except KeyboardInterrupt:
                return stop_run(out)
            runtime.keep_logs()
        if start < STARTS:
            console.say(f"{box}; started again ({start + 1} of {STARTS})")
    errors.print(f"[red]the run did not start[/red], in {STARTS} tries:", soft_wrap=True)
    cause = _last_error(log, begin, default="")
    why = f"its log ends with: {cause}" if cause else "the machine may be busy"
    errors.say(f"{box}; {why}\nlog: {log}\n{what_next(out)}")
    return 1


def _is_over(process: Popen[bytes], out: Path, begin: int, seconds: float) -> bool:
    """Wait up to ``seconds``; whether the run is complete or its process has ended."""
    with suppress(TimeoutExpired):
        process.wait(seconds)
    return process.poll() is not None or is_complete(out, begin)


def _ended(console: Terminal, out: Path, status: str, error: str, started: float) -> int:
    progress = read_progress(out)
    if not progress.get("finished"):
        failed = progress.get("failed")
        # Without Ray the server finds no clients, and says that; once a round has ended it knows better.
        first, second = (failed, error) if "round" in progress else (error, failed)
        why = str(first or second or _last_error(out / "flower.log"))
        return fail_run(out, why, f" ({status or 'no status'})")
    if status != "finished:completed":  # its runtime was killed, perhaps while the page was written
        from simulations.report import write_report

        write_report(out)
    return conclude(console, out, started)


def conclude(console: Terminal, out: Path, started: float) -> int:
    """Print that a run has finished, its duration, its findings and the place of its results; returns the exit code."""
    console.print(f"finished in {time.monotonic() - started:.0f} s")
    if not console.quiet:
        from simulations.report.analysis.run import read_run
        from simulations.runtime.findings import print_read

        print_read(console, read_run(out))
    console.say(f"report: {out / 'report.html'}\nrows:   {out / 'rows.jsonl'}")
    return list_failures(out)


def fail_run(out: Path, why: str, status: str = "") -> int:
    """Print why a run failed, where its log is and what to do; returns the exit code."""
    errors.print(f"[red]the run failed[/red]{status}: {escape(why)}", soft_wrap=True)
    errors.say(f"log: {out / 'flower.log'}\n{what_next(out)}")
    return 1


def stop_run(out: Path) -> int:
    """Print how a run that was stopped can be continued; returns the exit code."""
    errors.say(f"\nstopped; {what_next(out)}")
    return 130


def what_next(out: Path) -> str:
    """Advice after a run that ended early: only a run that has begun can be continued."""
    begun = (out / "config.json").is_file()
    return f"continue with: fedveil run --resume {out}" if begun else "nothing was run: give the same command again"


def list_failures(out: Path) -> int:
    """Lists the attacks of a finished run that gave no score; the exit code."""
    from simulations.report.analysis.failures import failed_attacks

    failed = failed_attacks(out)
    if not failed:
        return 0
    what = "[red]attacks or defences failed[/red], and nothing is known about what attacks would have found:"
    errors.print(what, soft_wrap=True)
    for failure in failed:
        errors.say(f"  {failure}")
    return EXIT_ATTACKS_FAILED


def box_text(log: str) -> str:
    """The text of the last error box of Flower's command, in one line, without the log that goes with the runtime."""
    boxes = _BOX.findall(log)
    return _LOGS.sub("", " ".join(line.strip(" │|") for line in boxes[-1].rstrip("\n").split("\n"))) if boxes else ""


def engine_failure(log: str) -> str:
    """The error of Flower's simulation engine, and with it of Ray, in one line; "" where it did not fail."""
    match = _ENGINE.search(_COLOURS.sub("", log))
    return ray_reason(match[1]) if match else ""


def _read(log: Path, begin: int) -> str:
    return log.read_bytes()[begin:].decode(errors="replace")


def _last_error(log: Path, begin: int = 0, default: str = "see the log") -> str:
    """The last line of a log that reports an error, but not that of a box: Flower's commands say there only that they failed."""
    lines = [line for line in _read(log, begin).split("\n") if "Error" in line and not line.startswith(("╭", "+-"))]
    return lines[-1].strip() if lines else default
