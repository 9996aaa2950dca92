"""``check_app`` on whole apps, in its child process: the examples, small apps, and apps that cannot be audited."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from torch.nn import Identity
from typer.testing import CliRunner

from simulations.cli import app as command_line
from simulations.external_app.check import AppReport, check_app
from simulations.external_app.check.checking import MOST_NODES
from simulations.external_app.check.decide import abilities, limits
from simulations.external_app.check.printed import printed
from simulations.external_app.check.source.project import read_project
from simulations.external_app.check.source.reading import read_source
from simulations.runtime.local_grid import LocalGrid
from simulations.settings.errors import ConfigError
from strategies.external_app.settings import AuditSettings
from tests.examples.copies import EXAMPLES
from tests.lines import read_lines
from tests.simulations.external_app.check.apps import small_app


def added(folder: Path, report: AppReport) -> None:
    """Puts the lines into the files, as a person would; those that name a line of a file come before those that move it."""
    for one in sorted(report.additions, key=lambda one: one.where.startswith("at the")):
        path = folder / one.file
        text = path.read_text()
        if one.where == "at the end":
            text = f"{text}\n\n{one.text}\n"
        elif one.where == "at the top":
            text = f"{one.text}\n{text}"
        elif one.file == "pyproject.toml":
            text = text.replace("dependencies = [", f"dependencies = [\n{one.text}", 1)
        else:
            lines = text.splitlines()
            lines.insert(int(one.where.rpartition(":")[2].rstrip(")")) - 1, one.text)
            text = "\n".join(lines) + "\n"
        path.write_text(text)


@pytest.fixture
def clean_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "small":
            del sys.modules[name]


def test_an_app_becomes_ready_by_the_lines_and_is_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_modules: None
) -> None:
    """Nothing but the printed lines is added; then its clients' labels are inferred from probes of their own images."""
    app = small_app(tmp_path / "app")
    report = check_app(app)
    assert report.refused == ()
    assert report.exit_code == 0
    assert (report.server.strategy, report.server.rounds, report.server.asked) == (("FedAvg",), 2, 2)
    assert report.server.message == {"lr": 0.05, "server-round": 1}
    assert (report.server.kind_of_arrays, report.server.statistics) == ("state_dict", ())
    assert (report.model.factory, report.model.by) == ("small.task:Net", "names")
    assert (report.nodes_asked, report.images_of_node) == (2, 8)
    assert len(report.to_decide) == 1
    server = next(one.text for one in report.additions if "audited(" in one.text)
    assert "momentum=0.9" in server
    assert "settings=context.run_config" in server
    assert "learning_rate" not in server, "the message of training holds it"
    added(app, report)
    again = check_app(app)
    assert (again.additions, again.to_decide, again.exit_code) == ((), (), 0)
    assert again.client.answers
    assert again.server.audited
    assert printed(again).endswith("Ready: the app answers audits, and its server is audited.")

    path = app / "small" / "server.py"
    attacks = 'settings=context.run_config, probe_attacks="LabelInference()", update_attacks="", workers=0'
    path.write_text(path.read_text().replace("settings=context.run_config", attacks))
    monkeypatch.syspath_prepend(str(app))
    client, task, main = (importlib.import_module(f"small.{name}") for name in ("client", "task", "server"))
    values = dict(report.run_config)
    grid = LocalGrid(2, app=client.app, run_config=values)
    context = next(iter(grid.contexts.values()))
    trained, held_out = client.pixels(context)
    originals = (torch.arange(12 * 64).view(12, 1, 8, 8) % 256) / 255
    assert torch.equal(torch.stack([image for image, _ in trained]), originals)
    assert [int(label) for _, label in held_out] == [0, 1, 2, 3]
    assert task.Net is client.Net
    main.app(grid, Context(1, 1, {}, RecordDict(), values))
    rows = read_lines(tmp_path / "app-audit" / "rows.jsonl")
    found = [row for row in rows if row["metric"] == "label-accuracy" and row["attack"].startswith("LabelInference")]
    assert [row["value"] for row in found] == [1.0] * len(found)
    assert found


@pytest.mark.parametrize(
    ("name", "answers"), [("quickstart_pytorch", True), ("local_dp_pytorch", True), ("resnet_pytorch", False)]
)
def test_the_examples_are_understood_whole(name: str, answers: bool) -> None:
    report = check_app(EXAMPLES / name)
    assert report.refused == ()
    assert report.client.answers is report.server.audited is answers
    assert report.model.factory.endswith(".task:Net")
    assert report.model.by == "names"
    known = {one.name: one.value for one in report.settings}
    rate = 0.01 if name == "resnet_pytorch" else 0.1
    assert known == {
        "learning_rate": rate, "local_epochs": 1, "batch_size": 32, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False,
    }  # fmt: skip
    assert len(report.server.statistics) == (40 if name == "resnet_pytorch" else 0)
    mods = "LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-05)"
    assert report.client.train_mods == ((mods,) if name == "local_dp_pytorch" else ())
    assert any("too small for epsilon" in one for one in report.to_decide) is (name == "local_dp_pytorch")
    assert report.source.normalisation[0].startswith("mean [0.5], std [0.5]")
    assert bool(report.additions) is not answers
    assert report.wrote == ()


