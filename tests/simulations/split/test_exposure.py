"""What an attack on smashed data sees is what the run has sent by then, image by image; budgets count the same transmissions."""

import json
from collections import Counter
from dataclasses import replace
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any

import pytest
import torch

from attacks.smashed.tokens.decoder import FeatureAveraging
from clients.split.plan import SplitPasses
from clients.task.task import Task
from clients.wire.records import tensors_of
from defenses.smashed.feature_noise import FeatureDP
from simulations.experiment.experiment import Experiment
from strategies.split.audit import as_sent, most_transmissions, window
from tests.clients.split.test_training import client
from tests.simulations.short_runs import Wire, rows_of
from tests.simulations.split.test_run import split_experiment

CHEAP = FeatureAveraging(iterations=3, width=16, depth=1, heads=2, num_images=8)
AVERAGING, BEYOND = repr(CHEAP), repr(replace(CHEAP, transmissions=5, beyond_run=True))
PRIVATE = FeatureDP(clip=1.0, noise_multiplier=1.0)


def task_of(settings: Experiment, **changes: Any) -> Task:
    return settings.plan().at(0).but(**changes)


def cards(rows: list[dict[str, Any]], attack: str) -> dict[int, dict[str, Any]]:
    """Round -> threat card of an attack on the undefended run."""
    mine = [r for r in rows if (r["attack"], r["metric"], r["reference"]) == (attack, "psnr", "original")]
    return {row["round"]: row["card"] for row in mine}


def sent_by(wire: Wire, until: int, partition: int, pipeline: str = "") -> Counter[int]:
    """Example -> how often it crossed the wire in training, as anyone can count who reads all messages of the rounds."""
    found: Counter[int] = Counter()
    for at, request, reply in wire.of("train.step"):
        task = json.loads(request.content["config"]["task"])
        if at == partition and task["plan"]["pipeline"] == pipeline and task["round"] <= until:
            for rows in tensors_of(reply, "examples").values():
                found.update(rows.tolist())
    return found


def images_sent_by(wire: Wire, until: int, partition: int, pipeline: str) -> Counter[int]:
    """Test example -> how often it crossed the wire."""
    found: Counter[int] = Counter()
    for at, request, reply in wire.of("evaluate.smash"):
        config = request.content["config"]
        task = json.loads(config["task"])
        if at == partition and task["plan"]["pipeline"] == pipeline and task["round"] <= until:
            found.update(range(config["first"], config["first"] + len(tensors_of(reply, "features")["0"])))
    return found


@pytest.mark.long
def test_an_attack_sees_an_image_as_often_as_the_run_has_sent_it(tmp_path: Path) -> None:
    wire = Wire()
    settings = split_experiment(
        tmp_path / "run", local_epochs=2, attack_rounds="first,last", smashed_attacks=f"{AVERAGING}; {BEYOND}"
    )
    rows = rows_of(settings, wire)
    assert not [row for row in rows if row["status"] == "failed"]
    # It asks for 60: after one round of two passes an image was sent twice, after two rounds four times.
    assert {at: card["transmissions_used"] for at, card in cards(rows, AVERAGING).items()} == {1: 2, 2: 4}
    assert {at: card["transmissions"] for at, card in cards(rows, AVERAGING).items()} == {1: 2, 2: 4}
    assert set(sent_by(wire, 1, 0).values()) == {2}
    assert not any("upper_bound" in card for card in cards(rows, AVERAGING).values())
    # More is possible, and is an upper bound by the one flag that reports read.
    assert {at: card["transmissions_used"] for at, card in cards(rows, BEYOND).items()} == {1: 5, 2: 5}
    assert {at: card["transmissions"] for at, card in cards(rows, BEYOND).items()} == {1: 2, 2: 4}
    assert all("more transmissions" in card["upper_bound"] for card in cards(rows, BEYOND).values())


def test_the_client_counts_what_its_messages_hold() -> None:
    """45 examples in batches of 8: six batches a pass; 41 leave one over, which waits for another pass."""
    for (steps, epochs), num_train in product([(0, 2), (1, 1), (4, 1), (7, 1)], (45, 41)):
        changes = {"local_steps": steps, "local_epochs": epochs, "rounds": 4}
        rounds = []
        for at in range(1, 5):
            one = client(num_train=num_train, round=at, **changes)
            sent = torch.cat([one.batches._examples(number) for number in range(len(one.batches))])
            rounds.append(torch.bincount(sent, minlength=num_train))
        for first, last in combinations_with_replacement(range(1, 5), 2):
            counted = client(num_train=num_train, round=4, **changes).batches.transmissions(first, last)
            assert torch.equal(counted, sum(rounds[first - 1 : last], torch.zeros_like(counted)))
            most = SplitPasses(client(num_train=num_train, **changes).task, num_train).transmissions(last, first)
            assert int(counted.max()) <= most <= int(counted.max()) + 1
        assert not client(num_train=num_train, round=4, **changes).batches.transmissions(5, 4).any()


