"""The Flower ServerApp: one run loops over the pipelines, trains, attacks, audits and reports."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from attacks.local_model import shared_tensors
from clients.partition import partition_indices
from clients.records import reason_of, to_record, to_tensors, values_of
from clients.task import DataCard, Task
from defenses.base import Pipeline
from simulations.experiment import Experiment
from simulations.report import write_report
from simulations.run_directory import Checkpoint, RunDirectory
from strategies.attack_pool import AttackPool
from strategies.auditor import Auditor
from strategies.curious import CuriousFedAvg
from strategies.exchange import Exchange

log = logging.getLogger("flwr")
NODE_WAIT_SECONDS = 120.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Reads the run config and runs the experiment."""
    experiment = Experiment.from_mapping(context.run_config)
    if not experiment.output_dir:
        experiment = replace(experiment, output_dir=str(Path.home() / "fedveil-runs" / f"run-{context.run_id}"))
    run_experiment(grid, experiment)


def run_experiment(grid: Grid, experiment: Experiment) -> Path:
    """Runs all pipelines of an experiment on the nodes of a grid.

    Returns:
        The path of the report.

    Raises:
        ConfigError: When the output folder cannot be used.
        RuntimeError: When nodes are missing, cannot be set up, or too few of them send usable updates.
    """
    run = RunDirectory.open(Path(experiment.output_dir), experiment)
    log.info("fedveil: results go to %s", run.path)
    try:
        return _run(grid, run)
    except Exception as error:
        # Flower reports a failed ServerApp late and briefly; the folder of the run says why.
        run.write_failure(f"{type(error).__name__}: {error}")
        raise
    finally:
        run.close()


def _run(grid: Grid, run: RunDirectory) -> Path:
    experiment = run.experiment
    nodes = find_nodes(grid, experiment)
    exchange = Exchange(grid, nodes, experiment.client_timeout)
    card = set_up(exchange, experiment)
    pool = AttackPool(experiment.attack_workers, experiment.attack_gpus)
    auditor = Auditor(exchange, pool, run, share_images=experiment.share_images)
    try:
        for job in run.open_jobs():
            auditor.submit(job)
        pipelines = experiment.pipelines()
        for at, pipeline in enumerate(pipelines):
            run_pipeline(run, auditor, pipeline, at, card)
        auditor.collect(wait=True)
    finally:
        pool.close()
    progress = {
        "pipeline": len(pipelines),
        "of": len(pipelines),
        "round": experiment.rounds,
        "rounds": experiment.rounds,
    }
    run.mark_not_validated()
    run.flush()
    run.write_progress({**progress, "finished": True})
    report = write_report(run.path)
    log.info("fedveil: report written to %s", report)
    return report


def run_pipeline(run: RunDirectory, auditor: Auditor, pipeline: Pipeline, at: int, card: DataCard) -> None:
    """Trains one pipeline from its last complete round to the end, attacking on the way."""
    experiment = run.experiment
    task = replace(experiment.task(pipeline), card=card)
    strategy = CuriousFedAvg(
        task=task,
        auditor=auditor,
        probe_attacks=experiment.attacks_on(pipeline, "probe"),
        update_attacks=experiment.attacks_on(pipeline, "update"),
        attack_rounds=experiment.attacked_rounds(),
        known_labels=experiment.labels == "known",
        fraction_train=experiment.fraction_train,
        min_usable=experiment.min_usable,
        label=run.label(str(pipeline)),
    )
    if pipeline.needs_group_norm and experiment.norm == "batch":
        log.warning("fedveil: %s needs gradients per example: BatchNorm is replaced by GroupNorm", pipeline)
    done = run.checkpoint(pipeline)
    arrays = to_record(done.weights if done else shared_tensors(task.build_model()))
    strategy.ledgers, strategy.accuracy = (dict(done.ledgers), done.accuracy) if done else ({}, None)
    for server_round in range(done.round + 1 if done else 0, experiment.rounds + 1):
        run.begin_round()
        arrays = run_round(strategy, server_round, arrays)
        run.complete_round(pipeline, Checkpoint(server_round, to_tensors(arrays), strategy.ledgers, strategy.accuracy))
        progress = {
            "pipeline": at + 1,
            "of": len(run.experiment.pipelines()),
            "round": server_round,
            "rounds": experiment.rounds,
        }
        open_jobs = len(auditor.pool)
        run.write_progress(
            {**progress, "finished": False, "accuracy": strategy.accuracy, "open_jobs": open_jobs},
            on_change=write_report,
        )
        log.info(
            "fedveil: %s | round %d of %d | test accuracy %s | %d attacks open",
            str(pipeline) or "no defence", server_round, experiment.rounds,
            "unknown" if strategy.accuracy is None else f"{strategy.accuracy:.3f}", open_jobs,
        )  # fmt: skip


