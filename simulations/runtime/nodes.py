"""The nodes of a run, and the data of each."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from clients.data.card import DataCard
from clients.data.images import ImageDataset, fingerprint
from clients.data.partitions import Indices, partition_indices
from clients.task.auxiliary import Auxiliary
from clients.task.task import Plan
from clients.wire.records import reason_of, to_record, to_tensors, values_of
from clients.wire.texts import shortened
from simulations.experiment.scenario import KnownClients
from strategies.audit.threat_card import FROM_SEED, OWN_SECRET
from strategies.exchange.exchange import Exchange

CLIENTS_READY = "the clients are set up"
"""In the log of a run, once each client has its share of the data."""
PAGE_WRITTEN = "report written to"
"""In the log of a finished run, behind all else that the run does."""
NODE_WAIT_SECONDS = 120.0
FIRST_ANSWER_SECONDS = 600.0
"""Ray gives up a worker that has not registered after 180 s, and starts another one without end."""
MOST_EXAMPLES = 2**31
"""Of a client that has data of its own: the server plans by what it says."""


def find_nodes(grid: Grid, num_clients: int) -> dict[int, int]:
    """Partition -> node id of ``num_clients`` connected nodes (0: of all, at least two); ``RuntimeError`` for too few of them."""
    wanted = num_clients or 2
    deadline = time.monotonic() + NODE_WAIT_SECONDS
    while len(ids := list(grid.get_node_ids())) < wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"{len(ids)} nodes are connected after {NODE_WAIT_SECONDS:.0f} s, num-clients asks for {wanted}"
            )
        time.sleep(0.5)
    # Until partitions are known, nodes stand for themselves. The first answer of a simulation waits for Ray to start.
    exchange = Exchange(grid, {node: node for node in ids}, FIRST_ANSWER_SECONDS)
    replies = exchange("query.partition", {node: RecordDict({"config": ConfigRecord()}) for node in ids})
    if len(replies) < wanted:
        raise RuntimeError(
            f"{len(replies)} of {len(ids)} nodes reported their partition within {FIRST_ANSWER_SECONDS:.0f} s, num-clients asks "
            f"for {wanted}: their workers may not have started"
        )
    nodes: dict[int, int] = {}
    for node, reply in replies.items():
        if reply.has_error():
            raise RuntimeError(f"node {node} did not report its partition: {reason_of(reply)}")
        partition = values_of(reply, "metrics").get("partition")
        if not isinstance(partition, int):
            raise RuntimeError(f"node {node} says that it holds partition {shortened(partition)}; expected a number")
        if partition in nodes:
            raise RuntimeError(f"nodes {nodes[partition]} and {node} both say that they hold partition {partition}")
        nodes[partition] = node
    nodes = dict(sorted(nodes.items())[: num_clients or None])
    if missing := set(range(len(nodes))) - set(nodes):
        raise RuntimeError(f"no node holds partition {min(missing)}; partitions are numbered from 0")
    return nodes


def set_up(exchange: Exchange, plan: Plan, partition: str) -> KnownClients:
    """Give every node its share of the data (``partition``); ``RuntimeError`` where one cannot read it, or not all agree on it."""
    shares = {} if partition == "node" else _shares(plan, partition, len(exchange.nodes))
    # In a simulation every process runs this bundle; a deployed node has its own copy.
    app_dir = str(Path(__file__).resolve().parents[2]) if _in_simulation() else ""
    contents = {
        at: RecordDict({"config": exchange.config(plan.at(0), **{"app-dir": app_dir}), **shares.get(at, {})})
        for at in exchange.nodes
    }
    replies = exchange("query.setup", contents)
    cards: dict[int, DataCard] = {}
    sizes: dict[int, tuple[int, int]] = {}
    from_seed = []
    mine_read = fingerprint(plan.load_data()) if shares else ""
    for at in exchange.nodes:
        reply = replies.get(at)
        if reply is None or reply.has_error():
            reason = reason_of(reply) if reply is not None else "no reply"
            raise RuntimeError(f"client {at} could not be set up: {reason}")
        cards[at], sizes[at] = _card_and_sizes(at, reply, shares.get(at, {}))
        if (randomness := values_of(reply, "card").get("randomness")) not in ("seed", "secret"):
            raise RuntimeError(
                f"client {at} says that its randomness is {shortened(randomness)}; expected seed or secret"
            )
        from_seed += [at] if randomness == "seed" else []
        read = values_of(reply, "card").get("data")
        if shares and read is not None and read != mine_read:
            raise RuntimeError(
                f"client {at} reads other examples than the server does from dataset = {plan.dataset!r}: a function "
                "that draws its split anew each time must seed it, and nodes need the same files"
            )
    first = min(cards)
    for at, card in cards.items():
        for name in ("num_classes", "input_shape"):
            mine, others = getattr(card, name), getattr(cards[first], name)
            if mine != others:
                raise RuntimeError(f"client {at} has {name} = {mine}, client {first} has {others}")
    labels = {at: plan.load_data().train.truth(to_tensors(share["indices"])["train"]) for at, share in shares.items()}
    return KnownClients(cards[first], sizes, labels, _randomness(from_seed, len(exchange.nodes)))


def _card_and_sizes(
    partition: int, reply: Message, share: Mapping[str, ArrayRecord]
) -> tuple[DataCard, tuple[int, int]]:
    """A client's card, and how many training and test examples it has: as many as the server dealt to it, if it did."""
    try:
        card = DataCard.from_json(str(values_of(reply, "card").get("card")))
    except ValueError as error:
        raise RuntimeError(f"client {partition} could not be set up: {error}") from error
    numbers, counts = values_of(reply, "metrics"), list[int]()
    dealt_out = {name: len(rows) for name, rows in to_tensors(share["indices"]).items()} if share else {}
    for part in ("train", "test"):
        count = numbers.get(f"{part}-examples")
        if not isinstance(count, int) or not 0 < count <= MOST_EXAMPLES or count != dealt_out.get(part, count):
            allowed = dealt_out.get(part, f"1 to {MOST_EXAMPLES}")
            raise RuntimeError(
                f"client {partition} says that it has {shortened(count)} {part} examples; expected {allowed}"
            )
        counts.append(count)
    return card, (counts[0], counts[1])


def _randomness(from_seed: list[int], clients: int) -> str:
    if not from_seed:
        return OWN_SECRET
    if len(from_seed) == clients:
        return FROM_SEED
    return f"{FROM_SEED} at clients {', '.join(map(str, from_seed))}; {OWN_SECRET} elsewhere"


def _shares(plan: Plan, partition: str, clients: int) -> dict[int, dict[str, ArrayRecord]]:
    train, test = dealt(plan, partition, plan.load_data(), clients)
    return {
        at: {"indices": to_record({"train": torch.from_numpy(train[at]), "test": torch.from_numpy(test[at])})}
        for at in range(clients)
    }


def dealt(plan: Plan, partition: str, data: ImageDataset, clients: int) -> tuple[list[Indices], list[Indices]]:
    """Positions of each client's training and test examples; ``ValueError`` when they cannot be dealt out so."""
    labels = data.train.labels.numpy()
    # What the server holds itself no client may hold: attacks learn from it.
    free = np.setdiff1d(np.arange(len(labels)), Auxiliary(plan).held_out(data.train.strata()))
    train = [free[part] for part in partition_indices(labels[free], partition, clients, plan.seed)]
    # Test examples are always spread evenly: they measure the global model, not a client.
    return train, partition_indices(data.test.labels.numpy(), "iid", clients, plan.seed)


def _in_simulation() -> bool:
    return Path(sys.argv[0]).stem == "flwr-simulation"
