"""What the server of a split run holds, and whom it talks to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.local_model import shared_tensors
from clients.split.plan import SplitPlan
from clients.training.evaluation import device
from strategies.audit.auditor import Auditor
from strategies.split.exchange import SplitExchange
from strategies.split.observations import EDGE, SERVER


@dataclass(frozen=True)
class Holder:
    """What the server knows of one client's data.

    Attributes:
        labels: Classes (num_train,) or label vectors (num_train, K), int64, where they sit at the server; None where they
            travel with the tokens.
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
        self.token_shape = (edge.num_tokens, edge.token_length * plan.defenses().widening)
        self.edge = {name: tensor.detach().clone() for name, tensor in shared_tensors(edge).items()}

    def weights(self) -> dict[str, Tensor]:
        """Both halves under "edge/" and "server/", on the CPU."""
        server = {SERVER + name: t.detach().cpu().clone() for name, t in shared_tensors(self.server).items()}
        return {EDGE + name: tensor for name, tensor in self.edge.items()} | server

    def gradient(self, features: Tensor, targets: Tensor) -> Tensor:
        """What the server would return for one batch: the gradient (B, N, D) of its mean loss."""
        received = features.to(device()).requires_grad_()
        loss = self.plan.objective.loss(self.server(received), targets.to(device()))
        return torch.autograd.grad(loss, received)[0].cpu()
