"""A client may send anything: the server refuses it with a reason, or can use it, whatever it is."""

import math
import tracemalloc
from functools import cache
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attacks.guesses import Reconstruction
from attacks.metrics.images import STRUCTURE
from clients.data.card import DataCard
from clients.scoring.audit import ALONE
from clients.wire.records import MAX_REASON, REFUSED, WITHHELD, metrics, reason_of, tensors_of, to_record, to_tensors
from clients.wire.texts import MOST_JSON, RecordError
from strategies.audit.audit_replies import BASELINES, fault_in_scores
from strategies.audit.auditor import _gather
from strategies.audit.score_rows import membership_rows, score_rows
from strategies.audit.threat_card import ThreatCard
from strategies.exchange.exchange import Exchange
from strategies.exchange.faults import MOST_NAMES, MOST_VALUES, oversized
from strategies.exchange.guard import MOST_WITHHELD, GuardedExchange
from strategies.federated.audit import seen_updates
from strategies.federated.curious import CuriousFedAvg
from strategies.federated.observations import PROBE
from strategies.federated.replies import MOST_REPORTED, alike, fault_in_budget, fault_in_probe, reported_by_most
from strategies.training.evaluation import record_reports
from tests import hostile
from tests.clients.federated.test_client import TASK
from tests.strategies.stub_grid import Rows, reply_of

few = settings(max_examples=150, deadline=None, derandomize=True, database=None)
REFERENCE = {"weight": torch.arange(4.0).view(2, 2), "bias": torch.ones(2)}
NUMBERS = {"num-examples": 10, "local-steps": 3, "train-loss": 0.5}
CARD = DataCard(10, (1, 28, 28), (0.5,), (0.5,))
PLANNED = TASK.but(card=CARD)


def valid() -> dict[str, Any]:
    return {"arrays": to_record(REFERENCE), "metrics": metrics(NUMBERS)}


def answered(rows: Any, *contents: RecordDict) -> tuple[GuardedExchange, dict[int, Any]]:
    """An exchange with these answers: of client 0 on node 50, client 1 on node 49, which were dealt 20 examples each."""
    nodes = dict(enumerate(range(50, 50 - len(contents), -1)))
    exchange = Exchange(None, nodes, 5.0, dealt=dict.fromkeys(nodes, (20, 20)))  # type: ignore[arg-type]
    return GuardedExchange(exchange, rows), {at: reply_of(content, nodes[at]) for at, content in enumerate(contents)}


def checked(rows: Any, kind: str, fault_in: Any, *contents: RecordDict) -> Any:
    guarded, replies = answered(rows, *contents)
    return guarded.check(PLANNED, kind, [*replies], replies, fault_in)


@cache
def server() -> tuple[CuriousFedAvg, Rows]:
    """One whose model is ``REFERENCE`` and whose clients are on nodes 50 and 49, in a round that nobody attacks."""
    rows: Any = Rows()
    exchange = Exchange(None, {0: 50, 1: 49}, 5.0, dealt={0: (20, 20), 1: (20, 20)})  # type: ignore[arg-type]
    auditor: Any = SimpleNamespace(exchange=exchange, recorder=rows)
    strategy = CuriousFedAvg(plan=PLANNED.plan, auditor=auditor, attack_rounds=(), min_usable=0.1)
    strategy._weights = dict(REFERENCE)
    return strategy, rows


