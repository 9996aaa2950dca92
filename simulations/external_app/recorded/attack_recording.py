"""Attacks on a whole recording: every reply of every round, checked before any work, written down round by round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import torch

from simulations.external_app.recorded.attack_file import fit, knowledge_of, without_truth
from simulations.external_app.recorded.book import Book, PreparedRecording
from simulations.external_app.recorded.originals import read_originals
from simulations.external_app.recorded.replies import RecordingRequest, replay
from simulations.external_app.recorded.request import blaming
from simulations.report import validate, write_report
from simulations.run_folder.rows import Row
from simulations.settings.errors import ConfigError

BEYOND = "Whether auxiliary data hold images of clients whose originals are not here: "


def prepare_recording(asked: RecordingRequest) -> PreparedRecording:
    """Reads and checks everything before any attack starts, and lets attacks learn from auxiliary data.

    Raises:
        ConfigError: Naming the option or the file, what came and what is allowed.
    """
    replayed = replay(asked)
    first = replayed.attackable[0]
    knowledge = knowledge_of(first.request, first.parsed)
    truth = {}
    if asked.originals is not None:
        truth = read_originals(asked.originals, replayed.attackable, knowledge.auxiliary.images)
        images = torch.cat([one.images for one in truth.values()])
        knowledge, overlap = without_truth(knowledge, images, asked.request.auxiliary)
        replayed = replace(replayed, assumed=[*replayed.assumed, *(f"{BEYOND}{one}" for one in overlap)])
    with blaming("--attack"):
        fitted = [fit(attack, asked.request.seed, knowledge) for attack in first.parsed.attacks]
    kept = f"{len(knowledge.auxiliary)} images of data set {asked.request.auxiliary}, none of them an original"
    told = kept if truth else f"data set {asked.request.auxiliary}"
    auxiliary = told if asked.request.auxiliary else "none"
    return PreparedRecording(asked, replayed, fitted, truth, auxiliary)


def run_recording(prepared: PreparedRecording, out: Path, begin: Callable[[str], object] = str) -> list[Row]:
    """Attacks every reply and writes ``rows.jsonl``, pictures, guesses, ``config.json`` and the report into ``out``.

    Rows are written after every round: a killed process leaves those of the rounds before, and who interrupts it keeps what every
    attack has found that ended, with a report.

    Args:
        prepared: What is attacked.
        out: A folder.
        begin: Takes what begins, such as "round 3: DLG()".

    Returns:
        The validated rows.
    """
    (out / "pictures").mkdir(parents=True, exist_ok=True)
    (out / "guesses").mkdir(exist_ok=True)
    book = Book(prepared, out)
    rounds = groupby(prepared.replayed.attackable, lambda one: one.reply.round)
    try:
        for server_round, replies in rounds:
            book.attack(server_round, list(replies), begin)
            book.write(finished=False)
    except KeyboardInterrupt:
        book.rows = validate(book.rows)
        book.write(finished=False)
        write_report(out)
        raise
    book.rows = validate(book.rows)
    book.write(finished=True)
    write_report(out)
    return book.rows


def refuse_results(folder: Path) -> None:
    """Raises ``ConfigError`` where a folder already holds results."""
    for name in ("result.json", "rows.jsonl"):
        if (folder / name).exists():
            raise ConfigError(f"--out {folder} already holds results; name another folder")
