"""Guesses about updates of all that a node trains on: they are told from chance among images that it holds out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from clients import answer_audits
from clients.external_app.client import DataMistake, read_data
from simulations.audited import audited
from simulations.report.analysis.conclusion import verdicts
from simulations.report.analysis.readability import Readability
from simulations.report.analysis.run import read_run
from simulations.report.analysis.sentences import sentence
from tests.lines import read_lines
from tests.strategies.external_app.app import MEAN, STD, AppGrid, Net, digits

EACH, NODES = 3, 6


def trained(context: Context) -> TensorDataset:
    return TensorDataset(*(one[:EACH] for one in digits(context).tensors))


def strangers(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(100)
    small = torch.rand(count, 1, 4, 4, generator=generator)
    images = F.interpolate(small, size=8, mode="bilinear").clamp(0, 1)
    return TensorDataset(images, torch.randint(10, (count,), generator=generator))


def one_step_app(held_out: int) -> ClientApp:
    """A round is one step on all images of a node."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        images, labels = trained(context).tensors
        F.cross_entropy(model((images - MEAN) / STD), labels).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        records = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": EACH})}
        return Message(RecordDict({**records}), reply_to=message)

    def data(context: Context) -> Any:
        return (trained(context), strangers(held_out)) if held_out else trained(context)

    answer_audits(app, model=Net, data=data, mean=MEAN, std=STD)
    return app


def attacked(out: Path, held_out: int) -> tuple[list[dict[str, Any]], str]:
    settings: dict[str, Any] = {"settings": {"batch-size": EACH, "local-epochs": 1}, "workers": 0}
    watched = audited(FedAvg(fraction_evaluate=0.0), out, Net, probe_attacks="", update_attacks="Spear()", **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = ArrayRecord(Net().state_dict())
    watched.start(AppGrid(one_step_app(held_out), NODES), start, num_rounds=1, train_config=ConfigRecord({"lr": 0.1}))
    rows = [row for row in read_lines(out / "rows.jsonl") if row["attack"].startswith("Spear")]
    return rows, " ".join((out / "report.html").read_text(encoding="utf-8").split())


@pytest.mark.long
def test_held_out_images_make_the_line_up_of_a_whole_round(tmp_path: Path) -> None:
    """An exact attack on updates of all images of their nodes is validated."""
    rows, _ = attacked(tmp_path / "out", 99)
    (found,) = [row for row in rows if row["metric"] == "retrieval"]
    assert (found["value"], found["n"], found["status"]) == (1.0, EACH * NODES, "ok")
    assert found["card"]["chance"] < 0.05
    run = read_run(tmp_path / "out")
    ((_, verdict),) = verdicts(run.lines(run.studies[0])[0])
    assert verdict is Readability.READABLE


@pytest.mark.long
def test_without_others_nothing_is_called_failed_or_partly_readable(tmp_path: Path) -> None:
    """Whoever is alone in a line-up is always found: nobody says so, nor that the attack failed."""
    rows, page = attacked(tmp_path / "out", 1)
    assert not [row for row in rows if row["metric"] == "retrieval"]
    (psnr,) = [row for row in rows if (row["metric"], row["reference"]) == ("psnr", "original")]
    assert (psnr["n"], psnr["status"]) == (EACH * NODES, "under-powered")
    assert psnr["value"] > 60
    run = read_run(tmp_path / "out")
    (line,) = run.lines(run.studies[0])
    assert verdicts(line)[0][1] is Readability.UNKNOWN
    assert "could not be judged" in sentence(line)
    (control,) = [one for one in run.studies[0].controls if one.row.metric == "psnr"]
    assert (control.open, control.passed) == (True, False)
    assert control.reason.startswith("could not be judged, as ")
    assert "Could not be judged." in page
    for wrong in ("Positive control failed", "positive control failed", "picked out of 1 candidates"):
        assert wrong not in page


def test_held_out_images_are_no_training_images(tmp_path: Path) -> None:
    """A test of membership has others, and null guesses of classes and means count trained images alone."""
    from clients.external_app.client import OwnExamples, card_of, examples_of
    from clients.secrets.draws import Draws
    from strategies.external_app.settings import AuditSettings

    images, labels, count = read_data((trained_of(0), strangers(7)))
    card = card_of(images, Net(), MEAN, STD)
    task = AuditSettings(Net).plan().at(1)
    data = OwnExamples(task, 0, examples_of(images, labels, card), card, Draws.simulated(0, 0), count)
    assert (data.num_train, data.num_test) == (EACH, 7)
    assert torch.equal(data.test_plain(torch.tensor([6])).images[0], strangers(7)[6][0])
    assert torch.equal(data.own_images(torch.tensor([EACH]))[0], strangers(7)[0][0])
    assert torch.equal(data.originals().images, trained_of(0).tensors[0])
    assert (len(data.train_labels()), len(data.test_labels())) == (EACH, 7)


def test_what_data_gives_wrongly_is_told() -> None:
    pairs = list(strangers(2))
    with pytest.raises(DataMistake, match="a tuple of 3; expected a data set, or a pair"):
        read_data((pairs, pairs, pairs))  # type: ignore[arg-type]
    with pytest.raises(DataMistake, match="or a tuple of two such data sets"):
        read_data((pairs[0], pairs[1]))  # type: ignore[arg-type]
    with pytest.raises(DataMistake, match=r"trained images \(1, 8, 8\) and held-out ones \(1, 4, 4\)"):
        read_data((pairs, [(torch.zeros(1, 4, 4), 0)]))  # type: ignore[arg-type]
    with pytest.raises(DataMistake, match="expected \\[0, 1\\]"):
        read_data((pairs, [(torch.full((1, 8, 8), 2.0), 0)]))  # type: ignore[arg-type]


def trained_of(partition: int) -> TensorDataset:
    context: Any = type("Node", (), {"node_config": {"partition-id": partition}})
    return trained(context)