def run_round(strategy: CuriousFedAvg, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
    """One round: train (unless it is round 0, the initial model), then evaluate. Returns the global model."""
    exchange = strategy.exchange
    if server_round > 0:
        replies = exchange("train", strategy.train_contents(server_round, arrays))
        new_arrays, _ = strategy.aggregate_train(server_round, replies.values())
        arrays = new_arrays if new_arrays is not None else arrays
    replies = exchange("evaluate", strategy.evaluate_contents(server_round, arrays))
    strategy.aggregate_evaluate(server_round, replies.values())
    return arrays


def find_nodes(grid: Grid, experiment: Experiment) -> dict[int, int]:
    """Partition -> node id of the connected nodes.

    Raises:
        RuntimeError: When too few nodes connect, or two claim the same partition.
    """
    wanted = experiment.num_clients or 2
    deadline = time.monotonic() + NODE_WAIT_SECONDS
    while len(ids := list(grid.get_node_ids())) < wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"{len(ids)} nodes are connected after {NODE_WAIT_SECONDS:.0f} s, num-clients asks for {wanted}"
            )
        time.sleep(0.5)
    # Until partitions are known, nodes stand for themselves. The first answer of a simulation waits for Ray to start.
    exchange = Exchange(grid, {node: node for node in ids}, max(experiment.client_timeout, NODE_WAIT_SECONDS))
    replies = exchange("query.partition", {node: RecordDict({"config": ConfigRecord()}) for node in ids})
    if len(replies) < wanted:
        raise RuntimeError(f"{len(replies)} of {len(ids)} nodes told their partition, num-clients asks for {wanted}")
    nodes: dict[int, int] = {}
    for node, reply in replies.items():
        if reply.has_error():
            raise RuntimeError(f"node {node} did not tell its partition: {reason_of(reply)}")
        partition = int(values_of(reply, "metrics")["partition"])
        if partition in nodes:
            raise RuntimeError(f"nodes {nodes[partition]} and {node} both say that they hold partition {partition}")
        nodes[partition] = node
    nodes = dict(sorted(nodes.items()))
    if experiment.num_clients:
        nodes = dict(list(nodes.items())[: experiment.num_clients])
    if missing := set(range(len(nodes))) - set(nodes):
        raise RuntimeError(f"no node holds partition {min(missing)}; partitions are numbered from 0")
    return nodes


def set_up(exchange: Exchange, experiment: Experiment) -> DataCard:
    """Gives every node its share of the data and checks that they agree on its shape.

    Raises:
        RuntimeError: When a node cannot read its data, or its shape is not that of the others.
    """
    task = experiment.task(Pipeline())
    shares = _shares(task, experiment, len(exchange.nodes))
    # In a simulation every process runs this bundle; a deployed node has its own copy.
    app_dir = str(Path(__file__).resolve().parents[1]) if _in_simulation() else ""
    contents = {
        partition: RecordDict({"config": exchange.config(task, **{"app-dir": app_dir}), **shares.get(partition, {})})
        for partition in exchange.nodes
    }
    replies = exchange("query.setup", contents)
    cards: dict[int, DataCard] = {}
    for partition in exchange.nodes:
        reply = replies.get(partition)
        if reply is None or reply.has_error():
            reason = reason_of(reply) if reply is not None else "no reply"
            raise RuntimeError(f"client {partition} could not be set up: {reason}")
        cards[partition] = DataCard.from_json(values_of(reply, "card")["card"])
    first = min(cards)
    for partition, card in cards.items():
        for name in ("num_classes", "input_shape"):
            mine, others = getattr(card, name), getattr(cards[first], name)
            if mine != others:
                raise RuntimeError(f"client {partition} has {name} = {mine}, client {first} has {others}")
    return cards[first]


def _shares(task: Task, experiment: Experiment, clients: int) -> dict[int, dict[str, ArrayRecord]]:
    if experiment.partition == "node":
        return {}
    data = task.load_data()
    labels = data.train.labels.numpy()
    # What the server holds itself no client may hold: attacks learn from it.
    free = np.setdiff1d(np.arange(len(labels)), task.auxiliary_indices(labels))
    train = [free[part] for part in partition_indices(labels[free], experiment.partition, clients, experiment.seed)]
    # Test examples are always spread evenly: they measure the global model, not a client.
    test = partition_indices(data.test.labels.numpy(), "iid", clients, experiment.seed)
    return {
        at: {"indices": to_record({"train": torch.from_numpy(train[at]), "test": torch.from_numpy(test[at])})}
        for at in range(clients)
    }


def _in_simulation() -> bool:
    import sys

    return Path(sys.argv[0]).stem == "flwr-simulation"
