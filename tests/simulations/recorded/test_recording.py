"""``fedveil attack FOLDER``: from the recording of somebody's strategy to a report, with and without the true images."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedProx
from flwr.supercore.task_identity import TaskIdentity
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner, Result

from clients.data.datasets import load_dataset, to_float
from clients.models.classifiers import build_model
from simulations.cli import app
from simulations.run_directory import read_lines
from strategies.recording import RecordingStrategy

MEAN, STD, RATE = 0.1307, 0.3081, 0.1
NODES = tuple(range(11, 27))
EXACT = "Spear()"
DLG = "DLG(iterations=60, restarts=1, labels='auto')"


class Torch:
    """A grid of nodes that train a torch model by SGD: plain torch, nothing of ours."""

    def __init__(
        self, model: nn.Module, each: int, batch: int, originals: Path | None, names: bool, nodes: int
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.model, self.each, self.batch, self.originals, self.names = model, each, batch, originals, names
        self.nodes = NODES[:nodes]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        return [self.answer(message) for message in messages]

    def answer(self, message: Message) -> Message:
        message.metadata.__dict__["_message_id"] = "m"
        node, config = message.metadata.dst_node_id, message.content["config"]
        images, labels = digits(NODES.index(node) * self.each, self.each)
        state = message.content["arrays"].to_torch_state_dict()
        self.model.load_state_dict(dict(zip(self.model.state_dict(), state.values(), strict=True)))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"])
        for at in range(0, self.each, self.batch):
            optimizer.zero_grad()
            part = slice(at, at + self.batch)
            F.cross_entropy(self.model((images[part] - MEAN) / STD), labels[part]).backward()
            optimizer.step()
        if self.originals:
            name = f"round-{config['server-round']:04d}-node-{node}.safetensors"
            save_file({"images": images, "labels": labels}, self.originals / name)
        content = RecordDict({"arrays": self.arrays(), "metrics": MetricRecord({"num-examples": self.each})})
        return Message(content, reply_to=message)

    def arrays(self) -> ArrayRecord:
        state = {name: value.clone() for name, value in self.model.state_dict().items()}
        return ArrayRecord(state if self.names else {f"net.{i}": value for i, value in enumerate(state.values())})


def digits(start: int, count: int) -> tuple[Tensor, Tensor]:
    data = load_dataset("mnist-5k").train
    at = slice(start * 7, (start + count) * 7, 7)
    return to_float(data.images[at]), data.labels[at].contiguous()


def record(
    folder: Path,
    *,
    model: str = "lenet",
    each: int = 1,
    batch: int = 1,
    rounds: int = 1,
    names: bool = True,
    nodes: int = 2,
    mu: float = 0.0,
    **settings: Any,
) -> Path:
    """A recording in ``folder``/rec, and the true images in ``folder``/originals."""
    originals = folder / "originals"
    originals.mkdir(parents=True)
    net = build_model(model, num_classes=10, input_shape=(1, 28, 28), seed=4)
    grid = Torch(net, each, batch, originals, names, nodes)
    strategy = RecordingStrategy(FedProx(fraction_evaluate=0.0, proximal_mu=mu), folder / "rec", settings=settings)
    strategy.start(grid, grid.arrays(), num_rounds=rounds, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
    return folder / "rec"


def invoke(update: Path, *options: Any, **changes: Any) -> Result:
    values = {"model": "lenet", "num_classes": 10, "input_shape": "1,28,28", "mean": MEAN, "std": STD} | changes
    named = [word for key, v in values.items() if v is not None for word in (f"--{key.replace('_', '-')}", str(v))]
    return CliRunner().invoke(app, ["attack", str(update), *named, *map(str, options)])


def test_without_originals_it_guesses_reports_and_claims_nothing(tmp_path: Path) -> None:
    folder, out = record(tmp_path, rounds=2, names=False), tmp_path / "out"
    result = invoke(folder, "--local-steps", 1, out=out, attack=f"{DLG}; LabelInference()")
    assert result.exit_code == 0, result.output
    rows = read_lines(out / "rows.jsonl")
    assert {row["round"] for row in rows} == {1, 2}
    assert not [row for row in rows if row["metric"] in ("psnr", "ssim", "retrieval", "label-accuracy")]
    assert len(read_lines(out / "pictures" / "index.jsonl")) == 4, "a guess of each node in each round"
    page = (out / "report.html").read_text()
    assert "Not validated: nobody gave the true images" in page
    assert "No attack on the images has a score, so nothing is known about them" in page
    assert "so they were taken in order" in " ".join(page.split())
    assert "not known: Which classes the examples have" in result.output
    assert (out / "guesses" / "round-0002-client-1.safetensors").is_file()


def test_with_originals_it_scores_and_digits_come_back(tmp_path: Path) -> None:
    folder, out = record(tmp_path, **{"local-epochs": 1, "batch-size": 1}), tmp_path / "out"
    result = invoke(folder, originals=tmp_path / "originals", out=out, attack=f"{DLG}; LabelInference()")
    assert result.exit_code == 0, result.output
    rows = read_lines(out / "rows.jsonl")
    mine = {(row["attack"], row["metric"]): row for row in rows}
    attack = next(name for name, metric in mine if name.startswith("DLG") and metric == "psnr")
    assert mine[attack, "psnr"]["value"] > mine["baseline:grey", "psnr"]["value"] + 3
    assert mine[attack, "psnr"]["n"] == 2
    assert mine[attack, "psnr"]["status"] == "under-powered", "two images are no verdict"
    assert mine["LabelInference()", "label-accuracy"]["value"] == 1.0
    index = read_lines(out / "pictures" / "index.jsonl")
    assert sorted(one["kind"] for one in index) == ["original"] * 2 + ["reconstruction"] * 2
    assert "Under-powered: too few images for a verdict." in (out / "report.html").read_text()


def test_a_recording_of_somebodys_own_network(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n"
        "    def __init__(self, num_classes):\n        super().__init__()\n"
        "        self.last = torch.nn.Linear(784, num_classes)\n\n"
        "    def forward(self, images):\n        return self.last(torch.sinc(images.flatten(1)))\n"
    )
    folder, out = record(tmp_path, model=f"{file}:Net", **{"local-epochs": 1, "batch-size": 1}), tmp_path / "out"
    result = invoke(folder, originals=tmp_path / "originals", out=out, attack="LabelInference()", model=f"{file}:Net")
    assert result.exit_code == 0, result.output
    rows = [row for row in read_lines(out / "rows.jsonl") if row["metric"] == "label-accuracy"]
    assert [row["value"] for row in rows if row["attack"] == "LabelInference()"] == [1.0]
    refused = invoke(folder, out=tmp_path / "other", attack="LabelInference()", model=f"{file}:Other")
    assert refused.exit_code == 2
    assert "has no 'Other'; in it are Net" in " ".join(refused.stderr.split())
    assert not (tmp_path / "other").exists()


def test_a_batch_of_32_on_a_relu_network_gets_a_plain_verdict(tmp_path: Path) -> None:
    """The oldest open wish of the field: a usual batch of a usual network, from a recording; a weak attack is not validated."""
    folder, out = (
        record(tmp_path, model="cnn", each=32, batch=32, **{"local-epochs": 1, "batch-size": 32}),
        tmp_path / "out",
    )
    attack = "InvertingGradients(iterations=3, restarts=1, max_images=32)"
    options = {
        "originals": tmp_path / "originals",
        "auxiliary": "mnist-5k",
        "out": out,
        "attack": attack,
        "model": "cnn",
    }
    result = invoke(folder, **options)
    assert result.exit_code == 0, result.output
    rows = read_lines(out / "rows.jsonl")
    psnr = next(row for row in rows if row["metric"] == "psnr" and row["attack"].startswith("Inv"))
    assert (psnr["n"], psnr["status"]) == (64, "not-validated")
    assert (psnr["setting"]["batch"], psnr["setting"]["local_steps"]) == (32, 1)
    page = (out / "report.html").read_text()
    assert "Not validated: no attack here recovered these images (the undefended run scores no better than " in page


def test_what_an_exact_attack_recovers_is_validated(tmp_path: Path) -> None:
    """A linear layer that sees the pixels gives a single image away: a closed form, so the verdict must be the opposite."""
    steps = {"local-epochs": 1, "batch-size": 1}
    folder, out = record(tmp_path, model="mlp", nodes=16, **steps), tmp_path / "out"
    options = {"originals": tmp_path / "originals", "auxiliary": "mnist-5k", "model": "mlp", "attack": EXACT}
    result = invoke(folder, out=out, **options)
    assert result.exit_code == 0, result.output
    psnr = next(
        row for row in read_lines(out / "rows.jsonl") if row["metric"] == "psnr" and row["attack"].startswith("Spear")
    )
    assert (psnr["n"], psnr["status"]) == (16, "ok")
    assert psnr["value"] > 60, "exact but for the rounding of float32 weights, whose difference the update is"
    assert "in round 1 recovered images from these updates." in (out / "report.html").read_text()
    result = invoke(folder, out=tmp_path / "told", defense="GaussianNoise(std=0.1)", **options)
    assert result.exit_code == 0, result.output
    assert "There is no undefended recording beside them" in (tmp_path / "told" / "report.html").read_text()


def test_several_local_steps_are_counted(tmp_path: Path) -> None:
    folder = record(tmp_path, each=6, batch=2, mu=0.3)
    out = tmp_path / "out"
    result = invoke(folder, "--local-epochs", 1, "--batch-size", 2, out=out, attack="LabelInference()")
    assert result.exit_code == 0, result.output
    about = next(row for row in read_lines(out / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert about["local_steps"] == [3, 3]
    assert any("a proximal term of weight 0.3" in text for text in about["assumed"])
    assert about["examples"] == [6, 6]
    assert about["clients"] == {"0": "11", "1": "12"}


@pytest.mark.parametrize(("options", "told"), [({}, True), ({"batch_size": 2}, False)])
def test_steps_without_a_batch_size_are_said_to_be_of_full_batches(
    tmp_path: Path, options: dict[str, Any], told: bool
) -> None:
    folder, out = record(tmp_path, each=6, batch=2), tmp_path / "out"
    result = invoke(folder, "--local-steps", 3, out=out, attack="LabelInference()", **options)
    assert result.exit_code == 0, result.output
    about = next(row for row in read_lines(out / "rows.jsonl") if row["metric"] == "recorded-updates")
    said = "How many examples a step saw: all of them in each of the 3 local steps, for want of --batch-size."
    assert (said in about["assumed"]) == told
    assert (said in " ".join((out / "report.html").read_text().split())) == told


def test_a_batch_size_that_the_recording_tells_is_not_assumed(tmp_path: Path) -> None:
    folder, out = record(tmp_path, each=6, batch=2, **{"batch-size": 2}), tmp_path / "out"
    result = invoke(folder, "--local-steps", 3, out=out, attack="LabelInference()")
    assert result.exit_code == 0, result.output
    about = next(row for row in read_lines(out / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert not any("How many examples a step saw" in text for text in about["assumed"])


class Falling(FedProx):
    """0.1 in the first round, 0.01 in the second."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
        config["lr"] = 0.1**server_round
        return super().configure_train(server_round, arrays, config, grid)


