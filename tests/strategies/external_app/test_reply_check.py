"""Where a round is one step, clients tell how far their replies lie from that step: against the same reckoned by hand."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from strategies.external_app.settings import AuditSettings
from strategies.external_app.trainings import DIFFERENCE
from tests.strategies.external_app import audits
from tests.strategies.external_app.app import MEAN, STD, AppGrid, Net, an_app, app_that, digits
from tests.strategies.external_app.audits import LABELS, node_of, start

RATE = 0.1
Optimizer = Callable[[Any], torch.optim.Optimizer]


sgd, adam = partial(torch.optim.SGD, lr=RATE), partial(torch.optim.Adam, lr=RATE)


def stepped(
    sent: dict[str, Tensor], node: Any, optimizer: Optimizer, view: Callable[[Tensor], Tensor], clip: float
) -> Any:
    """Weights after one step on all images of a node: plain torch."""
    model = Net()
    model.load_state_dict(sent)
    images, labels = digits(node).tensors
    acting = optimizer(model.parameters())
    F.cross_entropy(model((view(images) - MEAN) / STD), labels).backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    acting.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def one_step_app(
    optimizer: Optimizer = sgd, view: Callable[[Tensor], Tensor] = Tensor.clone, clip: float = 0.0, **told: Any
) -> ClientApp:
    return app_that(lambda sent, message, context: stepped(sent, context, optimizer, view, clip), **told)


run = partial(audits.run, probe_attacks="")


def differences(rows: list[dict[str, Any]]) -> dict[int, float]:
    return {row["client"]: row["value"] for row in rows if row["metric"] == DIFFERENCE}


def test_momentum_and_decay_that_are_seen_are_in_the_step(tmp_path: Path) -> None:
    decaying = partial(sgd, momentum=0.9, nesterov=True, weight_decay=0.05)
    assert max(differences(run(tmp_path / "out", one_step_app(decaying))).values()) < 1e-3


def test_a_client_answers_for_its_last_reply_alone_and_once() -> None:
    """Whoever may choose what is compared learns, question by question, where the gradient points."""
    grid = AppGrid(one_step_app(), 1)
    task = AuditSettings(Net).plan().at(1, RATE).to_json()

    def ask(message_type: str, **records: Any) -> Message:
        (reply,) = grid.send_and_receive([Message(RecordDict(records), dst_node_id=100, message_type=message_type)])
        return reply

    def check(sent: ArrayRecord, came: ArrayRecord) -> Message:
        return ask("query.check", sent=sent, reply=came, config=ConfigRecord({"task": task}))

    def trained() -> Any:
        return ask("train", arrays=start(), config=ConfigRecord({"lr": RATE})).content["arrays"]

    came = trained()
    other = ArrayRecord({name: value + 1e-3 for name, value in came.to_torch_state_dict().items()})
    assert "not the last reply of this node" in check(start(), other).error.reason
    assert "the reply was checked before" in check(start(), came).error.reason, "a wrong question is a question"
    came = trained()
    good = check(start(), came)
    assert not good.has_error(), good.error.reason
    assert [list(record) for record in good.content.metric_records.values()] == [["difference"]]
    assert not good.content.array_records
    assert not good.content.config_records
    assert "the reply was checked before" in check(start(), came).error.reason
    trained()
    assert "not the last reply" in check(other, came).error.reason


def strangers(context: Context) -> TensorDataset:
    """Images of another node, as many."""
    return digits(node_of(int(context.node_config["partition-id"]) + 50))


def test_each_client_tells_how_far_its_reply_is_from_the_step(tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {
        "as assumed": {}, "Adam": {"optimizer": adam}, "mirrored": {"view": lambda images: images.flip(-1)},
        "clipped": {"clip": 0.1}, "other images": {"data": strangers},
    }  # fmt: skip
    sent = {name: value.clone() for name, value in start().to_torch_state_dict().items()}
    for case, told in cases.items():
        rows = run(tmp_path / case, one_step_app(**told))
        found = differences(rows)
        assert set(found) == {0, 1}
        caveats = " ".join(next(row["card"]["caveats"] for row in rows if row["attack"] == LABELS))
        for partition, value in found.items():
            did = {"optimizer": sgd, "view": Tensor.clone, "clip": 0.0} | {k: v for k, v in told.items() if k != "data"}
            real = stepped(sent, node_of(partition), **did)
            shown = node_of(partition + (50 if "data" in told else 0))
            assumed = stepped(sent, shown, sgd, Tensor.clone, 0.0)
            away = torch.cat([(real[name] - assumed[name]).flatten() for name in sent]).norm()
            step = torch.cat([(assumed[name] - sent[name]).flatten() for name in sent]).norm()
            assert value == pytest.approx(float(away / step), rel=1e-3, abs=1e-4), case
        assert (max(found.values()) < 1e-3) == (not told), case
        assert ("their replies are not: they lie up to" in caveats) == bool(told), case
        assert ("attacks and probes take steps of SGD" in caveats) == (case == "Adam")
        assert ("0 of the first 24 images" in caveats) == (case in ("mirrored", "other images"))
    several = run(tmp_path / "steps", an_app())
    assert differences(several) == {}, "several steps are not compared"
