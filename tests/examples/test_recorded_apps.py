"""The example apps, whole: Flower runs each as it is, its recorder's folder goes to ``fedveil attack``. Minutes."""

import ast
import importlib
import pkgutil
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors.torch import save_file
from torch.nn import functional as F

from simulations.runtime.launch import LocalRuntime
from simulations.runtime.local_grid import LocalGrid
from strategies.recording.files import RecordedReply, read_recording
from tests.examples.copies import EXAMPLES
from tests.flower_private import build_fab_from_disk
from tests.lines import read_lines
from tests.simulations.commands import fedveil
from tests.simulations.runtime.runtimes import run_in

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's, of pathspec

APPS = {"quickstart_pytorch": "pytorchexample", "resnet_pytorch": "resnetexample"}
NO_MLXTEND = "mlxtend is not installed: uv sync --group dev"
MARK = "# audit"
LIVE = "# live"
ATTACK = "InvertingGradients(iterations=20, restarts=1, max_images=32)"


@pytest.mark.parametrize("app", APPS)
def test_at_most_ten_marked_lines_record_an_app(app: str) -> None:
    """And without them nothing of fedveil is left in its code."""
    files = [path for path in (EXAMPLES / app).rglob("*.*") if path.suffix in (".py", ".toml")]
    lines = [line for path in files for line in path.open()]
    assert 0 < sum(MARK in line for line in lines) <= 10
    assert sum(LIVE in line for line in lines) <= 10
    for path in files:
        if path.suffix == ".py":
            assert_marked_whole(path.read_text())
    rest = "".join(line for line in lines if MARK not in line and LIVE not in line)
    for word in ("fedveil", "strategies.", "attacks", "simulations", "Recording", "recording"):
        assert word not in rest.replace("recorded for an audit", "").replace("recorded.", "")


def assert_marked_whole(source: str) -> None:
    """No line is added without its mark: a statement that a formatter breaks would count as one."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.end_lineno is not None:
            own = lines[node.lineno - 1 : node.end_lineno]
            for mark in (MARK, LIVE):
                # What stands around marked lines, such as a function, is not theirs.
                if mark in own[-1] and not any(isinstance(inner, ast.stmt) for inner in ast.iter_child_nodes(node)):
                    assert all(mark in line for line in own), "\n".join(own)
    ast.parse("\n".join(line for line in lines if MARK not in line and LIVE not in line))


def recorded(app: str, tmp_path: Path, **settings: Any) -> list[RecordedReply]:
    pytest.importorskip("mlxtend", reason=NO_MLXTEND)
    values = {"num-server-rounds": 1, "fraction-evaluate": 0.0, "recording": str(tmp_path / "rec"), **settings}
    with LocalRuntime(tmp_path / "log.txt") as runtime:
        status = run_in(runtime, values, 2, EXAMPLES / app)
    assert status == "finished:completed", (tmp_path / "log.txt").read_text()[-3000:]
    return read_recording(tmp_path / "rec")


def recorded_here(app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[RecordedReply]:
    """The same without Flower's runtime."""
    known = {"num-server-rounds": 1, "fraction-evaluate": 0.0, "recording": str(tmp_path / "rec")}
    run_here(app, monkeypatch, {**known, **settings})
    return read_recording(tmp_path / "rec")


