"""What a training shows of itself while it runs: against what the training was written to do."""

import gc
import json
import weakref
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from clients.external_app.own_images import recognised
from clients.external_app.training import MOST_SEEN, OwnTraining, TrainingWatch, UnseenTrainingError, last_training

IMAGES = (torch.arange(20 * 64).view(20, 1, 8, 8) * 37 % 256) / 255
LABELS = torch.arange(20) % 5


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(144, 5))


def a_context() -> Context:
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


Does = Callable[[nn.Module, Any], None]


def watched(does: Does, changed: float = 0.0, **settings: Any) -> tuple[OwnTraining, Context]:
    """What is kept of a training whose reply holds its weights, ``changed`` by so much."""
    context, model = a_context(), net()
    kind = settings.pop("kind", torch.optim.SGD)
    with TrainingWatch() as watch:
        does(model, kind(model.parameters(), **settings))
    sent = ArrayRecord({name: value + changed for name, value in model.state_dict().items()})
    watch.keep(context, [sent])
    return OwnTraining.from_json(str(last_training(context)["training"])), context


def epochs(count: int, view: Callable[[Tensor], Tensor] = Tensor.clone, **told: Any) -> Does:
    """Trains so many times on all images, in batches of 8."""

    def does(model: nn.Module, optimizer: Any) -> None:
        for _ in range(count):
            for images, labels in DataLoader(TensorDataset(IMAGES, LABELS), 8, **told):
                optimizer.zero_grad()
                F.cross_entropy(model(view(images)), labels).backward()
                optimizer.step()
            with torch.no_grad():
                model(IMAGES)  # an evaluation is no training

    return does


def test_settings_steps_and_batches_are_those_of_the_training() -> None:
    found, context = watched(epochs(2), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    assert found == OwnTraining(
        "SGD", 0.1, 0.1, 0.9, True, 0.01, 6, 8, steady=True, images=40, train_mode=True, sent=True
    )
    assert found.epochs(20) == 2
    assert recognised(context, IMAGES) == (40, 40)
    adam, _ = watched(epochs(1, drop_last=True), kind=torch.optim.Adam, lr=0.003)
    assert (adam.optimizer, adam.learning_rate, adam.momentum, adam.steps, adam.images) == ("Adam", 0.003, 0.0, 2, 16)


def test_images_that_are_not_those_of_data_are_counted() -> None:
    """Mirrored ones, another normalisation, and images of strangers are others; rounding of 16 bits is not."""
    for view, same in (
        (lambda images: images.flip(-1), 0), (lambda images: (images - 0.5) / 0.5, 0), (torch.rand_like, 0),
        (lambda images: images.half().float(), 20),
        (lambda images: torch.cat([images[:1].flip(-1), images[1:]]), 17),
    ):  # fmt: skip
        _, context = watched(epochs(1, view), lr=0.1)
        assert recognised(context, IMAGES) == (same, 20)


def test_clipping_is_seen_in_the_gradients_and_noise_in_what_is_sent() -> None:
    def clips(model: nn.Module, optimizer: Any) -> None:
        model.register_parameter("empty", nn.Parameter(torch.empty(0)))
        optimizer.add_param_group({"params": [model.empty]})
        for at in range(0, 20, 5):
            optimizer.zero_grad()
            F.cross_entropy(model(IMAGES[at : at + 5]), LABELS[at : at + 5]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()

    found, _ = watched(clips, lr=0.1)
    assert (found.notes, found.sent) == (
        ("gradients of several steps have the norm 0.05, as clipping leaves it",),
        True,
    )
    noised, _ = watched(epochs(1), changed=1e-3, lr=0.1)
    assert (noised.notes, noised.sent) == ((), False)


def test_accumulated_gradients_are_one_step_and_a_schedule_is_noted() -> None:
    def accumulates(model: nn.Module, optimizer: Any) -> None:
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for _ in range(2):
            for at in range(0, 20, 5):
                F.cross_entropy(model(IMAGES[at : at + 5]), LABELS[at : at + 5]).backward()
            optimizer.step()
            schedule.step()

    found, _ = watched(accumulates, lr=0.2)
    assert (found.steps, found.batch_size, found.images) == (2, 20, 40)
    assert found.learning_rate == pytest.approx(0.15)
    assert found.notes == ("its learning rate lay between 0.1 and 0.2",)


def test_what_is_no_plain_step_is_noted() -> None:
    def two(model: nn.Module, optimizer: Any) -> None:
        model.eval()
        other = torch.optim.Adam(model[0].parameters())
        F.cross_entropy(model(IMAGES), LABELS).backward()
        optimizer.step()
        other.step()

    found, _ = watched(two, lr=0.1, dampening=0.2)
    assert not found.train_mode
    assert found.notes == ("with dampening or maximize", "other optimizers stepped, too")


def test_dp_sgd_of_opacus_is_noted() -> None:
    opacus = pytest.importorskip("opacus")

    def private(model: nn.Module, optimizer: Any) -> None:
        data = DataLoader(TensorDataset(IMAGES, LABELS), 5)
        made, stepped, loader = opacus.PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=data, noise_multiplier=1.0, max_grad_norm=1.0
        )
        for images, labels in loader:
            if len(images):
                stepped.zero_grad()
                F.cross_entropy(made(images), labels).backward()
                stepped.step()

    found, context = watched(private, lr=0.1)
    assert (found.optimizer, found.notes) == ("SGD", ("Opacus clips and adds noise",))
    assert 0 < recognised(context, IMAGES)[0] == found.images


def test_a_training_is_the_same_watched_or_not_and_nothing_stays_behind() -> None:
    ends = []
    for watching in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(3)
        if watching:
            with TrainingWatch():
                epochs(2, shuffle=True)(model, optimizer)
        else:
            epochs(2, shuffle=True)(model, optimizer)
        ends.append((model[4].weight, torch.rand(1)))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])
    context = a_context()
    with TrainingWatch() as watch:
        pass
    epochs(1)(model, optimizer)
    watch.keep(context)
    with pytest.raises(UnseenTrainingError, match=r"was not seen: no optimizer of torch\.optim made a step in it"):
        last_training(context)
    assert recognised(context, IMAGES) == (0, 0)


