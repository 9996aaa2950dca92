"""What CuriousFedAvg computes, against a plain weighted mean of what really crossed the wire."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from numpy.typing import NDArray

from simulations.experiment.experiment import Experiment
from simulations.report.analysis.finding import findings_of
from simulations.report.studies.rows import read_rows
from simulations.report.studies.study import split
from simulations.server_app import run_experiment
from strategies.federated.audit import _statistics
from tests.local_grid import LocalGrid

Arrays = dict[str, NDArray[np.float64]]

ROUNDS = 3


class Wire:
    """Every set of weights that was sent, and every update that came back, in the order of the messages."""

    def __init__(self, lost: int | None = None) -> None:
        self.lost = lost
        self.sent: list[tuple[str, Arrays]] = []
        self.updates: dict[int, list[tuple[int, Arrays]]] = defaultdict(list)
        self._round = 0

    def __call__(self, partition: int, request: Message, reply: Message) -> Message | None:
        kind = request.metadata.message_type
        if kind in ("train", "evaluate") and partition == 0:
            self.sent.append((kind, arrays_of(request)))
            self._round += kind == "train"
        if kind == "train":
            if partition == self.lost:
                return None
            self.updates[self._round].append((int(reply.content["metrics"]["num-examples"]), arrays_of(reply)))  # type: ignore[index]
        return reply


def arrays_of(message: Message) -> Arrays:
    return {name: array.numpy().astype(np.float64) for name, array in message.content["arrays"].items()}  # type: ignore[union-attr]


def run(out: Path, wire: Wire, **changes: object) -> None:
    settings: dict[str, Any] = {
        "output_dir": str(out), "dataset": "mnist-5k", "model": "lenet", "train_limit": 150, "test_limit": 40,
        "num_clients": 4, "partition": "dirichlet(alpha=0.5)", "rounds": ROUNDS, "local_epochs": 1, "batch_size": 8,
        "defenses": "", "attack_rounds": "", "attack_workers": 0, "auxiliary_fraction": 0.0,
    }  # fmt: skip
    run_experiment(LocalGrid(4, wire), Experiment.of(**{**settings, **changes}))


def expected(before: Arrays, updates: list[tuple[int, Arrays]]) -> Arrays:
    """w + sum_i n_i u_i / sum_i n_i, in float64 (McMahan et al., AISTATS 2017, Algorithm 1)."""
    total = sum(count for count, _ in updates)
    return {name: w + sum(count * update[name] for count, update in updates) / total for name, w in before.items()}


def test_the_global_model_moves_by_the_mean_update_weighted_by_examples(tmp_path: Path) -> None:
    """Round after round, when one client's update is lost: by the mean of the others."""
    wire = Wire(lost=2)
    run(tmp_path / "run", wire)
    assert {len(updates) for updates in wire.updates.values()} == {3}
    sizes = [count for count, _ in wire.updates[1]]
    assert max(sizes) >= 2 * min(sizes), "clients of much the same size could not tell a weighted from a plain mean"
    kinds = [kind for kind, _ in wire.sent]
    assert kinds == ["evaluate", *["train", "evaluate"] * ROUNDS]
    for at in range(1, ROUNDS + 1):
        trained, evaluated = wire.sent[2 * at - 1][1], wire.sent[2 * at][1]
        wanted = expected(trained, wire.updates[at])
        for name, weight in evaluated.items():
            moved = np.abs(wanted[name] - trained[name]).max()
            assert moved > 0, name
            # float32 weights of order one, added once; half of the update would be off by half of ``moved``.
            np.testing.assert_allclose(weight, wanted[name], rtol=0, atol=1e-6 + 1e-3 * moved, err_msg=name)
    for at in range(1, ROUNDS):
        evaluated, trained = wire.sent[2 * at][1], wire.sent[2 * at + 1][1]
        assert all(np.array_equal(evaluated[name], trained[name]) for name in evaluated)


@pytest.mark.long
def test_a_running_variance_is_never_pushed_below_zero(tmp_path: Path) -> None:
    """Noise larger than the statistics: all else moves by the mean update, variances stop at zero."""
    wire = Wire()
    noise = "GaussianNoise(std=3.0, per='update')"
    run(tmp_path / "run", wire, model="resnet20", width=1, norm="batch", rounds=1, defenses=noise)
    # Two pipelines of one round: none first, then the noise.
    *_, (_, trained), (_, evaluated) = wire.sent
    updates = wire.updates[max(wire.updates)]
    wanted = expected(trained, updates)
    variances = [name for name in wanted if name.endswith("running_var")]
    assert any((wanted[name] < 0).any() for name in variances)
    for name, weight in evaluated.items():
        bound = np.maximum(wanted[name], 0) if name in variances else wanted[name]
        np.testing.assert_allclose(weight, bound, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("labels", ["known", "unknown"])
def test_attacks_that_are_told_labels_are_upper_bounds_and_lead_nothing(tmp_path: Path, labels: str) -> None:
    run(
        tmp_path / "run", Wire(), rounds=1, attack_rounds="first", probe_attacks="InvertingGradients(iterations=2)",
        update_attacks="", labels=labels, probe_targets=1, adaptive=False,
    )  # fmt: skip
    rows, _ = read_rows(tmp_path / "run" / "rows.jsonl")
    scored = [row for row in rows if row.is_attack and row.metric == "psnr"]
    assert scored
    assert {row.card.upper_bound for row in scored} == {"knows the labels" if labels == "known" else ""}
    (study,) = split(rows, [""])
    (line,) = findings_of(study, {})
    assert (line.strongest is None) == (labels == "known")


def test_a_card_says_what_happened_to_batch_norm_statistics() -> None:
    step, update = "GaussianNoise(std=0.01, per='step')", "GaussianNoise(std=0.01, per='update')"
    for defenses, mode, told in (
        ("", "train", "sent as they are"),
        ("VisualMixer()", "train", "sent as they are"),
        (step, "train", "sent, untouched by the defences, which act on gradients"),
        (update, "train", "sent, under the update defences"),
        (f"{step} | Clip(max_norm=1.0, per='update')", "train", "sent, under the update defences"),
        ("Clip() | SiloBN()", "train", "kept by the client"),
        (update, "eval", "sent, and not moved by the client, in eval mode"),
    ):
        experiment = Experiment.of(defenses=defenses, model="resnet20", norm="batch")
        assert _statistics(experiment.plan(experiment.pipelines[-1]).at(1), mode == "train") == told, defenses
