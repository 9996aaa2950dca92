"""Observations of the server of edge-cloud inference: the queries that it answers, and its knowledge for attacks."""

import functools
from dataclasses import dataclass, replace
from typing import Any, get_args

from torch import Tensor

from attacks.queries.attributes import AttributeInference
from attacks.queries.base import Query
from attacks.queries.training import Trained
from attacks.sender import Sender
from clients.inference.plan import CutModel, InferencePlan
from clients.models.cuts import AdversaryBuilder
from clients.task.auxiliary import Auxiliary
from clients.training.evaluation import device
from defenses.tensors import Tensors, part_of
from strategies.audit.kinds import Kind, Observed, Seen, digest, undefended

MODEL, DEFENSES = "model/", "defenses/"
"""Prefixes of the weights of the whole model, and of what the pipeline's defences have learned."""


@dataclass(frozen=True)
class SeenQuery(Seen):
    """Attacked images of one batch of a client's queries, or of all queries; ``latent`` (B, ...) is the sent data."""

    latent: Tensor


def _read(observed: Observed) -> list[Any]:
    """Features of the attacked images, as sent and as the server half received them."""
    card, model, sender = observed.task.plan.data_card(), _model(observed), _sender(observed)
    latents = [seen.latent.to(device()) for seen in observed.seen if isinstance(seen, SeenQuery)]
    return [
        Query(
            features=sender.pipeline.decode_features(latent), latent=latent, client_model=model.client,
            server_model=model.server, input_shape=card.input_shape, mean=card.mean, std=card.std, pipeline=sender.pipeline,
        )
        for latent in latents
    ]  # fmt: skip


def _undefended(observed: Observed) -> Observed:
    """Observations without the learned state of the defences."""
    kept = {name: tensor for name, tensor in observed.weights.items() if not name.startswith(DEFENSES)}
    return replace(undefended(observed), weights=kept)


def _knows(observed: Observed) -> dict[str, Any]:
    """The clients' sending side (defences fitted) and builders of adversaries."""
    plan, sender = InferencePlan.narrow(observed.task.plan), _sender(observed)
    builder = adversary_builder(plan, _cut(observed), part_of(observed.weights, MODEL))
    sensitive = Auxiliary(plan).sensitive()
    return {"pipeline": sender.pipeline, "sender": sender, "sensitive": sensitive, "adversary": builder}


def adversary_builder(plan: InferencePlan, cut: str, weights: Tensors) -> AdversaryBuilder:
    """The builder of adversaries for the features at a cut; "tuned" ones start from ``weights`` of the whole model."""
    return AdversaryBuilder(plan.model, cut, plan.data_card().input_shape, plan.width, plan.norm, weights)


def _cut(observed: Observed) -> str:
    return InferencePlan.narrow(observed.task.plan).cut_of(observed.task.round)


def _model(observed: Observed) -> CutModel:
    return InferencePlan.narrow(observed.task.plan).build_cut(_cut(observed), part_of(observed.weights, MODEL))


def _sender(observed: Observed) -> Sender:
    card = observed.task.plan.data_card()
    pipeline = observed.task.plan.defenses.with_state(part_of(observed.weights, DEFENSES))
    return Sender(_model(observed).client, pipeline, card.mean, card.std)


_Queries = functools.partial(
    Kind, observation=Query, observations=_read, seen=SeenQuery, paired=True, undefended=_undefended, knows=_knows,
    depends_on=lambda observed: f"{_cut(observed)} {digest(observed.weights)}",
)  # fmt: skip
"""Features that clients send as queries. An image keeps its row."""
QUERY = _Queries("query", "queries", start="QueryInversion()")
ATTRIBUTE = _Queries(
    "attribute", "attributes of queries", start="AttributeInference()", chosen=False, of_attributes=True,
    # The paper's adversary and the retrained one.
    auto=lambda: [AttributeInference(training=training) for training in get_args(Trained)],
)  # fmt: skip
"""All queries of a client; attacks guess a sensitive attribute, although the queries serve another purpose."""
KINDS = (QUERY, ATTRIBUTE)
