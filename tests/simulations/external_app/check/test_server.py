"""ServerApps that are started with nodes that there are not, in this process: what they would send first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Result

from simulations.external_app.check.trial.server import FIRST_NODE, run_server

ARRAYS = {"head.weight": torch.zeros(3, 2), "head.bias": torch.zeros(3)}


def started(main: Callable[[Grid, Context], None], nodes: int = 2, seconds: float = 30.0) -> dict[str, Any]:
    app = ServerApp()
    app.main()(main)
    return run_server(app, {"rounds": 4, "lr": 0.25}, nodes, seconds)


def never(*args: Any) -> NoReturn:
    raise AssertionError("the server must not come this far")


def test_a_strategy_is_seen_as_it_begins_and_never_runs() -> None:
    def main(grid: Grid, context: Context) -> None:
        FedAvg(fraction_train=0.5).start(
            grid, ArrayRecord(ARRAYS), context.run_config["rounds"],
            train_config=ConfigRecord({"lr": context.run_config["lr"], "list": [1, 2]}), evaluate_fn=never,
        )  # fmt: skip
        never()

    found = started(main, nodes=10)
    assert (found["strategy"], found["rounds"], found["failed"], found["asked"]) == (["FedAvg"], 4, "", 5)
    assert found["config"] == {"lr": 0.25, "server-round": 1}, "plain values alone"
    assert found["arrays"] == [["head.weight", [3, 2], "float32"], ["head.bias", [3], "float32"]]


def test_what_a_strategy_wraps_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def main(grid: Grid, context: Context) -> None:
        inner = FedAvg(min_available_nodes=7)
        DifferentialPrivacyServerSideFixedClipping(inner, 0.1, 1.0, 2).start(grid, ArrayRecord(ARRAYS))

    found = started(main)
    assert found["strategy"] == ["DifferentialPrivacyServerSideFixedClipping", "FedAvg"]
    assert (found["waits_for"], found["asked"]) == (7, 7), "the stand-in reports as many nodes as are waited for"


def test_a_start_of_the_apps_own_does_not_run() -> None:
    class Own(FedAvg):
        def start(self, grid: Grid, initial_arrays: ArrayRecord, turns: int, **given: Any) -> Result:
            never()

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            raise ValueError("no messages yet")

    found = started(lambda grid, context: never(Own().start(grid, ArrayRecord(ARRAYS), turns=9)))
    assert found["strategy"] == ["Own"]
    assert found["unasked"] == "configure_train raised ValueError: no messages yet"
    assert len(found["arrays"]) == 2
    assert Own.start is not FedAvg.start, "its own is back"
    with pytest.raises(AssertionError, match="must not come"):
        Own().start(None, None, 1)  # type: ignore[arg-type]


def test_a_main_that_sends_by_itself_is_seen_at_its_first_training() -> None:
    def main(grid: Grid, context: Context) -> None:
        content = RecordDict({"arrays": ArrayRecord(ARRAYS), "config": ConfigRecord({"lr": 0.5})})
        ask = [Message(RecordDict(), dst_node_id=one, message_type="query") for one in grid.get_node_ids()]
        assert list(grid.send_and_receive(ask)) == []
        while len(list(grid.get_node_ids())) < 50:  # nodes that never come would keep it here for ever
            time.sleep(0.001)
        try:
            list(grid.send_and_receive([Message(content, dst_node_id=FIRST_NODE, message_type="train.part")]))
        except Exception:
            never()
        never()

    found = started(main)
    assert (found["by_strategy"], found["failed"], found["types_before"]) == (False, "", ["query"])
    assert (found["asked"], found["message_type"], found["config"]) == (1, "train.part", {"lr": 0.5})
    assert [name for name, _, _ in found["arrays"]] == list(ARRAYS)


@pytest.mark.parametrize(
    ("main", "why"),
    [
        (lambda grid, context: context.run_config["none"], "its main raised KeyError: 'none'"),
        (lambda grid, context: None, "its main ended without a message of training"),
        (lambda grid, context: time.sleep(60), "its main sent no message of training within 0.2 s"),
        (lambda grid, context: exit(3), "its main raised SystemExit: 3"),
    ],
)
def test_mains_that_send_nothing_are_told_apart(main: Callable[[Grid, Context], None], why: str) -> None:
    assert started(main, seconds=0.2)["failed"] == why
