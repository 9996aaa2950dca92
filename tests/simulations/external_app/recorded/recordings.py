"""Recordings of a strategy whose clients are plain torch, and ``fedveil attack`` on them: what tests of recordings share."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedProx
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner, Result

from clients.data.datasets import load_dataset
from clients.data.images import to_float
from clients.flower_private import act_as_task, set_message_id
from clients.models.classifiers import build_model
from simulations.cli import app
from strategies.recording.strategy import RecordingStrategy

MEAN, STD, RATE = 0.1307, 0.3081, 0.1
NODES = tuple(range(11, 27))
EXACT = "SpearPlusPlus()"
DLG = "DLG(iterations=60, restarts=1, labels='auto')"


class Torch:
    """A grid of nodes that train a torch model by SGD: plain torch, nothing of ours."""

    def __init__(
        self, model: nn.Module, each: int, batch: int, originals: Path | None, names: bool, nodes: int
    ) -> None:
        act_as_task()
        self.model, self.each, self.batch, self.originals, self.names = model, each, batch, originals, names
        self.nodes = NODES[:nodes]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        return [self.answer(message) for message in messages]

    def answer(self, message: Message) -> Message:
        set_message_id(message, "m")
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
    width: int = 0,
    **settings: Any,
) -> Path:
    """A recording in ``folder``/rec, and the true images in ``folder``/originals."""
    originals = folder / "originals"
    originals.mkdir(parents=True)
    net = build_model(model, num_classes=10, input_shape=(1, 28, 28), width=width, seed=4)
    grid = Torch(net, each, batch, originals, names, nodes)
    strategy = RecordingStrategy(FedProx(fraction_evaluate=0.0, proximal_mu=mu), folder / "rec", settings=settings)
    strategy.start(grid, grid.arrays(), num_rounds=rounds, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
    return folder / "rec"


def invoke(update: Path, *options: Any, **changes: Any) -> Result:
    values = {"model": "lenet", "num_classes": 10, "input_shape": "1,28,28", "normalisation": f"{MEAN}/{STD}"} | changes
    given = [f"{key.replace('_', '-')}={v}" for key, v in values.items() if v is not None and key != "out"]
    folder = ["--out", str(values["out"])] if "out" in values else []
    words = [*map(str, options), *(word for one in given for word in ("-s", one)), *folder]
    return CliRunner().invoke(app, ["attack", str(update), *words])


CLAIMS = re.compile("[Nn]o defence(?! known| is known)|[Ww]ithout a defence|undefended run")
"""A recording does not state whether a defence acted: a page that says one of these claims more than is known."""


def page_of(out: Path) -> str:
    """The report's text, which claims nothing of defences."""
    page = " ".join((out / "report.html").read_text(encoding="utf-8").split())
    for claim in CLAIMS.finditer(page):
        raise AssertionError(page[max(0, claim.start() - 200) :][:300])
    return page