@pytest.mark.long
@few
@given(hostile.contents(valid()))
@example(RecordDict({**valid(), "more": MetricRecord({"x": 1})}))  # Flower's FedAvg raised: one metric record too many
@example(RecordDict({**valid(), "more": to_record(REFERENCE)}))  # and one array record too many
@example(RecordDict({**valid(), "metrics": metrics({**NUMBERS, "made-up": 1.0})}))
@example(RecordDict({**valid(), "metrics": metrics({"num-examples": 10, "local-steps": 3})}))
@example(RecordDict({**valid(), "metrics": metrics({**NUMBERS, "train-loss": [1.0, 2.0]})}))
@example(RecordDict({**valid(), "metrics": metrics({"num-examples": 10, "train-loss": 0.5})}))
@example(RecordDict({**valid(), "metrics": metrics({**NUMBERS, "num-examples": 2**62})}))
@example(RecordDict({**valid(), "arrays": ArrayRecord({"weight": hostile.pickled(), "bias": hostile.pickled()})}))
@example(
    RecordDict({**valid(), "arrays": ArrayRecord({n: hostile.raw(hostile.npy("<f4", (2**40,))) for n in REFERENCE})})
)
@example(RecordDict({**valid(), "arrays": ConfigRecord({"a": 1})}))
@example(RecordDict({**valid(), WITHHELD: to_record(REFERENCE)}))
@example(RecordDict({**valid(), "ledger": ConfigRecord({"": 3.0})}))
def test_one_client_can_end_no_round_of_federated_averaging(content: RecordDict) -> None:
    """What the other client sent is averaged, alone or with something of the same shapes, and finite."""
    strategy, rows = server()
    strategy.ledgers.clear()
    before = len(rows.found)
    good = reply_of(RecordDict(valid()), 50)
    averaged, told = strategy.aggregate_train(1, [reply_of(content, 49), good])
    assert averaged is not None
    assert told is not None
    found = to_tensors(averaged)
    assert {name: tensor.shape for name, tensor in found.items()} == {n: t.shape for n, t in REFERENCE.items()}
    added = rows.found[before:]
    refused = [row for row in added if row.get("status") == "failed"]
    if refused:
        assert [row["client"] for row in refused] == [1]
        assert len(refused[0]["message"]) <= 400
        torch.testing.assert_close(found, {name: 2 * tensor for name, tensor in REFERENCE.items()})
    assert {row["metric"] for row in added} <= {"client", "clients-failed", "train-loss", "update-bytes"}
    assert all(isinstance(ledger, str) for ledger in strategy.ledgers.values())
    assert not hostile.Pickled.executed


def probe() -> dict[str, Any]:
    records: dict[str, Any] = {f"target-{at}": to_record(REFERENCE) for at in range(TASK.plan.probe_targets)}
    labels = {f"target-{at}": torch.tensor([3, 9]) for at in range(TASK.plan.probe_targets)}
    numbers = metrics({"num-examples": TASK.plan.probe_images, "local-steps": 1})
    return {**records, "labels": to_record(labels), "metrics": numbers}


@few
@given(hostile.contents(probe()))
@example(RecordDict({**probe(), "labels": to_record({"target-0": torch.tensor([3, 10])})}))
@example(RecordDict({**probe(), "labels": to_record({"target-0": torch.tensor([3.0, 1.0])})}))
@example(RecordDict({**probe(), "metrics": metrics({"num-examples": 10**9, "local-steps": 1})}))
def test_a_probe_is_refused_or_an_observation(content: RecordDict) -> None:
    """Of as many images as were asked for: an attack takes memory for each."""
    rows, reference = Rows(), {name: tensor.numpy() for name, tensor in REFERENCE.items()}
    good = checked(rows, "train.probe", lambda _, reply: fault_in_probe(reply, reference, PLANNED), content)
    assert good or rows.found[-1]["status"] == "failed"
    for one in seen_updates(PLANNED, PROBE, good, ["target-0", "target-1"]):
        assert 1 <= one.num_examples <= TASK.plan.probe_images
        assert one.labels is None or (one.labels.shape == (2,) and int(one.labels.max()) < 10)
    assert not hostile.Pickled.executed


def test_the_labels_of_a_probe_are_classes_of_the_data() -> None:
    reference = {name: tensor.numpy() for name, tensor in REFERENCE.items()}
    assert fault_in_probe(reply_of(RecordDict(probe()), 50), reference, PLANNED) == ""
    for labels in (torch.tensor([3, 10]), torch.tensor([-1, 3]), torch.tensor([3.0, 1.0]), torch.tensor([3])):
        bad = RecordDict({**probe(), "labels": to_record({"target-0": labels})})
        assert "expected 2 whole numbers below 10" in fault_in_probe(reply_of(bad, 50), reference, PLANNED)


PSNR, IDENTIFIED, CHANCE = "attack//psnr/original", "attack//identified/original", "attack//identified-chance/"
BESIDE = {f"attack//{name}": [0.5, 1.0] for name in {f"{STRUCTURE.name}/original", "psnr-flat/", "image-place/"}}
SCORES = {PSNR: [9.0, 100.0], IDENTIFIED: [1.0, 0.0], CHANCE: [0.01, 0.01], **BESIDE}
MEMBER, OTHER, ATTRIBUTE = (f"attack//{name}/" for name in ("member-score", "other-score", "attribute-accuracy"))
scored = st.dictionaries(
    st.sampled_from(
        [*SCORES, MEMBER, OTHER, ATTRIBUTE, "attack//cells-right/", "attack//column age/", "attack//identified/", "psnr",
         "attack//identified/transformed", "attack//ms-ssim-success/", "null baseline/grey/psnr/original", "any/grey/psnr/",
         "null baseline/grey/identified/original", "training//windows-of-4/", "%/%%2//",
         "attack//recognition/", "attack//recognisable/original"]
    ),
    st.lists(st.sampled_from([0.0, 1.0, 2.0, -1.0, math.nan, math.inf, 1e308, 0.5]), max_size=3) | hostile.numbers,
    max_size=4,
)  # fmt: skip


