"""What a node keeps between the messages of federated learning, and what its replies say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import ConfigRecord, RecordDict

from clients.records import tensors_of, to_record, values_of
from strategies.exchange import Exchange
from tests.clients.test_draws import TASK, weights_of
from tests.local_grid import LocalGrid


def test_the_server_cannot_choose_the_noise_by_the_ledger_that_it_hands_back(tmp_path: Path) -> None:
    """On resume a ledger comes from the server: in a deployment what was spent counts, the noise multiplier does not."""
    task = replace(TASK, pipeline="DPSGD(target_epsilon=1.0)")
    state = {"noise_multiplier": 1e-6, "accountant": {"mechanism": "rdp", "history": [[1.0, 0.5, 7]]}}
    ledger = json.dumps({"train": state})
    sizes = {}
    for randomness in ("secret", "seed"):
        grid = LocalGrid(1, randomness=randomness, node_config={0: {"secret-dir": str(tmp_path)}})
        grid.contexts[100].state["indices"] = to_record({"train": torch.arange(40), "test": torch.arange(20)})
        exchange = Exchange(grid, {0: 100}, 60.0)
        content = RecordDict({
            "config": exchange.config(task), "arrays": to_record(weights_of(task)),
            "ledger": ConfigRecord({task.pipeline: ledger}),
        })  # fmt: skip
        reply = exchange("train", {0: content})[0]
        kept = str(reply.content["ledger"][task.pipeline])  # type: ignore[index]
        assert "[1.0, 0.5, 7]" in kept
        sizes[randomness] = sum(float(t.square().sum()) for t in tensors_of(reply, "arrays").values())
    assert sizes["secret"] > 25 * sizes["seed"]


def test_another_spelling_of_a_pipeline_is_the_same_account(tmp_path: Path) -> None:
    """The finding: a server that wrote 1.00 for 1.0 in the second round got an epsilon that began at zero again."""
    spent = {}
    plain, other = "DPSGD(noise_multiplier=1.0)", "DPSGD( noise_multiplier = 1.00 )"
    for name, spellings in (("one", (plain, plain)), ("two", (plain, other))):
        grid = LocalGrid(1, randomness="secret", node_config={0: {"secret-dir": str(tmp_path / name)}})
        grid.contexts[100].state["indices"] = to_record({"train": torch.arange(40), "test": torch.arange(20)})
        exchange, epsilons = Exchange(grid, {0: 100}, 60.0), []
        for at, text in enumerate(spellings, 1):
            task = replace(TASK, pipeline=text, round=at)
            content = RecordDict({"config": exchange.config(task), "arrays": to_record(weights_of(TASK))})
            epsilons.append(values_of(exchange("train", {0: content})[0], "metrics")["epsilon"])
        spent[name] = epsilons
    assert spent["one"] == spent["two"]
    assert spent["two"][1] > spent["two"][0]
