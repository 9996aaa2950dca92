"""What a server learns by asking again, or by steering what it asks: nothing that an honest round would not have told it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import Tensor

from attacks.local_model import shared_tensors
from clients.inference.plan import InferencePlan
from clients.task.task import Task
from clients.wire.records import tensors_of, to_record, values_of
from defenses.pipeline import Pipeline
from tests.clients.asked import Asked, allowed_by, refused
from tests.clients.inference.test_queries import PLAN as INFERENCE
from tests.clients.outsourced.test_uploads import PLAN as OUTSOURCED
from tests.clients.secrets.test_draws import TASK, weights_of
from tests.clients.split.test_training import TASK as SPLIT

DP = "DPSGD(noise_multiplier=4.0)"
WHOLE = {"federated": TASK.but(round=0), "outsourced": OUTSOURCED.at(0), "inference": INFERENCE.at(3)}
"""A task of each scenario in which clients evaluate a whole model, in the first round with an evaluation."""


def evaluation(task: Task, weights: Any = None, logits: Tensor | None = None) -> dict[str, Any]:
    """What the server sends for an evaluation of 20 test images: honest weights and answers unless others are given."""
    answers = to_record({"0": torch.zeros(20, 10) if logits is None else logits})
    if task.plan.scenario == "split":
        return {"logits": answers}
    return {"arrays": to_record(weights or shared_tensors(task.plan.build_model())), "answers": answers}


def numbers(reply: Message) -> dict[str, Any]:
    assert not reply.has_error(), reply.error.reason
    return dict(values_of(reply, "metrics"))


def chosen(task: Task, nudge: float) -> dict[str, Tensor]:
    """The agreed weights, one of which was moved."""
    weights = weights_of(task)
    next(iter(weights.values())).flatten()[0] += nudge
    return weights


@pytest.mark.parametrize("task", [*WHOLE.values(), SPLIT.but(round=0)], ids=[*WHOLE, "split"])
def test_an_evaluation_is_answered_once_per_round_and_pipeline(tmp_path: Path, task: Task) -> None:
    for keys, again in (({}, False), ({"model-check": False}, False), ({"model-check": False, "repeats": -1}, True)):
        ask = Asked(tmp_path, **keys)
        first = ask("evaluate", task, evaluation(task))
        assert numbers(ask("evaluate", task, evaluation(task))) == numbers(first), "the same message, the same answer"
        for other in (1, 2):
            # Weights within the rounding of another machine, too: their losses would be a gradient of the test images.
            weights = None if task.plan.scenario == "split" else chosen(task, 1e-3)
            sent = evaluation(task, weights, torch.eye(20, 10) * other)
            reply = ask("evaluate", task, sent)
            assert (not reply.has_error()) == again
            assert again or refused(reply, allowed_by("repeats")) or refused(reply, allowed_by("model-check"))
        assert numbers(ask("evaluate", task, evaluation(task))) == numbers(first) or again
        assert not ask("evaluate", task.but(pipeline=DP), evaluation(task.but(pipeline=DP))).has_error(), "other"
        # A SuperNode that was started anew has lost Flower's state of the run, and takes part in further runs.
        later, other_run = Asked(tmp_path, **keys), Asked(tmp_path, **keys)
        later.context.run_id = ask.context.run_id
        assert later("evaluate", task, sent).has_error() != again
        assert again or numbers(later("evaluate", task, evaluation(task))) == numbers(first)
        assert not other_run("evaluate", task, evaluation(task)).has_error()


def test_only_the_agreed_model_is_evaluated_in_every_scenario(tmp_path: Path) -> None:
    for name, task in WHOLE.items():
        ask = Asked(tmp_path / name)
        honest, far = evaluation(task), evaluation(task, {n: 0 * value for n, value in weights_of(task).items()})
        late = task.but(round=max(task.round, 1))
        assert refused(ask("evaluate", late, far), allowed_by("model-check")), name
        assert not ask("evaluate", task, honest).has_error(), name
    # A round trains the model that the round before evaluated.
    ask, task = Asked(tmp_path / "both"), TASK.but(rounds=3)
    update = tensors_of(ask("train", task, {"arrays": to_record(weights_of(task))}), "arrays")
    moved = {name: value + update[name] for name, value in weights_of(task).items()}
    assert not ask("evaluate", task, evaluation(task, moved)).has_error()
    nudged = {name: value * 1.01 for name, value in moved.items()}
    for weights, trained in ((nudged, False), (moved, True)):
        reply = ask("train", task.but(round=2), {"arrays": to_record(weights)})
        assert reply.has_error() != trained
    assert refused(ask("evaluate", task.but(round=4), evaluation(task, moved)), "round 5 of a run of 3 rounds")


def test_a_round_to_which_a_node_sent_no_update_is_not_evaluated(tmp_path: Path) -> None:
    """The number of rounds is the server's word: each would be another look at the test images."""
    ask, task = Asked(tmp_path, **{"model-check": False}), TASK.but(rounds=1000, round=1)
    for at in (1, 2, 900):
        assert refused(ask("evaluate", task.but(round=at), evaluation(task)), allowed_by("repeats")), at
    assert not ask("train", task, {"arrays": to_record(weights_of(task))}).has_error()
    assert not ask("evaluate", task, evaluation(task)).has_error()