@few
@given(
    hostile.contents({"metrics": metrics(SCORES), "pictures": to_record({"original-0-1": torch.zeros(1, 28, 28)})}),
    scored,
)
@example(RecordDict(), {PSNR: 3.0})  # extend() of a number
@example(RecordDict(), {IDENTIFIED: [1.0]})  # no chance beside it
@example(RecordDict(), {IDENTIFIED: [], PSNR: [1.0]})
@example(RecordDict(), {IDENTIFIED: [0.5], CHANCE: [0.5]})  # half a success of one trial
@example(RecordDict(), {MEMBER: [math.nan], OTHER: [1.0]})
@example(RecordDict(), {ATTRIBUTE: [7.0]})
def test_scores_are_refused_or_make_rows(content: RecordDict, more: dict[str, Any]) -> None:
    record = content.get("metrics")
    if isinstance(record, MetricRecord) or not content:
        content["metrics"] = MetricRecord({**(record or {}), **more})  # type: ignore[dict-item]
    for guessed in ("images", BASELINES):
        good = checked(Rows(), "query.audit", lambda _, r, of=guessed: fault_in_scores(r, of, PLANNED), content)
        found = _gather(good)
        assert guessed == BASELINES or found.keys() <= {ALONE}
        with np.errstate(all="ignore"):
            for scores in (one for of in found.values() for one in of.values()):
                list(membership_rows(scores, ThreatCard()))
                list(score_rows(scores, ThreatCard()))
        for name, images in (pair for answer in good.values() for pair in tensors_of(answer, "pictures").items()):
            assert all(map(str.isdecimal, name.split("-")[1:]))
            Reconstruction(images[None].float(), torch.zeros(1, dtype=torch.int64))
            assert images.shape == CARD.input_shape
    assert not hostile.Pickled.executed


REPORT = {
    "num-examples": 4,
    **{f"test-{w}-{n}": 0.5 for w in ("accuracy", "loss") for n in ("original", "transformed")},
}


@few
@given(hostile.contents({"metrics": metrics(REPORT)}))
@example(RecordDict({"metrics": to_record(REFERENCE)}))
@example(RecordDict({"metrics": metrics({**REPORT, "test-accuracy-original": [0.5]})}))
def test_evaluations_are_refused_or_averaged(content: RecordDict) -> None:
    rows = Rows()
    guarded, replies = answered(rows, content, RecordDict({"metrics": metrics(REPORT)}))
    means = record_reports(guarded, PLANNED, [*replies], replies)
    assert 0 <= means["test-accuracy-original"] <= 1


def test_what_a_header_declares_takes_no_memory() -> None:
    """Flower's ``Array.numpy`` takes it first and then finds that the bytes are missing."""
    declared = ArrayRecord({"weight": hostile.raw(hostile.npy("<f4", (2**28,)))})  # 1 GiB
    tracemalloc.start()
    try:
        with pytest.raises(
            ValueError, match=r"'weight' holds no numbers that can be read.*0 bytes for shape \(268435456,\)"
        ):
            to_tensors(declared)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_a_long_header_is_not_parsed() -> None:
    """NumPy's repair of one of 10,000 bytes takes many seconds; a real one has some 120."""
    text = "$" + " " * 5000 + "$"
    array = hostile.raw(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())
    with pytest.raises(RecordError, match="a header of 5002 bytes; allowed: at most 1024"):
        to_tensors(ArrayRecord({"weight": array}))


@few
@given(hostile.arrays)
@example(Array(np.asfortranarray(np.arange(6.0).reshape(2, 3))))
@example(Array(np.arange(6, dtype=">i4").reshape(2, 3)))
def test_an_array_is_refused_or_read_as_numpy_reads_it(array: Array) -> None:
    try:
        found = to_tensors(ArrayRecord({"x": array}))["x"]
    except RecordError:
        return
    np.testing.assert_array_equal(found.numpy(), array.numpy())


