"""Small Flower apps, written into a folder: each test changes what it is about."""

from pathlib import Path

CONFIG = """
num-server-rounds = 2
learning-rate = 0.05
local-epochs = 3
batch-size = 8
"""
PYPROJECT = """
[project]
name = "small"
version = "1.0.0"
dependencies = ["flwr[simulation]", "torch"]

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "small.server:app"
clientapp = "small.client:app"

[tool.flwr.app.config]
"""
TASK = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.head = nn.Linear(2 * 36, 4)

    def forward(self, x):
        return self.head(self.conv(x).flatten(1))


def load_data(partition, partitions, size):
    images = (torch.arange(partition, partition + 16 * 64).view(16, 1, 8, 8) % 256 / 255 - 0.25) / 0.5
    train = DataLoader(TensorDataset(images[:12], torch.arange(12) % 4), batch_size=size, shuffle=True)
    test = DataLoader(TensorDataset(images[12:], torch.arange(4)), batch_size=99)
    return train, test


def train(net, loader, epochs, lr):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            criterion(net(images), labels).backward()
            optimizer.step()
"""
CLIENT = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from small.task import Net, load_data
from small.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg, context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    own, run = context.node_config, context.run_config
    loader, _ = load_data(own["partition-id"], own["num-partitions"], run["batch-size"])
    train_fn(model, loader, run["local-epochs"], float(msg.content["config"]["lr"]))
    metrics = MetricRecord({"num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)
"""
SERVER = """
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from small.task import Net

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    strategy = FedAvg(fraction_evaluate=0.0)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
"""
FILES = {"task": TASK, "client": CLIENT, "server": SERVER}


def small_app(folder: Path, *changes: tuple[str, str, str], config: str = CONFIG, **files: str) -> Path:
    """An app in a folder; ``changes`` are of a file, what stands there once, and what takes its place."""
    package = folder / "small"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT + config)
    (package / "__init__.py").write_text("")
    texts = {**FILES, **files}
    for name, before, after in changes:
        assert texts[name].count(before) == 1, (name, before)
        texts[name] = texts[name].replace(before, after)
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    return folder
