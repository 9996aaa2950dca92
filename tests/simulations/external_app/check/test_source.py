"""What is read of an app's source: small apps whose answers a reader sees at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.external_app.check.source.entries import read_builders, read_replies, read_start
from simulations.external_app.check.source.images import read_images
from simulations.external_app.check.source.loading import read_loading
from simulations.external_app.check.source.origins import Origin
from simulations.external_app.check.source.project import read_project
from simulations.external_app.check.source.training import SeenTraining, read_training
from simulations.settings.errors import ConfigError
from tests.simulations.external_app.check.apps import project_of, small_app

LOOP = "    for _ in range(epochs):\n        for images, labels in loader:\n"


def kind(origin: Origin | None) -> tuple[str, object] | None:
    return None if origin is None else (origin.kind, origin.value)


def training_of(folder: Path, *changes: tuple[str, str, str]) -> SeenTraining:
    return read_training(*project_of(folder, *changes))


def test_numbers_are_followed_through_calls_aliases_casts_and_pairs(tmp_path: Path) -> None:
    training = training_of(tmp_path)
    (optimizer,) = training.optimizers
    assert (optimizer.name, optimizer.where) == ("SGD", "task.py:25")
    assert kind(optimizer.arguments["lr"]) == ("message", "lr")
    assert optimizer.number("momentum") == 0.9
    assert optimizer.number("weight_decay") == 0.0
    assert kind(training.epochs) == ("run_config", "local-epochs")
    assert [kind(one) for one in training.batch_sizes] == [("run_config", "batch-size")], (
        "that of testing does not count"
    )
    assert [(one.text, one.plain) for one in training.losses] == [("nn.CrossEntropyLoss()", True)]
    assert not training.beyond
    assert not training.privacy


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("client", 'float(msg.content["config"]["lr"])', "0.3"), ("constant", 0.3)),
        (("client", 'float(msg.content["config"]["lr"])', 'run.get("rate", 1.0)'), ("run_config", "rate")),
        (("client", 'float(msg.content["config"]["lr"])', "RATE"), ("constant", 0.7)),
        (("client", 'float(msg.content["config"]["lr"])', "compute()"), ("unknown", None)),
        (("task", "lr=lr,", "lr=2e-3,"), ("constant", 0.002)),
    ],
)
def test_where_a_learning_rate_comes_from(
    tmp_path: Path, change: tuple[str, str, str], expected: tuple[str, object]
) -> None:
    constants = ("client", "app = ClientApp()", "RATE = 0.7\napp = ClientApp()")
    (optimizer,) = training_of(tmp_path, change, constants).optimizers
    assert kind(optimizer.arguments["lr"]) == expected


def test_calls_that_disagree_leave_a_number_unknown(tmp_path: Path) -> None:
    twice = (
        "client",
        "    train_fn(model, loader, run",
        "    train_fn(model, loader, 1, 0.1)\n    train_fn(model, loader, run",
    )
    training = training_of(tmp_path, twice)
    assert kind(training.optimizers[0].arguments["lr"]) == ("unknown", None)
    assert training.epochs is not None
    assert training.epochs.kind == "unknown"


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("    for _ in range(1, epochs + 1):\n        for images, labels in loader:\n", ("run_config", "local-epochs")),
        ("    for _ in range(5):\n        for images, labels in loader:\n", ("constant", 5)),
        ("    if True:\n        for images, labels in loader:\n", ("constant", 1)),
        ("    while epochs:\n        for images, labels in loader:\n", None),
    ],
)
def test_epochs_are_the_turns_around_the_batches(
    tmp_path: Path, loop: str, expected: tuple[str, object] | None
) -> None:
    assert kind(training_of(tmp_path, ("task", LOOP, loop)).epochs) == expected


def test_epochs_may_be_the_turns_of_a_caller(tmp_path: Path) -> None:
    once = ("task", LOOP, "    if True:\n        for images, labels in loader:\n")
    call = '    train_fn(model, loader, run["local-epochs"], float(msg.content["config"]["lr"]))'
    turns = ("client", call, f"    for _ in range(4):\n    {call}")
    assert kind(training_of(tmp_path, once, turns).epochs) == ("constant", 4)


def test_arguments_of_sgd_by_their_place_and_of_adam_by_name(tmp_path: Path) -> None:
    sgd, adam = (
        training_of(tmp_path / name, ("task", "SGD(net.parameters(), lr=lr, momentum=0.9)", text)).optimizers[0]
        for name, text in (
            ("sgd", "SGD(net.parameters(), 0.1, 0.8, 0.0, 0.0005, True)"),
            ("adam", "Adam(net.parameters(), 0.1, (0.9, 0.99), 1e-8, 0.3)"),
        )
    )
    assert {name: one.value for name, one in sgd.arguments.items()} == {
        "lr": 0.1, "momentum": 0.8, "weight_decay": 0.0005, "nesterov": True,
    }  # fmt: skip
    assert (adam.name, list(adam.arguments)) == ("Adam", ["lr"])


def test_what_a_probe_does_not_do_is_found(tmp_path: Path) -> None:
    text = "nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n            optimizer.step()"
    freeze = "optimizer = torch.optim.SGD"
    changes = (
        ("task", "            optimizer.step()", f"            {text}"),
        ("client", "    model = Net()", "    model, kept = Net(), context.state"),
        ("task", f"    {freeze}", f"    net.conv.requires_grad_(False)\n    engine = PrivacyEngine()\n    {freeze}"),
        ("task", "from torch import nn", "from opacus import PrivacyEngine\nfrom torch import nn"),
    )
    training = training_of(tmp_path, *changes)
    assert {one.split(" (")[0] for one in training.beyond} == {
        "clients keep values between rounds", "some layers may be frozen", "train clips gradients",
    }  # fmt: skip
    assert ["DP-SGD" in one for one in training.privacy] == [True]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))", ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))),
        ("Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))", ((0.5,), (0.25,))),
        ("Normalize(mean=[0.1307], std=[0.3081])", ((0.1307,), (0.3081,))),
        ("Normalize(*NUMBERS)", ((0.2,), (0.3,))),
        ("Normalize(MEAN, 0.5)", None),
    ],
)
def test_normalisations(tmp_path: Path, line: str, expected: tuple[tuple[float, ...], ...] | None) -> None:
    head = f"from torchvision.transforms import Normalize, RandomCrop\nNUMBERS = ((0.2,), (0.3,))\nT = [{line}, RandomCrop(8)]\n"
    project, origins = project_of(tmp_path, ("task", "\nimport torch\n", f"\nimport torch\n{head}"))
    images = read_images(project, origins, read_training(project, origins))
    assert images.augmentations == ("RandomCrop (task.py:5)",)
    assert images.pairs
    if expected is None:
        assert images.unreadable == ("task.py:5",)
    else:
        assert [(one.mean, one.std) for one in images.normalisations] == [expected]


def test_fields_of_batches_that_are_mappings(tmp_path: Path) -> None:
    body = "criterion(net(images), labels)"
    changes = (
        ("task", "for images, labels in loader", "for batch in loader"),
        ("task", body, 'criterion(net(batch["img"]), batch["fine_label"])'),
    )
    project, origins = project_of(tmp_path, *changes)
    images = read_images(project, origins, read_training(project, origins))
    assert (images.image_key, images.label_key, images.pairs) == ("img", "fine_label", False)


def test_the_apps_own_loader_is_called_with_the_context_alone(tmp_path: Path) -> None:
    loading = read_loading(*project_of(tmp_path))
    assert loading is not None
    assert (loading.function, loading.names, loading.train, loading.held_out) == (
        "small.task:load_data",
        ("train", "test"),
        0,
        1,
    )
    assert loading.call == (
        "load_data(context.node_config['partition-id'], context.node_config['num-partitions'], context.run_config['batch-size'])"
    )


def test_a_loader_that_needs_the_message_has_no_call(tmp_path: Path) -> None:
    loading = read_loading(*project_of(tmp_path, ("client", 'run["batch-size"])', 'msg.content["config"]["size"])')))
    assert loading is not None
    assert loading.call == ""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("model.state_dict()", "weights"),
        ("{k: v - old[k] for k, v in model.state_dict().items()}", "differences"),
        ("unwrapped(model)", "weights"),
        ("gather(model)", "unseen"),
    ],
)
def test_what_replies_hold(tmp_path: Path, given: str, expected: str) -> None:
    helper = "def unwrapped(one):\n    return one.state_dict()\n\n\n@app.train()"
    changes = (
        ("client", "ArrayRecord(model.state_dict())", f"ArrayRecord({given})"),
        ("client", "@app.train()", helper),
    )
    replies = read_replies(project_of(tmp_path, *changes)[0])
    assert (replies.arrays, replies.counts_examples, replies.counts_batches) == (expected, True, "")


def test_batches_counted_as_examples_are_seen(tmp_path: Path) -> None:
    replies = read_replies(project_of(tmp_path, ("client", "len(loader.dataset)", "len(loader)"))[0])
    assert replies.counts_batches == "len(loader) at client.py:18"


def test_the_call_that_builds_the_model(tmp_path: Path) -> None:
    changes = (
        ("server", "Net().state_dict()", 'Net(config["batch-size"], None, width=rate).to("cpu").state_dict()'),
        ("server", "    config = context.run_config\n", "    config, rate = context.run_config, 2\n"),
    )
    (builder,) = read_builders(*project_of(tmp_path, *changes))
    assert (builder.target, builder.known, builder.text) == ("small.task:Net", True, "Net(8, None, width=2)")


@pytest.mark.parametrize("part", ["head", "blocks[-1]", "head.to('cpu')"])
def test_a_part_of_a_model_is_found_by_the_model(part: str, tmp_path: Path) -> None:
    changes = [
        ("client", "    model.load_state_dict(", f"    model.{part}.load_state_dict("),
        ("client", "ArrayRecord(model.state_dict())", f"ArrayRecord(model.{part}.state_dict())"),
        ("server", "ArrayRecord(Net().state_dict())", f"ArrayRecord(Net().{part}.state_dict())"),
    ]
    (builder,) = read_builders(*project_of(tmp_path, *changes))
    assert (builder.target, builder.known) == ("small.task:Net", True)


def test_whole_models_come_before_the_owners_of_parts(tmp_path: Path) -> None:
    changes = [
        ("client", "    model.load_state_dict(", "    Trainer(Net()).model.load_state_dict("),
        ("server", "import Net\n", "import Net, Trainer\n"),
        ("server", "ArrayRecord(Net().state_dict())", "ArrayRecord(Trainer(Net()).model.state_dict())"),
    ]
    whole, *parts = read_builders(*project_of(tmp_path, *changes))
    assert (whole.target, whole.known) == ("small.task:Net", True)
    assert {part.target for part in parts} == {"small.task:Trainer", "small.client:Trainer"}


def test_a_checkpoint_is_no_model(tmp_path: Path) -> None:
    changes = [
        ("server", "import Net\n", "import Net, load\n"),
        ("server", "ArrayRecord(Net().state_dict())", "ArrayRecord(load('w.pt')['model'].state_dict())"),
    ]
    (builder,) = read_builders(*project_of(tmp_path, *changes))
    assert builder.target == "small.task:Net"


def test_where_the_rounds_start(tmp_path: Path) -> None:
    start = read_start(project_of(tmp_path)[0])
    assert start is not None
    assert (start.strategy, start.where, start.context, start.indent) == ("strategy", "server.py:15", "context", 4)


def test_missing_packages_are_those_that_an_import_needs(tmp_path: Path) -> None:
    head = "\nimport nowhere_to_be_found, small_too\ntry:\n    import optional_thing\nexcept ImportError:\n    pass\nimport torch\n"
    project, _ = project_of(tmp_path, ("task", "\nimport torch\n", head))
    (tmp_path / "small_too.py").write_text("")
    assert project.missing() == ["nowhere-to-be-found"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"\[tool.flwr.app.components\] serverapp is None; allowed: \"package.module:object\""),
        ('[tool.flwr.app.components]\nserverapp = "a.b:c"\nclientapp = "a"\n', "clientapp is 'a'"),
        ("[tool", "not valid TOML"),
    ],
)
def test_folders_that_hold_no_app_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_project(tmp_path)


def test_a_folder_without_pyproject_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"which has no pyproject\.toml"):
        read_project(tmp_path)
    with pytest.raises(ConfigError, match="allowed: the folder of a Flower app"):
        read_project(tmp_path / "none")


def test_a_file_that_cannot_be_parsed_is_named(tmp_path: Path) -> None:
    project = read_project(small_app(tmp_path, ("task", "class Net", "clas Net")))
    assert project.unreadable
    assert project.unreadable[0].startswith("small/task.py: SyntaxError")