def test_a_client_scores_what_it_was_asked_about() -> None:
    """An attack of its own naming would decide what counts as recovered."""
    for name, guessed, allowed in (
        ("null baseline/grey/psnr/original", BASELINES, True), ("scale/blurred/psnr/original", BASELINES, True),
        ("attack/A()/psnr/original", BASELINES, False), ("upper bound/A()/psnr/original", BASELINES, False),
        ("training//epsilon/", BASELINES, False),
        ("training//windows-of-4/", BASELINES, True), ("training//of-their-own/", BASELINES, True),
        ("null baseline/grey/psnr/original", "images", False), ("attack//psnr/original", "images", True),
        (f"attack//column {quote('年' * 60)}/", "cells", True), (f"attack//column {'x' * 300}/", "cells", False),
    ):  # fmt: skip
        fault = fault_in_scores(reply_of(RecordDict({"metrics": metrics({name: [1.0]})}), 50), guessed, PLANNED)
        assert (fault == "") == allowed, (name, fault)


def test_a_score_lies_in_the_range_of_its_metric_and_is_one_of_as_many_as_were_asked_for() -> None:
    of_images = {
        "psnr": (-1.0, 1e308, math.inf), "ssim": (1.5, -1.1), "mse": (-1e-9, 2.0), "identified-chance": (1.0, 0.0),
    }  # fmt: skip
    for name, wrong in of_images.items():
        text = f"attack//{name}/"
        for values, allowed in (
            ([0.5], True), ([0.5] * 4, True), ([0.5] * 5, False), *(([0.5, one], False) for one in wrong),
        ):  # fmt: skip
            reply = reply_of(RecordDict({"metrics": metrics({text: values})}))
            assert (fault_in_scores(reply, "images", PLANNED, 4) == "") == allowed, (text, values)
    for text, most in ((MEMBER, 3), (OTHER, 2)):
        for count in (most, most + 1):
            reply = reply_of(RecordDict({"metrics": metrics({text: [1.0] * count})}))
            assert (fault_in_scores(reply, "membership", PLANNED, 1, (3, 2)) == "") == (count == most)


def test_no_score_of_a_guess_may_be_missing() -> None:
    """Fewer scores of one client would turn a verdict of all into "unknown"."""
    names = [f"{metric}/original" for metric in ("mse", "psnr", "ssim", STRUCTURE.name)]
    whole = {f"attack//{name}": [0.5] * 4 for name in (*names, "psnr-flat/", "identified-chance/", "image-place/")}
    whole["attack//identified/original"] = [1.0] * 4
    for guessed, honest in (("images", whole), ("membership", {MEMBER: [1.0] * 30, OTHER: [1.0] * 20})):
        lies = ({}, *({**honest, name: values[:count]} for name, values in honest.items() for count in (0, 1)))
        for sent in (honest, *lies):
            reply = reply_of(RecordDict({"metrics": metrics(sent)}))
            fault = fault_in_scores(reply, guessed, PLANNED, 4, (30, 20), targets=2)
            assert (fault == "") == (sent is honest), (sent, fault)


def test_a_budget_is_that_of_the_plan_after_some_rounds() -> None:
    task = PLANNED.but(pipeline="DPSGD(noise_multiplier=1.0)", rounds=9, batch_size=16, local_epochs=2).but(round=3)
    for rounds in (1, 2, 3, 4):  # of 3 steps a pass; a client may have missed a round, and has trained in none to come
        honest = task.plan.defenses.privacy({"accountant": {"steps": [(0.5, 1 / 3, rounds * 6)]}})
        for lie in ({}, {"epsilon": 0.0}, {"epsilon": 1e9}, {"delta": 0.9}, {"budget-noise-multiplier": 2.0}):
            reply = reply_of(RecordDict({"metrics": metrics({**honest, **lie})}))
            assert (fault_in_budget(reply, task, 40) == "") == (rounds <= 3 and not lie), (rounds, lie)


