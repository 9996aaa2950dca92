"""What the strategies around another one share: that one is left as it was, and rounds that nobody sees are told."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

from simulations.audited import audited
from strategies.external_app.preflight import AuditError
from strategies.recording.files import read_recording
from strategies.recording.strategy import RecordingStrategy
from strategies.recording.wrapper import WrappingStrategy
from tests.strategies.external_app.app import Net
from tests.strategies.recording.test_strategy import run

Wrap = Callable[..., Strategy]


def watch(strategy: Strategy, folder: Path, **told: Any) -> Strategy:
    return audited(strategy, folder, Net, **{"workers": 0, "go_on": True, **told})


BOTH = pytest.mark.parametrize("wrap", [RecordingStrategy, watch])


@BOTH
def test_hooks_that_were_set_on_the_object_itself_are_called_and_stay(wrap: Wrap, tmp_path: Path) -> None:
    inner, called = FedAvg(fraction_evaluate=0.0), list[int]()
    ordinary = inner.configure_train

    def own(server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        called.append(server_round)
        return ordinary(server_round, arrays, config, grid)

    inner.configure_train = own  # type: ignore[method-assign]
    run(wrap(inner, tmp_path / "out"), rounds=2)
    assert called == [1, 2]
    assert inner.configure_train is own
    assert [name for name in vars(inner) if name in ("aggregate_train", "configure_evaluate", "summary")] == []
    run(inner, rounds=1)
    assert called == [1, 2, 1]


@BOTH
def test_a_class_in_place_of_a_strategy_is_refused_and_stays_whole(wrap: Wrap, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"strategy is <class .*FedAvg'>; allowed: an object of a strategy"):
        wrap(FedAvg, tmp_path / "out")
    assert "configure_train" in vars(FedAvg)
    assert not (tmp_path / "out").exists()


@BOTH
def test_what_is_set_on_a_wrapper_reaches_its_strategy(wrap: Wrap, tmp_path: Path) -> None:
    inner = FedAvg(min_train_nodes=2)
    wrapper: Any = wrap(inner, tmp_path / "out")
    wrapper.min_train_nodes = 7
    assert inner.min_train_nodes == wrapper.min_train_nodes == 7
    wrapper.note = "mine"
    assert not hasattr(inner, "note")


def test_wrappers_in_each_other_both_see_the_run(tmp_path: Path) -> None:
    inner = FedAvg(fraction_evaluate=0.0)
    recorded = RecordingStrategy(inner, tmp_path / "rec", rounds=[1])
    again = RecordingStrategy(recorded, tmp_path / "again", rounds=[1, 2])
    result = run(again, rounds=2)
    assert [one.round for one in read_recording(tmp_path / "rec")] == [1, 1]
    assert [one.round for one in read_recording(tmp_path / "again")] == [1, 1, 2, 2]
    for name, array in run(FedAvg(fraction_evaluate=0.0), rounds=2).arrays.items():
        np.testing.assert_array_equal(array.numpy(), result.arrays[name].numpy())


class Finishing(FedAvg):
    """Of somebody who writes a loop of his own."""

    finished = 0
    told = "mine"

    def finish(self) -> None:
        self.finished += 1


@BOTH
def test_a_loop_of_ones_own_finishes_all_and_start_finishes_none_twice(
    wrap: Wrap, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = Finishing(fraction_evaluate=0.0)
    outer: Any = RecordingStrategy(wrap(inner, tmp_path / "out", rounds=[9]), tmp_path / "rec", rounds=[8])
    with caplog.at_level("WARNING", logger="flwr"):
        outer.finish()
    assert inner.finished == 1
    assert [line[-1] for line in caplog.messages if "never came" in line] == ["9", "8"]
    assert outer.told == "mine", "no name of ours stands in its way"
    caplog.clear()
    with caplog.at_level("WARNING", logger="flwr"):
        run(outer, rounds=1)
    assert inner.finished == 1
    assert [line[-1] for line in caplog.messages if "never came" in line] == ["9", "8"]


@BOTH
def test_a_line_of_the_log_says_who_watches(wrap: Wrap, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        run(wrap(FedAvg(fraction_evaluate=0.0), tmp_path / "out", rounds=[1]), rounds=1)
    assert [line for line in caplog.messages if "Recording: /" in line or "Audited: rounds 1" in line]


def test_a_copy_wraps_the_copy_of_the_strategy() -> None:
    twin = copy.deepcopy(WrappingStrategy(FedAvg(min_train_nodes=3)))
    assert twin.min_train_nodes == 3
    assert isinstance(twin.strategy, FedAvg)


@BOTH
@pytest.mark.parametrize("rounds", ["1,2", b"\1", ["1"], [0], [], [1.0], [True], [-1], 1])
def test_rounds_that_are_no_rounds_are_refused(wrap: Wrap, rounds: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rounds is .*; allowed: numbers of server rounds, from 1"):
        wrap(FedAvg(), tmp_path / "out", rounds=rounds)
    assert not (tmp_path / "out").exists()
    wrap(FedAvg(), tmp_path / "good", rounds=np.arange(1, 4))


@BOTH
def test_rounds_that_never_came_are_told(wrap: Wrap, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="flwr"):
        run(wrap(FedAvg(fraction_evaluate=0.0), tmp_path / "out", rounds=range(2, 10)), rounds=2)
    assert "asked for rounds that never came: 3, 4, 5, 6, 7 and 2 more" in caplog.text


def test_an_audit_of_rounds_that_never_came_fails_and_has_a_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="flwr"), pytest.raises(AuditError, match="the audit attacked nothing"):
        run(watch(FedAvg(fraction_evaluate=0.0), tmp_path / "out", rounds=[99], go_on=False), rounds=1)
    assert "never came: 99" in caplog.text
    assert "No attack has a score." in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
