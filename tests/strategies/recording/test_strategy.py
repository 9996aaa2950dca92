"""RecordingStrategy: around any strategy of Flower, whose result it must not change, and the files that it leaves."""

import io
import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as ServerClipping
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx, Result, Strategy
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors

from clients.flower_private import act_as_task, set_message_id
from clients.wire.records import view_of
from clients.wire.texts import RecordError
from simulations.audited import audited
from strategies.recording.files import RecordingError, RecordingWriter, read_recording, strategy_of
from strategies.recording.strategy import RecordingStrategy
from tests.strategies.external_app.app import Net

SHAPES = {"b.weight": (3, 2), "a.bias": (), "c.count": (1,)}
"""Neither sorted by name nor by type, as a state_dict is not; one has no axes."""


def weights(scale: float = 1.0) -> ArrayRecord:
    values = np.arange(6, dtype=np.float32).reshape(3, 2) * scale
    arrays = {"b.weight": np.asfortranarray(values), "a.bias": np.float32(scale), "c.count": np.array([2.0])}
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


class TwoNodes:
    """A grid whose nodes add 1 and 2 to everything; the second can be told to fail in round 2."""

    def __init__(self, fails: bool = False) -> None:
        act_as_task()
        self.fails = fails

    def get_node_ids(self) -> list[int]:
        return [7, 8]

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> Iterable[Message]:
        return (self.answer(message) for message in sorted(messages, key=lambda one: one.metadata.dst_node_id))

    def answer(self, message: Message) -> Message:
        node, content = message.metadata.dst_node_id, RecordDict()
        set_message_id(message, f"to-{node}")
        if self.fails and (node, message.content["config"]["server-round"]) == (8, 2):
            return Message(Error(code=3, reason="out of memory"), reply_to=message)
        content["metrics"] = MetricRecord({"num-examples": node, "loss": float("nan")})
        if message.metadata.message_type == "train":
            sent = {name: array.numpy() for name, array in message.content["arrays"].items()}
            content["arrays"] = ArrayRecord(
                {name: Array(np.asarray(one + np.float32(node - 6))) for name, one in sent.items()}
            )
        return Message(content, reply_to=message)


def run(strategy: Strategy, rounds: int = 2, fails: bool = False) -> Result:
    config = ConfigRecord({"lr": 0.5, "key": b"secret"})
    return strategy.start(TwoNodes(fails), weights(), num_rounds=rounds, train_config=config)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make", [FedAvg, FedAdam, lambda: FedProx(proximal_mu=0.3), lambda: ServerClipping(FedAvg(), 0.0, 0.1, 2)]
)
def test_a_recording_holds_what_was_sent_and_changes_no_result(make: Callable[[], Strategy], tmp_path: Path) -> None:
    """Also under a wrapper that clips replies in place: what a client sent is what is kept."""
    alone, recorded = run(make()), run(RecordingStrategy(make(), tmp_path / "rec", settings={"batch-size": 4}))
    for name, array in alone.arrays.items():
        np.testing.assert_array_equal(array.numpy(), recorded.arrays[name].numpy())
    assert strategy_of(tmp_path / "rec")[0] == type(make()).__name__
    replies = read_recording(tmp_path / "rec")
    assert [(one.round, one.node) for one in replies] == [(1, 7), (1, 8), (2, 7), (2, 8)]
    for reply in replies:
        sent, came = reply.sent_arrays(), reply.arrays()
        assert list(sent) == list(came) == list(SHAPES), "the order of the model"
        for name, shape in SHAPES.items():
            assert came[name].shape == shape
            # float32 sums of small numbers: exact but for the rounding of the strategy's own means.
            np.testing.assert_allclose(came[name] - sent[name], reply.node - 6, atol=1e-5)
        assert (reply.number("num-examples"), reply.number("lr"), reply.number("batch-size")) == (reply.node, 0.5, 4)
        assert not reply.unusable
    np.testing.assert_array_equal(replies[0].sent_arrays()["b.weight"], weights()["b.weight"].numpy())
    assert len(list((tmp_path / "rec").rglob("sent-*.safetensors"))) == 2, "weights that all nodes get are kept once"
    text = (tmp_path / "rec" / "round-0001" / "sent.json").read_text()
    assert "6 bytes, not recorded" in text, "whatever is in bytes stays out"
    assert json.loads((tmp_path / "rec/round-0001/train-0000.json").read_text())["metrics"]["metrics"]["loss"] == "nan"


