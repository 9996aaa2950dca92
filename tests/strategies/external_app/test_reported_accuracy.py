"""The accuracy that an app reports from its own evaluation stands on the page as the app's word."""

from __future__ import annotations

import html
import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from simulations.audited import audited
from simulations.console.terminal import Terminal
from simulations.report.analysis.outcome import as_json
from simulations.runtime.findings import print_findings
from strategies.external_app.reported_accuracy import CLIENTS, REPORTED, SERVER, AppAccuracy, ReportedAccuracy
from tests.lines import read_lines
from tests.strategies.external_app.app import EXAMPLES, AppGrid, Net, an_app


def evaluating(name: str, values: tuple[float, float]) -> ClientApp:
    """The app, whose nodes also evaluate: the first reports the first value."""
    app = an_app()

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        value = values[int(context.node_config["partition-id"])]
        metrics = MetricRecord({"eval_loss": 0.3, name: value, "num-examples": EXAMPLES})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def audit(out: Path, app: Any, rounds: int = 2, **start: Any) -> list[dict[str, Any]]:
    known: dict[str, Any] = {"workers": 0, "probe_attacks": "LabelInference()", "update_attacks": ""}
    watched = audited(FedAvg(), out, Net, **known)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        arrays = ArrayRecord(Net().state_dict())
    watched.start(AppGrid(app), arrays, num_rounds=rounds, train_config=ConfigRecord({"lr": 0.1}), **start)
    return list(read_lines(out / "rows.jsonl"))


def page_of(out: Path) -> str:
    return " ".join(html.unescape((out / "report.html").read_text(encoding="utf-8")).split())


def test_the_accuracy_of_the_clients_evaluation_is_in_the_first_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = audit(out, evaluating("eval_acc", (0.5, 0.75)))
    (row,) = [one for one in rows if one["metric"] == REPORTED]
    assert row["value"] == pytest.approx(0.625)
    assert row["round"] == 2
    first = page_of(out).split("<h2>Headline")[0]
    shown = "62.5 % (the app's word)<small>eval_acc, the clients' evaluation, round 2</small>"
    assert f'<td class="num">{shown}</td>' in first
    assert "The app reports an accuracy of 62.5 %" in first
    assert "fedveil did not check this number." in first
    (found,) = (one for one in as_json(out) if one["first"])
    assert found["accuracy"] is None
    assert found["reported"]["value"] == pytest.approx(0.625)
    printed = io.StringIO()
    print_findings(Terminal(file=printed, width=400, highlight=False), out)
    assert "62.5 % (the app's word)" in " ".join(printed.getvalue().split())


def test_the_servers_evaluation_comes_first_and_its_own_result_stays_as_it_is(tmp_path: Path) -> None:
    out, returned = tmp_path / "out", list[MetricRecord]()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        returned.append(MetricRecord({"loss": 1.0, "accuracy": 0.2 * server_round}))
        return returned[-1]

    audit(out, evaluating("eval_acc", (0.5, 0.5)), evaluate_fn=evaluate)
    assert len(returned) == 3
    assert "40.0 % (the app's word)<small>accuracy, the server's evaluation, round 2</small>" in page_of(out)


def test_an_app_that_reports_no_accuracy_shows_none(tmp_path: Path) -> None:
    rows = audit(tmp_path / "out", evaluating("eval_perplexity", (0.5, 0.5)), rounds=1)
    assert not [one for one in rows if one["metric"] == REPORTED]
    assert "the app's word" not in page_of(tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *(
            (name, True)
            for name in ("accuracy", "eval_acc", "test-accuracy", "evalAcc", "central_accuracy", "top1_acc")
        ),
        *((name, False) for name in ("loss", "train_acc", "top5_accuracy", "accountant", "accelerator", "vacc")),
        *(
            (name, False)
            for name in (
                "accuracy_std",
                "top10_accuracy",
                "backdoor_accuracy",
                "accuracy_class_0",
                "acc@5",
                "fit_accuracy",
            )
        ),
    ],
)
def test_names_of_accuracies(name: str, is_one: bool) -> None:
    reports = ReportedAccuracy()
    reports.observe(CLIENTS, 1, {name: 0.5})
    assert (reports.found() is not None) is is_one


@pytest.mark.parametrize("value", [-0.1, 100.5, math.nan, math.inf, True, [0.5], "0.5"])
def test_values_that_are_no_accuracy_are_left_out(value: Any) -> None:
    reports = ReportedAccuracy()
    reports.observe(SERVER, 1, {"accuracy": value})
    assert reports.found() is None


def test_percent_is_recognised_over_all_rounds() -> None:
    reports = ReportedAccuracy()
    reports.observe(SERVER, 1, {"accuracy": 40.0})
    reports.observe(SERVER, 2, {"accuracy": 0.8})
    assert reports.found() == AppAccuracy(0.008, "accuracy", SERVER, 2)


def test_a_mean_of_ones_that_is_rounded_above_one_is_no_percentage() -> None:
    reports = ReportedAccuracy()
    reports.observe(CLIENTS, 1, {"eval_acc": 1.0000000000000002})
    reports.observe(CLIENTS, 2, {"eval_acc": 0.97})
    assert reports.found() == AppAccuracy(0.97, "eval_acc", CLIENTS, 2)


def test_of_several_metrics_the_latest_and_then_the_plainest_counts() -> None:
    reports = ReportedAccuracy()
    reports.observe(SERVER, 0, {"accuracy": 0.098})
    assert reports.found() is None, "round 0 is before training"
    reports.observe(SERVER, 1, {"accuracy": 0.3})
    reports.observe(CLIENTS, 2, {"val_acc": 0.1, "eval_accuracy": 0.8, "accuracy": 0.7, 1: 0.5})  # type: ignore[dict-item]
    assert reports.found() == AppAccuracy(0.7, "accuracy", CLIENTS, 2)
    reports.observe(SERVER, 2, {"test_acc": 0.6})
    assert reports.found() == AppAccuracy(0.6, "test_acc", SERVER, 2)


@pytest.mark.parametrize("data", [None, 3, {}, {"value": 2, "round": 1}, {"value": "x", "round": 1}, {"value": 0.5}])
def test_a_damaged_column_is_no_accuracy(data: Any) -> None:
    assert AppAccuracy.from_json(data) is None
    good = AppAccuracy(0.5, "acc", SERVER, 1)
    assert AppAccuracy.from_json(good.to_json()) == good
