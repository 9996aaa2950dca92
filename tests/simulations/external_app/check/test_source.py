"""What is read of an app's source, and the numbers of training that follow: small apps whose answers a reader sees at once."""

from pathlib import Path
from typing import Any

from simulations.external_app.check.settings import settings_of
from simulations.external_app.check.source.entries import read_replies
from simulations.external_app.check.source.images import read_images
from simulations.external_app.check.source.origins import Origin
from simulations.external_app.check.source.training import Optimizer, SeenTraining, read_training
from tests.simulations.external_app.check.apps import project_of

RATE = 'float(msg.content["config"]["lr"])'


def kind(origin: Origin | None) -> tuple[str, object] | None:
    return None if origin is None else (origin.kind, origin.value)


def test_numbers_are_followed_through_calls_aliases_casts_and_pairs(tmp_path: Path) -> None:
    for at, (changes, rate, epochs) in enumerate((
        ((), ("message", "lr"), ("run_config", "local-epochs")),
        ((("client", RATE, "0.3"),), ("constant", 0.3), ("run_config", "local-epochs")),
        ((("client", RATE, 'run.get("rate", 1.0)'),), ("run_config", "rate"), ("run_config", "local-epochs")),
        ((("task", "range(epochs)", "range(1, epochs + 1)"),), ("message", "lr"), ("run_config", "local-epochs")),
        ((("task", "range(epochs)", "range(5)"),), ("message", "lr"), ("constant", 5)),
    )):  # fmt: skip
        training = read_training(*project_of(tmp_path / str(at), *changes))
        (optimizer,) = training.optimizers
        assert (optimizer.name, optimizer.where, optimizer.number("momentum")) == ("SGD", "task.py:25", 0.9)
        assert kind(optimizer.arguments["lr"]) == rate
        assert kind(training.epochs) == epochs
        sizes = [kind(one) for one in training.batch_sizes]
        assert sizes == [("run_config", "batch-size")], "that of testing does not count"
        assert not training.beyond


def test_normalisations_are_read_and_differences_seen(tmp_path: Path) -> None:
    for at, (line, expected) in enumerate((
        ("Normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))", ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))),
        ("Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))", ((0.5,), (0.25,))),
    )):  # fmt: skip
        imported = "\nimport torch\nfrom torchvision.transforms import Normalize\n"
        project, origins = project_of(tmp_path / str(at), ("task", "\nimport torch\n", f"{imported}T = [{line}]\n"))
        images = read_images(project, origins, read_training(project, origins))
        assert [(one.mean, one.std) for one in images.normalisations] == [expected]
    differences = "ArrayRecord({k: v - old[k] for k, v in model.state_dict().items()})"
    changes = (
        ("client", "ArrayRecord(model.state_dict())", differences),
        ("client", "len(loader.dataset)", "len(loader)"),
    )
    replies = read_replies(project_of(tmp_path / "differences", *changes)[0])
    assert (replies.arrays, replies.counts_batches) == ("differences", "len(loader) at client.py:18")


def constant(value: Any) -> Origin:
    return Origin("constant", value, repr(value), "task.py:1")


def training(rate: Origin | None, **others: Origin) -> SeenTraining:
    given = {**({"lr": rate} if rate else {}), **others}
    optimizer = Optimizer("SGD", "task.py:1", given)
    return SeenTraining(optimizers=(optimizer,), epochs=constant(2), batch_sizes=(constant(16),))


RATES: list[tuple[Origin | None, dict[str, Any], dict[str, Any], tuple[Any, ...]]] = [
    (constant(0.1), {}, {}, (0.1, True, False, "")),
    (None, {}, {}, (0.001, True, False, "")),  # the default of torch.optim.SGD
    (Origin("message", "lr", "", ""), {"lr": 0.2}, {}, (0.2, False, False, "")),
    (Origin("message", "eta", "", ""), {"eta": 0.3}, {}, (0.3, True, False, "")),
    (Origin("run_config", "learning-rate", "", ""), {}, {"learning-rate": 0.4}, (0.4, False, True, "")),
    (Origin("unknown", None, "f()", "a.py:2"), {}, {}, (None, False, False, "")),
    (constant(0.1), {}, {"learning-rate": 0.4}, (0.4, False, True, "0.1 (task.py:1)")),
    (constant(0.1), {"lr": 0.1}, {"learning-rate": 0.4}, (0.1, False, False, "")),
]
"""Where the source has it, the message, the run's configuration -> value, told or not, from settings, what contradicts it."""


def test_numbers_of_training_are_found_where_the_app_has_them() -> None:
    for rate, message, run_config, expected in RATES:
        found = {one.name: one for one in settings_of(training(rate), message, run_config)}
        one = found["learning_rate"]
        assert (one.value, one.argument, one.from_settings, one.conflict) == expected
        assert (found["local_epochs"].value, found["batch_size"].value) == (2, 16)
    found = settings_of(training(constant(0.1), momentum=constant(0.9), nesterov=constant(False)), {}, {})
    told = {one.name: one.value for one in found if one.argument}
    assert told == {"learning_rate": 0.1, "local_epochs": 2, "batch_size": 16, "momentum": 0.9}
