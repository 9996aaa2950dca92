"""State of the server in a split run, and its round trips with the clients, whose costs are counted."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from attacks.local_model import shared_tensors
from attacks.sender import smash
from clients.split.plan import SplitPlan
from clients.task.task import Task
from clients.training.evaluation import device
from defenses.tensors import Tensors, on_cpu, under
from strategies.audit.auditor import Auditor
from strategies.exchange.exchange import Exchange, Posted
from strategies.exchange.faults import seconds_of
from strategies.exchange.guard import FAR, Answers, Bound, FaultIn, GuardedExchange, Rows
from strategies.split.observations import EDGE, SERVER


@dataclass
class Tally:
    """A round's cost for each client in seconds of work and bytes of tensors, and the clients with an unusable reply."""

    seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    failed: set[int] = field(default_factory=set)


class SplitExchange(GuardedExchange):
    """The guarded exchange of one pipeline, with the costs of a round (see ``GuardedExchange`` for the arguments)."""

    def __init__(self, exchange: Exchange, rows: Rows, min_usable: float) -> None:
        super().__init__(exchange, rows, min_usable)
        self.tally = Tally()

    def receive(
        self, task: Task, posted: Posted, fault_in: FaultIn | None = None, *, at_least: float | None = None
    ) -> Answers:
        """The usable replies, counted."""
        good = super().receive(task, posted, fault_in, at_least=at_least)
        self.tally.failed |= set(posted.contents) - set(good)
        for partition, reply in good.items():
            self.tally.seconds[partition] += seconds_of(reply, "train-seconds")
            records = [record for record in reply.content.values() if isinstance(record, ArrayRecord)]
            self.tally.sent[partition] += sum(len(array.data) for record in records for array in record.values())
        return good


@dataclass(frozen=True)
class Holder:
    """The server's knowledge of one client's data.

    ``labels`` are classes (num_train,) or label vectors (num_train, K), int64, where they sit at the server; None where they
    travel.
    """

    num_train: int
    num_test: int
    labels: Tensor | None = None


class SplitServer:
    """The server half, the client half as last averaged, and the exchange with the clients."""

    def __init__(
        self,
        plan: SplitPlan,
        auditor: Auditor,
        holders: Mapping[int, Holder],
        batches_per_message: int,
        min_usable: float,
    ) -> None:
        self.plan = plan
        self.auditor = auditor
        self.holders = dict(sorted(holders.items()))
        self.batches_per_message = batches_per_message
        self.exchange = SplitExchange(auditor.exchange, auditor.recorder, min_usable)
        self.accuracy: float | None = None
        """Of the current model on test images, protected as in use."""
        edge, server = plan.build_halves()
        self.server = server.to(device())
        card, pipeline = plan.data_card(), plan.defenses
        with torch.no_grad():
            grey = smash(edge.eval(), pipeline, torch.full((2, *card.input_shape), 0.5), card, ("size",))
        size = FAR * max(1.0, float(grey.double().square().mean().sqrt()))
        self.features, self.targets = Bound(size, size), Bound(1.0, 1.0, fixed=1.0)
        """Bounds on smashed data, beside that of grey images, and on class probabilities."""
        self.token_shape = (edge.num_tokens, edge.token_length * plan.defenses.widening)
        self.edge = {name: tensor.detach().clone() for name, tensor in shared_tensors(edge).items()}
        self.exchange.bounds["evaluate.smash"] = {"features": self.features}
        self.exchange.bounds["train.step"] = {"features": self.features, "targets": self.targets}

    @property
    def about(self) -> dict[str, str]:
        """Facts for threat cards about what is sent, and by which client half."""
        tokens, length = self.token_shape
        half = "trained" if self.plan.trains_edge else "frozen"
        return {"tokens": f"{tokens} of length {length}", "client_half": half}

    def weights(self) -> Tensors:
        """Both halves under "edge/" and "server/", on the CPU."""
        return under(EDGE, self.edge) | on_cpu(shared_tensors(self.server), SERVER)

    def gradient(self, features: Tensor, targets: Tensor) -> Tensor:
        """The server's reply for one batch: the gradient (B, N, D) of its mean loss."""
        received = features.to(device()).requires_grad_()
        loss = self.plan.objective.loss(self.server(received), targets.to(device()))
        return torch.autograd.grad(loss, received)[0].cpu()