def test_a_training_without_a_step_leaves_nothing_of_the_one_before() -> None:
    _, context = watched(epochs(1), lr=0.1)
    with TrainingWatch() as watch:
        net()(IMAGES)
    watch.keep(context)
    with pytest.raises(UnseenTrainingError):
        last_training(context)
    assert recognised(context, IMAGES) == (20, 20), "images that no step followed were seen"


def test_only_the_first_images_are_kept() -> None:
    def many(model: nn.Module, optimizer: Any) -> None:
        model(IMAGES[:1].expand(MOST_SEEN + 5, -1, -1, -1)).sum().backward()
        optimizer.step()

    found, context = watched(many, lr=0.1)
    assert found.images == MOST_SEEN + 5
    assert recognised(context, IMAGES) == (MOST_SEEN, MOST_SEEN)


def test_batches_and_steps_are_counted_as_they_are(subtests: pytest.Subtests) -> None:
    """Whatever else is given images: each case takes four steps on eight images."""

    def loss(model: nn.Module, at: int) -> Tensor:
        return F.cross_entropy(model(IMAGES[at : at + 8]), LABELS[at : at + 8])

    def each(step: Callable[[nn.Module, Any, int], None]) -> Does:
        def does(model: nn.Module, optimizer: Any) -> None:
            for at in (0, 8, 4, 12):
                optimizer.zero_grad()
                step(model, optimizer, at)

        return does

    def plain(model: nn.Module, optimizer: Any, at: int) -> None:
        loss(model, at).backward()
        optimizer.step()

    def closure(model: nn.Module, optimizer: Any, at: int) -> None:
        def closed() -> Tensor:
            found = loss(model, at)
            found.backward()
            return found

        optimizer.step(closed)

    teacher = net()

    def distilled(model: nn.Module, optimizer: Any, at: int) -> None:
        (loss(model, at) + loss(teacher, at)).backward()
        optimizer.step()

    def anew(model: nn.Module, optimizer: Any, at: int) -> None:
        loss(model, at).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    def looked_at(model: nn.Module, optimizer: Any) -> None:
        model(IMAGES)  # with gradients, before training
        each(plain)(model, optimizer)

    class Keyword(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *, pixels: Tensor) -> Tensor:
            return self.inner[1:](self.inner[0](pixels))  # type: ignore[index, operator]

    def by_keyword(model: nn.Module, optimizer: Any, at: int) -> None:
        F.cross_entropy(Keyword(model)(pixels=IMAGES[at : at + 8]), LABELS[at : at + 8]).backward()
        optimizer.step()

    def compiled(model: nn.Module, optimizer: Any) -> None:
        each(plain)(torch.compile(model, backend="eager"), optimizer)

    for name, does in (
        ("plain", each(plain)), ("closure", each(closure)), ("teacher", each(distilled)), ("new optimizers", each(anew)),
        ("a look before", looked_at), ("keyword", each(by_keyword)), ("compiled", compiled),
    ):  # fmt: skip
        with subtests.test(name):
            found, context = watched(does, lr=0.1)
            assert (found.steps, found.batch_size, found.steady) == (4, 8, True)
            assert found.images == 32 + 20 * (name == "a look before")
            assert recognised(context, IMAGES)[0] == found.images


