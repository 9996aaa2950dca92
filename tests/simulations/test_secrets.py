"""A server that knows all it ever sent and received, the algorithm, and even the images, and tries to rebuild the clients' draws.

What it does is to play the client: it answers each of its own messages once more on a node of its own, with all it knows. In a
simulation that gives what the client sent, bit for bit. In a deployment no stream of random numbers is the client's.
"""

import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message

import defenses.feature_chain
import defenses.pipeline
import defenses.random_draws
from clients.app import app as client_app
from clients.flower_private import from_wire, to_wire
from clients.split import training as split_training
from clients.task.local_data import protected_share
from clients.wire.records import values_of
from defenses.base import DEFENSES, Defense, DefenseError
from defenses.fitting import FittedDefense
from defenses.pipeline import Pipeline
from defenses.random_draws import generator_for
from simulations import server_app
from simulations.experiment.experiment import Experiment
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from tests.common.any_attack import quick
from tests.common.test_every_defense import outcome
from tests.flower_private import message_pb2
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.federated.test_federation import experiment
from tests.simulations.outsourced.test_run import outsourced_experiment
from tests.simulations.split.test_run import split_experiment

SCENARIOS = ("federated", "outsourced", "split", "frozen")
"""Where defences are tried; "frozen" is split learning with a client half that stays as it is."""
ANSWERS_ALL = {
    "probes": True, "publish-labels": True, "audits": True, "share-images": True, "transmissions": -1, "reveal-orders": True,
}  # fmt: skip


