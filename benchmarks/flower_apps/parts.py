"""What an app of the matrix is, and the lines that audit an app: the import and call at the server, and those at the clients.

``@OUT@`` stands for the audit's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edits import Append, Before, Edit, Replace

CIFAR, FASHION, MNIST = "uoft-cs/cifar10", "zalando-datasets/fashion_mnist", "ylecun/mnist"


@dataclass(frozen=True)
class App:
    """An app of Flower's repository, or a variant of one.

    Attributes:
        kind: What is special about it.
        folder: Inside the checkout.
        package: Of its code.
        data_name: The data set that it asks for, a key of ``offline_data.NAMES``.
        audit: The edits that audit it.
        data: Edits that replace its data, beyond its imports.
        repair: Edits without which the app does not run on the newest Flower: what it imports has moved.
        variant: Edits that make a variant of our own.
        config: Run configuration, beside one round.
        truth: How the trained images follow from ``data_name``: "split" (four fifths of an IID share), or "" where the script has
            no copy of them.
        needs: Modules that the app imports and fedveil does not bring along.
        mentions: Patterns of caveats that are true of the app, so that its page must state them.
    """

    kind: str
    folder: str
    package: str
    data_name: str
    audit: tuple[Edit, ...]
    data: tuple[Edit, ...] = ()
    repair: tuple[Edit, ...] = ()
    variant: tuple[Edit, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    truth: str = "split"
    needs: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """Whose app it is."""
        return f"ours, from {self.folder.rpartition('/')[2]}" if self.variant else "Flower's"


def server(package: str, wrapping: str, file: str = "server_app.py") -> tuple[Edit, ...]:
    """Two lines: the import, and the strategy wrapped before it starts."""
    return (
        Before(f"{package}/{file}", "app = ServerApp()", "from simulations.audited import audited"),
        Before(f"{package}/{file}", "result = strategy.start(", f"strategy = {wrapping}"),
    )


def client(package: str, data: str, answers: str, file: str = "client_app.py") -> tuple[Edit, ...]:
    """The import, the function that gives the images, and the call."""
    return (
        Before(f"{package}/{file}", "app = ClientApp(", "from clients import answer_audits"),
        Append(f"{package}/{file}", f"{data.strip()}\n\n\n{answers.strip()}"),
    )


def wrapped(options: str = "momentum=0.9, settings=context.run_config", model: str = "Net") -> str:
    """The call of ``audited``."""
    return f'audited(strategy, "@OUT@", {model}, {options})'


def loaders_of(call: str, image: str = "img", pixels: str = "x / 2 + 0.5") -> str:
    """A function that gives both loaders' images in [0, 1], before the normalisation."""
    return f"""
def pixels(context):
    own = context.node_config
    both = {call}
    return tuple([({pixels.replace("x", f'one["{image}"]')}, one["label"]) for one in part.dataset] for part in both)
"""


HALVES = "answer_audits(app, model=Net, data=pixels, mean=0.5, std=0.5)"
SHARE = 'load_data(own["partition-id"], own["num-partitions"], 32)'


def disk(package: str, name: str) -> tuple[Edit, ...]:
    """Nodes of a simulation have no folder of images: the data set goes by its name and the node's number."""
    old, new = 'context.node_config["dataset-path"]', f'("{name}", context.node_config)'
    return (Replace(f"{package}/client_app.py", old, new, count=2),)


def from_disk(name: str) -> str:
    """The call that reads these."""
    return f'load_data_from_disk(("{name}", own), 32)'
