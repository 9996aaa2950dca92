"""Python on the pages runs as it stands there, and their commands and settings are ones that fedveil has."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest
import ray  # noqa: F401 (Flower imports it in a run, which changes sys.path for good)
import torch
import typer
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
from clients.wire.schema import fields_of
from simulations.cli import _pair
from simulations.cli import app as command_line
from simulations.console.command_line import read_toml
from simulations.experiment.experiment import Experiment, all_settings
from simulations.external_app.recorded.settings import AttackSettings
from simulations.run.in_process import Audited
from simulations.runtime.local_grid import LocalGrid
from simulations.search.settings import Search
from simulations.settings.presets import chosen
from strategies.external_app.strategy import AuditingStrategy
from strategies.recording.files import read_recording
from tests.common.documents import ROOT, blocks, pages
from tests.lines import read_lines
from tests.simulations.external_app.check.apps import small_app

HERE = {
    "README.md": 1, "docs/attack_a_recording.md": 4, "docs/your_own_app.md": 5, "docs/your_own_model.md": 1,
    "docs/how_to/run_an_audit.md": 3, "docs/how_to/invert_a_quickstart.md": 1,
}  # fmt: skip
"""Page -> its python blocks, which the tests below run."""
ELSEWHERE = {
    "docs/adding_a_defense.md": (2, "tests/common/test_adding.py"),
    "docs/adding_a_metric.md": (2, "tests/common/test_adding.py"),
    "docs/adding_an_attack.md": (2, "tests/common/test_adding.py"),
    "docs/own_server.md": (1, "tests/strategies/federated/test_curious.py"),
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
def test_a_recorded_update_is_attacked_by_command_and_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one step of SGD at a rate of 0.1 on one digit, normalised as the pages say."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = build_model("lenet", num_classes=10, input_shape=(1, 28, 28))
    image, label = digits()[0]

    def train(model: nn.Module) -> None:
        F.cross_entropy(model((image[None] - 0.1307) / 0.3081), torch.tensor([label])).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    page = "docs/attack_a_recording.md"
    *_, record, attack = blocks(page, "python")
    assert record.count("# ... train(model) ...") == 1
    names: dict[str, Any] = {"model": model, "train": train}
    exec(record.replace("# ... train(model) ...", "train(model)"), names)
    (arguments,) = [one for one in commands(page) if one[:2] == ["attack", "local.safetensors"]]
    done = CliRunner().invoke(command_line, arguments)
    assert done.exit_code == 0, done.output
    assert load_file(tmp_path / "leak" / "guesses" / "round-0001-client-0.safetensors")[
        "LabelInference/labels"
    ].tolist() == [label]
    names["after"] = load_file("local.safetensors")
    model.load_state_dict(names["before"])
    names["true_images"] = image[None]
    exec(attack, names)
    assert names["labels"].classes.tolist() == [label]
    assert names["reconstruction"].images.shape == (1, 1, 28, 28)


def test_the_how_to_audits_with_settings_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Experiment] = []

    def audit(out: str = "runs", **settings: Any) -> Any:
        given.append(Experiment.of(output_dir=str(Path(out).resolve()), **settings))
        return Mock(spec=Audited, conclusions={"": "a sentence"}, rows=[])

    monkeypatch.setattr(simulations, "audit", audit)
    for block in blocks("docs/how_to/run_an_audit.md", "python")[:2]:
        exec(block, {"__name__": "__main__"})  # as a script, which has the guard that processes of attacks need
    assert [one.defenses for one in given] == ["Clip(max_norm=1.0, per='update')", "Blur(std=2.0)"]


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


@pytest.mark.long
def test_an_app_is_recorded_protected_and_audited_as_its_pages_write(tmp_path: Path) -> None:
    """The recording holds what the mod does to updates; rows name the mod and the attacks of the page on quickstarts."""
    torch.manual_seed(0)
    context = Context(1, 1, {}, RecordDict(), CONFIG)
    names: dict[str, Any] = {
        "app": ClientApp(), "Net": SmallNet, "pixels": lambda context: digits(), "context": context,
    }  # fmt: skip
    _, answer, audit, _, protect, record, keep, *_ = (
        one.replace("/absolute/folder", str(tmp_path))
        for page in ("docs/your_own_app.md", "docs/attack_a_recording.md")
        for one in blocks(page, "python")
    )
    (attacking,) = blocks("docs/how_to/invert_a_quickstart.md", "python")
    exec(audit.replace("/audit", "/unused"), names | {"strategy": FedAvg()})
    exec(protect, names)

    @names["app"].train(mods=[names["protect"]])
    def train(msg: Message, context: Context) -> Message:
        """One step of SGD on a batch, which is made after the model has come."""
        model = SmallNet()
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        loader = DataLoader([((image - 0.5) / 0.5, label) for image, label in digits()], 8)
        here: dict[str, Any] = {"trainloader": loader, "context": context, "msg": msg}
        exec(keep, here)
        ((images, labels),) = here["trainloader"]
        F.cross_entropy(model(images), labels).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        metrics = MetricRecord({"num-examples": len(labels)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)

    for old, new in (("/absolute/folder", str(tmp_path)), ("iterations=300", "iterations=1"), ("(1, 5)", "(1,)")):
        assert old in attacking
        attacking = attacking.replace(old, new)
    for block in (answer, record, attacking):
        exec(block, names)
    start = SmallNet().state_dict()
    grid, configuration = LocalGrid(2, app=names["app"], run_config=CONFIG), ConfigRecord({"lr": 0.1})
    names["strategy"].start(grid=grid, initial_arrays=ArrayRecord(start), train_config=configuration, num_rounds=1)
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
    updates = [one for one in rows if one["role"] == "attack" and one["card"]["observation"] == "training update"]
    assert {one["attack"].split("(")[0] for one in updates} == {
        "InvertingGradients",
        "SurrogateMatching",
        "LabelInference",
    }
    assert (tmp_path / "audit" / "report.html").is_file()


@pytest.mark.long
def test_an_app_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    small_app(tmp_path / "my_app")
    check, *_ = blocks("docs/your_own_app.md", "python")
    exec(check, {})
    assert capsys.readouterr().out.splitlines()[:2] == ["small.task:Net", "0"]


OWN = re.compile(r"\.py:|\.json|folder|my_package|hf:|stripes|configs/split_table3")
"""What a reader brings, or installs."""
OWN_SETTINGS = {"attack": AttackSettings, "search": Search}
COMMANDS = typer.main.get_command(command_line).commands  # type: ignore[attr-defined]


def commands(page: str) -> list[list[str]]:
    """Arguments of every ``fedveil`` in the page's blocks for a shell."""
    found = []
    for block in blocks(page, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while "fedveil" in words:
                words = words[words.index("fedveil") + 1 :]
                end = next((at for at, word in enumerate(words) if word in ("&&", "|", ";")), len(words))
                found.append(words[:end])
    return found


def test_commands_on_the_pages_are_ones_that_there_are() -> None:
    """Parsed as typer parses them; nothing is run."""
    for words in (one for page in pages() for one in commands(page)):
        name, *arguments = words
        context = COMMANDS[name].make_context(name, arguments)
        for config in re.findall(r"simulations/configs/\w+\.toml", " ".join(arguments)):
            assert (ROOT / config).is_file(), words
        known = fields_of(OWN_SETTINGS[name]) if name in OWN_SETTINGS else all_settings()
        for text in context.params.get("setting") or ():
            key, equals, _ = text.partition("=")
            assert (equals, key in known) == ("=", True), words
    with pytest.raises(click.UsageError):
        COMMANDS["run"].make_context("run", ["--presett", "quick"])


def test_the_help_of_every_command_ends_with_an_example_that_it_takes() -> None:
    for name, command in COMMANDS.items():
        first, program, shown, *arguments = shlex.split(command.epilog or "")
        assert (first, program, shown) == ("Example:", "fedveil", name)
        command.make_context(name, arguments)
        assert not [one.name for one in command.params if not getattr(one, "help", "")], name


def test_settings_on_the_pages_have_values_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the configuration that the command names; without those that name files or packages of the reader's."""
    monkeypatch.chdir(ROOT)
    tried = 0
    for page in pages():
        for name, *arguments in commands(page):
            if name != "run" or OWN.search(" ".join(arguments)):
                continue
            given = COMMANDS[name].make_context(name, arguments).params
            if given["resume"] is None:
                file = chosen(Path(given["config"]) if given["config"] else None, given["preset"], given["size"])
                values = (read_toml(file, given["size"]) if file else {}) | dict(map(_pair, given["setting"] or ()))
                Experiment.from_mapping({**values, "output-dir": "/nowhere"})
                tried += 1
    assert tried >= 10
