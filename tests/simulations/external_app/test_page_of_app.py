"""The page of an audited app: short first table, its curves, and its positive control."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg

from simulations.audited import audited
from simulations.report.analysis.outcome import as_json
from tests.strategies.external_app.app import AppGrid, Net, an_app


def page(out: Path, rounds: int = 1, **more: Any) -> str:
    known = {"workers": 0, "probe_attacks": "Spear(); LabelInference()", "local_epochs": 1, "batch_size": 2, **more}
    strategy = audited(FedAvg(fraction_evaluate=0.0), out, Net, rounds=range(1, rounds + 1), **known)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        arrays = ArrayRecord(Net().state_dict())
    strategy.start(AppGrid(an_app()), arrays, num_rounds=rounds, train_config=ConfigRecord({"lr": 0.1}))
    return " ".join(html.unescape((out / "report.html").read_text(encoding="utf-8")).split())


def section(text: str, name: str) -> str:
    return text.split(f'<section id="{name}">')[1].split("</section>")[0]


def test_warnings_are_a_count_in_the_first_table_and_a_list_below(tmp_path: Path) -> None:
    text = page(tmp_path / "out", update_attacks="InvertingGradients(iterations=5)")
    found = [one["warnings"] for one in as_json(tmp_path / "out") if one["warnings"]]
    assert sum(map(len, found)) >= 2
    first, below = text.split("The result in words")[0], section(text, "headline")
    assert 'id="defence-1"' in below
    for warnings in found:
        shown = f"{len(warnings)} warning" + ("s" if len(warnings) > 1 else "")
        assert f'<small><a href="#defence-1">{shown}</a></small>' in first
        for warning in warnings:
            assert warning not in first
            assert warning in below


def test_curves_say_how_many_rounds_were_attacked(tmp_path: Path) -> None:
    one = section(page(tmp_path / "one"), "curves")
    assert "No attack ran in more than 1 round; a chart of an attack needs 3 or more." in one
    assert "hollow points" not in one, "there is no chart"
    three = section(page(tmp_path / "three", rounds=3), "curves")
    assert "No attack ran" not in three
    assert "<svg" in three
    assert "hollow points" in three


def test_the_positive_control_of_an_app_is_explained(tmp_path: Path) -> None:
    """Labels are inferred from two kinds of message, so there are more tests than scores."""
    control = section(page(tmp_path / "out"), "control")
    assert "each attack is tested on the run with no mod known itself" in control
    assert "once for each kind of message and each round, so there can be more tests than scores" in control
    scores, tests = re.search(r"<summary>(\d+) scores of the run with no mod known.*?(\d+) tests", control).groups()  # type: ignore[union-attr]
    assert int(tests) > int(scores)
    assert "undefended images, " not in control
