"""Apps that cannot be audited or checked, and folders and arguments that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulations.cli import app as command_line
from simulations.external_app.check import check_app
from simulations.external_app.check.printed import printed
from simulations.settings.errors import ConfigError
from tests.simulations.external_app.check.apps import small_app


@pytest.mark.parametrize(
    ("file", "before", "after", "reason"),
    [
        ("client", "app = ClientApp()", "app = ClientApp(client_fn=print)", "client_fn (client.py:8): an audit needs @app.train()"),
        ("server", "app = ServerApp()", "app = ServerApp(server_fn=print)", "server_fn (server.py:8): an audit needs @app.main()"),
        ("client", "from small.task import Net,", "from flwr.client.mod import secaggplus_mod\nfrom small.task import Net,",
         "client.py uses secure aggregation (secaggplus_mod)"),
    ],
)  # fmt: skip
def test_older_interfaces_are_refused_without_running_them(
    tmp_path: Path, file: str, before: str, after: str, reason: str
) -> None:
    report = check_app(
        small_app(tmp_path, (file, before, f"{after}\nraise SystemExit" if "app =" in before else after))
    )
    assert reason in report.refused[0]
    assert report.exit_code == 2
    assert (report.additions, report.to_decide) == ((), ())
    assert printed(report).count(reason) == 1


def test_an_app_without_pytorch_is_refused(tmp_path: Path) -> None:
    files = {"task": "import sklearn\nNet = load_data = train = None\n"}
    report = check_app(small_app(tmp_path, **files))
    assert report.refused == (
        "the app does not use PyTorch (it imports sklearn): probes and attacks differentiate a torch.nn.Module",
    )


@pytest.mark.parametrize(
    ("head", "loop", "loss", "reason"),
    [
        ("from transformers import AutoModelForCausalLM", "batch", "x", "trains a model of text (AutoModelForCausalLM)"),
        ("", "batch", "nn.functional.mse_loss(net(batch['img']), batch['img'])",
         "reads 'img' of a batch and no class, and its loss is nn.functional.mse_loss("),
    ],
)  # fmt: skip
def test_models_that_classify_no_images_are_refused(
    tmp_path: Path, head: str, loop: str, loss: str, reason: str
) -> None:
    changes = (
        ("task", "\nimport torch\n", f"\nimport torch\n{head}\n"), ("task", "images, labels in", f"{loop} in"),
        ("task", "criterion(net(images), labels)", loss), ("task", "    criterion = nn.CrossEntropyLoss()\n", ""),
    )  # fmt: skip
    (found,) = check_app(small_app(tmp_path, *changes)).refused
    assert reason in found


def test_missing_packages_are_all_named_beside_what_the_source_says(tmp_path: Path) -> None:
    report = check_app(
        small_app(tmp_path, ("task", "\nimport torch\n", "\nimport nowhere_a\nimport nowhere_b\nimport torch\n"))
    )
    assert report.missing == ("nowhere-a", "nowhere-b")
    assert report.exit_code == 2
    assert "nowhere-a, nowhere-b (uv pip install nowhere-a nowhere-b)" in report.refused[0]
    assert report.model.factory == "small.task:Net"
    assert report.additions


def test_errors_of_an_import_are_told_with_their_line(tmp_path: Path) -> None:
    change = ("client", "app = ClientApp()", "app = ClientApp()\nfrom flwr.app import Nothing")
    server, client = check_app(small_app(tmp_path, change, server="app = 3\n")).refused
    assert server == "the ServerApp cannot be imported: small.server:app is int, no ServerApp"
    assert "ImportError: cannot import name 'Nothing' from 'flwr.app'" in client
    assert "(client.py:9)" in client
    assert "the app is written for another Flower" in client


def test_an_import_that_never_ends_is_given_up(tmp_path: Path) -> None:
    report = check_app(small_app(tmp_path, ("client", "app = ClientApp()", "import time\ntime.sleep(600)")), seconds=12)
    assert report.refused == ("the ClientApp cannot be imported: importing small.client took longer than 12 s",)


def test_a_process_that_ends_itself_is_told(tmp_path: Path) -> None:
    report = check_app(small_app(tmp_path, ("client", "app = ClientApp()", "import os\nos._exit(7)")))
    assert report.refused == (
        "the app cannot be imported: the process that tried it ends its process with exit code 7, as os._exit(7) does",
    )


def test_the_command_refuses_with_exit_code_2(tmp_path: Path) -> None:
    old = small_app(tmp_path / "old", ("client", "app = ClientApp()", "app = ClientApp(print)"))
    done = CliRunner().invoke(command_line, ["check-app", str(old)])
    assert done.exit_code == 2
    assert "This app cannot be audited as it is" in done.output
    none = CliRunner().invoke(command_line, ["check-app", str(tmp_path)])
    assert none.exit_code == 2
    assert "which has no pyproject.toml" in " ".join(none.output.split())


@pytest.mark.parametrize(("given", "message"), [({"nodes": 0}, "nodes is 0"), ({"seconds": 0.0}, "seconds is 0")])
def test_arguments_out_of_range_are_refused(tmp_path: Path, given: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_app(small_app(tmp_path), **given)


def test_an_app_whose_package_hides_fedveils_is_refused(tmp_path: Path) -> None:
    small_app(tmp_path)
    (tmp_path / "small").rename(tmp_path / "clients")
    for path in (tmp_path / "pyproject.toml", *(tmp_path / "clients").glob("*.py")):
        path.write_text(path.read_text().replace("small.", "clients."))
    (reason,) = check_app(tmp_path).refused
    assert (
        reason == "the app's package clients has the name of one of fedveil's packages, and hides it: rename the app's"
    )
