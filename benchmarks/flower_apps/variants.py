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


TRANSFORMER = (
    Before("pytorchexample/task.py", "class Net(nn.Module):", "from timm.models.vision_transformer import VisionTransformer"),
    Replace("pytorchexample/task.py", "class Net(nn.Module):", "class Convolutional(nn.Module):"),
    Replace("pytorchexample/task.py", "super(Net, self)", "super(Convolutional, self)"),
    Before(
        "pytorchexample/task.py", "fds = None",
        """class Net(VisionTransformer):
    def __init__(self):
        super().__init__(img_size=32, patch_size=4, num_classes=10, embed_dim=128, depth=4, num_heads=4)


""",
    ),
)  # fmt: skip
BOTH = "PatchEmbeddingInversion(); LabelInference()"
AUDIT_OF_TRANSFORMER = (
    *server(
        "pytorchexample",
        wrapped(f'probe_attacks="{BOTH}", update_attacks="{BOTH}", momentum=0.9, settings=context.run_config'),
    ),
    *client("pytorchexample", loaders_of(SHARE), HALVES),
)


def variant(
    kind: str, edits: tuple[Edit, ...], *mentions: str, audit: tuple[Edit, ...] = QUICKSTART, **config: Any
) -> App:
    """The quickstart, changed."""
    return App(
        kind,
        "examples/quickstart-pytorch",
        "pytorchexample",
        CIFAR,
        audit,
        variant=edits,
        config=config,
        mentions=mentions,
    )


VARIANTS = {
    "own/adam": variant("Adam", ADAM, "optimizer", **{"learning-rate": 0.001}),
    "own/batchnorm": variant("BatchNorm", NORM, "BatchNorm"),
    "own/differences": variant("clients send differences", DIFFERENCES),
    "own/vit": variant("a vision transformer of timm, trained whole", TRANSFORMER, audit=AUDIT_OF_TRANSFORMER),
    "own/heads": variant("clients keep their last layer", HEADS),
}
"""Name -> app."""
