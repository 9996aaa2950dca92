"""Facts about an external app's training that its server cannot know, and the assumptions of the attacks instead."""

from __future__ import annotations

from clients.task.task import Plan
from strategies.external_app.orders import OF_ROUND, Orders

NOT_IN_PROBE = (
    "what the app's own train() does is not in a probe: clipping or noise inside it, another optimizer than SGD, frozen layers, "
    "BatchNorm or dropout in eval mode, augmentation"
)
UNCHECKED = "that its clients trained on the images of data is the app's word: their number alone is compared"
ASSUMED = "audited-app"
"""Metric of the row of each attacked round whose column ``assumed`` lists what could not be known."""

DIFFERENCE = "reply-difference"
"""Metric of the row of a client whose round is one step: how far its reply lies from that step, over the step's length."""
AS_ASSUMED = 0.01
"""Highest difference that rounding explains: of float32 weights, whose change is much smaller than they are."""


def sgd(plan: Plan) -> str:
    """The optimizer that probes and attacks assume."""
    kind = " (Nesterov)" if plan.nesterov else ""
    return f"SGD with momentum {plan.momentum:g}{kind} and weight decay {plan.weight_decay:g}"


def recipe(plan: Plan) -> str:
    """The assumptions on training, for threat cards."""
    layers = "all layers learn but those that the model freezes"
    return f"assumed: {sgd(plan)}, its state new in each round; train mode, {layers}, no augmentation"


def assumptions(plan: Plan, orders: Orders, loss: str, *, mods: str, unsent: int = 0) -> list[str]:
    """Unknown facts about the clients, each with the assumption in its place.

    ``mods`` are those known to act on replies; ``unsent`` frozen tensors are in no message.
    """
    found = [
        f"Whether the clients trained on the images of data, which guesses are scored against: {UNCHECKED.split(': ')[1]}.",
        f"What the app's own train() does to an update, such as clipping or noise inside it: nothing beside "
        f"{f'the mods ({mods})' if mods else 'what a step does'} was reckoned with, and no probe shows it.",
        f"Which optimizer the clients run, and that its state starts anew each round: {sgd(plan)} was assumed.",
        "Whether images were augmented, or the last, smaller batch of an epoch left out: neither was assumed.",
        "Whether gradients were computed in train mode, and all layers learn but those that the model freezes: both assumed.",
        f"Whether the loss is {loss}, as answer_audits names it or by default.",
    ]
    if unsent:
        found.append(
            f"Whether training starts from the {unsent} frozen tensors that no message holds, as the app's model builds them: "
            "assumed, and the nodes build the same as the server."
        )
    if orders.rate_source != OF_ROUND:
        found.append(f"Whether the learning rate of this round was {orders.learning_rate:g}: {orders.rate_source}.")
    if orders.knows_steps:
        found.append("How many local steps there were: counted from the local epochs, the batch size and the examples.")
    return found
