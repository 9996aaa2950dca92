"""What the trial's training of a client shows, read from torch's objects: answers that a reader of the app sees at once."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from simulations.external_app.check.report import TrainingFacts, settings_of
from simulations.external_app.check.trial.training import train_once
from tests.simulations.external_app.check.apps import small_app

CALL = 'load_data(own["partition-id"], own["num-partitions"], run["batch-size"])'
NODE = 'partition=context.node_config["partition-id"] partitions=context.node_config["num-partitions"]'
RUN: dict[str, Any] = {"local-epochs": 3, "batch-size": 8}


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that changes the small app, and has one of its clients train."""

    def train(*changes: tuple[str, str, str], run: Mapping[str, Any] = RUN, seconds: int = 60) -> TrainingFacts:
        for name in [one for one in sys.modules if one.partition(".")[0] == "small"]:
            del sys.modules[name]
        folder = small_app(tmp_path / str(len(list(tmp_path.iterdir()))), *changes)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            client, task = importlib.import_module("small.client"), importlib.import_module("small.task")
            content = {"arrays": ArrayRecord(task.Net().state_dict()), "config": ConfigRecord({"lr": 0.05})}
            message = Message(RecordDict({**content}), dst_node_id=1, message_type="train")
            return TrainingFacts(**train_once(client.app, message, run, 2, seconds))

    yield train
    for name in [one for one in sys.modules if one.partition(".")[0] == "small"]:
        del sys.modules[name]


def test_optimizer_passes_batches_loss_and_normalisation_are_seen(trained: Any) -> None:
    facts = trained()
    assert (facts.failed, facts.optimizer, facts.sgd, facts.private) == ("", "SGD", True, False)
    assert facts.settings == {
        "learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False, "local_epochs": 3, "batch_size": 8,
    }  # fmt: skip
    assert (facts.losses, facts.classes) == (["cross_entropy"], True)
    assert (facts.normalisation, facts.outside, facts.pairs) == ([(0.25,), (0.5,)], True, True)
    other = trained(
        ("task", "torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)", "torch.optim.Adam(net.parameters())")
    )
    assert (other.optimizer, other.sgd, other.settings["learning_rate"]) == ("Adam", False, 0.001)


def test_the_call_of_the_loader_is_written_in_terms_of_the_context(trained: Any) -> None:
    for call, expected in (
        (CALL, f'{NODE} size=context.run_config["batch-size"]'),
        ('load_data(*own.values(), run["batch-size"])', f'{NODE} size=context.run_config["batch-size"]'),
        ('load_data(*map(int, own.values()), int(run["batch-size"]))', f'{NODE} size=context.run_config["batch-size"]'),
        ("load_data(0, own['num-partitions'], 5)", f"{NODE} size=5"),
    ):
        loading = trained(("client", CALL, call)).loading
        assert " ".join(loading.pop("arguments")) == expected
        assert loading == {"function": "small.task:load_data", "parts": 2, "train": 0, "held_out": 1}
    unclear = trained(("client", CALL, 'load_data(0, 2, int(run["batch-size"]))'), run=RUN | {"other": 8})
    assert unclear.loading["arguments"] is None


def test_normalisations_augmentations_and_fields_are_seen(trained: Any) -> None:
    imported = "\nimport torch\nfrom torchvision.transforms import Normalize, RandomCrop\n"
    loop = "            criterion(net(images), labels)"
    for lines, expected in (
        ("T = Normalize((0.1,), (0.4,))", [((0.25,), (0.5,)), ((0.1,), (0.4,))]),
        ("T = RandomCrop(8)", [((0.25,), (0.5,))]),
    ):
        facts = trained(
            ("task", "\nimport torch\n", f"{imported}{lines}\n"),
            ("task", loop, f"            images = T(images)\n{loop}"),
        )
        assert [tuple(map(tuple, one)) for one in facts.normalisations] == expected
        assert facts.augmentations == (["RandomCrop"] if "Crop" in lines else [])
    items = "[{'img': images[at], 'class': at % 4, 'at': at} for at in range(12)]"
    taken = "for batch in loader:\n            images, labels = batch['img'], batch['class']"
    facts = trained(
        ("task", "TensorDataset(images[:12], torch.arange(12) % 4)", items),
        ("task", "for images, labels in loader:", taken),
    )
    assert (facts.image_key, facts.label_key, facts.pairs) == ("img", "class", False)


def test_what_failed_is_named_with_what_was_seen_before(trained: Any) -> None:
    facts = trained(
        ("task", "            optimizer.step()", "            optimizer.step()\n            raise OSError('disk')")
    )
    assert facts.failed == "OSError: disk"
    assert facts.settings["momentum"] == 0.9
    assert "local_epochs" not in facts.settings
    left = trained(("task", "            optimizer.step()", "            optimizer.step()\n            break"))
    assert (left.failed, "local_epochs" in left.settings) == ("", False)
    endless = trained(
        ("task", "    for _ in range(epochs):", "    while True:\n        pass\n    for _ in ():"), seconds=1
    )
    assert (endless.failed, endless.optimizer) == ("not done after 1 s", "")


FOUND: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {}, {"learning_rate": (None, False), "local_epochs": (None, False), "batch_size": (None, False)}),
    ({"lr": 0.2}, {}, {"learning_rate": (0.2, False)}),
    ({"eta": 0.3}, {}, {"learning_rate": (None, False)}),
    ({}, {"learning-rate": 0.4, "batch-size": 8}, {"learning_rate": (0.4, True), "batch_size": (8, True)}),
    ({"lr": 0.1}, {"learning-rate": 0.4, "local-epochs": 3}, {"learning_rate": (0.1, False), "local_epochs": (3, True)}),
]  # fmt: skip
"""The message, the run's configuration -> value, and whether from settings."""


def test_numbers_that_no_training_showed_are_those_that_the_audit_finds_and_others_are_to_be_filled_in() -> None:
    for message, run_config, expected in FOUND:
        found = {one.name: one for one in settings_of(message, run_config, TrainingFacts())}
        for name, values in expected.items():
            assert (found[name].value, found[name].from_settings, found[name].given) == (*values, values[0] is None)
        assert (found["momentum"].value, found["weight_decay"].value) == (None, None)
    assert "momentum" not in {one.name for one in settings_of({}, {}, TrainingFacts(optimizer="Adam"))}
