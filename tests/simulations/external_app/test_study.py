"""The results of an audited app carry what the app says about its differential privacy."""

from __future__ import annotations

import html
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
    Strategy,
)
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from torch.utils.data import DataLoader

from simulations.audited import audited
from simulations.console.terminal import Terminal
from simulations.report.analysis.outcome import as_json
from simulations.runtime.findings import print_findings
from strategies.external_app.claim import CLAIMED
from tests.lines import read_lines
from tests.strategies.external_app.app import EXAMPLES, AppGrid, Net, an_app, digits


def claiming(app: Any, epsilons: Mapping[int, float], **more: float) -> Any:
    """The app, whose replies to training also name an epsilon, another at each node."""

    def answer(message: Message, context: Context) -> Message:
        answered: Message = app(message, context)
        if message.metadata.message_type == "train":
            said = {"epsilon": epsilons[int(context.node_config["partition-id"])], **more}
            answered.content["metrics"].update(said)  # type: ignore[union-attr]
        return answered

    return answer


def audit(out: Path, app: Any, strategy: Strategy | None = None, rounds: int = 1) -> list[dict[str, Any]]:
    known: dict[str, Any] = {"workers": 0, "probe_attacks": "Spear()", "probe_targets": 4}
    watched = audited(
        strategy or FedAvg(fraction_evaluate=0.0), out, Net, settings={"batch-size": 2, "local-epochs": 1}, **known
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = ArrayRecord(Net().state_dict())
    watched.start(AppGrid(app), start, num_rounds=rounds, train_config=ConfigRecord({"lr": 0.1}))
    return list(read_lines(out / "rows.jsonl"))


def page_of(out: Path) -> str:
    return " ".join(html.unescape((out / "report.html").read_text(encoding="utf-8")).split())


def test_every_row_the_page_the_terminal_and_json_name_what_the_app_says(tmp_path: Path) -> None:
    """Of all rounds, although one is attacked: 2 rounds ran. Nothing of it becomes an epsilon of fedveil's own."""
    out = tmp_path / "out"
    rows = audit(out, claiming(an_app(), {0: 3.25, 1: 1.5}, target_delta=1e-5), rounds=2)
    (claimed,) = [row for row in rows if row["metric"] == CLAIMED]
    (claim,) = claimed["claims"]
    assert (claim["epsilon"], claim["lowest"], claim["rounds"]) == (3.25, 1.5, 2)
    assert len(rows) > 10
    assert all(row["card"]["claimed_privacy"] == [claim["text"]] for row in rows)
    assert not [row for row in rows if row["metric"] == "epsilon"]
    page = page_of(out)
    assert (
        "3.25 (the app's word)<small>δ = 1e-05, client metrics, of training, not of probes</small>"
        in page.split("<h2>Headline")[0]
    )
    assert claim["text"] in page.split("<h2>Headline")[0]
    (found,) = (one for one in as_json(out) if one["first"])
    assert found["epsilon"] is None
    assert found["claims"][0]["epsilon"] == 3.25
    shown = io.StringIO()
    print_findings(Terminal(file=shown, width=400, highlight=False), out)
    printed = " ".join(shown.getvalue().split())
    assert "3.25 (the app's word)" in printed
    assert claim["text"] in printed


def test_a_mod_and_a_wrapper_of_flower_are_claims_of_an_app_that_runs(tmp_path: Path) -> None:
    wrapper = DifferentialPrivacyClientSideFixedClipping(FedAvg(fraction_evaluate=0.0), 0.5, 0.1, 2)
    rows = audit(tmp_path / "out", an_app(mods=[fixedclipping_mod]), wrapper)
    cards = {tuple(row["card"]["claimed_privacy"]) for row in rows}
    ((mod, server),) = cards
    assert "fixedclipping_mod clips each update" in mod
    assert "DifferentialPrivacyClientSideFixedClipping claims differential privacy in 1 round" in server
    page = page_of(tmp_path / "out")
    assert mod in page
    assert server in page
    assert "the app's word" not in page, "no epsilon was told"


def test_an_app_that_says_nothing_has_no_claim(tmp_path: Path) -> None:
    rows = audit(tmp_path / "out", an_app())
    assert not [row for row in rows if row["metric"] == CLAIMED or "claimed_privacy" in row["card"]]
    assert "Claimed by the app" not in page_of(tmp_path / "out")


def test_an_app_whose_epsilon_is_not_finite_is_audited_all_the_same(tmp_path: Path) -> None:
    rows = audit(tmp_path / "out", claiming(an_app(), {0: math.inf, 1: math.nan}))
    assert [row["value"] for row in rows if row["metric"] == "psnr"]
    assert "2 values of epsilon were left out" in page_of(tmp_path / "out")


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
    assert texts[0] in page_of(out).split("<h2>Headline")[0]
    assert texts[0] in page_of(out).split("<h2>Threat cards")[1]


@pytest.mark.slow
def test_the_epsilon_of_a_real_privacy_engine_stands_on_the_page(tmp_path: Path) -> None:
    """Opacus trains at the clients; its own accountant, asked apart from them, gives the number."""
    plain = an_app()

    def answer(message: Message, context: Context) -> Message:
        answered: Message = plain(message, context)
        if message.metadata.message_type != "train":
            return answered
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        engine, optimizer = PrivacyEngine(accountant="rdp"), torch.optim.SGD(model.parameters(), lr=0.1)
        private, optimizer, loader = engine.make_private(
            module=model, optimizer=optimizer, data_loader=DataLoader(digits(context), batch_size=6), noise_multiplier=1.0,
            max_grad_norm=1.0,
        )  # fmt: skip
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(private(images), labels).backward()
            optimizer.step()
        answered.content["arrays"] = ArrayRecord(model.state_dict())
        answered.content["metrics"]["epsilon"] = engine.get_epsilon(1e-5)  # type: ignore[index]
        answered.content["metrics"]["target_delta"] = 1e-5  # type: ignore[index]
        return answered

    expected = RDPAccountant()
    for _ in range(EXAMPLES // 6):
        expected.step(noise_multiplier=1.0, sample_rate=6 / EXAMPLES)
    out = tmp_path / "out"
    (claim,) = next(row for row in audit(out, answer) if row["metric"] == CLAIMED)["claims"]
    assert claim["epsilon"] == pytest.approx(expected.get_epsilon(1e-5))
    assert f"{claim['epsilon']:.4g} (the app's word)" in page_of(out)