def test_a_failed_client_and_rounds_not_asked_for(tmp_path: Path) -> None:
    run(RecordingStrategy(FedAvg(), tmp_path / "rec", rounds=[2, 3]), rounds=3, fails=True)
    replies = read_recording(tmp_path / "rec")
    assert [(one.round, one.node) for one in replies] == [(2, 7), (2, 8), (3, 7), (3, 8)]
    assert [one.unusable for one in replies] == ["", "the client failed: out of memory", "", ""]
    # The bound on disk holds, and says what it cost.
    run(RecordingStrategy(FedAvg(), tmp_path / "small", max_bytes=1500), rounds=3)
    replies = read_recording(tmp_path / "small")
    arrays = sum(path.stat().st_size for path in (tmp_path / "small").rglob("*.safetensors"))
    assert arrays <= 1500
    assert replies[0].unusable == ""
    assert "would exceed max_bytes, 1500" in replies[-1].unusable or "were not recorded" in replies[-1].unusable
    assert len(replies) == 6, "who replied is known all the same"


def npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(16)


class Patient(FedAvg):
    """Averages nothing: Flower's own strategies read the arrays that are damaged here."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[None, None]:
        return None, None


def test_a_damaged_reply_costs_itself_alone(tmp_path: Path) -> None:
    """The header that NumPy reads is a text of the client's choice."""
    for header in ("{'descr': (", "(" * 9000, "{'descr': '<f4', 'fortran_order': False, 'shape': (-9,)}", "\0"):

        class Damaging(TwoNodes):
            def answer(self, message: Message, header: str = header) -> Message:
                reply = super().answer(message)
                if message.metadata.dst_node_id == 7:
                    damaged = Array(dtype="float32", shape=(4,), stype="numpy.ndarray", data=npy(header))
                    reply.content["arrays"] = ArrayRecord({"b.weight": damaged})
                return reply

        folder = tmp_path / str(len(header))
        strategy = RecordingStrategy(Patient(fraction_evaluate=0.0), folder)
        strategy.start(Damaging(), weights(), num_rounds=1)  # type: ignore[arg-type]
        damaged, whole = read_recording(folder)
        assert damaged.unusable.startswith("its arrays were not recorded: arrays: "), header
        assert (whole.unusable, list(whole.arrays())) == ("", list(SHAPES))


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="allowed: an absolute path"):
        RecordingStrategy(FedAvg(), "recording")
    RecordingStrategy(FedAvg(), tmp_path)
    with pytest.raises(RecordingError, match="already holds a recording"):
        RecordingStrategy(FedAvg(), tmp_path)
    for wrong in (0, "10", float("nan"), True):
        with pytest.raises(ValueError, match=f"max_bytes is {wrong!r}; allowed: a positive whole number of bytes"):
            RecordingStrategy(FedAvg(), tmp_path / "other", max_bytes=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="settings is 'lr=1'; allowed: a mapping"):
        RecordingStrategy(FedAvg(), tmp_path / "other", settings="lr=1")  # type: ignore[arg-type]
    assert not (tmp_path / "other").exists()
    with pytest.raises(RecordingError, match=r"no recording\.json"):
        read_recording(tmp_path / "nothing")