def test_a_server_tries_one_model_on_own_examples_in_a_round_and_none_under_a_bound(tmp_path: Path) -> None:
    # Whether a model is refused says something of the examples that it was tried on.
    task = TASK.but(round=1, model="mlp")
    worse = [{name: times * value for name, value in weights_of(task).items()} for times in (9.0, 9.1)]
    above = "loss on own examples is above"
    for pipeline, reasons in (
        ("", [above, above, "another model to try on own examples"]),
        (DP, [*2 * ["sent no update"], "it is not the one of round 2"]),
    ):  # fmt: skip
        ask = Asked(tmp_path / (pipeline or "none"))
        for weights, why in zip((worse[0], *worse), reasons, strict=True):
            reply = ask("evaluate", task.but(pipeline=pipeline), evaluation(task, weights))
            assert refused(reply, why), (pipeline, why)


def test_a_run_has_one_plan_and_one_share_of_the_data(tmp_path: Path) -> None:
    # Else a set-up of one image after the other, or of one pixel, would tell their means, and an evaluation their loss.
    def indices(test: Any) -> dict[str, Any]:
        return {"indices": to_record({"train": torch.arange(40), "test": torch.tensor(test)})}

    ask = Asked(tmp_path, test=range(20))
    assert not ask("query.setup", TASK, indices(range(20))).has_error()
    assert not ask("query.setup", TASK, indices(range(20))).has_error(), "the same once more"
    assert refused(ask("query.setup", TASK, indices([3])), allowed_by("repeats"))
    for changes in ({"image_size": 2}, {"train_limit": 1}, {"seed": 9}, {"width": 3}, {"rounds": 9}, {"batch_size": 1}):
        for kind in ("query.setup", "evaluate"):
            reply = ask(kind, TASK.but(round=0, **changes), evaluation(TASK))
            assert refused(reply, f"another plan in the same run ({next(iter(changes))} differs)"), changes
    # Probes may have several sizes.
    assert not ask("evaluate", TASK.but(round=0, probe_images=5, probe_steps=2), evaluation(TASK)).has_error()
    card = TASK.plan.data_card()
    assert numbers(ask("evaluate", TASK.but(round=0, card=card), evaluation(TASK)))["num-examples"] == 20
    other = TASK.but(round=0, card=replace(card, mean=(0.3,)), pipeline=DP)
    assert refused(ask("evaluate", other, evaluation(TASK)), "(card differs)")
    assert not Asked(tmp_path, repeats=-1)("query.setup", TASK, indices([3])).has_error()
    assert not Asked(tmp_path, "seed")("query.setup", TASK, indices([3])).has_error(), "a simulation has no account"


def test_one_client_half_serves_a_round_of_split_learning_and_a_phase_of_inference(tmp_path: Path) -> None:
    step = {"first": 0, "count": 1, "labels": "client", "applied": 0}
    edge = dict(shared_tensors(SPLIT.plan.build_halves()[0]))
    other = {name: value + 0.01 for name, value in edge.items()}
    ask = Asked(tmp_path / "split", transmissions=-1)
    sent = {"edge": to_record(edge)}
    assert not ask("evaluate.smash", SPLIT.but(round=0), sent, first=0, count=2).has_error()
    assert not ask("train.step", SPLIT, sent, **step).has_error()
    for kind, task, more in (
        ("train.step", SPLIT, step | {"first": 1}),
        ("train.collect", SPLIT, {}),
        ("train.smash", SPLIT, {"transmissions": 1, "reveal-order": False, "since": 1, "until": 1}),
    ):
        assert refused(ask(kind, task, {"edge": to_record(other)}, **more), "another client half in round 1"), kind
    task, ask = INFERENCE.at(3), Asked(tmp_path / "inference")
    half = dict(shared_tensors(InferencePlan.narrow(task.plan).build_cut("conv2").client))
    about, moved = {"count": 1, "version": Pipeline().version}, {n: v + 0.01 for n, v in half.items()}
    for first, weights, answered in ((0, half, True), (1, moved, False), (1, half, True)):
        reply = ask("query.features", task, {"client": to_record(weights)}, first=first, **about)
        assert (not reply.has_error()) == answered or refused(reply, "another client half")


def test_a_deployed_node_sends_the_digits_that_so_few_test_images_can_fill(tmp_path: Path) -> None:
    # An exact loss tells the label of every image: logits of 2^k of the k-th image are a number with a bit for each.
    coded = torch.zeros(20, 10)
    coded[:, 0] = 2.0 ** torch.arange(20)
    for count, places in ((1, 1), (20, 2), (100, 2), (150, 3)):
        for name, task in {**WHOLE, "split": SPLIT.but(round=0)}.items():
            task = task.but(test_limit=200)
            sent = evaluation(task, logits=torch.zeros(count, 10))
            ask = Asked(tmp_path / f"{name}{count}", test=range(count))
            found = numbers(ask("evaluate", task, sent))
            each = {
                n: v / count if isinstance(v, float) and name == "split" else v for n, v in found.items() if "loss" in n
            }
            each |= {n: v[0] / count for n, v in found.items() if isinstance(v, list) and n == "loss"}
            assert each
            assert all(value == pytest.approx(round(value, places), abs=1e-9) for value in each.values()), (name, found)
    for name in ("inference", "split"):
        task = {**WHOLE, "split": SPLIT.but(round=0)}[name]
        found = numbers(Asked(tmp_path / name)("evaluate", task, evaluation(task, logits=coded)))
        loss = found["loss"][0] / 20 if name == "split" else found["test-loss-transformed"]
        assert loss > 1000
        assert loss % 100 == 0, "three digits of 20 bits"
    exact = numbers(Asked(tmp_path / "seed", "seed")("evaluate", WHOLE["federated"], evaluation(WHOLE["federated"])))
    assert exact["test-loss-original"] != round(exact["test-loss-original"], 4), "a simulation protects no person"
