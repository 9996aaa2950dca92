"""One lying client of four: whole runs in which it sends possible messages with false numbers."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict
from reliability_runs import Case, accuracy, require, rows_of
from reliability_wire import Change, arrays, numbers

from simulations.experiment.experiment import Experiment
from simulations.report.analysis.run import read_run
from simulations.runtime.local_grid import FIRST_NODE, LocalGrid
from simulations.server_app import run_experiment

CLIENTS, LIAR, FALLS = 4, 1, 0.15
"""Clients, the one that lies, and how far the accuracy may fall without it."""
COMMON: dict[str, Any] = {
    "dataset": "mnist-5k", "train_limit": 500, "test_limit": 100, "num_clients": CLIENTS, "rounds": 2, "local_epochs": 2,
    "learning_rate": 0.05, "batch_size": 16, "defenses": "", "attack_workers": 0, "adaptive": False, "attack_rounds": "",
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "federated": {
        "model": "mlp", "attack_rounds": "first", "probe_attacks": "SpearPlusPlus()", "update_attacks": "LossThreshold()",
        "probe_targets": 4, "probe_images": 1,
    },
    "private": {"model": "mlp", "defenses": "DPSGD(noise_multiplier=1.0)"},
    "split": {"scenario": "split", "model": "vit", "patch_size": 7, "width": 16, "depth": 2, "heads": 2},
    "split-trained": {
        "scenario": "split", "model": "vit", "patch_size": 7, "width": 16, "depth": 2, "heads": 2, "train_edge": True,
    },
    "outsourced": {"scenario": "outsourced", "model": "mlp", "local_epochs": 1},
    "inference": {"scenario": "inference", "model": "vgg_small", "auxiliary_fraction": 0.8, "local_epochs": 1},
}  # fmt: skip
"""Kind of run -> its settings."""


def scores(metric: str, make: Callable[[list[float]], list[float]]) -> Change:
    """Changes the values of a metric in a reply to an audit."""

    def change(content: RecordDict) -> None:
        found: dict[str, Any] = dict(content.metric_records["metrics"])
        found |= {text: make(values) for text, values in found.items() if f"/{metric}/" in text}
        content["metrics"] = MetricRecord(found)

    return change


def all_at(value: float) -> Callable[[list[float]], list[float]]:
    """The same number for each value."""
    return lambda values: [value] * len(values)


MOST_WHOLE = 2**31 - 1
REFUSED: dict[tuple[str, str, str], Change] = {
    **{("federated", "train", f"an update of {size}"): arrays(size) for size in ("3e38", "1e30", "1e3")},
    ("federated", "train", f"{MOST_WHOLE} examples"): numbers(num_examples=MOST_WHOLE),
    ("federated", "train", "a negative time"): numbers(train_seconds=-1.0),
    **{("private", "train", f"epsilon {value:g}"): numbers(epsilon=value) for value in (0.0, 1e9)},
    ("private", "train", "a delta of 0.9"): numbers(delta=0.9),
    ("federated", "evaluate", f"{MOST_WHOLE} examples"): numbers(num_examples=MOST_WHOLE),
    ("federated", "evaluate", "a loss of 1e308"): numbers(test_loss_original=1e308),
    **{
        ("federated", "query.audit", f"{metric} {value:g}"): scores(metric, all_at(value))
        for metric, value in (
            ("psnr", 1e308), ("psnr", -1.0), ("ssim", 1.5), ("mse", 2.0), ("identified", 0.5), ("identified-chance", 1.0),
            ("psnr-flat", float("inf")),
        )
    },
    ("federated", "query.audit", "each score a hundred times"): scores("psnr", lambda values: values * 100),
    ("federated", "query.audit", "no score of any guess"): lambda content: content.update({"metrics": MetricRecord()}),
    **{
        ("federated", "query.audit", f"{name} of {metric}"): scores(metric, lambda values, count=count: values[:count])
        for metric in ("psnr", "member-score") for count, name in ((0, "no value"), (1, "one value"))
    },
    ("federated", "query.audit", "more members than dealt"): scores("member-score", lambda values: values * 100),
    ("split", "train.step", "features of 3e38"): arrays("3e38"),
    ("split", "train.step", "features of 1e30"): arrays("1e30"),
    ("split", "evaluate", "a loss of infinity"): numbers(loss=[float("inf")]),
    ("split-trained", "train.collect", "an update of 3e38"): arrays("3e38"),
    ("outsourced", "train.upload", "images of 3e38"): arrays("3e38"),
    ("outsourced", "train.upload", "images of 1e30"): arrays("1e30"),
    ("outsourced", "evaluate", f"{MOST_WHOLE} examples"): numbers(num_examples=MOST_WHOLE),
    ("inference", "query.features", "features of 3e38"): arrays("3e38"),
    ("inference", "evaluate", f"{MOST_WHOLE} examples"): numbers(num_examples=MOST_WHOLE),
}  # fmt: skip
"""(Run, message, lie) that the server must refuse, count and name."""
POSSIBLE: dict[tuple[str, str, str], Change] = {
    ("federated", "query.audit", "no image identified"): scores("identified", all_at(0.0)),
    ("federated", "query.audit", "a PSNR of 0 dB"): scores("psnr", all_at(0.0)),
    ("federated", "query.audit", "a chance of 0.9"): scores("identified-chance", all_at(0.9)),
}
"""Lies that could be true: they must not change the verdict either."""


def lies(_: argparse.Namespace) -> Iterator[Case]:
    """One lying client: a row names it, and verdict and accuracy are those of the other clients."""
    for refused, of in ((True, REFUSED), (False, POSSIBLE)):
        for (run, kind, name), change in of.items():
            yield Case(
                "refused" if refused else "possible",
                f"{run}, {kind}: {name}",
                partial(check, run, kind, change, refused),
            )


def check(run: str, kind: str, change: Change, refused: bool) -> str:
    """Run with the liar; the outcome."""
    verdict, reached = honest(run)
    rows, found = _run(run, kind, change)
    named = [row for row in rows if row["status"] == "failed" and row["metric"] == "client"]
    require({row["client"] for row in named} == ({LIAR} if refused else set()), f"named: {named[:2]}")
    require(found == verdict, f"the verdict is {found}, not {verdict}")
    require(accuracy(rows) > reached - FALLS, f"accuracy {accuracy(rows):.2f}, without the lie {reached:.2f}")
    return f"{'refused: ' + named[0]['message'][:90] if refused else 'used: possible'}; {found}, accuracy {accuracy(rows):.2f}"


@cache
def honest(run: str) -> tuple[list[str], float]:
    """Verdicts and accuracy of a run without a lie."""
    rows, verdict = _run(run, "", lambda _: None)
    return verdict, accuracy(rows)


def _run(run: str, kind: str, change: Change) -> tuple[list[dict[str, Any]], list[str]]:
    class Lying(LocalGrid):
        def answer(self, message: Message) -> Message | None:
            reply, sent = super().answer(message), message.metadata
            if reply and reply.has_content() and (sent.message_type, sent.dst_node_id) == (kind, FIRST_NODE + LIAR):
                change(reply.content)
            return reply

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run_experiment(Lying(CLIENTS), Experiment.of(**COMMON | RUNS[run], output_dir=str(out)))
        return rows_of(out), [message["verdict"] for one in read_run(out).to_json() for message in one["messages"]]
