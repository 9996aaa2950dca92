"""The app's client: it trains the model that it is sent on its own data."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from resnetexample.task import Net, load_data
from resnetexample.task import test as test_fn
from resnetexample.task import train as train_fn

app = ClientApp()


def prepare(msg: Message, context: Context):
    """The model with the weights received, the device and the loaders."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    own, run = context.node_config, context.run_config
    return model, device, load_data(own["partition-id"], own["num-partitions"], run["batch-size"], run["examples"])


@app.train()
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
