"""An ordinary Flower app of a few lines, audited: what the tests of the audit run."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from clients import answer_audits
from clients.messages.node import Mod
from simulations.runtime.local_grid import LocalGrid

EXAMPLES, MEAN, STD = 24, 0.5, 0.25


class Net(nn.Module):
    """ReLU network whose first layer sees the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.body(images)
        return logits


def digits(context: Context, count: int = EXAMPLES) -> TensorDataset:
    """Smooth images, others at each node."""
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    small = torch.rand(count, 1, 4, 4, generator=generator)
    images = F.interpolate(small, size=8, mode="bilinear").clamp(0, 1)
    return TensorDataset(images, torch.randint(10, (count,), generator=generator))


State = dict[str, Tensor]


def app_that(
    trains: Callable[[State, Message, Context], State], mods: Sequence[Mod] = (), audited: bool = True,
    everywhere: Sequence[Mod] = (), named: Sequence[Mod] | None = None, **told: Any,
) -> ClientApp:  # fmt: skip
    """Sends what ``trains`` makes of the weights, and answers audits of ``Net`` and ``digits``, or of what it is ``told``.

    ``mods`` are those of its training, ``everywhere`` those of the app, ``named`` what it tells ``answer_audits`` of them.
    """
    app = ClientApp(mods=list(everywhere))

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        sent = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
        arrays = ArrayRecord(trains(sent, message, context))
        records = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": EXAMPLES})})
        return Message(records, reply_to=message)

    if audited:
        answer_audits(app, **{"model": Net, "data": digits, "mean": MEAN, "std": STD, "mods": named, **told})
    return app


def an_epoch(sent: State, message: Message, context: Context, **settings: Any) -> State:
    """By SGD on ``digits``, two examples a step."""
    model = Net()
    model.load_state_dict(sent)
    images, labels = digits(context).tensors
    rate = float(message.content["config"]["lr"])  # type: ignore
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, **settings)
    for at in range(0, EXAMPLES, 2):
        optimizer.zero_grad()
        F.cross_entropy(model((images[at : at + 2] - MEAN) / STD), labels[at : at + 2]).backward()
        optimizer.step()
    return model.state_dict()


an_app = partial(app_that, an_epoch)


class AppGrid(LocalGrid):
    def __init__(self, app: Callable[[Message, Context], Message], clients: int = 2, **node: Any) -> None:
        super().__init__(clients)
        self.app = app
        for context in self.contexts.values():
            context.node_config |= node

    def answer(self, message: Message) -> Message:
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(code=2, reason=f"{type(error).__name__}: {error}"), reply_to=message)
