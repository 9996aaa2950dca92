"""What a client asks: every test image once, as its defences make it, found again by the audit, and never twice."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import Tensor
from torch.nn import functional as F

from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.inference.messages import InferenceClient
from clients.inference.plan import InferencePlan
from clients.messages.node import draws_of
from clients.task.local_data import LocalData
from clients.task.task import Task
from clients.wire.records import tensors_of, to_record, values_of
from defenses.fitting import FitContext
from defenses.pipeline import Pipeline
from defenses.spec import parse
from tests.clients.asked import Asked, refused

PLAN = InferencePlan(
    scenario="inference",
    dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=100, test_limit=50, model="vgg_small", width=0,
    norm="group", pipeline="", seed=3, rounds=2, local_epochs=1, batch_size=8, learning_rate=0.1, momentum=0.0,
    weight_decay=0.0, probe_targets=2, probe_images=3, cuts="conv2",
)  # fmt: skip
TEST = torch.arange(20, 41)
"""21 examples: batches of 8, 8 and 5."""
NOISE = "FeatureNoise(std=0.5)"


class Asker(Asked):
    def __init__(self, folder: Path, randomness: str = "seed", **node_config: Any) -> None:
        super().__init__(folder, randomness, range(30), TEST.tolist(), **node_config)

    def ask(
        self, task: Task, first: int, count: int, fitted: Pipeline | None = None, version: str | None = None
    ) -> Message:
        fitted = fitted or Pipeline()
        half = to_record(shared_tensors(InferencePlan.narrow(task.plan).build_cut("conv2").client))
        records = {"client": half, "learned": to_record(fitted.state())}
        told = fitted.version if version is None else version
        return self("query.features", task, records, first=first, count=count, version=told)

    def all_features(self, pipeline: str = "", per_message: int = 2) -> Tensor:
        found = []
        for first in range(0, 3, per_message):
            reply = self.ask(task_of(pipeline), first, per_message)
            assert not reply.has_error(), reply.error.reason
            sent = tensors_of(reply, "features")
            assert values_of(reply, "metrics")["num-examples"] == sum(map(len, sent.values()))
            found += [sent[name] for name in sorted(sent, key=int)]
        return torch.cat(found)

    def client(self, task: Task) -> InferenceClient:
        draws = draws_of(self.context, task.plan.seed)
        return InferenceClient(LocalData(task, 0, range(30), TEST.tolist(), draws))


def task_of(pipeline: str = "", server_round: int = 3) -> Task:
    return PLAN.at(server_round).but(pipeline=str(parse(pipeline)))


def own_images() -> Tensor:
    return PLAN.load_data().test.images[TEST].float() / 255


def features_of(images: Tensor) -> Tensor:
    found = normalise(images, PLAN.data_card())
    convolutions = 0
    with torch.no_grad():
        for layer in PLAN.build_model().eval().children():
            convolutions += isinstance(layer, torch.nn.Conv2d)
            found = layer(found)
            if convolutions == 2 and isinstance(layer, torch.nn.ReLU):
                return found
    raise AssertionError("no second convolution")


def test_every_test_image_is_asked_about_once_in_order(tmp_path: Path) -> None:
    for per_message in [1, 2, 5]:
        sent = Asker(tmp_path).all_features("", per_message)
        torch.testing.assert_close(sent, features_of(own_images()), rtol=1e-4, atol=1e-5)


def test_the_audit_finds_the_images_that_entered_the_client_half(tmp_path: Path) -> None:
    defense = "VisualMixer(window_lower=4, window_upper=4)"
    for randomness in ("seed", "secret"):
        node = Asker(tmp_path / randomness, randomness)
        sent = node.all_features(defense)
        client = node.client(task_of(defense, 3))
        known = client.truths("query")
        assert known.paired
        assert len(known.views) == 2
        for at, view in enumerate(known.views):
            mine = slice(8 * at, 8 * at + 3)
            assert torch.equal(view.original.images, own_images()[mine])
            assert torch.equal(client.data.own_images(view.positions), view.original.images)
            assert not torch.equal(view.seen.images, view.original.images)
            torch.testing.assert_close(sent[mine], features_of(view.seen.images), rtol=1e-4, atol=1e-5)
        with pytest.raises(ValueError, match="know no observation 'upload'"):
            client.truths("upload")


@pytest.mark.numeric
def test_a_node_with_a_secret_never_sends_the_same_noise_again(tmp_path: Path) -> None:
    simulated, plain = Asker(tmp_path), features_of(own_images())
    assert torch.equal(simulated.all_features(NOISE), simulated.all_features(NOISE))
    node = Asker(tmp_path, "secret", repeats=1)
    first, second = (node.all_features(NOISE) - plain for _ in range(2))
    assert float(first.std()) == pytest.approx(0.5, rel=0.02)
    assert abs(float((first * second).mean())) < 0.01
    reply = node.ask(task_of(NOISE), 0, 1)
    assert refused(reply, "repeats")


def fitted_to(text: str, seed: int) -> Pipeline:
    model, noise = PLAN.build_cut("conv2"), torch.randn(32, 1, 28, 28, generator=torch.Generator().manual_seed(seed))
    context = FitContext(model.client, model.server, None, noise, torch.zeros(32, dtype=torch.int64), torch.zeros(1))
    return parse(text).fit(context, ("fit", seed))


def test_a_node_works_with_one_version_of_what_was_learned_within_a_phase(tmp_path: Path) -> None:
    node, text = Asker(tmp_path, "secret"), "FeaturePCA(components=4)"
    one, other = fitted_to(text, 0), fitted_to(text, 1)
    assert one.version != other.version
    task = task_of(text)
    for first in (0, 1):
        reply = node.ask(task, first, 1, one)
        assert not reply.has_error(), reply.error.reason
    reply = node.ask(task, 2, 1, other)
    assert refused(reply, "another version of what the defences learned in round 3")
    wrong = node.ask(task, 2, 1, one, other.version)
    assert f"version is {other.version!r}, but the tensors under learned are {one.version!r}" in wrong.error.reason


def test_answers_are_judged_against_labels_and_against_what_the_whole_model_says(tmp_path: Path) -> None:
    client, model = Asker(tmp_path).client(task_of(NOISE)), PLAN.build_cut("conv2")
    labels = PLAN.load_data().test.labels[TEST]
    with torch.no_grad():
        plain = model.whole(normalise(own_images(), PLAN.data_card()))
    answers = torch.randn(21, 10, generator=torch.Generator().manual_seed(0))
    answers[:7] = plain[:7]
    found = client.judge(answers, model)
    said, whole = (logits.argmax(1).tolist() for logits in (answers, plain))
    rows = list(zip(said, whole, labels.tolist(), strict=True))
    for name, hits in {
        "test-accuracy-transformed": [one == label for one, _, label in rows],
        "test-accuracy-original": [other == label for _, other, label in rows],
        "agreement": [one == other for one, other, _ in rows],
        "answers-lost": [other == label != one for one, other, label in rows],
        "answers-gained": [other != label == one for one, other, label in rows],
    }.items():
        assert found[name] == pytest.approx(sum(hits) / 21), name
    assert found["answers-lost"] + found["answers-gained"], "or they would say nothing"
    assert found["test-loss-transformed"] == pytest.approx(float(F.nll_loss(answers.log_softmax(1), labels)), rel=1e-5)
    with pytest.raises(ValueError, match=r"answers have shape \(20, 10\); expected \(21, 10\)"):
        client.judge(answers[:20], model)
