"""Python in the pages runs as it stands there. What another test runs is named; nothing is left out without a reason."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import ray  # noqa: F401 (Flower imports it in a run, which changes sys.path for good)
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from opacus import PrivacyEngine
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import simulations
from clients.data.datasets import load_dataset
from clients.data.images import to_float
from clients.external_app.canaries import NodeCanaries
from clients.models.classifiers import build_model
from simulations.cli import app as command_line
from simulations.runtime.local_grid import LocalGrid
from strategies.external_app.strategy import AuditingStrategy
from strategies.recording.files import read_recording
from tests.common.documents import ROOT, blocks, pages
from tests.common.test_documented_commands import commands
from tests.lines import read_lines
from tests.simulations.external_app.check.apps import small_app

HERE = {
    "README.md": 1, "docs/attack_a_recorded_update.md": 2, "docs/your_own_app.md": 7, "docs/your_own_model.md": 1,
    "docs/how_to/run_an_audit.md": 3, "docs/how_to/invert_a_quickstart.md": 2,
}  # fmt: skip
"""Page -> its python blocks, which the tests below run."""
ELSEWHERE = {
    "docs/adding_a_defense.md": (2, "tests/common/test_adding.py"),
    "docs/adding_a_metric.md": (2, "tests/common/test_adding.py"),
    "docs/adding_an_attack.md": (3, "tests/common/test_adding.py"),
    "docs/own_server.md": (1, "tests/strategies/federated/test_start.py"),
    "docs/tutorial.md": (3, "tests/examples/test_tutorial.py"),
}
"""Page -> its python blocks, and the test that runs them."""


def test_every_block_is_run_by_some_test() -> None:
    found = {page: count for page in pages() if (count := len(blocks(page, "python")))}
    assert found == {**HERE, **{page: count for page, (count, _) in ELSEWHERE.items()}}
    for page, (_, test) in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text()
    for page in pages():  # a block that calls itself text could hide code from these tests
        assert not [text for text in blocks(page, "text") if "import " in text or "def " in text]


def test_the_readme_audits_an_app(tmp_path: Path) -> None:
    """The reader has an app that trains, its model, its images and its strategy."""
    app = ClientApp()
    app.train()(lambda message, context: message)
    names: dict[str, Any] = {"app": app, "Net": SmallNet, "pixels": lambda context: [], "strategy": FedAvg()}
    (code,) = (one.replace("/absolute/folder", str(tmp_path)) for one in blocks("README.md", "python"))
    exec(code, names)
    assert isinstance(names["strategy"], AuditingStrategy)
    with pytest.raises(ValueError, match="answers"):
        exec(code, names)  # for the app answers audits already


@pytest.mark.long
def test_a_recorded_update_is_attacked_from_the_command_and_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one step of SGD at a rate of 0.1 on one digit, normalised as the pages say."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = build_model("lenet", num_classes=10, input_shape=(1, 28, 28))
    image, label = digits()[0]

    def train(model: nn.Module) -> None:
        F.cross_entropy(model((image[None] - 0.1307) / 0.3081), torch.tensor([label])).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    page = "docs/attack_a_recorded_update.md"
    record, attack = blocks(page, "python")
    assert record.count("# ... train(model) ...") == 1
    names: dict[str, Any] = {"model": model, "train": train}
    exec(record.replace("# ... train(model) ...", "train(model)"), names)
    (arguments,) = [one for one in commands(page) if one[:2] == ["attack", "local.safetensors"]]
    done = CliRunner().invoke(command_line, arguments)
    assert done.exit_code == 0, done.output
    assert load_file(tmp_path / "leak" / "guesses.safetensors")["LabelInference/labels"].tolist() == [label]
    names["after"] = load_file("local.safetensors")
    model.load_state_dict(names["before"])
    names["true_images"] = image[None]
    exec(attack, names)
    assert names["labels"].classes.tolist() == [label]
    assert names["reconstruction"].images.shape == (1, 1, 28, 28)


@pytest.mark.slow
def test_the_how_to_audits_from_python_and_from_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small, script, _ = blocks("docs/how_to/run_an_audit.md", "python")
    names: dict[str, Any] = {}
    exec(small, names)
    assert names["found"].directory == tmp_path / "small"
    assert names["found"].report.is_file()
    assert set(names["found"].conclusions) == {"", "Clip(max_norm=1.0, per='update')"}
    quick = partial(simulations.audit, probe_attacks="InvertingGradients(iterations=20)")
    monkeypatch.setattr(simulations, "audit", quick)
    names = {"__name__": "__main__"}  # as a script, which has the guard that processes of attacks need
    exec(script, names)
    assert names["found"].report.is_file()
    assert set(names["found"].conclusions) == {"", "Blur(std=2.0)"}


def test_the_how_to_protects_a_batch() -> None:
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    names: dict[str, Any] = {"images": images, "targets": torch.eye(4)}
    exec(blocks("docs/how_to/run_an_audit.md", "python")[2], names)
    assert (names["protected"].images != images).float().mean() > 0.5


@pytest.mark.long
def test_a_model_as_the_page_writes_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which the folder of the file is added
    (tmp_path / "nets.py").write_text(blocks("docs/your_own_model.md", "python")[0])
    words = ["run", "--dry-run", "-s", "model=nets.py:Net", "-s", "dataset=mnist-5k", "-s", "defenses="]
    done = CliRunner().invoke(command_line, words)
    assert done.exit_code == 0, done.output


def test_the_two_lines_of_canaries_act_in_a_step_of_opacus() -> None:
    block = next(one for one in blocks("docs/your_own_app.md", "python") if "with_canaries" in one)
    before, after = block.split("# here the app calls make_private")
    examples = list(zip(torch.rand(8, 1, 8, 8), range(8), strict=True))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    context = Context(1, 1, {"partition-id": 0, "randomness": "seed"}, RecordDict(), {})
    names: dict[str, Any] = {"context": context, "train_loader": DataLoader(examples, batch_size=10**6)}
    exec(before, names)
    of = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "data_loader": names["train_loader"]}
    private = PrivacyEngine().make_private(module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **of)
    names |= dict(zip(("model", "optimizer", "train_loader"), private, strict=True))
    exec(f"#{after}", names)
    for shown, classes in names["train_loader"]:
        F.cross_entropy(names["model"](shown), classes).backward()
        names["optimizer"].step()
    kept = NodeCanaries.kept(context)
    assert kept is not None
    assert (kept.steps, kept.met) == (1, int(kept.coins(context).sum()))


CONFIG = {"lr": 0.1, "local-epochs": 1, "batch-size": 8}


class SmallNet(nn.Sequential):
    """Logits (B, 10) of digits (B, 1, 28, 28)."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


