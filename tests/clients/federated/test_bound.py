"""The bound of DP-SGD against an attacker that reads everything a client sends, in two worlds that differ in one example.

The attacker knows every example, the weights, the learning rate and the noise; it does not know which world it is in, nor the
draws. Its tests are fixed by theory before it sees a reply. From how often it is right an exact binomial interval gives a lower
bound of epsilon, which must not exceed the epsilon that the client itself accounts for.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord
from scipy.stats import beta
from torch import Tensor

from attacks.normalisation import normalise
from clients.task.task import Task, load_weights
from clients.training.sgd import soft_cross_entropy
from clients.wire.records import tensors_of, values_of
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from tests.clients.federated.test_messages import OPEN, Asker
from tests.clients.secrets.test_draws import TASK, weights_of

HELD, BATCH, STEPS, RUNS, DELTA = 40, 10, 4, 40, 1e-5


CNN = TASK.but(model="cnn", batch_size=BATCH, local_epochs=1, rounds=1, probe_images=1, probe_targets=1)
PUBLIC = "neighbours='add-or-remove', sample_rate=0.25"
BOUNDED = (
    *(f"DPSGD(noise_multiplier=20.0{more})" for more in ("", ", clipping='ghost'", f", {PUBLIC}", f", clipping='ghost', {PUBLIC}")),
    "ClientDP(noise_multiplier=40.0)",
    "FlowerLocalDP(epsilon=0.1)",
)  # fmt: skip
"""Every kind of bound of an update; the epsilon of a round is below 0.5."""


def asker(folder: Path, train: Sequence[int], **more: Any) -> Asker:
    return Asker(folder, train=train, **OPEN, **more)


def asked_anew(ask: Asker, task: Task) -> Message:
    ask.state.pop("ledger", None)
    reply = ask("train", task)
    assert not reply.has_error(), reply.error.reason
    return reply


def numbers_of(reply: Message) -> str:
    records = {name: one for name, one in reply.content.items() if isinstance(one, MetricRecord | ConfigRecord)}
    return json.dumps({name: dict(one) for name, one in records.items()}, sort_keys=True, default=str)


def flat(update: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in update.values()]).double()


def share_of(task: Task, position: int) -> Tensor:
    data, model = task.plan.load_data().train, load_weights(task.plan.build_model(), weights_of(task)).train()
    image = normalise(data.images[position : position + 1] / 255, task.plan.data_card())
    target = torch.nn.functional.one_hot(data.labels[position : position + 1], 10).float()
    soft_cross_entropy(model, image, target).backward()  # type: ignore[no-untyped-call]
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]).double()
    return gradient / max(1.0, float(gradient.norm()))


def lower_bound(right: int, wrong: int, runs: int, tests: int) -> float:
    level = 0.01 / (4 * tests)  # two rates, two directions
    shown = []
    for hits, errors in ((right, wrong), (runs - wrong, runs - right)):
        low = beta.ppf(level, hits, runs - hits + 1) if hits else 0.0
        high = beta.ppf(1 - level, errors + 1, runs - errors) if errors < runs else 1.0
        shown.append(math.log((low - DELTA) / high) if low > DELTA else -math.inf)
    return max(shown)


def attacks(task: Task, first: Message, differing: Tensor, divisors: list[float]) -> list[Callable[[Message], bool]]:
    noise = task.learning_rate * 20.0
    halfway = sum(noise / divisor for divisor in divisors) / 2 * math.sqrt(STEPS * len(differing))
    drift = task.learning_rate / divisors[0] * differing  # an example is in one of the steps on average
    told = numbers_of(first)
    return [
        lambda reply: numbers_of(reply) == told,
        # With a divisor that follows from the number of examples, fewer of them make a longer update.
        lambda reply: float(flat(tensors_of(reply, "arrays")).norm()) < halfway,
        # A step goes against the gradient.
        lambda reply: -float(flat(tensors_of(reply, "arrays")) @ drift) > float(drift @ drift) / 2,
    ]


@pytest.mark.numeric
@pytest.mark.long
@pytest.mark.parametrize("second", ["replaced", "removed"])
def test_no_attacker_on_all_that_is_sent_does_better_than_the_bound(tmp_path: Path, second: str) -> None:
    public = ", neighbours='add-or-remove', sample_rate=0.25" if second == "removed" else ""
    task, last = CNN.but(pipeline=f"DPSGD(noise_multiplier=20.0{public})"), HELD - 1
    worlds = [range(HELD), [*range(last), *([HELD] if second == "replaced" else [])]]
    differing = share_of(task, last) - (share_of(task, HELD) if second == "replaced" else 0)
    askers = [asker(tmp_path / str(at), list(train)) for at, train in enumerate(worlds)]
    replies = [[asked_anew(ask, task) for _ in range(RUNS)] for ask in askers]
    epsilon = max(float(values_of(reply, "metrics")["epsilon"]) for world in replies for reply in world)
    assert 0 < epsilon < 0.2
    # The attacker looks for the divisor n q, in which n is its count of the world.
    tests = attacks(task, replies[0][0], differing, [HELD / STEPS, (HELD - 1) / STEPS])
    for at, says_first in enumerate(tests):
        right, wrong = (sum(map(says_first, world[1:])) for world in replies)
        assert lower_bound(right, wrong, RUNS - 1, len(tests)) <= epsilon, (at, right, wrong)
    # The numbers of a second round, with its ledger, and of a probe are the same, too. What the model that results does to test
    # examples follows from the model alone.
    more = [("train", task.but(round=2)), ("train.probe", task.but(round=2)), ("evaluate", task)]
    for message_type, asked in more:
        found = [ask(message_type, asked) for ask in askers]
        assert numbers_of(found[0]) == numbers_of(found[1]), message_type


def overflowing(task: Task, victim: int) -> dict[str, Tensor]:
    """Finite weights of an MLP in which one unit is on for a single example, and infinite behind the next layer."""
    data, weights = task.plan.load_data().train, {name: one.clone() for name, one in weights_of(task).items()}
    images = normalise(data.images[: HELD + 1] / 255, task.plan.data_card()).flatten(1)
    along = images[victim] - images.mean(0)
    seen = images @ along
    others = seen[torch.arange(len(seen)) != victim].max()
    first, bias, second = list(weights)[:3]
    weights[first][0] = along * 1e20 / along.norm()
    weights[bias][0] = -(seen[victim] + others) / 2 * 1e20 / along.norm()
    weights[second][:, 0] = 1e25
    assert all(one.isfinite().all() for one in weights.values())
    return weights


@pytest.mark.numeric
@pytest.mark.long
@pytest.mark.parametrize("defence", BOUNDED)
def test_weights_that_one_example_alone_makes_overflow_show_nothing_of_it(tmp_path: Path, defence: str) -> None:
    task, victim = CNN.but(model="mlp", pipeline=defence), 7
    weights, others = overflowing(task, victim), [at for at in range(HELD + 1) if at != victim]
    second = others[: HELD - 1] if PUBLIC in defence else others
    worlds = [asker(tmp_path / str(at), train) for at, train in enumerate(([victim, *others[: HELD - 1]], second))]
    numbers, lengths = [set[str](), set[str]()], [[], []]
    for message_type in ("train", "train", "train", "train", "train", "train.probe"):
        for at, ask in enumerate(worlds):
            ask.state.pop("ledger", None)
            reply = ask(message_type, task, weights, timeout=0.001)  # a server could learn how long its examples take
            assert not reply.has_error(), (at, reply.error.reason)
            if message_type == "train":
                numbers[at].add(json.dumps(dict(reply.content["metrics"]), sort_keys=True))
                lengths[at].append(float(flat(tensors_of(reply, "arrays")).norm()))
    assert len(numbers[0]) == 1
    assert numbers[0] == numbers[1]
    assert all(math.isfinite(one) for one in (*lengths[0], *lengths[1]))
    assert max(map(max, lengths)) < 1.05 * min(map(min, lengths))
    unbounded = asker(tmp_path / "none", [victim, *others])("train", task.but(pipeline=""), weights)
    assert "not finite" in unbounded.error.reason


@pytest.mark.numeric
@pytest.mark.long
def test_the_attacker_finds_a_divisor_that_follows_from_the_data(tmp_path: Path) -> None:
    # The control: the same tests, on neighbours that the bound does not name. n is in the reply, and one of n was taken away.
    task, last = CNN.but(pipeline="DPSGD(noise_multiplier=20.0)"), HELD - 1
    askers = [asker(tmp_path / str(at), list(range(HELD - at))) for at in range(2)]
    replies = [[asked_anew(ask, task) for _ in range(RUNS)] for ask in askers]
    shown = []
    for says_first in attacks(task, replies[0][0], share_of(task, last), [HELD / STEPS, (HELD - 1) / STEPS]):
        right, wrong = (sum(map(says_first, world[1:])) for world in replies)
        shown.append(lower_bound(right, wrong, RUNS - 1, 3))
    # The number of examples, the norm of the update, and one gradient in so much noise.
    assert min(shown[:2]) > 1
    assert shown[2] < 0.1


@pytest.mark.numeric
def test_probes_are_accounted_as_one_example_for_another(tmp_path: Path) -> None:
    # Which example is probed is drawn: without it another is, so that two probes lie up to twice the clipping norm apart.
    public = ", neighbours='add-or-remove', sample_rate=0.25"
    for at, (text, steps, probes) in enumerate([("", 0, 3), (public, 0, 3), (public, 5, 1)]):
        task = CNN.but(pipeline=f"DPSGD(noise_multiplier=4.0{text})", probe_targets=probes, local_steps=steps)
        told = values_of(asker(tmp_path / str(at), range(HELD))("train.probe", task), "metrics")
        # Exactly, by Balle and Wang; accounting by Renyi divergence is never below. Each probe is one step.
        exact = gaussian_epsilon(2 * math.sqrt(probes) / 4.0, DELTA)
        assert exact <= float(told["epsilon-with-probes"]) < 1.4 * exact
        assert told["local-steps"] == 1


@pytest.mark.numeric
def test_a_client_with_few_examples_tells_none_of_them(tmp_path: Path) -> None:
    task = CNN.but(pipeline="DPSGD(noise_multiplier=4.0)", probe_images=4)
    spread = []
    for count in (2, 4):
        reply = asker(tmp_path / str(count), range(count))("train.probe", task)
        spread.append(float(flat(tensors_of(reply, "target-0")).std()))
        assert values_of(reply, "metrics")["num-examples"] == 4
    assert spread[0] == pytest.approx(spread[1], rel=0.02)
    for pinned in (True, False):
        public = "DPSGD(noise_multiplier=2.0, neighbours='add-or-remove', sample_rate=0.25)"
        pins = public if pinned else f"none; {public}"
        ask = Asker(tmp_path / str(pinned), **OPEN, pipelines=pins)  # type: ignore[arg-type]
        task = CNN.but(owns_data=True, batch_size=8)
        del ask.state["indices"]
        found = values_of(ask("query.setup", task), "metrics")
        assert found["train-examples"] == (32 if pinned else 200)
        assert found["test-examples"] == 50