class Streams:
    """The states in which random streams begin while a client is watched, and which of them a defence drew from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: set[bytes] = set()
        self.of_stages: list[tuple[torch.Generator, bytes]] = []
        self.watched = False
        hashed = defenses.random_draws.hashlib.shake_256

        def shake(data: bytes) -> Any:
            found = hashed(data)
            if self.watched:
                self.begun.add(found.digest(64))
            return found

        def for_stage(*key: Any) -> torch.Generator:
            generator = generator_for(*key)
            if self.watched:
                self.of_stages.append((generator, generator.get_state().numpy().tobytes()))
            return generator

        monkeypatch.setattr(defenses.random_draws, "hashlib", SimpleNamespace(shake_256=shake))
        for chain in (defenses.pipeline, defenses.feature_chain):
            monkeypatch.setattr(chain, "generator_for", for_stage)
        monkeypatch.setattr(
            split_training, "generator_for", lambda *key: (for_stage if "network" in key else generator_for)(*key)
        )
        # Of no concern here, and the longest part of so short a run.
        monkeypatch.setattr(server_app, "write_report", lambda path: path)

    @contextmanager
    def watch(self) -> Iterator[None]:
        self.begun, self.of_stages, self.watched = set(), [], True
        try:
            yield
        finally:
            self.watched = False

    @property
    def drawn_from(self) -> set[bytes]:
        """Beginnings of the streams from which a defence drew something."""
        return {first for generator, first in self.of_stages if generator.get_state().numpy().tobytes() != first}


class Wiretap(LocalGrid):
    """Keeps every message, and by pipeline the streams that the client began while answering."""

    def __init__(self, streams: Streams, **options: Any) -> None:
        super().__init__(1, **options)
        self.streams = streams
        self.log: list[tuple[bytes, Message]] = []
        self.begun: dict[str, set[bytes]] = defaultdict(set)
        self.drawn: dict[str, set[bytes]] = defaultdict(set)

    def answer(self, message: Message) -> Message | None:
        sent = to_wire(message).SerializeToString()
        with self.streams.watch():
            reply = super().answer(message)
        assert reply is not None
        pipeline = pipeline_of(message)
        self.begun[pipeline] |= self.streams.begun
        self.drawn[pipeline] |= self.streams.drawn_from
        self.log.append((sent, reply))
        return reply


def forget() -> None:
    """What a process protected once it keeps; the next player is another process."""
    protected_share.cache_clear()


def pipeline_of(message: Message) -> str:
    text = values_of(message, "config").get("task")
    return str(json.loads(text)["plan"]["pipeline"]) if text else ""


def read(sent: bytes) -> Message:
    return from_wire(message_pb2.Message.FromString(sent))


def arrays_of(reply: Message) -> dict[str, bytes]:
    return {
        f"{record}/{name}": array.data
        for record, arrays in reply.content.items()
        if isinstance(arrays, ArrayRecord)
        for name, array in arrays.items()
    }


def rebuilt(grid: Wiretap, streams: Streams) -> tuple[dict[str, set[bytes]], dict[str, list[bool]]]:
    """By pipeline: the streams that the server can begin, and for each reply with arrays whether it can compute that reply."""
    own = LocalGrid(1, randomness="seed")
    forget()
    begun: dict[str, set[bytes]] = defaultdict(set)
    same: dict[str, list[bool]] = defaultdict(list)
    for sent, reply in grid.log:
        message = read(sent)
        with streams.watch():
            again = client_app(message, own.contexts[100])
        begun[pipeline_of(message)] |= streams.begun
        if expected := arrays_of(reply):
            same[pipeline_of(message)].append(arrays_of(again) == expected)
    return begun, same


def settings_of(scenario: str, out: Path, pipelines: str) -> Experiment:
    one = {
        "num_clients": 1, "rounds": 1, "attack_rounds": "first", "probe_images": 2, "probe_targets": 1, "defenses": pipelines,
    }  # fmt: skip
    if scenario == "federated":
        return experiment(
            out, probe_attacks="LabelInference()", train_limit=24, test_limit=12, share_images=False, **one,
        )  # fmt: skip
    if scenario == "outsourced":
        return outsourced_experiment(
            out, model_attacks="", auxiliary_fraction=0.0, train_limit=40, batches_per_message=1, **one
        )
    return split_experiment(
        out, smashed_attacks="ServerPrediction()", train_limit=50, train_edge=scenario == "split", test_limit=12,
        labels="client", **one,
    )  # fmt: skip


def is_taken(scenario: str, defense: Defense) -> bool:
    """Whether an experiment of the scenario may name it."""
    folder = Path("run").absolute()
    settings_of(scenario, folder, "")  # what is refused here is no defence
    try:
        settings_of(scenario, folder, repr(defense))
    except (ConfigError, DefenseError):
        return False
    return True


@functools.cache
def tried() -> dict[str, dict[str, Defense]]:
    """Scenario -> name -> defence: each in the first scenario that takes it, and in "outsourced" wherever that takes it."""
    found: dict[str, dict[str, Defense]] = {scenario: {} for scenario in SCENARIOS}
    for name, cls in DEFENSES.items():
        if issubclass(cls, FittedDefense):  # type: ignore[arg-type]
            continue  # These draw in the fit alone, from public images: all of it is for the server.
        taken = [scenario for scenario in SCENARIOS if is_taken(scenario, quick(cls))]
        for scenario in [*taken[:1], *(one for one in taken[1:] if one == "outsourced")]:
            found[scenario][name] = quick(cls)
    return found


def draws(defense: Defense) -> bool:
    """Whether it uses its generator, of which it gets one here without any run."""
    generator = generator_for("draws")
    before = generator.get_state()
    outcome(defense, generator)
    return not torch.equal(before, generator.get_state())


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    # A trial of the model is on images that every process draws alike, and protects nothing.
    monkeypatch.setattr("clients.federated.messages._check_model", lambda plan, shape: None)
    return Streams(monkeypatch)


def run(scenario: str, tmp_path: Path, streams: Streams, randomness: str) -> Wiretap:
    # Some defences move a model of one client further than the check of models allows.
    config = {0: {**ANSWERS_ALL, "secret-dir": str(tmp_path / "secrets"), "model-check": False}}
    grid = Wiretap(streams, randomness=randomness, node_config=config)
    forget()
    run_experiment(grid, settings_of(scenario, tmp_path / "run", "; ".join(map(repr, tried()[scenario].values()))))
    rows = read_lines(tmp_path / "run" / "rows.jsonl")
    assert not [row["message"] for row in rows if row["status"] in ("failed", "refused")]
    told = {"seed": "follows from the seed (simulation)", "secret": "each node's own secret"}[randomness]
    assert {row["card"]["randomness"] for row in rows if row["attack"]} == {told}
    return grid


def texts(scenario: str) -> dict[str, str]:
    """Name of a defence -> its pipeline as messages write it."""
    return {name: str(Pipeline((defense,))) for name, defense in tried()[scenario].items()}


def test_every_defence_is_tried() -> None:
    """A defence that no scenario takes would be left out in silence."""
    fitted = {name for name, cls in DEFENSES.items() if issubclass(cls, FittedDefense)}  # type: ignore[arg-type]
    assert set(DEFENSES) - fitted == {name for found in tried().values() for name in found}
    assert all(tried().values())


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_server_rebuilds_draws_of_a_simulated_client_alone(tmp_path: Path, streams: Streams, scenario: str) -> None:
    """In a simulation the procedure finds something, so that it says something where it finds nothing."""
    for randomness in ("seed", "secret"):
        grid = run(scenario, tmp_path / randomness, streams, randomness)
        begun, same = rebuilt(grid, streams)
        known = functools.reduce(set.union, begun.values())
        for name, pipeline in texts(scenario).items():
            drawing = draws(tried()[scenario][name])
            assert bool(grid.drawn[pipeline]) == drawing, name
            assert grid.begun[pipeline], name
            if randomness == "seed":
                assert begun[pipeline] == grid.begun[pipeline], name
                assert len(same[pipeline]) >= 2, name
                assert all(same[pipeline]), name
            else:
                assert not grid.begun[pipeline] & known, name
                assert not drawing or not all(same[pipeline]), name
    # Two pipelines of the deployed client never draw from one stream: else the one would undo the other.
    everything = [stream for pipeline in texts(scenario).values() for stream in grid.drawn[pipeline]]
    assert len(everything) == len(set(everything))

    # Neither the secret nor a nonce ever crossed the wire.
    wire = b"".join(sent + to_wire(reply).SerializeToString() for sent, reply in grid.log)
    (file,) = (tmp_path / "secret" / "secrets").glob("*.secret")
    digits = file.read_text().strip()
    notes = json.loads(str(grid.contexts[100].state["nonces"]["text"]))  # type: ignore[call-overload, index]
    assert len(notes) > len(texts(scenario))
    assert b"partition-id" not in wire
    assert pipeline_of(read(grid.log[-1][0])).encode() in wire  # what is there is found
    for hidden in [digits, *(note[-1] for note in notes)]:
        assert len(hidden) == 64
        assert hidden.encode() not in wire
        assert bytes.fromhex(hidden) not in wire


COMMON: dict[str, Any] = {
    "defenses": "", "num_clients": 2, "rounds": 1, "attack_rounds": "first", "train_limit": 80, "share_images": True,
}  # fmt: skip
ORDERS = "ServerPrediction(); FeatureInversion(permutation='oracle', iterations=1)"
REFUSING: list[tuple[Callable[..., Experiment], dict[str, Any], dict[str, Any], dict[str, str], str, set[str]]] = [
    (
        experiment, {"probe_attacks": "LabelInference()", "update_attacks": "", "labels": "known"},
        {"probes": True}, {"train.probe": "publish-labels", "query.audit": "audits"}, "", set(),
    ),
    (   # No picture of what a node holds: an attack on uploads makes some of what the server has itself.
        outsourced_experiment, {"model_attacks": ""},
        {"audits": True}, {"query.audit": "share-images"}, "AsUploaded()", {"reconstruction"},
    ),
    (
        split_experiment, {"smashed_attacks": ORDERS}, {"transmissions": -1, "audits": True},
        {"train.smash": "reveal-orders", "query.audit": "share-images"}, "ServerPrediction()", set(),
    ),
]  # fmt: skip
"""Settings, what nodes answer, for each message that they refuse the setting by which they would not; what is scored, and shown."""


def test_a_run_goes_on_where_nodes_refuse(tmp_path: Path) -> None:
    for make, changes, answers, refused, scored, pictures in REFUSING:
        folder = tmp_path / make.__name__
        settings = make(folder / "run", **changes, **COMMON)
        config = {at: {**answers, "secret-dir": str(folder / "secrets")} for at in range(2)}
        report = run_experiment(LocalGrid(2, randomness="secret", node_config=config), settings)
        rows = read_lines(folder / "run" / "rows.jsonl")
        assert not [row for row in rows if row["status"] == "failed"]
        told = [row for row in rows if row["status"] == "refused"]
        found = {(row["client"], row["message"].split(":")[0]): row["message"] for row in told}
        assert found.keys() == {(client, what) for client in range(2) for what in refused}
        for (_, what), message in found.items():
            assert f"its operator may allow it by {refused[what]} in the node's configuration" in message
            assert message in report.read_text(encoding="utf-8").replace("&#39;", "'")
        assert [row for row in rows if row["metric"] == "test-accuracy" and row["round"] == 1]
        assert {at["attack"] for at in rows if at["role"] in ("attack", "upper bound")} == set(filter(None, [scored]))
        assert {r["card"]["labels"] for r in rows if r["attack"]} <= {"unknown", "known", "uploaded with the images"}
        shown = {one["kind"] for one in read_lines(folder / "run" / "pictures" / "index.jsonl")}
        assert shown == pictures