def digits() -> list[tuple[Tensor, int]]:
    train = load_dataset("mnist-5k").train
    return list(zip(to_float(train.images[:8]), train.labels[:8].tolist(), strict=True))


def names_of_an_app() -> dict[str, Any]:
    """What the pages take for granted, with a model that is drawn alike in each test."""
    torch.manual_seed(0)
    context = Context(1, 1, {}, RecordDict(), CONFIG)
    return {"app": ClientApp(), "Net": SmallNet, "pixels": lambda context: digits(), "context": context}


def one_step(msg: Message, images: Callable[[], tuple[Tensor, Tensor]]) -> Message:
    """A client's answer: one step of SGD on a batch, which is made after the model has come."""
    model = SmallNet()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    shown, labels = images()
    F.cross_entropy(model(shown), labels).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


def run_rounds(names: dict[str, Any], start: dict[str, Tensor], rounds: int) -> None:
    names["strategy"].start(
        grid=LocalGrid(2, app=names["app"], run_config=CONFIG),
        initial_arrays=ArrayRecord(start),
        train_config=ConfigRecord({"lr": 0.1}),
        num_rounds=rounds,
    )


@pytest.mark.long
def test_an_app_is_recorded_protected_and_audited_as_its_page_writes(tmp_path: Path) -> None:
    """All blocks but that of the check in one app: the recording holds what the mod does to updates, and the rows name the mod."""
    names = names_of_an_app()
    _, answer, audit, _, protect, record, keep = (
        one.replace("/absolute/folder", str(tmp_path)) for one in blocks("docs/your_own_app.md", "python")
    )
    exec(protect, names)

    @names["app"].train(mods=[names["protect"]])
    def train(msg: Message, context: Context) -> Message:
        def batch() -> tuple[Tensor, Tensor]:
            loader = DataLoader([((image - 0.5) / 0.5, label) for image, label in digits()], 8)
            here: dict[str, Any] = {"trainloader": loader, "context": context, "msg": msg}
            exec(keep, here)
            ((images, labels),) = here["trainloader"]
            return images, labels

        return one_step(msg, batch)

    for block in (answer, record, audit):
        exec(block, names)
    start = SmallNet().state_dict()
    run_rounds(names, start, rounds=1)
    replies = read_recording(tmp_path / "recording")
    assert len(replies) == 2
    for reply in replies:
        kept = load_file(tmp_path / "originals" / f"round-0001-node-{reply.node}.safetensors")["images"]
        torch.testing.assert_close(kept, torch.stack([image for image, _ in digits()]))
        moved = torch.cat([(torch.from_numpy(one) - start[name]).flatten() for name, one in reply.arrays().items()])
        assert moved.norm() < 1 + 4 * 0.01 * len(moved) ** 0.5  # clipped to 1, then noise of 0.01 on every number
    rows = read_lines(tmp_path / "audit" / "rows.jsonl")
    mods = "Clip(max_norm=1.0, per='update') | GaussianNoise(std=0.01, per='update')"
    assert {row["defense"] for row in rows} == {mods}
    assert (tmp_path / "audit" / "report.html").is_file()


@pytest.mark.long
def test_a_quickstart_is_attacked_as_its_page_writes(tmp_path: Path) -> None:
    """With one iteration and two rounds: each attack that the page names gives scores of updates."""
    names = names_of_an_app() | {"strategy": FedAvg(fraction_evaluate=0.0)}
    server, answer = blocks("docs/how_to/invert_a_quickstart.md", "python")
    server = server.replace("/absolute/folder", str(tmp_path)).replace("iterations=300", "iterations=1")

    @names["app"].train()
    def train(msg: Message, context: Context) -> Message:
        images, labels = zip(*digits(), strict=True)
        return one_step(msg, lambda: (torch.stack(images) * 2 - 1, torch.tensor(labels)))

    for block in (answer, server.replace("rounds=(1, 5)", "rounds=(1, 2)")):
        exec(block, names)
    run_rounds(names, SmallNet().state_dict(), rounds=2)
    rows = [row for row in read_lines(tmp_path / "audit" / "rows.jsonl") if row["role"] == "attack"]
    updates = [row for row in rows if row["card"]["observation"] == "training update"]
    attacks = ("InvertingGradients", "SurrogateMatching", "LabelInference")
    assert {(row["attack"].split("(")[0], row["round"]) for row in updates} == set(product(attacks, (1, 2)))


@pytest.mark.long
def test_an_app_is_checked_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small_app(tmp_path / "my_app")
    check, *_ = blocks("docs/your_own_app.md", "python")
    exec(check, {})
    assert capsys.readouterr().out.splitlines()[:2] == ["small.task:Net", "0"]
