"""A Flower app that trains a small vision transformer, of which it sends all or a part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from clients import answer_audits
from tests.strategies.external_app.app import EXAMPLES, MEAN, STD, digits

Arrays = dict[str, Tensor]
LEARNING_RATE = 0.1


def transformer() -> nn.Module:
    """Patches of 4 x 4 pixels of an 8 x 8 image; the same weights at every call, as if from a file."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return unlike()


def unlike() -> nn.Module:
    """The same network with other weights at every call."""
    return VisionTransformer(
        img_size=8, patch_size=4, in_chans=1, num_classes=10, embed_dim=32, depth=2, num_heads=2, mlp_ratio=2.0
    )


def _trained(model: nn.Module, *prefixes: str) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(prefixes))
    return model


def head_only() -> nn.Module:
    return _trained(transformer(), "head.")


def last_block() -> nn.Module:
    return _trained(transformer(), "blocks.1.", "norm.", "head.")


def part_of_last_block() -> nn.Module:
    """Blocks have equal shapes, and one layer of the last is trained."""
    return _trained(transformer(), "blocks.1.mlp.")


class BatchNormBody(nn.Module):
    """A body with BatchNorm below a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, 10)."""
        found: Tensor = self.head(self.body(images))
        return found


def batch_norm_body() -> nn.Module:
    """The body is frozen, with the same weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return _trained(BatchNormBody(), "head.")


def head_of_unlike() -> nn.Module:
    return _trained(unlike(), "head.")


def whole(model: nn.Module) -> Arrays:
    return model.state_dict()


def head(model: nn.Module) -> Arrays:
    """Names without the module's own, as in Flower's flowertune-vit."""
    part: Any = model.head
    return dict(part.state_dict())


def last_block_by_its_names(model: nn.Module) -> Arrays:
    """Names without the block's own."""
    blocks: Any = model.blocks
    return dict(blocks[1].state_dict())


def trained(model: nn.Module) -> Arrays:
    return {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}


def listed(model: nn.Module) -> Arrays:
    return {str(at): value for at, value in enumerate(trained(model).values())}


def body(model: nn.Module) -> Arrays:
    """All but the head, which stays at the clients and is trained there."""
    return {name: value for name, value in model.state_dict().items() if not name.startswith("head.")}


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(value.detach().numpy()) for name, value in arrays.items()})


def pixels(context: Context) -> tuple[TensorDataset, TensorDataset]:
    """The training examples, and 100 others."""
    generator = torch.Generator().manual_seed(100 + int(context.node_config["partition-id"]))
    small = torch.rand(100, 1, 4, 4, generator=generator)
    others = F.interpolate(small, size=8, mode="bilinear").clamp(0, 1)
    return digits(context), TensorDataset(others, torch.zeros(100, dtype=torch.int64))


def app_of(build: Callable[[], nn.Module], part: Callable[[nn.Module], Arrays]) -> ClientApp:
    """Trains what ``build`` does not freeze, by one step on all examples, and sends what ``part`` gives."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = build()
        arrays: Any = message.content["arrays"]
        mine, sent = part(model), arrays.to_torch_state_dict()
        with torch.no_grad():
            for name, value in mine.items():
                value.copy_(sent[name])
        images, labels = digits(context).tensors
        F.cross_entropy(model((images - MEAN) / STD), labels).backward()
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE).step()
        records = {"arrays": record(part(model)), "metrics": MetricRecord({"num-examples": EXAMPLES})}
        return Message(RecordDict({**records}), reply_to=message)

    answer_audits(app, model=build, data=pixels, mean=MEAN, std=STD)
    return app
