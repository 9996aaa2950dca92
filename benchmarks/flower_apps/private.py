"""Flower's example of Opacus with canaries in its training, and variants of it: full batches, and planted bugs."""

from __future__ import annotations

from edits import Append, Before, Edit, Replace
from parts import CIFAR, HALVES, App, loaders_of, server, wrapped

CLIENT = "opacus_fl/client_app.py"
PIXELS = loaders_of('load_data(own["partition-id"], own["num-partitions"])')
CANARIES: tuple[Edit, ...] = (
    *server(
        "opacus_fl",
        wrapped('probe_attacks="", learning_rate=0.001, momentum=0.9, canaries=True, rounds=range(1, num_rounds + 1)'),
    ),
    Before(CLIENT, "app = ClientApp(", "from clients import answer_audits, set_canary_gradients, with_canaries"),
    Before(CLIENT, "privacy_engine = PrivacyEngine(", "train_loader = with_canaries(train_loader, context)"),
    Before(CLIENT, "epsilon = train(", "set_canary_gradients(private_model, optimizer, context)"),
    Append(CLIENT, f"{PIXELS.strip()}\n\n\n{HALVES}"),
)
"""The lines that audit the epsilon of the example."""

FULL: tuple[Edit, ...] = (
    Replace(
        "opacus_fl/task.py",
        'partition_train_test["train"], batch_size=32',
        'partition_train_test["train"], batch_size=10**6',
    ),
)
"""One step a round, on all examples."""
HALF: tuple[Edit, ...] = (
    Before(CLIENT, "epsilon = train(", """add_noise = optimizer.add_noise
def half():
    add_noise()
    for one in optimizer.params:
        one.grad = (one.grad + one.summed_grad.view_as(one)) / 2
optimizer.add_noise = half"""),
)  # fmt: skip
"""Half of the noise that the accountant counts."""
LAYER: tuple[Edit, ...] = (
    Before(CLIENT, "epsilon = train(", """add_noise = optimizer.add_noise
def elsewhere():
    add_noise()
    for one in private_model._module.fc3.parameters():
        one.grad = one.summed_grad.view_as(one).clone()
optimizer.add_noise = elsewhere"""),
)  # fmt: skip
"""No noise on the last layer."""


def private(kind: str, *variant: Edit, rounds: int = 3) -> App:
    """The example, changed."""
    return App(
        kind, "examples/opacus", "opacus_fl", CIFAR, CANARIES, variant=variant, config={"num-server-rounds": rounds}
    )


PRIVATE = {
    "opacus/canaries": private("canaries in DP-SGD; batches of 32"),
    "opacus/layer": private("planted bug: no noise on the last layer; batches of 32", *LAYER),
    "opacus/full": private("canaries in DP-SGD; full batches", *FULL),
    "opacus/full-half": private("planted bug: half of the noise; full batches", *FULL, *HALF),
}
"""Name -> app."""