def test_a_server_without_network_data_or_manners(tmp_path: Path) -> None:
    """It loads data, connects, writes a file and waits for more nodes than there are; what it sends is seen all the same."""
    body = """    import socket
    from pathlib import Path
    from datasets import load_dataset
    from torch.utils.data import DataLoader
    rows = DataLoader(load_dataset("of/nobody", split="test"), shuffle=True)
    try:
        socket.create_connection(("127.0.0.1", 9), 1)
    except OSError as error:
        Path("connected.txt").write_text(str(error))
    strategy = FedAvg(min_available_nodes=6, fraction_evaluate=0.0)
"""
    folder = small_app(
        tmp_path, ("server", "    strategy = FedAvg(fraction_evaluate=0.0)\n", body),
        ("server", "from flwr.app", "import datasets\nfrom flwr.app"),
    )  # fmt: skip
    report = check_app(folder)
    assert report.server.failed == ""
    assert report.server.message == {"lr": 0.05, "server-round": 1}
    assert "without network" in (folder / "connected.txt").read_text()
    assert report.wrote == ("connected.txt",)
    assert any("waits for 6 nodes, and the federation has 2" in one for one in report.to_decide)
    assert any("left connected.txt in its folder" in one for one in report.to_decide)


def test_the_command_prints_text_or_a_line_of_json(tmp_path: Path) -> None:
    adam = ("task", "SGD(net.parameters(), lr=lr, momentum=0.9)", "Adam(net.parameters(), lr=0.002)")
    mod = ("client", "@app.train()", "@app.train(mods=[fixedclipping_mod])")
    imported = (
        "client",
        "from flwr.clientapp import ClientApp",
        "from flwr.clientapp import ClientApp\nfrom flwr.clientapp.mod import fixedclipping_mod",
    )
    app = small_app(
        tmp_path / "app",
        adam,
        mod,
        imported,
        config="num-server-rounds = 2\nlearning-rate = 0.05\nlocal-epochs = 3\nbatch-size = 8\n",
    )
    plain = CliRunner().invoke(command_line, ["check-app", str(app), "--nodes", "5"])
    assert plain.exit_code == 0, plain.output
    for text in (
        "fixedclipping_mod (of train)",
        "Adam (task.py:25)",
        "up to 20 images in an attacked round: 4 from each of 5 nodes with so many. A verdict needs 16.",
        "The clients train with Adam (task.py:25): probes and attacks assume SGD",
        "learning_rate: an audit takes 0.05 (`lr` of the message of training); the source has 0.002 (task.py:25)",
        "To audit the app, add these lines, settle the points under To decide, and run the app.",
    ):
        assert text in plain.output
    lines = CliRunner().invoke(command_line, ["check-app", str(app), "--nodes", "5", "--json"])
    values = json.loads(lines.output)
    assert len(lines.output.splitlines()) == 1
    assert (values["exit_code"], values["images"], values["arrays"]) == (0, 20, "state_dict")
    assert values["client"]["train_mods"] == ["fixedclipping_mod"]
    assert [one[0] for one in values["additions"]] == [
        "small/client.py",
        "small/server.py",
        "small/server.py",
    ]


def test_random_transforms_and_unknown_models_leave_the_lines_open(tmp_path: Path) -> None:
    head = "\nimport torch\nfrom torchvision.transforms import RandomCrop\nCROP = RandomCrop(8, padding=1)\n"
    app = small_app(
        tmp_path, ("task", "\nimport torch\n", head), ("task", "def __init__(self)", "def __init__(self, width)"),
        ("task", "nn.Conv2d(1, 2, 3)", "nn.Conv2d(1, 2, width)"), ("server", "Net()", "Net(width())"),
        ("server", "\n\n@app.main", "\n\ndef width():\n    return 3\n\n\n@app.main"), ("client", "model = Net()", "model = Net(3)"),
    )  # fmt: skip
    report = check_app(app)
    assert report.refused == ()
    assert (report.model.factory, report.model.call) == ("", "Net(3)"), "as the client builds it"
    texts = "\n".join(one.text for one in report.additions)
    assert "def audited_model():\n    return Net(3)" in texts
    assert "model=audited_model" in texts
    assert "# Leave out the random transforms: RandomCrop." in texts
    assert any("gets images after random transforms" in one for one in report.to_decide)
    assert printed(report).endswith("Ready once these lines are added and filled in, as listed under To decide.")