def test_a_watch_that_fails_ends_and_the_training_goes_on() -> None:
    class Rateless(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            found = super().step(closure)
            self.param_groups[0]["lr"] = None
            return found

    def one_step(model: nn.Module, optimizer: Any) -> None:
        F.cross_entropy(model(IMAGES), LABELS).backward()
        optimizer.step()

    with pytest.raises(UnseenTrainingError, match=r"watching ended early \(TypeError: float\(\) argument must be"):
        watched(one_step, kind=Rateless, lr=0.1)


def test_an_image_of_a_mapped_batch_is_none() -> None:
    def mapped(model: nn.Module, optimizer: Any) -> None:
        weights = {name: one.detach() for name, one in model.named_parameters()}

        def loss(weights: Any, image: Tensor, label: Tensor) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(model.eval(), weights, image[None]), label[None])

        torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, IMAGES, LABELS)
        F.cross_entropy(model(IMAGES), LABELS).backward()
        optimizer.step()

    found, _ = watched(mapped, lr=0.1)
    assert (found.steps, found.images) == (1, 20)


def test_a_compiled_model_trains_over_rounds_and_no_model_is_kept_alive() -> None:
    """Hooks with other keys in each round would have dynamo compile until it gives up; a search may train many models."""
    model = net()
    compiled, alive = torch.compile(model, backend="eager", fullgraph=True), list[Any]()
    for _ in range(10):
        with TrainingWatch() as watch:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            F.cross_entropy(compiled(IMAGES), LABELS).backward()
            optimizer.step()
            another = net()
            alive.append(weakref.ref(another))
            torch.optim.SGD(another.parameters(), lr=0.1).step()
            del another
        with torch.no_grad():
            compiled(IMAGES)
    assert not watch.failure
    del watch
    gc.collect()
    assert [one for one in alive if one() is not None] == []


def test_modules_that_train_nothing_are_no_models() -> None:
    class Normalised(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return (images - 0.5) / 0.5

    def does(model: nn.Module, optimizer: Any) -> None:
        for at in (0, 8):
            F.cross_entropy(model(Normalised()(IMAGES[at : at + 8])), LABELS[at : at + 8]).backward()
            optimizer.step()

    found, context = watched(does, lr=0.1)
    assert (found.batch_size, found.images) == (8, 16)
    assert recognised(context, (IMAGES - 0.5) / 0.5) == (16, 16)


def test_what_a_client_sends_is_read_within_limits() -> None:
    one = OwnTraining("SGD", 0.1, 0.1, 0.0, False, 0.0, 1, 1, True, 1, True, True)
    good = json.dumps(asdict(one), separators=(",", ":"))
    assert OwnTraining.from_json(good).steps == 1
    for old, new, why in (
        ('"learning_rate":0.1', '"learning_rate":0.0', "learning_rate is 0"), ('"steps":1', '"steps":0', "steps is 0"),
        ('"momentum":0.0', '"momentum":1.0', r"momentum is 1\.0"), ('"nesterov":false', '"nesterov":1', "nesterov is 1"),
        ('"images":1,', "", "images is missing"), (good, "None", "JSON|text"),
    ):  # fmt: skip
        with pytest.raises(UnseenTrainingError, match=why):
            OwnTraining.from_json(good.replace(old, new))