def test_an_evaluation_counts_at_most_what_was_dealt() -> None:
    """2^31 - 1 examples would make the accuracy of a run that of one client."""
    honest = RecordDict({"metrics": metrics(REPORT)})
    for change in (
        {"num-examples": 21}, {"num-examples": 2**31 - 1}, {"test-loss-original": 1e308}, {"test-loss-original": -1.0},
        {"test-accuracy-original": 1.5}, {"num-examples": 20},
    ):  # fmt: skip
        rows = Rows()
        lie = RecordDict({"metrics": metrics({**REPORT, "test-accuracy-original": 0.0, **change})})
        guarded, replies = answered(rows, honest, lie)
        accuracy = record_reports(guarded, PLANNED, [*replies], replies)["test-accuracy-original"]
        refused = change != {"num-examples": 20}
        assert ([client for client, *_ in rows.failures], accuracy == 0.5) == ([1] if refused else [], refused), change


BREAKS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r\n\x1b\u202e"


def rows_of(content: RecordDict) -> list[dict[str, Any]]:
    rows = Rows()
    checked(rows, "train.probe", None, content)
    return rows.found


def test_a_reason_is_one_printable_line_whatever_the_client_wrote() -> None:
    for code in (REFUSED, 1):
        reply = Message(Error(code, f"first\nlast {BREAKS}end"), reply_to=reply_of(RecordDict(), 50))
        assert reason_of(reply).isprintable()
        assert len(reason_of(reply)) <= MAX_REASON


def test_what_honest_clients_send_is_within_the_bounds() -> None:
    scores = metrics({f"score-{at}": [0.5] * 100 for at in range(200)})
    ledger = ConfigRecord({"DPSGD() | " * 300: "x" * MOST_JSON})
    pictures = to_record({f"original-{at}": torch.zeros(2, 1, 4, 4) for at in range(64)})
    assert oversized(RecordDict({**valid(), "scores": scores, "ledger": ledger, "pictures": pictures})) == ""


def test_the_names_that_clients_report_are_bounded_and_the_rest_is_counted() -> None:
    made_up = {f"m{at}": 1.0 for at in range(3000)} | {"x" * 5000: 1.0, f"a{BREAKS}": 1.0}
    reply = reply_of(RecordDict({**valid(), "metrics": metrics({**NUMBERS, **made_up})}), 50)
    told, dropped = reported_by_most({0: reply})
    assert len(told) == MOST_REPORTED
    assert all(name.isprintable() and len(name) <= 200 for name in told)
    assert dropped == 3003 - MOST_REPORTED
    sent = alike(reply, told).content["metrics"]
    assert len(sent) == MOST_REPORTED + 1  # type: ignore[arg-type]


def test_rows_of_what_was_withheld_are_bounded_short_and_one_line_and_the_rest_is_counted() -> None:
    for count in (1, MOST_WITHHELD, MOST_WITHHELD + 1, 3000):
        found = rows_of(RecordDict({WITHHELD: ConfigRecord({f"key-{at}": f"reason {at}" for at in range(count)})}))
        assert [row["status"] for row in found] == ["refused"] * len(found)
        assert len(found) == min(count, MOST_WITHHELD) + (count > MOST_WITHHELD)
        assert count <= MOST_WITHHELD or f"{count - MOST_WITHHELD} more" in found[-1]["message"]
    values: list[Any] = [["x"] * 10**5, 10**18, 1e308, b"\xff" * 10**5, True, "x" * 10**6, BREAKS]
    for value in values:
        (row,) = rows_of(RecordDict({WITHHELD: ConfigRecord({"key": value})}))
        assert 0 < len(row["message"]) <= MAX_REASON
        assert row["message"].isprintable()


def test_a_reply_of_more_than_anybody_means_well_is_refused_with_the_number() -> None:
    big: list[dict[str, Any]] = [
        {"extra": MetricRecord({f"n{at}": 1.0 for at in range(MOST_NAMES + 1)})},
        {"extra": ConfigRecord({"text": "x" * (MOST_JSON + 1)})},
        {"extra": MetricRecord({"numbers": [0.0] * (MOST_VALUES + 1)})},
        {"extra": ConfigRecord({"data": b"x" * (MOST_JSON + 1)})},
        {"extra": ConfigRecord({"x" * (2**16 + 1): 1})},
        {f"record-{at}": ConfigRecord({"a": 1}) for at in range(MOST_NAMES + 1)},
        {f"record-{at}": ConfigRecord({"a": "x" * MOST_JSON}) for at in range(65)},
        {WITHHELD: ConfigRecord({f"key-{at}": "x" * 1000 for at in range(50_000)})},
    ]
    for records in big:
        content = RecordDict({**valid(), **records})
        assert oversized(content)
        (row,) = rows_of(content)
        assert row["status"] == "failed"
        assert len(row["message"]) <= MAX_REASON
        assert "at most" in row["message"]