def test_an_image_that_was_sent_less_often_shows_its_own_transmissions_again() -> None:
    values = torch.arange(4 * 3).view(4, 3)
    kept = as_sent(values, 3, torch.tensor([3, 2]))
    assert kept[:, 0].tolist() == [0, 3, 6]
    assert kept[:, 1].tolist() == [1, 4, 1]
    # What came along is as it was sent.
    assert kept[:, 2].tolist() == [2, 5, 8]
    assert as_sent(values, 2, torch.tensor([0]))[:, 0].tolist() == [0, 0]
    kept[:] = -1
    assert values.min() == 0


def test_the_rounds_whose_transmissions_belong_to_the_attacked_client_half(tmp_path: Path) -> None:
    for at, changes, expected in (
        # Training images in rounds 1 to 3 of 4, and in the model after the last.
        (3, {}, (1, 3)),
        (5, {}, (1, 4)),
        # A trained client half has these weights in this round alone; those after the last send nothing.
        (3, {"train_edge": True}, (3, 3)),
        (5, {"train_edge": True}, (5, 4)),
        # Test images are sent in the evaluations behind rounds 0, 1, ...
        (3, {"auxiliary_data": "private"}, (0, 3)),
        (5, {"auxiliary_data": "private"}, (0, 4)),
        (3, {"auxiliary_data": "private", "train_edge": True}, (2, 2)),
        (5, {"auxiliary_data": "private", "train_edge": True}, (4, 4)),
    ):
        task = task_of(split_experiment(tmp_path, rounds=4, local_epochs=2), round=at, **changes)
        assert window(task) == expected, (at, changes)
        passes = 1 if "auxiliary_data" in changes else 2
        assert most_transmissions(task, 48) == max(1, passes * (expected[1] - expected[0] + 1)), (at, changes)


def budget(rows: list[dict[str, Any]], metric: str) -> dict[int, float]:
    return {row["round"]: row["value"] for row in rows if row["metric"] == metric and row["defense"] == repr(PRIVATE)}


def test_epsilon_counts_what_was_sent_of_the_image_that_was_sent_most(tmp_path: Path) -> None:
    wire, rounds = Wire(), range(1, 4)
    settings = split_experiment(
        tmp_path / "run", rounds=3, local_steps=1, defenses=repr(PRIVATE), smashed_attacks="", train_limit=80, test_limit=8
    )  # fmt: skip
    spent = budget(rows_of(settings, wire), "epsilon")
    most = [max(max(sent_by(wire, at, p, repr(PRIVATE)).values()) for p in (0, 1)) for at in rounds]
    assert most == [1, 1, 2]
    # Test images are people too, and here they are sent more often: once behind every round, round 0 included.
    tested = [max(max(images_sent_by(wire, at, p, repr(PRIVATE)).values()) for p in (0, 1)) for at in rounds]
    assert tested == [2, 3, 4]
    assert list(spent.values()) == pytest.approx([PRIVATE.epsilon(max(c)) for c in zip(most, tested, strict=True)])


@pytest.mark.long
def test_epsilon_counts_training_images_where_sent_more_often_and_what_audits_send_apart(tmp_path: Path) -> None:
    def spends(name: str, *metrics: str, **changes: Any) -> list[Any]:
        rows = rows_of(split_experiment(tmp_path / name, defenses=repr(PRIVATE), **changes))
        return [budget(rows, metric) for metric in metrics] + [cards(rows, AVERAGING)]

    def epsilons(counts: dict[int, int]) -> Any:
        return pytest.approx({at: PRIVATE.epsilon(count) for at, count in counts.items()})

    # With labels at the client the server cannot count, and the budget is the same.
    for labels in ("server", "client"):
        trained, _ = spends(labels, "epsilon", local_epochs=3, smashed_attacks="", labels=labels)
        assert trained == epsilons({1: 3, 2: 6})
    audited = {"smashed_attacks": AVERAGING, "attack_rounds": "last"}
    trained, audit, _ = spends("audit", "epsilon", "epsilon-with-probes", probe_targets=2, **audited)
    # Two audit batches of two transmissions each, in the second round; an example may be in both.
    assert (trained, audit) == (epsilons({1: 2, 2: 3}), epsilons({2: 2 + 4}))
    trained, audit, found = spends("test", "epsilon", "epsilon-with-probes", auxiliary_data="private", **audited)
    # An audit batch of three transmissions; test images go on top of the test images' own count.
    assert (trained, audit) == (epsilons({1: 2, 2: 3}), epsilons({2: 3 + 3}))
    # Test images went over the wire in the evaluations behind rounds 0, 1 and 2.
    assert {card["transmissions_used"] for card in found.values()} == {3}
