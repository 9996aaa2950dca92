"""Attacks on a whole recording: every reply of every round, checked before any work, written down round by round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from simulations.external_app.recorded.arguments.settings import Request
from simulations.external_app.recorded.audit import PreparedRecording, attack_rounds
from simulations.external_app.recorded.known import fit, knowledge_of, without_rate, without_truth
from simulations.external_app.recorded.originals import read_originals
from simulations.external_app.recorded.replies import replay
from simulations.external_app.study import AppResults
from simulations.run_folder.rows import Row
from simulations.settings.errors import naming

BEYOND = "Whether auxiliary data hold images of clients whose originals are not here: "


def prepare_recording(request: Request) -> PreparedRecording:
    """Reads and checks everything before any attack starts, and lets attacks learn from auxiliary data.

    Raises:
        ConfigError: Naming the setting or the file, what came and what is allowed.
    """
    settings, replayed = request.settings, replay(request)
    first = replayed.attackable[0]
    knowledge = knowledge_of(first.settings, first.parsed)
    truth = {}
    if settings.originals:
        truth = read_originals(Path(settings.originals), replayed.attackable, knowledge.auxiliary.images)
        images = torch.cat([one.images for one in truth.values()])
        knowledge, overlap = without_truth(knowledge, images, settings.auxiliary_data)
        replayed = replace(replayed, assumed=[*replayed.assumed, *(f"{BEYOND}{one}" for one in overlap)])
    attacks = list(first.parsed.attacks)
    if replayed.lacks_rate:
        attacks, left_out = without_rate(attacks)
        replayed = replace(replayed, assumed=[*replayed.assumed, *left_out])
    with naming("update-attacks"):
        fitted = [fit(attack, settings.seed, knowledge) for attack in attacks]
    kept = f", {len(knowledge.auxiliary)} images of it, none of them an original" if truth else ""
    return PreparedRecording(request, replayed, fitted, truth, settings.auxiliary_data + kept)


def run_recording(prepared: PreparedRecording, out: Path, begin: Callable[[str], object] = str) -> list[Row]:
    """Attacks every reply and writes ``rows.jsonl``, pictures, guesses, ``config.json`` and the report into a folder.

    Rows are written after every round: a killed process leaves those of the rounds before. An interrupted one keeps the results
    of every attack that ended, with a report. ``begin`` takes what begins, such as "round 3: DLG()".

    Returns:
        The validated rows.
    """
    results = AppResults.open(out, prepared.study())
    prepared.claim(results)  # at once, so that what a killed process leaves has it
    try:
        attack_rounds(prepared, results, begin)
    except KeyboardInterrupt:
        prepared.claim(results)
        results.conclude(finished=False)
        raise
    prepared.claim(results)
    return results.conclude()