def test_every_learning_rate_of_the_rounds_is_told(tmp_path: Path) -> None:
    net = build_model("lenet", num_classes=10, input_shape=(1, 28, 28), seed=4)
    grid = Torch(net, 1, 1, None, True, 2)
    strategy = RecordingStrategy(Falling(fraction_evaluate=0.0, proximal_mu=0.0), tmp_path / "rec")
    strategy.start(grid, grid.arrays(), num_rounds=2, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
    result = invoke(tmp_path / "rec", "--local-steps", 1, out=tmp_path / "out", attack="LabelInference()")
    assert result.exit_code == 0, result.output
    about = next(row for row in read_lines(tmp_path / "out" / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert any(text.startswith("The learning rate: 0.1, 0.01 was read") for text in about["assumed"])


CASES: dict[str, tuple[list[str], str]] = {
    "steps": ([], "does not tell how often a client stepped; name --local-steps, or --local-epochs and --batch-size"),
    "epochs": (
        ["--local-epochs", "-1", "--batch-size", "1"],
        "--local-epochs is -1; allowed: a whole number of at least 0",
    ),
    "weights": (["--local-steps", "1", "--weights", "w"], "--weights is for a single update"),
    "labels": (["--local-steps", "1", "--labels", "3"], "--labels is for a single update"),
    "rounds": (["--local-steps", "1", "--rounds", "7"], "--rounds is '7'; allowed: of 1, such as 1,3"),
    "model": (["--local-steps", "1", "--model", "cnn"], "lacks '0.weight'"),
    "originals": (["--local-steps", "1", "--originals", "nowhere"], "nowhere has neither round-0001-node-1"),
}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("foreign"), names=False)


@pytest.mark.parametrize("case", CASES)
def test_refuses_before_any_work(foreign: Path, tmp_path: Path, case: str) -> None:
    options, message = CASES[case]
    result = invoke(foreign, *options, out=tmp_path / "out", attack=DLG)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split()), result.output
    assert not (tmp_path / "out").exists()


def test_refuses_what_is_no_recording(tmp_path: Path) -> None:
    assert "holds no recording" in invoke(tmp_path, "--local-steps", 1).output
    file = tmp_path / "update.safetensors"
    save_file({"a": torch.zeros(1)}, file)
    assert "--rounds is for recordings" in invoke(file, "--rounds", "1", "--learning-rate", 1).output
    assert "--learning-rate is needed: a single update does not tell it" in " ".join(invoke(file).output.split())


@pytest.mark.parametrize("told", [{"local-epochs": -1, "batch-size": 1}, {"local-epochs": 1, "batch-size": -2}])
def test_numbers_of_a_recording_that_are_none_blame_no_option(tmp_path: Path, told: dict[str, int]) -> None:
    folder = record(tmp_path, **told)
    words = " ".join(invoke(folder, out=tmp_path / "out", attack=DLG).output.split())
    assert "does not tell how often a client stepped; name --local-steps" in words
    path = folder / "round-0001" / "sent.json"
    path.write_text(path.read_text().replace(f'"lr": {RATE}', '"lr": -0.5'))
    words = " ".join(invoke(folder, "--local-steps", 1, out=tmp_path / "out", attack=DLG).output.split())
    assert "tells no 'lr' or 'learning-rate' or 'learning_rate' above 0 (-0.5); name --learning-rate" in words


def test_a_file_in_place_of_the_folder_of_results_is_told_first(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.touch()
    (tmp_path / "rec").mkdir()
    for there in (tmp_path / "rec", file):
        words = " ".join(invoke(there, "--learning-rate", 1, out=file / "inside").output.split())
        assert f"--out: {file} is a file, and results need a folder" in words


def test_a_reply_with_nan_is_told_and_the_others_are_attacked(tmp_path: Path) -> None:
    folder = record(tmp_path)
    path = folder / "round-0001" / "train-0001-0.safetensors"
    with safe_open(path, framework="pt") as file:
        order, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    arrays["0.weight"][0] = float("nan")
    save_file(arrays, path, order)
    result = invoke(folder, "--local-steps", 1, out=tmp_path / "out", attack="LabelInference()")
    assert result.exit_code == 0, result.output
    assert "'0.weight' holds NaN or infinite values" in " ".join(result.output.split())
    about = next(row for row in read_lines(tmp_path / "out" / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert (about["n"], len(about["unusable"])) == (1, 1)


def test_a_dropped_reply_is_told(foreign: Path, tmp_path: Path) -> None:
    """A reply whose arrays were dropped is told in the report, and the others are attacked."""
    path = foreign / "round-0001" / "train-0000.json"
    before = path.read_text()
    try:
        path.write_text(json.dumps(json.loads(before) | {"arrays": {}, "dropped": "arrays: the disk was full"}))
        result = invoke(foreign, "--local-steps", 1, out=tmp_path / "out", attack="LabelInference()")
    finally:
        path.write_text(before)
    assert result.exit_code == 0, result.output
    assert "its arrays were not recorded: arrays: the disk was full" in (tmp_path / "out" / "report.html").read_text()
