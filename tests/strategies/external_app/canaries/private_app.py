"""A small Flower app under real Opacus with canaries in its training, correct or with a planted bug."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from clients import answer_audits, set_canary_gradients, with_canaries
from strategies.federated.shown_epsilon import AUDIT
from tests.strategies.external_app import audits
from tests.strategies.external_app.app import digits

EXAMPLES, DELTA, COUNT, RATE = 32, 1e-5, 400, 0.1
Bug = Callable[[Any, nn.Module], None]


class Net(nn.Module):
    """ReLU network of 3,466 weights, whose last bias has 10."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images))
        return logits


data_of = partial(digits, count=EXAMPLES)


class Mappings(Dataset[Any]):
    """Examples as those of Hugging Face, normalised."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        image, label = self.data[index]
        return {"img": (image - 0.5) / 0.25, "label": label}


def correct(optimizer: Any, model: nn.Module) -> None:
    """Leave Opacus as it is."""


def half_of_the_noise(optimizer: Any, model: nn.Module) -> None:
    """Add half of the noise that the accountant counts."""
    add_noise = optimizer.add_noise

    def half() -> None:
        add_noise()
        for weight in optimizer.params:
            weight.grad = (weight.grad + weight.summed_grad.view_as(weight)) / 2

    optimizer.add_noise = half


def no_noise_on_a_layer(optimizer: Any, model: nn.Module) -> None:
    """Add no noise to the weights of the last layer."""
    add_noise = optimizer.add_noise
    weight = dict(model.named_parameters())["_module.head.weight"]

    def elsewhere() -> None:
        add_noise()
        weight.grad = weight.summed_grad.view_as(weight).clone()  # type: ignore[attr-defined]

    optimizer.add_noise = elsewhere


def no_clipping(optimizer: Any, model: nn.Module) -> None:
    """Clip at a hundred times the norm for which noise is added."""
    clip, norm = optimizer.clip_and_accumulate, optimizer.max_grad_norm

    def loosely() -> None:
        optimizer.max_grad_norm = 100 * norm
        clip()
        optimizer.max_grad_norm = norm

    optimizer.clip_and_accumulate = loosely


def half_of_the_images_flipped(optimizer: Any, model: nn.Module) -> None:
    """Flip every second image of a batch before the model sees it, as augmentation of whole batches does."""

    def flipped(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        images = given[0].clone()
        images[::2] = images[::2].flip(-1)
        return (images, *given[1:])

    model.register_forward_pre_hook(flipped, prepend=True)


def private_app(
    bug: Bug = correct, *, noise: Callable[[int], float] = lambda partition: 1.0, batch: int = 10**6, first: bool = True,
    second: bool = True, private: bool = True, count: int = COUNT, claims: bool = True,
    network: Callable[[], nn.Module] = Net, **told: Any,
) -> ClientApp:  # fmt: skip
    """One epoch a round, by full batches unless ``batch`` is smaller. ``first`` and ``second`` are the two lines of an audit."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        partition = int(context.node_config["partition-id"])
        data: Any = Mappings(data_of(context))
        if first:
            data = with_canaries(data, context, count=count)
        numbers: dict[str, Any] = {"num-examples": len(data)}
        loader = DataLoader(data, batch_size=batch)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=RATE)
        # Torch's own streams follow from the round and the node, so that runs repeat.
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(1000 * int(message.content["config"]["server-round"]) + partition)  # type: ignore
            engine = PrivacyEngine()
            if private:
                model, optimizer, loader = engine.make_private(
                    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noise(partition), max_grad_norm=0.5
                )  # fmt: skip
            if second:
                set_canary_gradients(model, optimizer, context)
            bug(optimizer, model)
            model.train()
            for batch_ in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(batch_["img"]), batch_["label"]).backward()
                optimizer.step()
            if private and claims:
                numbers |= {"epsilon": float(engine.get_epsilon(DELTA)), "target_delta": DELTA}
        plain = {name.removeprefix("_module."): value for name, value in model.state_dict().items()}
        records = {"arrays": ArrayRecord(plain), "metrics": MetricRecord(numbers)}
        return Message(RecordDict({**records}), reply_to=message)

    answer_audits(app, **{"model": network, "data": data_of, **told})
    return app


run = partial(
    audits.run, model=Net, begins=Net, probe_attacks="", canaries=True, train_config={}
)  # fmt: skip
"""Rows of an audit of epsilon alone."""


def pooled(shown: dict[str, Any]) -> int:
    """All canaries of an audit; ``shown["canaries"]`` counts those of the strongest view."""
    return max(part["canaries"] for part in shown["parts"])


def shown_in(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return next(row[AUDIT] for row in rows if row.get(AUDIT))