def test_a_damaged_recording_is_told_and_reaches_no_other_folder(tmp_path: Path) -> None:
    run(RecordingStrategy(FedAvg(), tmp_path))
    path = tmp_path / "round-0001" / "train-0000.json"
    good = json.loads(path.read_text())
    path.write_text(json.dumps(good | {"arrays": {"arrays": "../round-0002/train-0000-0.safetensors"}}))
    with pytest.raises(RecordingError, match="allowed: files of its own folder"):
        read_recording(tmp_path)[0].arrays()
    (tmp_path / "round-0001" / "train-0001-0.safetensors").write_bytes(b"\x80\x04cos\nsystem\n.")
    with pytest.raises(RecordingError, match="cannot be read as safetensors"):
        read_recording(tmp_path)[1].arrays()
    path.write_text("{")
    with pytest.raises(RecordingError, match=r"train-0000\.json cannot be read as JSON"):
        read_recording(tmp_path)


ENDLESS = """
import sys, pathlib
sys.path.insert(0, {root!r})
from tests.strategies.recording.test_strategy import FedAvg, RecordingStrategy, run
run(RecordingStrategy(FedAvg(), pathlib.Path({folder!r})), rounds=100_000)
"""


@pytest.mark.long
def test_kill_9_leaves_what_was_complete(tmp_path: Path) -> None:
    """Wherever the process is, every reply with a JSON file is whole, and no complete round lacks one."""
    root, folder = str(Path(__file__).resolve().parents[3]), tmp_path / "rec"
    script = ENDLESS.format(root=root, folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", script], cwd=root, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300
        while len(list(folder.glob("round-*"))) < 12:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    replies = read_recording(folder)
    last = max(one.round for one in replies)
    assert last >= 11
    assert {(at, node) for at in range(1, last) for node in (7, 8)} <= {(one.round, one.node) for one in replies}
    for reply in replies:
        assert not reply.unusable
        assert list(reply.arrays()) == list(reply.sent_arrays()) == list(SHAPES)


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


KINDS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
"""NumPy's, of all that may be sent."""


def kept(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """The file of arrays that came in a message."""
    writer = RecordingWriter(folder / "rec", 10**6, {})
    assert writer.keep_arrays("x.safetensors", {n: view_of(n, Array(one)) for n, one in arrays.items()}) == ""
    return folder / "rec" / "x.safetensors"


def test_what_is_no_plain_array_is_refused() -> None:
    good, objects = Array(np.zeros(2)), io.BytesIO()
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    for odd, why in (
        (Array(np.zeros(2, np.complex64)), "complex64"),
        (Array(good.dtype, good.shape, good.stype, good.data[:-8]), "8 bytes for shape"),
        (Array(good.dtype, good.shape, "pickle", good.data), "serialised as 'pickle'"),
        (Array(good.dtype, good.shape, good.stype, b"no array at all"), "magic string"),
        (Array(good.dtype, good.shape, good.stype, objects.getvalue()), "type object"),
    ):
        with pytest.raises(RecordError, match=why):
            view_of("x", odd)


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    """Beside an array of one odd byte, in front of which a careless writer would misplace it."""
    values = np.arange(6).reshape(2, 3) % 2
    for at, (kind, order, end) in enumerate(itertools.product(KINDS, "CF", "<>")):
        dtype = np.dtype(end + kind)
        wanted = {
            "odd": np.array([7], np.uint8), "b": np.asarray(values.astype(dtype), order=order),  # type: ignore[call-overload]
            "a": np.array(1).astype(dtype), "none": np.zeros((0, 4), np.float32),
        }  # fmt: skip
        path = kept(tmp_path / str(at), wanted)
        for name, array in load_file(path).items():
            np.testing.assert_array_equal(array, wanted[name])
            assert (array.shape, array.dtype) == (wanted[name].shape, wanted[name].dtype.newbyteorder("="))
        with safe_open(path, framework="pt") as file:
            assert file.metadata() == {"order": '["odd", "b", "a", "none"]'}
        assert set(load_tensors(path)) == set(wanted)
