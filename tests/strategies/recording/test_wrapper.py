"""What the strategies around another one share: that one is left as it was, and rounds that nobody sees are told."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

from simulations.audited import audited
from strategies.recording.files import read_recording
from strategies.recording.strategy import RecordingStrategy
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


def test_wrappers_in_each_other_both_see_the_run(tmp_path: Path) -> None:
    inner = FedAvg(fraction_evaluate=0.0)
    recorded = RecordingStrategy(inner, tmp_path / "rec", rounds=[1])
    again = RecordingStrategy(recorded, tmp_path / "again", rounds=[1, 2])
    result = run(again, rounds=2)
    assert [one.round for one in read_recording(tmp_path / "rec")] == [1, 1]
    assert [one.round for one in read_recording(tmp_path / "again")] == [1, 1, 2, 2]
    for name, array in run(FedAvg(fraction_evaluate=0.0), rounds=2).arrays.items():
        np.testing.assert_array_equal(array.numpy(), result.arrays[name].numpy())


@BOTH
def test_a_wrapper_checks_what_it_is_given_and_hands_on_what_is_set_on_it(wrap: Wrap, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"strategy is <class .*FedAvg'>; allowed: an object of a strategy"):
        wrap(FedAvg, tmp_path / "out")
    assert "configure_train" in vars(FedAvg)
    for rounds in ("1,2", b"\1", ["1"], [0], [], [1.0], [True], [-1], 1):
        with pytest.raises(ValueError, match=r"rounds is .*; allowed: numbers of server rounds, from 1"):
            wrap(FedAvg(), tmp_path / "out", rounds=rounds)
    assert not (tmp_path / "out").exists()
    inner = FedAvg(min_train_nodes=2)
    wrapper: Any = wrap(inner, tmp_path / "good", rounds=np.arange(1, 4))
    wrapper.min_train_nodes = 7
    assert inner.min_train_nodes == wrapper.min_train_nodes == 7
    wrapper.note = "mine"
    assert not hasattr(inner, "note")