def run_here(app: str, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    """Runs an app in this process: its ServerApp and ClientApp, as its file names them, with its settings."""
    pytest.importorskip("mlxtend", reason=NO_MLXTEND)
    monkeypatch.syspath_prepend(str(EXAMPLES / app))
    about = tomllib.loads((EXAMPLES / app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    values = about["config"]
    assert settings.keys() <= values.keys()
    values |= settings
    server, client = (pkgutil.resolve_name(about["components"][side]) for side in ("serverapp", "clientapp"))
    server(LocalGrid(2, app=client, run_config=values), Context(1, 1, {}, RecordDict(), values))


def task_of(app: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES / app))
    return importlib.import_module(f"{APPS[app]}.task")


@pytest.mark.slow
def test_a_batch_of_32_of_quickstart_is_recorded_and_attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded updates are the steps that torch takes on the clients' images, which says whose is whose."""
    replies = recorded("quickstart_pytorch", tmp_path, examples=32)
    assert len(replies) == 2
    task = task_of("quickstart_pytorch", monkeypatch)
    (tmp_path / "originals").mkdir()
    owners = []
    for reply in replies:
        start, came = ({n: torch.from_numpy(a) for n, a in x.items()} for x in (reply.sent_arrays(), reply.arrays()))
        for partition in range(2):
            images, labels = task.load_data(partition, 2, 32, 32)[0].dataset.tensors
            net = task.Net()
            net.load_state_dict(start)
            F.cross_entropy(net(images), labels).backward()
            steps = {name: start[name] - 0.1 * weight.grad for name, weight in net.named_parameters()}
            if all(torch.allclose(steps[name], came[name], atol=1e-5) for name in steps):
                owners.append(partition)
                truth = {"images": (images * 0.5 + 0.5).contiguous(), "labels": labels}
                save_file(truth, tmp_path / "originals" / f"node-{reply.node}.safetensors")
    assert sorted(owners) == [0, 1]
    code, told = fedveil(
        "attack", tmp_path / "rec", "-s", "model=cnn", "-s", "num-classes=10", "-s", "input-shape=1,32,32",
        "-s", "normalisation=0.5/0.5", "-s", f"update-attacks={ATTACK}; LabelInference()",
        "-s", f"originals={tmp_path / 'originals'}", "--out", tmp_path / "out",
    )  # fmt: skip
    assert (code, "their names are not those of cnn, so they were taken in order" in told) == (0, True), told
    rows = read_lines(tmp_path / "out" / "rows.jsonl")
    psnr = next(row for row in rows if row["metric"] == "psnr" and row["attack"].startswith("Inv"))
    assert psnr["n"] == 64
    assert psnr["status"] in ("ok", "not-validated")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert ("Validated: " in page) == (psnr["status"] == "ok")
    assert ("Not validated: no attack here found these images" in page) == (psnr["status"] == "not-validated")


@pytest.mark.parametrize("app", APPS)
def test_flower_takes_the_app(app: str) -> None:
    with zipfile.ZipFile(BytesIO(build_fab_from_disk(EXAMPLES / app))) as bundle:
        assert {f"{APPS[app]}/{name}.py" for name in ("server_app", "client_app", "task")} <= set(bundle.namelist())


@pytest.mark.long
def test_a_resnet_with_batch_norm_is_recorded_and_attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; what Flower's runtimes add to a recording, the quickstart's tests see."""
    replies = recorded_here("resnet_pytorch", tmp_path, monkeypatch, **{"examples": 8, "batch-size": 4})
    assert len(replies) == 2
    sent, came = replies[0].sent_arrays(), replies[0].arrays()
    assert (came["bn1.running_mean"] != sent["bn1.running_mean"]).any()
    assert came["bn1.num_batches_tracked"] == 2
    assert came["bn1.num_batches_tracked"].shape == ()
    code, told = fedveil(
        "attack", tmp_path / "rec", "-s", "model=torchvision:resnet18", "-s", "norm=batch", "-s", "num-classes=10",
        "-s", "input-shape=3,32,32", "-s", "normalisation=0.5/0.5", "-s", "momentum=0.9",
        "-s", "update-attacks=InvertingGradients(iterations=2, restarts=1); LabelInference()", "--out", tmp_path / "out",
    )  # fmt: skip
    # Torchvision's names are the model's own.
    assert (code, "taken in order" in told) == (0, False), told
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "No guess was scored: the true images were not given" in page.split("Headline")[0]
    about = next(row for row in read_lines(tmp_path / "out" / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert (about["value"], about["local_steps"], about["unusable"]) == (2, [2, 2], [])
