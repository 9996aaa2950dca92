"""The app's client: it trains the model that it is sent on its own data; what it sends is clipped and noised by Flower's mod."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod

from clients import answer_audits  # live
from dpexample.task import Net, load_data
from dpexample.task import test as test_fn
from dpexample.task import train as train_fn

app = ClientApp()
# A common slip, left in for the audit to find: two updates of norm 1 lie up to 2 apart, and this epsilon wants sensitivity=2.0.
local_dp = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-5)


def prepare(msg: Message, context: Context):
    """The model with the weights received, the device and the loaders."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    own, run = context.node_config, context.run_config
    return model, device, load_data(own["partition-id"], own["num-partitions"], run["batch-size"], run["examples"])


@app.train(mods=[local_dp])
def train(msg: Message, context: Context):
    """Trains on local data and sends the weights."""
    model, device, (trainloader, _) = prepare(msg, context)
    loss = train_fn(model, trainloader, context.run_config["local-epochs"], msg.content["config"]["lr"], device)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(trainloader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluates on local data."""
    model, device, (_, testloader) = prepare(msg, context)
    loss, accuracy = test_fn(model, testloader, device)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(testloader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


def pixels(context: Context):  # live
    """The digits that this client trains on, and those that it holds out, in [0, 1]."""  # live
    own = [*map(context.node_config.get, ("partition-id", "num-partitions")), 1, context.run_config["examples"]]  # live
    return tuple([(x / 2 + 0.5, y) for x, y in loader.dataset] for loader in load_data(*own))  # live


answer_audits(app, model=Net, data=pixels, mean=0.5, std=0.5)  # live
