"""``check_app`` on whole apps, in its child process: a small app, the examples, and apps with habits of their own."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from torch.nn import Identity
from typer.testing import CliRunner

from simulations.cli import app as command_line
from simulations.external_app.check import AppReport, check_app
from simulations.external_app.check.checking import MOST_NODES
from simulations.external_app.check.printed import printed
from simulations.runtime.local_grid import LocalGrid
from simulations.settings.errors import ConfigError
from strategies.external_app.settings import AuditSettings
from tests.lines import read_lines
from tests.simulations.external_app.check.apps import small_app


def test_a_small_app_is_understood_and_the_text_says_how_to_audit_it(tmp_path: Path) -> None:
    report = check_app(small_app(tmp_path / "app"))
    assert (report.refused, report.exit_code) == ((), 0)
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
    text = printed(report)
    assert f'flwr run {tmp_path / "app"} --stream --federation-config "num-supernodes=2"' in text
    assert f"Read {tmp_path / 'app'}-audit/report.html then." in text
    # The attacks that the text names are the defaults of an audit, of which one alone attacks updates of training.
    assert "Attack one-step probes with InvertingGradients and LabelInference, for images and classes." in text
    assert "Attack the clients' own updates with LabelInference alone, which infers classes and no images." in text
    offered = next(one for one in report.can if "own updates" in one).split("update_attacks=")[1].split('"')[1]
    assert AuditSettings(Identity, update_attacks=offered).attacks_on_updates()


def test_more_nodes_than_memory_holds_are_refused_before_the_app_starts(tmp_path: Path) -> None:
    """Not by a kernel that ends the child process, which looks like a fault of the app."""
    app = small_app(tmp_path)
    shown = CliRunner().invoke(command_line, ["check-app", str(app), "--nodes", str(MOST_NODES + 1)])
    assert (shown.exit_code, "1<=x<=10000" in shown.output) == (2, True), shown.output
    for given, told in (
        ({"nodes": MOST_NODES + 1}, "nodes is 10001; allowed: a whole number from 1 to 10000"),
        ({"nodes": 0}, "nodes is 0"),
        ({"seconds": 0.0}, "seconds is 0"),
    ):
        with pytest.raises(ConfigError, match=told):
            check_app(app, **given)


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


@pytest.mark.long
def test_an_app_becomes_ready_by_the_lines_and_is_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_modules: None
) -> None:
    """Nothing but the printed lines is added; then its clients' labels are inferred from probes of their own images."""
    app = small_app(tmp_path / "app")
    added(app, check_app(app))
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
    values = dict(again.run_config)
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


Change = tuple[str, str, str]
SECURED = "from flwr.client.mod import secaggplus_mod\nfrom small.task import Net,"
FROM_SOURCE: list[tuple[str, Change]] = [
    ("client_fn (client.py:8): an audit needs @app.train()",
     ("client", "app = ClientApp()", "app = ClientApp(client_fn=print)\nraise SystemExit")),
    ("client.py uses secure aggregation (secaggplus_mod)", ("client", "from small.task import Net,", SECURED)),
    ("trains a model of text (AutoModelForCausalLM)",
     ("task", "\nimport torch\n", "\nimport torch\nfrom transformers import AutoModelForCausalLM\n")),
]  # fmt: skip
"""What is refused, and the change of a small app; none of these apps is run."""


def test_what_no_audit_can_do_is_refused_from_the_source(tmp_path: Path) -> None:
    for at, (reason, change) in enumerate(FROM_SOURCE):
        report = check_app(small_app(tmp_path / str(at), change))
        assert reason in report.refused[0]
        assert report.exit_code == 2
        assert printed(report).count(reason) == 1
    (reason,) = check_app(small_app(tmp_path / "sk", task="import sklearn\nNet = load_data = train = None\n")).refused
    assert reason.startswith("the app does not use PyTorch (it imports sklearn)")
