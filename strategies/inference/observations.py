"""What the server of edge-cloud inference observes: the queries that it answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from attacks.base import Knowledge
from attacks.queries.base import Query
from attacks.queries.sender import QuerySender
from clients.evaluation import device
from clients.inference.plan import CutModel, inference_plan
from strategies.audit.kinds import Kind, Observed, Seen, digest, part_of

MODEL, DEFENSES = "model/", "defenses/"
"""Prefixes of the weights of the whole model, and of what the pipeline's defences have learned."""


@dataclass(frozen=True)
class SeenQuery(Seen):
    """Attacked images of one batch of queries.

    Attributes:
        latent: (B, ...), what travelled.
    """

    latent: Tensor


class Queried(Kind):
    """The features that leave the client half to be answered. An image keeps its row."""

    name: ClassVar[str] = "query"
    title: ClassVar[str] = "queries"
    plural: ClassVar[str] = "queries"
    observation: ClassVar[type] = Query
    seen: ClassVar[type[Seen]] = SeenQuery
    start: ClassVar[str] = "QueryInversion()"
    paired: ClassVar[bool] = True

    def observations(self, observed: Observed) -> list[Any]:
        """The attacked images' features, as they travelled and as the server half was given them."""
        card, model, sender = observed.task.plan.data_card(), _model(observed), _sender(observed)
        latents = [seen.latent.to(device()) for seen in observed.seen if isinstance(seen, SeenQuery)]
        return [
            Query(
                features=sender.decoded(latent), latent=latent, client_model=model.client, server_model=model.server,
                input_shape=card.input_shape, mean=card.mean, std=card.std, pipeline=sender.pipeline,
            )
            for latent in latents
        ]  # fmt: skip

    def depends_on(self, observed: Observed) -> str:
        """The weights of the model and what the defences have learned."""
        return digest(observed.weights)

    def knowledge(self, observed: Observed) -> Knowledge:
        """With the clients' sending side, whose defences are fitted."""
        sender = _sender(observed)
        return replace(super().knowledge(observed), pipeline=sender.pipeline, query_sender=sender)


def _model(observed: Observed) -> CutModel:
    return inference_plan(observed.task.plan).build_cut(part_of(observed.weights, MODEL))


def _sender(observed: Observed) -> QuerySender:
    """The clients' sending side, as the server can run it."""
    card = observed.task.plan.data_card()
    pipeline = observed.task.plan.defenses().with_state(part_of(observed.weights, DEFENSES))
    return QuerySender(_model(observed).client, pipeline, card.mean, card.std)


QUERY = Queried()
KINDS = (QUERY,)
