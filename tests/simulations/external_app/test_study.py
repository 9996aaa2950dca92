"""The results of an audited app: its warnings, and what the app says about its differential privacy."""

import html
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp.strategy import FedAvg, Strategy

from simulations.audited import audited
from simulations.report.analysis.run import read_run
from strategies.external_app.claim import CLAIMED
from tests.lines import read_lines
from tests.strategies.external_app.app import AppGrid, Net, an_app


def claiming(app: Any, epsilons: Mapping[int, float], **more: float) -> Any:
    """The app, whose replies to training also name an epsilon, another at each node."""

    def answer(message: Message, context: Context) -> Message:
        answered: Message = app(message, context)
        if message.metadata.message_type == "train":
            said = {"epsilon": epsilons[int(context.node_config["partition-id"])], **more}
            answered.content["metrics"].update(said)  # type: ignore[union-attr]
        return answered

    return answer


def audit(out: Path, app: Any, strategy: Strategy | None = None, rounds: int = 1, **more: Any) -> list[dict[str, Any]]:
    known = {"workers": 0, "probe_attacks": "Spear()", "probe_targets": 4, **more}
    watched = audited(strategy or FedAvg(fraction_evaluate=0.0), out, Net, **known)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = ArrayRecord(Net().state_dict())
    watched.start(AppGrid(app), start, num_rounds=rounds, train_config=ConfigRecord({"lr": 0.1}))
    return list(read_lines(out / "rows.jsonl"))


def page_of(out: Path) -> str:
    return " ".join(html.unescape((out / "report.html").read_text(encoding="utf-8")).split())


def section(text: str, name: str) -> str:
    return text.split(f'id="{name}">')[1].split("</section>")[0]


def test_the_page_says_each_warning_once_below_the_first_table(tmp_path: Path) -> None:
    attacks = {"probe_attacks": "Spear(); LabelInference()", "update_attacks": "LabelInference()"}
    rows = audit(tmp_path / "out", an_app(), **attacks)
    assert not [row for row in rows if row["metric"] == CLAIMED or "claimed_privacy" in row["card"]]
    text = page_of(tmp_path / "out")
    assert "Claimed by the app" not in text
    first, below = section(text, "glance"), section(text, "caveats")
    (found,) = read_run(tmp_path / "out").to_json()
    warnings = [*found["warnings"], *(said for one in found["messages"] for said in one["warnings"])]
    assert warnings
    for warning in warnings:
        assert warning not in first
        assert below.count(warning) == 1


def test_every_row_the_page_and_json_name_what_the_app_says(tmp_path: Path) -> None:
    """Of all rounds, although one is attacked: 2 rounds ran. Nothing of it becomes an epsilon of fedveil's own."""
    out = tmp_path / "out"
    rows = audit(out, claiming(an_app(), {0: 3.25, 1: 1.5}, target_delta=1e-5), rounds=2)
    (claimed,) = [row for row in rows if row["metric"] == CLAIMED]
    (claim,) = claimed["claims"]
    assert (claim["epsilon"], claim["lowest"], claim["rounds"]) == (3.25, 1.5, 2)
    assert len(rows) > 10
    assert all(row["card"]["claimed_privacy"] == [claim["text"]] for row in rows)
    assert not [row for row in rows if row["metric"] == "epsilon"]
    text = page_of(out)
    told = "3.25 (the app's word)<small>δ = 1e-05, client metrics, of training, not of probes</small>"
    assert told in section(text, "glance")
    assert claim["text"] in text.split("<nav")[0]
    (found,) = read_run(out).to_json()
    assert found["epsilon"] is None
    assert found["claims"][0]["epsilon"] == 3.25


class Failing(FedAvg):
    """Fails while it aggregates the second round; keeps the rows that are on disk before."""

    def __init__(self, out: Path) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.out, self.on_disk = out, ""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        if server_round == 2:
            self.on_disk = (self.out / "rows.jsonl").read_text(encoding="utf-8")
            raise RuntimeError("the app failed")
        return super().aggregate_train(server_round, replies)


def test_an_app_that_fails_leaves_its_claims_on_every_card(tmp_path: Path) -> None:
    """On the page that the failed run writes, and in the rows that a killed process would have left."""
    out = tmp_path / "out"
    failing, app = Failing(out), claiming(an_app(), {0: 3.25, 1: 1.5})
    with pytest.raises(RuntimeError, match="the app failed"):
        audit(out, app, failing, rounds=2)
    kept = [json.loads(line) for line in failing.on_disk.splitlines()]
    for rows in (kept, list(read_lines(out / "rows.jsonl"))):
        (claimed,) = [row for row in rows if row["metric"] == CLAIMED]
        texts = [claim["text"] for claim in claimed["claims"]]
        assert "epsilon 3.25" in texts[0]
        assert len(rows) > 10
        assert all(row["card"]["claimed_privacy"] == texts for row in rows)
    assert texts[0] in page_of(out).split("<nav")[0]
