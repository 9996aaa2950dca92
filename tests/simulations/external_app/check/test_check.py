"""``check_app`` on whole apps, in its child process: a small app, the examples, and apps with habits of their own."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from simulations.external_app.check import AppReport, check_app
from simulations.external_app.check.checking import MOST_NODES
from simulations.external_app.check.report import printed
from simulations.runtime.local_grid import LocalGrid
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.simulations.commands import refused
from tests.simulations.external_app.check.apps import small_app


def test_a_small_app_is_understood_and_the_text_says_how_to_audit_it(tmp_path: Path) -> None:
    report = check_app(small_app(tmp_path / "app"))
    assert (report.refused, report.exit_code) == ((), 0)
    assert (report.server.strategy, report.server.rounds, report.server.asked) == (["FedAvg"], 2, 2)
    assert report.server.message == {"lr": 0.05, "server-round": 1}
    assert (report.model.factory, report.model.images) == ("small.task:Net", "(1, 8, 8)")
    assert [one.split(" ")[:2] for one in report.to_decide] == [["Fill", "in"], ["mean", "and"], ["Each", "image"]]
    client, server = (
        next(one for one in report.additions if call in one.text) for call in ("answer_audits(", " audited(")
    )
    assert (client.file, client.where) == ("small/client.py", "at the end")
    assert client.text.endswith("answer_audits(app, model=Net, data=pixels, mean=..., std=...)")
    assert (server.file, server.where) == ("small/server.py", "before `strategy.start(` (server.py:15)")
    call = " ".join(server.text.split()).replace("( ", "(").replace(", )", ")")
    assert call == f'strategy = audited(strategy, "{tmp_path / "app"}-audit", Net)', "no number is a person's word"
    text = printed(report)
    assert f'flwr run {tmp_path / "app"} --stream --federation-config "num-supernodes=2"' in text
    assert f"Read {tmp_path / 'app'}-audit/report.html then." in text


def test_more_nodes_than_memory_holds_are_refused_before_the_app_starts(tmp_path: Path) -> None:
    """Not by a kernel that ends the child process, which looks like a fault of the app."""
    app = small_app(tmp_path)
    assert "1<=x<=10000" in refused("check-app", app, "--nodes", MOST_NODES + 1)
    for given, told in (
        ({"nodes": MOST_NODES + 1}, "nodes is 10001; allowed: a whole number from 1 to 10000"),
        ({"nodes": 0}, "nodes is 0"),
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


OWN = """    loaders = load_data(context.node_config["partition-id"], context.node_config["num-partitions"], 8)
    return tuple([(((x * 0.5 + 0.25) * 255).round() / 255, y) for x, y in loader.dataset] for loader in loaders)
"""
"""What a person writes into ``pixels`` of a small app."""


@pytest.mark.long
def test_an_app_is_ready_by_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_modules: None) -> None:
    """The printed lines are added and completed; then labels are inferred from probes of own images."""
    app = small_app(tmp_path / "app")
    added(app, check_app(app))
    (reason,) = check_app(app).refused
    assert "ValueError: answer_audits: mean is Ellipsis; allowed: a number" in reason
    completed = app / "small" / "client.py"
    text = completed.read_text().replace("mean=..., std=...", "mean=0.25, std=0.5")
    assert text.count("    ...\n") == 1
    completed.write_text(text.replace("    ...\n", OWN))
    path = app / "small" / "server.py"
    again = check_app(app)
    assert (again.additions, again.to_decide, again.exit_code) == ((), (), 0)
    assert again.client.answers
    assert again.server.audited
    assert printed(again).endswith("Ready: the app answers audits, and its server is audited.")

    attacks = 'Net, probe_attacks="LabelInference()", update_attacks="", workers=0)'
    path.write_text(re.sub(r"Net,?\s*\)$", attacks, path.read_text(), count=1, flags=re.MULTILINE))
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


def test_what_no_audit_can_do_is_refused_from_the_imports(tmp_path: Path) -> None:
    report = check_app(small_app(tmp_path / "secured", ("client", "from small.task import Net,", SECURED)))
    reason = "the app uses secure aggregation (secaggplus_mod)"
    assert (report.exit_code, printed(report).count(reason)) == (2, 1)
    assert reason in report.refused[0]
    (reason,) = check_app(small_app(tmp_path / "sk", task="import sklearn\nNet = load_data = train = None\n")).refused
    assert reason.startswith("the app does not use PyTorch (it imports sklearn)")


SENDS = "    from flwr.app import RecordDict\n    {}grid.push_messages([grid.create_message(RecordDict(), {!r}, 1)])\n    dict("
FROM_TRIAL: list[tuple[str, Change]] = [
    ("older interface, client_fn: an audit needs @app.train()",
     ("client", "app = ClientApp()\n\n\n@app.train()\n", "app = ClientApp(client_fn=lambda context: None)\n\n\n")),
    ("the ServerApp is of the older interface", ("server", "@app.main()\n", "")),
    ("the first round of the ServerApp was not seen, as its main raised ValueError: no table here",
     ("server", "    strategy = FedAvg", "    raise ValueError('no table here')\n    strategy = FedAvg")),
    ("the first round of the ServerApp was not seen, as its main ended", ("server", "    strategy.start(", "    dict(")),
    ("sends its messages of training itself: audited wraps a strategy",
     ("server", "    strategy.start(", SENDS.format("", "train"))),
    ("after its message 'query.embed', which no node answers here",
     ("server", "    strategy.start(", SENDS.format("while True: ", "query.embed"))),
    ("the model answers one image with shape (4,)", ("task", ".flatten(1))", ".flatten(1)).squeeze()")),
    ("the first round of the ServerApp was not seen, as configure_train raised",
     ("server", "    strategy.start(", "    strategy.configure_train = None\n    strategy.start(")),
    ("the model ends in one output", ("task", "nn.Linear(2 * 36, 4)", "nn.Linear(2 * 36, 1)")),
    ("the ClientApp cannot be imported: ModuleNotFoundError: No module named 'no_such_one' (client.py:",
     ("client", "app = ClientApp()", "import no_such_one")),
    ("the ClientApp cannot be imported: SyntaxError", ("client", "app = ClientApp()", "app = = ClientApp()")),
]  # fmt: skip
"""What is refused after a trial, and the change of a small app."""


@pytest.mark.long
def test_an_app_whose_first_round_is_not_seen_or_that_no_audit_fits_is_never_ready(tmp_path: Path) -> None:
    for at, (reason, change) in enumerate(FROM_TRIAL):
        report = check_app(small_app(tmp_path / str(at), change))
        assert any(reason in one for one in report.refused), report.refused
        assert report.exit_code == 2
        assert "Ready" not in printed(report)
        assert [one.where for one in report.additions][-2:-1] == ["at the top"], reason


def test_mods_of_an_app_that_answers_audits_are_those_before_it_was_wrapped() -> None:
    pytest.importorskip("mlxtend", reason="mlxtend is not installed: uv sync --group dev")
    report = check_app(Path(__file__).parents[4] / "examples" / "local_dp_pytorch")
    (mod,) = report.client.train_mods
    assert mod == "LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-05)"
