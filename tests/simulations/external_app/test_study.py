"""The results of an audited app: what it says about its differential privacy, and the folder, taken before the first round."""

import html
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp.strategy import FedAvg, Strategy

from simulations.audited import audited
from simulations.external_app.study import RESULTS, take_folder
from simulations.report.analysis.run import read_run
from simulations.settings.errors import ConfigError
from strategies.external_app.claim import CLAIMED
from strategies.external_app.record import AuditError
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


def watched(out: Path, strategy: Strategy | None = None, **more: Any) -> Strategy:
    known = {"workers": 0, "probe_attacks": "SpearPlusPlus()", "probe_targets": 4, **more}
    return audited(strategy or FedAvg(fraction_evaluate=0.0), out, Net, **known)


def start(strategy: Strategy, app: Any, rounds: int = 1) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        arrays = ArrayRecord(Net().state_dict())
    strategy.start(AppGrid(app), arrays, num_rounds=rounds, train_config=ConfigRecord({"lr": 0.1}))


def audit(out: Path, app: Any, strategy: Strategy | None = None, rounds: int = 1) -> list[dict[str, Any]]:
    start(watched(out, strategy), app, rounds)
    return list(read_lines(out / "rows.jsonl"))


def test_a_gate_stops_before_the_next_round_and_says_so_in_a_row(tmp_path: Path) -> None:
    """Seven of 8 probed images are recognisable; their exact interval begins at 0.47."""
    claims, silent = claiming(an_app(), {0: 3.25, 1: 1.5}), an_app()
    endless = claiming(an_app(), {0: 1.0, 1: float("inf")})
    for name, app, gate, why in (
        ("claimed", claims, {"max-epsilon": 2.0}, "max-epsilon 2: The clients' metrics claim epsilon 3.25"),
        ("no number", endless, {"max-epsilon": 2.0}, "max-epsilon 2: The clients' metrics claim epsilon 1 ("),
        ("found", silent, {"max-recognisable": 0.4}, "max-recognisable 0.4: 87.5 % of 8 images"),
    ):  # fmt: skip
        out = tmp_path / name
        with pytest.raises(AuditError, match="the gate stopped the federation before round 2:") as raised:
            start(watched(out, gate=gate), app, rounds=3)
        assert why in str(raised.value)
        rows = list(read_lines(out / "rows.jsonl"))
        (stopped,) = [row for row in rows if row["metric"] == "audit"]
        assert (stopped["round"], why in stopped["message"]) == (2, True)
        assert (out / "report.html").is_file()
    for name, gate in (("undecided", {"max-recognisable": 0.7}), ("unspent", {"max-epsilon": 4.0})):
        start(watched(tmp_path / name, gate=gate), claims, rounds=2)
    with pytest.raises(AuditError, match="limits of the gate are broken or undecided after the last round"):
        start(watched(tmp_path / "last", gate={"max-recognisable": 0.4}), silent, rounds=1)
    assert [row["round"] for row in read_lines(tmp_path / "last" / "rows.jsonl") if row["metric"] == "audit"] == [1]
    with pytest.raises(ConfigError, match="folder is '', which audits nothing"):
        audited(FedAvg(), "", Net, gate={"max-recognisable": 0.4})
    with pytest.raises(ConfigError, match="min-accuracy is in gate"):
        watched(tmp_path / "wrong", gate={"min-accuracy": 0.5})
    with pytest.raises(ConfigError, match="max-recognisable is 2"):
        watched(tmp_path / "wrong", gate={"max-recognisable": 2})


def page_of(out: Path) -> str:
    return " ".join(html.unescape((out / "report.html").read_text(encoding="utf-8")).split())


def section(text: str, name: str) -> str:
    return text.split(f'id="{name}">')[1].split("</section>")[0]


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


def test_a_second_run_writes_beside_the_first_and_says_where(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "audit"
    audit(out, an_app())
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with caplog.at_level("WARNING", logger="flwr"):
        second = watched(out, update_attacks="", probe_targets=8)
    said = f"{out} holds the results of another run; the results of this run go to {tmp_path / 'audit-2'}"
    assert said in caplog.text, "said before the first round"
    with caplog.at_level("INFO", logger="flwr"):
        start(second, an_app())
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    said = [record.getMessage() for record in caplog.records if "Audit" in record.getMessage()]
    assert said[-1].startswith("Audit verdict: No mod known")
    assert re.search(r": (recognisable|identifiable|nothing found|unknown), \d+ of 16 ", said[-1])
    assert said[-1].endswith(f". See {tmp_path / 'audit-2' / 'report.html'}")


def test_a_process_that_inherited_the_lock_does_not_keep_the_folder(tmp_path: Path) -> None:
    """A second descriptor of the same open file, as a forked process has it."""
    taken = take_folder(tmp_path)
    inherited = os.dup(taken._lock.fileno())
    try:
        taken.release()
        taken.release()
        assert take_folder(tmp_path).path == tmp_path
    finally:
        os.close(inherited)


def test_each_file_of_results_keeps_a_folder_and_other_files_do_not(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for _ in range(2):  # free again when nothing came of it
        assert take_folder(tmp_path).path == tmp_path
    for name in RESULTS:
        (folder := tmp_path / f"with-{name}").mkdir()
        (folder / name).touch()
        assert take_folder(folder).path == folder.with_name(f"{folder.name}-2")
    # The second run begins before the first has written anything.
    first, second = take_folder(tmp_path / "audit"), take_folder(tmp_path / "audit")
    assert (first.path, second.path) == (tmp_path / "audit", tmp_path / "audit-2")
