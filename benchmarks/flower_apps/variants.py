"""Variants of Flower's quickstart, of kinds that its repository has no image app of: ours, made by edits of a copy."""

from __future__ import annotations

from typing import Any

from edits import Before, Edit, Replace
from parts import CIFAR, HALVES, SHARE, App, client, loaders_of, server, wrapped

QUICKSTART = (*server("pytorchexample", wrapped()), *client("pytorchexample", loaders_of(SHARE), HALVES))
"""The lines that audit the quickstart."""

ADAM = (
    Replace(
        "pytorchexample/task.py", "torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)",
        "torch.optim.Adam(net.parameters(), lr=lr)",
    ),
)  # fmt: skip
NORM = (
    Before("pytorchexample/task.py", "self.fc1 =", "self.bn = nn.BatchNorm2d(16)"),
    Replace("pytorchexample/task.py", "F.relu(self.conv2(x))", "F.relu(self.bn(self.conv2(x)))"),
)  # fmt: skip
DIFFERENCES = (
    Replace(
        "pytorchexample/client_app.py", "model_record = ArrayRecord(model.state_dict())",
        'sent = msg.content["arrays"].to_torch_state_dict()\n'
        "    model_record = ArrayRecord({name: one - sent[name] for name, one in model.state_dict().items()})",
    ),
    Replace(
        "pytorchexample/server_app.py", "strategy = FedAvg(fraction_evaluate=fraction_evaluate)",
        "strategy = AddDifferences(fraction_evaluate=fraction_evaluate)",
    ),
    Before(
        "pytorchexample/server_app.py", "app = ServerApp()",
        """class AddDifferences(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        self.sent = arrays.to_torch_state_dict()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        mean, metrics = super().aggregate_train(server_round, replies)
        moved = {name: self.sent[name] + one for name, one in mean.to_torch_state_dict().items()}
        return ArrayRecord(moved), metrics

""",
    ),
)  # fmt: skip
HEADS = (
    Replace(
        "pytorchexample/client_app.py", 'model.load_state_dict(msg.content["arrays"].to_torch_state_dict())',
        'model.load_state_dict(msg.content["arrays"].to_torch_state_dict(), strict=False)\n'
        '    if "head" in context.state:\n'
        '        model.fc3.load_state_dict(context.state["head"].to_torch_state_dict())', count=2,
    ),
    Replace(
        "pytorchexample/client_app.py", "model_record = ArrayRecord(model.state_dict())",
        'context.state["head"] = ArrayRecord(model.fc3.state_dict())\n'
        "    body = {name: one for name, one in model.state_dict().items() if not name.startswith('fc3')}\n"
        "    model_record = ArrayRecord(body)",
    ),
    Replace(
        "pytorchexample/server_app.py", "arrays = ArrayRecord(global_model.state_dict())",
        "body = {name: one for name, one in global_model.state_dict().items() if not name.startswith('fc3')}\n"
        "    arrays = ArrayRecord(body)",
    ),
    Replace(
        "pytorchexample/server_app.py", "model.load_state_dict(arrays.to_torch_state_dict())",
        "model.load_state_dict(arrays.to_torch_state_dict(), strict=False)",
    ),
)  # fmt: skip


def variant(kind: str, edits: tuple[Edit, ...], *mentions: str, **config: Any) -> App:
    """The quickstart, changed."""
    return App(
        kind, "examples/quickstart-pytorch", "pytorchexample", CIFAR, QUICKSTART, variant=edits, config=config,
        mentions=mentions,
    )  # fmt: skip


VARIANTS = {
    "own/adam": variant("Adam", ADAM, "optimizer", **{"learning-rate": 0.001}),
    "own/batchnorm": variant("BatchNorm", NORM, "BatchNorm"),
    "own/differences": variant("clients send differences", DIFFERENCES),
    "own/heads": variant("clients keep their last layer", HEADS),
}
"""Name -> app."""