def test_lines_of_fedveil_write_nothing_while_an_app_is_checked(tmp_path: Path) -> None:
    """An earlier audit's folder is no reason to refuse, and no recording begins."""
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "rows.jsonl").write_text("")
    lines = f"""    from simulations.audited import audited
    from strategies.recording import RecordingStrategy
    strategy = RecordingStrategy(strategy, {str(tmp_path / "recording")!r})
    strategy = audited(strategy, {str(tmp_path / "audit")!r}, Net, momentum=0.9)
    strategy.start("""
    report = check_app(small_app(tmp_path / "app", ("server", "    strategy.start(", lines)))
    assert (report.server.failed, report.server.audited, report.server.asked) == ("", True, 2)
    assert report.server.strategy == ("RecordingStrategy", "FedAvg")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["app", "audit"]
    assert [one.file for one in report.additions] == ["small/client.py"]


def test_a_wrong_setting_of_audited_is_told(tmp_path: Path) -> None:
    lines = """    from simulations.audited import audited
    strategy = audited(strategy, "/nowhere", Net, momentum=-3.0)
    strategy.start("""
    report = check_app(small_app(tmp_path, ("server", "    strategy.start(", lines)))
    assert "its main raised ValueError: momentum is -3.0; allowed: a number" in report.server.failed


def test_replies_of_differences_are_not_promised_to_be_attacked(tmp_path: Path) -> None:
    given = "{k: v - msg.content['arrays'].to_torch_state_dict()[k] for k, v in model.state_dict().items()}"
    report = check_app(small_app(tmp_path, ("client", "ArrayRecord(model.state_dict())", f"ArrayRecord({given})")))
    assert not any("own updates" in one for one in report.can)
    assert any("differences of weights (client.py:19)" in one for one in report.to_decide)


def test_the_text_ends_with_how_to_run_the_app(tmp_path: Path) -> None:
    text = printed(check_app(small_app(tmp_path), nodes=4))
    assert "\n  export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1\n" in text
    assert f'flwr run {tmp_path} --stream --federation-config "num-supernodes=4"' in text
    assert text.count("pkill") == text.count('pkill -u "$USER" -f flower-superlink') == 1, (
        "no federation of other people"
    )
    assert "this ends every simulation of yours:" in text
    ready = "To audit the app, add these lines, settle the points under To decide, and run the app. Then open report.html in "
    assert text.endswith(f"{ready}the results folder.")
    assert '"fedveil"' not in text, "flwr would look for it in a package registry"
    results = f"{tmp_path}-audit"
    assert f"Read {results}/report.html then. A second run writes beside it, to {results}-2, and says so." in text


def test_more_nodes_than_memory_holds_are_refused_before_the_app_starts(tmp_path: Path) -> None:
    """Not by a kernel that ends the child process, which looks like a fault of the app."""
    app = small_app(tmp_path)
    shown = CliRunner().invoke(command_line, ["check-app", str(app), "--nodes", str(MOST_NODES + 1)])
    assert (shown.exit_code, "1<=x<=10000" in shown.output) == (2, True), shown.output
    with pytest.raises(ConfigError, match="nodes is 1000000000; allowed: a whole number from 1 to 10000"):
        check_app(app, nodes=10**9)


@pytest.mark.parametrize("page", ["docs/your_own_app.md"])
def test_documentation_ends_no_simulation_of_other_people(page: str) -> None:
    text = (EXAMPLES.parent / page).read_text(encoding="utf-8")
    assert text.count("pkill") == text.count('pkill -u "$USER" -f flower-superlink') > 0


def test_the_text_states_exactly_which_attacks_run(tmp_path: Path) -> None:
    """The defaults of an audit, of which one alone attacks updates of training."""
    settings = AuditSettings(Identity)
    assert [type(one).__name__ for one in settings.attacks_on_probes()] == ["InvertingGradients", "LabelInference"]
    assert [type(one).__name__ for one in settings.attacks_on_updates()] == ["LabelInference"]
    known = check_app(small_app(tmp_path / "known"))
    text = printed(known)
    assert "Attack one-step probes with InvertingGradients and LabelInference, for images and classes." in text
    assert "Clients score each guess against the null baseline, the score of a guess made without the update." in text
    own = "Attack the clients' own updates with LabelInference alone, which infers classes and no images."
    assert own in text
    assert "Attack in round 1 alone" in text
    offered = next(one for one in known.can if "own updates" in one).split("update_attacks=")[1].split('"')[1]
    assert AuditSettings(Identity, update_attacks=offered).attacks_on_updates()
    without = replace(known, settings=tuple(one for one in known.settings if one.name != "batch_size"))
    source = read_source(read_project(tmp_path / "known"))
    assert not any("own updates" in one for one in abilities(without, source))
    assert "The clients' own updates are not attacked" in next(iter(limits(without, source)))
    assert not any("are not attacked" in one for one in known.cannot)
