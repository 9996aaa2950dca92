"""Properties that every defence must have. A new class is tested as soon as ``defenses`` exports it."""

import itertools
import json
import pickle
import re
from collections.abc import Callable
from dataclasses import Field, fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from defenses import (
    Batch,
    Defense,
    DefenseError,
    EdgeTrainingDefense,
    FitContext,
    FittedDefense,
    InputDefense,
    Pipeline,
    SmashedDefense,
    Training,
    TrainingDefense,
    UpdateDefense,
)
from defenses.base import DEFENSES
from defenses.fitting import version_of
from defenses.random_draws import generator_for
from defenses.spec import parse, settings_of
from defenses.tensors import Update
from tests.common.any_attack import registered

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:Optimal order is the")

CLASSES: dict[str, Callable[..., Any]] = registered(DEFENSES)
IDENTITIES = (
    'ATS(policies="28-39")', "AdversarialTraining(weight=0)", "FeatureDP(clip=1e9, noise_multiplier=0)",
    "VisualMixer(window_lower=1, window_upper=1)",
)  # fmt: skip
"""Settings at which a defence must return exactly what it gets, beside those of ``no_defense_at``."""


# ---- every class with every argument changed once


def other_values(default: Any) -> list[Any]:
    """Candidates for a non-default value; the first that the class accepts is used."""
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [default + 1, default + 2, 2 * default, default - 1, 1]
    if isinstance(default, float):
        return [default / 2, default * 2, 0.25, 0.75, 2.0]
    return [1, 0.75, 2.0]


def texts_of(cls: Callable[..., Any], spec: Field[Any]) -> list[Any]:
    """Candidates for a value of another field, numbers and the texts that a refusal names."""
    if not isinstance(spec.default, str):
        return other_values(spec.default) if spec.default is None else []
    try:
        cls(**getattr(cls, "profile", cls).quick | {spec.name: "no such text"})
    except ValueError as refusal:
        return re.findall(r"[\w-]+", str(refusal).partition("allowed:")[2])
    return []


def changed(cls: Callable[..., Any], spec: Field[Any], default: Any) -> Any:
    """An instance whose field differs from what it is by default, or in a quick fit."""
    candidates = texts_of(cls, spec) if isinstance(default, str) else other_values(default)
    # Some values are allowed beside another one only: a public sample rate beside the neighbours that need one.
    others = ((other.name, value) for other in fields(cls) if other is not spec for value in texts_of(cls, other))
    for value, more in itertools.product(candidates, [{}, *({name: one} for name, one in others)]):
        try:
            instance = cls(**getattr(cls, "profile", cls).quick | more | {spec.name: value})
        except ValueError:
            continue
        if getattr(instance, spec.name) == value != default:
            return instance
    raise AssertionError(f"no allowed value found for {cls.__name__}({spec.name}=...); tried {candidates}")


def instances() -> list[Any]:
    """Every class with its defaults, or as it is quick to fit, and with each field changed."""
    found = []
    for cls in CLASSES.values():
        first = cls(**cls.quick)
        found += [first, *(changed(cls, spec, getattr(first, spec.name)) for spec in fields(cls) if spec.init)]  # type: ignore[arg-type]
    return found


INSTANCES = instances()


def of_kind(kind: type[Defense]) -> list[Any]:
    return [defense for defense in INSTANCES if isinstance(defense, kind)]


# ---- what each kind of defence gets, and what comes out, as plain tensors


def a_batch(count: int = 6, dtype: torch.dtype = torch.float32, channels: int = 3) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, channels, 16, 16, generator=generator).to(dtype)
    return Batch(images, torch.eye(10, dtype=dtype)[torch.arange(count) % 10])


def an_update(scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Update:
    generator = torch.Generator().manual_seed(0)
    shapes = {"conv.weight": (4, 3, 3, 3), "conv.bias": (4,), "scale": (), "none": (0,), "head": (5, 4)}
    return {name: (scale * torch.randn(shape, generator=generator)).to(dtype) for name, shape in shapes.items()}


def some_smashed(defense: Defense, count: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a client half sends: tokens (B, N, D) of a 4 x 4 grid; of a fitted defence, maps (B, C, H, W)."""
    shape = (8, 8, 8) if isinstance(defense, FittedDefense) else (16, 32)
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@cache
def a_context() -> FitContext:
    """A small network cut behind its first layer, an adversary, and 24 public images."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        client = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)).train()
        server, adversary = (
            nn.Sequential(nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 6 * 6, classes))
            for classes in (3, 2)
        )
    images = torch.randn(24, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return FitContext(client, server, adversary.eval(), images, torch.arange(24) % 3, torch.tensor([-2.0, -2.1, -1.8]))


@cache
def ready(defense: Any) -> Any:
    """The defence as it can be used: fitted, where it must learn."""
    return defense.fit(a_context(), generator_for("fit")) if isinstance(defense, FittedDefense) else defense


def a_training(defense: TrainingDefense, count: int = 12, state: dict[str, Any] | None = None) -> Training:
    """Of a model with what the defence adds to it, as plans build it."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 3)).train()
    model = defense.extended(model, torch.Generator().manual_seed(0))
    images = torch.rand(count, 1, 8, 8, generator=generator)
    targets = F.one_hot(torch.arange(count) % 3, 3).float()
    return Training(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        # All at once: the budget of steps on all examples has a closed form, where that of samples takes a second to search.
        loader=DataLoader(TensorDataset(images, targets), count, shuffle=True, generator=generator_for("order")),
        loss=lambda model, images, targets: F.cross_entropy(model(images), targets),
        epochs=3,
        total_epochs=6,
        state=state or {},
    )


def train(training: Training) -> dict[str, Tensor]:
    for _ in range(training.epochs):
        for images, targets in training.loader:
            loss = training.loss(training.model, images, targets)
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()
    return {name: parameter.detach().clone() for name, parameter in training.model.named_parameters()}


def outcome(defense: Defense, generator: torch.Generator) -> dict[str, Tensor]:
    """What the defence makes of the same input, whatever its kind."""
    if isinstance(defense, InputDefense):
        batch = defense.protect_batch(a_batch(), generator)
        return {"images": batch.images, "targets": batch.targets}
    if isinstance(defense, UpdateDefense):
        return defense.protect_update(an_update(), generator)
    if isinstance(defense, SmashedDefense):
        return {"features": ready(defense).protect_features(some_smashed(defense), generator)}
    if isinstance(defense, EdgeTrainingDefense):
        network = defense.build_network(16, 32, 48, generator)
        return dict(network.state_dict()) | {"gradient": gradients(defense, network, 1)["features"]}
    assert isinstance(defense, TrainingDefense)
    return train(defense.protect_training(a_training(defense), generator))


def unprotected(defense: Defense) -> dict[str, Tensor]:
    """What ``outcome`` is where a defence changes nothing."""
    if isinstance(defense, InputDefense):
        return {"images": a_batch().images, "targets": a_batch().targets}
    if isinstance(defense, UpdateDefense):
        return an_update()
    if isinstance(defense, SmashedDefense):
        return {"features": some_smashed(defense)}
    if isinstance(defense, EdgeTrainingDefense):
        return outcome(defense, generator_for(0)) | {"gradient": torch.zeros_like(some_smashed(defense))}
    assert isinstance(defense, TrainingDefense)
    return train(a_training(defense))


def gradients(defense: EdgeTrainingDefense, network: nn.Module, *which: int) -> dict[str, Tensor]:
    """Gradients of the sum of the chosen losses, of the network's weights by name and of "features"; zeros where none."""
    features = some_smashed(defense).requires_grad_()
    patches = torch.rand(4, 16, 48, generator=torch.Generator().manual_seed(1))
    losses = defense.losses(network, features, patches)
    leaves = {**dict(network.named_parameters()), "features": features}
    found = torch.autograd.grad(
        sum(losses[at] for at in which), list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(leaves, found, strict=True))


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


# ---- configuration


def test_its_text_and_its_pickle_are_itself() -> None:
    assert len(INSTANCES) >= len(CLASSES)
    for defense in INSTANCES:
        (read,) = parse(repr(defense)).defenses
        assert (read, hash(read)) == (defense, hash(defense)), repr(defense)
        assert pickle.loads(pickle.dumps(defense)) == defense, repr(defense)
        values = {name: getattr(defense, name) for name in settings_of(type(defense))}
        for name, value in values.items():
            if isinstance(value, float) and value.is_integer():
                for equal in (int(value), value or -0.0):
                    assert repr(replace(defense, **{name: equal})) == repr(defense), "equal, so of the same text"


def test_a_class_says_what_an_evaluator_must_know_and_refuses_bad_values(subtests: pytest.Subtests) -> None:
    for name, cls in CLASSES.items():
        with subtests.test(name):
            assert issubclass(
                cls, InputDefense | UpdateDefense | SmashedDefense | TrainingDefense | EdgeTrainingDefense
            )
            assert len(cls.source) > 10
            assert all(isinstance(getattr(cls, flag), bool) for flag in ("mixes_examples", "at_inference", "resamples"))
            assert all(isinstance(one, str) for one in cls.adaptive_attacks)
            assert (cls.__doc__ or f"{name}(").startswith(f"{name}(") is False
            for field in fields(cls):
                with pytest.raises(AttributeError):
                    setattr(cls(), field.name, 0)
                for value in (float("nan"), "no such text", (), b"1", [1.0]):
                    with pytest.raises(ValueError, match="; allowed: ") as refusal:
                        cls(**{field.name: value})
                    assert f"{field.name} is {value!r}" in str(refusal.value)


# ---- randomness and limits


def test_equal_generators_give_equal_outputs_and_others_differ_only_if_one_is_used(subtests: pytest.Subtests) -> None:
    for defense in INSTANCES:
        with subtests.test(repr(defense)):
            torch.manual_seed(1)
            generator = generator_for(0)
            first = outcome(defense, generator)
            random = not torch.equal(generator_for(0).get_state(), generator.get_state())
            torch.manual_seed(2)
            before = torch.random.get_rng_state()
            assert same(first, outcome(defense, generator_for(0)))
            assert same(first, outcome(defense, generator_for(1))) == (not random)
            assert torch.equal(before, torch.random.get_rng_state()), "torch's default generator was used"
            if isinstance(defense, InputDefense):
                assert random or not defense.resamples, "without randomness there is nothing to draw again"


def test_at_its_limit_it_is_the_identity_and_says_so_where_it_is_declared(subtests: pytest.Subtests) -> None:
    declared = [one for one in map(CLASSES.get, CLASSES) if one.no_defense_at]  # type: ignore[union-attr]
    for cls in declared:
        with subtests.test(cls.__name__):  # type: ignore[union-attr]
            ((name, value),) = cls.no_defense_at.items()  # type: ignore[union-attr]
            default, nothing = cls(), cls(**{name: value})  # type: ignore[misc]
            assert same(outcome(nothing, generator_for(0)), unprotected(nothing))
            assert not same(outcome(default, generator_for(0)), unprotected(default))
            assert f"{name} is {value:g}, so this stage changes nothing and is no defence; try " in nothing.no_defense
            assert default.no_defense == ""
            assert Pipeline((nothing,)).idle(32, 32) == [nothing.no_defense]
    for text in IDENTITIES:
        (defense,) = parse(text).defenses
        assert same(outcome(defense, generator_for(0)), unprotected(defense)), text
    one = outcome(*parse("InstaHide(num_mixed=1, max_weight=1)").defenses, generator_for(0))["images"]
    torch.testing.assert_close((2 * one - 1).abs(), (2 * a_batch().images - 1).abs())


# ---- images


def test_images_keep_shape_type_and_range_and_depend_on_others_where_the_class_says(subtests: pytest.Subtests) -> None:
    sizes = [(6, 3), (1, 3), (5, 1), (0, 3)]
    batches = [a_batch(count, dtype, channels) for count, channels in sizes for dtype in (torch.float32, torch.float64)]
    batches += [Batch(torch.full((3, 3, 16, 16), value), torch.eye(3)) for value in (0.0, 1.0)]
    changed_first = Batch(torch.cat([1 - a_batch().images[:1], a_batch().images[1:]]), a_batch().targets)
    for defense in of_kind(InputDefense):
        with subtests.test(repr(defense)):
            for batch in batches:
                kept = Batch(batch.images.clone(), batch.targets.clone())
                protected = defense.protect_batch(batch, generator_for(0))
                assert torch.equal(batch.images, kept.images)
                assert torch.equal(batch.targets, kept.targets)
                for new, old in ((protected.images, kept.images), (protected.targets, kept.targets)):
                    assert (new.shape, new.dtype, new.device) == (old.shape, old.dtype, old.device)
                    assert torch.isfinite(new).all()
                assert ((protected.images >= 0) & (protected.images <= 1)).all()
                torch.testing.assert_close(protected.targets.sum(1), kept.targets.sum(1))
                assert defense.mixes_examples or torch.equal(protected.targets, kept.targets)
            first, second = (defense.protect_batch(one, generator_for(0)).images for one in (a_batch(), changed_first))
            assert not torch.equal(first[0], second[0])
            if not defense.mixes_examples or defense == type(defense)():
                assert torch.equal(first[1:], second[1:]) == (not defense.mixes_examples)


# ---- updates


def test_updates_keep_names_shapes_and_types_in_any_order_and_may_be_empty(subtests: pytest.Subtests) -> None:
    types = (torch.float32, torch.float64, torch.bfloat16)
    for defense in of_kind(UpdateDefense):
        with subtests.test(repr(defense)):
            for dtype, scale in itertools.product(types, (1.0, 0.0, 1e-20)):
                update, kept = an_update(scale, dtype), an_update(scale, dtype)
                protected = defense.protect_update(update, generator_for(0))
                assert same(update, kept)
                assert list(protected) == list(kept)
                for name, tensor in protected.items():
                    assert (tensor.shape, tensor.dtype, tensor.device) == (kept[name].shape, dtype, kept[name].device)
                    assert torch.isfinite(tensor).all()
            first, second = (defense.protect_update(x, generator_for(0)) for x in (kept, dict(reversed(kept.items()))))
            assert list(second) == list(reversed(kept))
            assert all(torch.equal(first[name], second[name]) for name in kept)
            assert defense.protect_update({}, generator_for(0)) == {}
            with pytest.raises(DefenseError, match="'steps'"):  # a counter
                defense.protect_update({"w": torch.ones(2), "steps": torch.tensor(3)}, generator_for(0))


# ---- smashed data


def test_features_keep_shape_and_let_gradients_through(subtests: pytest.Subtests) -> None:
    for defense in of_kind(SmashedDefense):
        with subtests.test(repr(defense)):
            defense.check_batch(32, 196)  # an ordinary batch is allowed
            types = (torch.float32, torch.float64, torch.bfloat16)
            for count, dtype, scale in itertools.product((4, 1, 0), types, (1, 0)):
                features = (scale * some_smashed(defense, count, dtype)).requires_grad_()
                kept = features.detach().clone()
                try:
                    defense.check_batch(*features.shape[:2])
                except DefenseError as refusal:
                    with pytest.raises(DefenseError, match=re.escape(str(refusal))):
                        defense.protect_features(features, generator_for(0))
                    continue
                protected = ready(defense).protect_features(features, generator_for(0))
                assert protected.shape == (*kept.shape[:-1], defense.widening * kept.shape[-1])
                assert (protected.dtype, protected.device) == (features.dtype, features.device)
                assert torch.equal(features, kept)
                assert torch.isfinite(protected).all()
                (gradient,) = torch.autograd.grad((protected**2).sum(), features)
                assert torch.isfinite(gradient).all()
                assert gradient.abs().sum() > 0 or count * scale == 0


def test_smashed_data_depend_on_other_images_only_where_the_class_says_so(subtests: pytest.Subtests) -> None:
    for defense in of_kind(SmashedDefense):
        with subtests.test(repr(defense)):
            order = defense.order(4, 16, generator_for(0))
            assert (order.shape, order.dtype) == ((4, 16), torch.int64)
            assert torch.equal(order.flatten().sort().values, torch.arange(64)), "not every token once"
            own = torch.equal(order // 16, torch.arange(4)[:, None].expand(4, 16))
            other = some_smashed(defense)
            other[0] *= -2
            sent = (some_smashed(defense), other)
            first, second = (ready(defense).protect_features(features, generator_for(0)) for features in sent)
            assert not torch.equal(first[0], second[0])
            assert torch.equal(first[1:], second[1:]) == own == (not defense.mixes_examples)


# ---- smashed data, by a defence that must be fitted


def context_bits() -> dict[str, Tensor]:
    """Everything of the context that a fit must leave alone."""
    context = a_context()
    assert context.adversary is not None
    halves = nn.ModuleList([context.client, context.server, context.adversary])
    modes = torch.tensor([layer.training for layer in halves.modules()])
    wanted = torch.tensor([weight.requires_grad for weight in halves.parameters()])
    assert all(weight.grad is None for weight in halves.parameters())
    kept = {**halves.state_dict(), "images": context.images, "modes": modes, "wanted": wanted}
    return {name: tensor.clone() for name, tensor in kept.items()}


def test_a_fit_gives_a_new_object_with_the_same_text_and_leaves_the_context_alone(subtests: pytest.Subtests) -> None:
    for defense in of_kind(FittedDefense):
        with subtests.test(repr(defense)):
            before, features = context_bits(), some_smashed(defense)
            assert (defense.fitted, defense.state()) == (False, {})
            for use in (defense.encode, defense.decode):
                with pytest.raises(DefenseError, match=re.escape(f"{defense!r} is not fitted")):
                    use(features)
            fitted = defense.fit(a_context(), generator_for("fit"))
            assert same(before, context_bits())
            assert (defense.fitted, fitted.fitted, repr(fitted)) == (False, True, repr(defense))
            assert parse(repr(fitted)) == Pipeline((fitted,))
            assert not replace(fitted).fitted, "other settings have no tensors"
            wanted = fitted.protect_features(features, generator_for(0))
            for copied in (pickle.loads(pickle.dumps(fitted)), defense.with_state(fitted.state()), ready(defense)):
                assert version_of(copied.state()) == version_of(fitted.state())
                assert torch.equal(copied.protect_features(features, generator_for(0)), wanted)
            fitted.state()["shape"].zero_()
            assert torch.equal(fitted.protect_features(features, generator_for(0)), wanted)
            latent = fitted.encode(features)
            assert latent.shape[1:] == defense.latent_shape(8, 8, 8)
            assert torch.equal(fitted.decode(latent), wanted)


def test_features_and_tensors_of_something_else_are_refused_by_name(subtests: pytest.Subtests) -> None:
    for defense in of_kind(FittedDefense):
        with subtests.test(repr(defense)):
            fitted, state = ready(defense), ready(defense).state()
            with pytest.raises(DefenseError, match=r"features of shape \(2, 8, 8, 6\); allowed, as in its fit"):
                fitted.encode(torch.zeros(2, 8, 8, 6))
            with pytest.raises(DefenseError, match=r"a latent of shape \(2, 1\); allowed, as in its fit"):
                fitted.decode(torch.zeros(2, 1))
            name = next(name for name, tensor in state.items() if tensor.is_floating_point() and tensor.dim() > 0)
            without = {other: tensor for other, tensor in state.items() if other != name}
            for wrong in (without, state | {name: state[name][..., :-1]}, state | {name: state[name] * float("nan")}):
                with pytest.raises(DefenseError, match=re.escape(name)):
                    defense.with_state(wrong)
            for shape in ([8, 8, 0], [8.0, 8, 8], [8, 8]):
                with pytest.raises(DefenseError, match="'shape'"):
                    defense.with_state(state | {"shape": torch.tensor(shape)})


# ---- training


def test_training_is_protected_without_touching_weights_data_or_state(subtests: pytest.Subtests) -> None:
    for defense, count in itertools.product(of_kind(TrainingDefense), (12, 1)):
        with subtests.test(f"{defense!r} {count}"):
            training = a_training(defense, count, {"kept": [1, 2]})
            before = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
            protected = defense.protect_training(training, generator_for(0))
            assert same(before, dict(protected.model.state_dict()))
            assert protected.epochs == training.epochs
            after = train(protected)
            assert all(torch.isfinite(tensor).all() for tensor in after.values())
            assert not same(before, after)
            assert training.state == {"kept": [1, 2]}
            assert json.loads(json.dumps(protected.state))["kept"] == [1, 2]


def test_a_network_at_the_client_and_its_half_are_trained_on_a_loss_each(subtests: pytest.Subtests) -> None:
    for defense in of_kind(EdgeTrainingDefense):
        with subtests.test(repr(defense)):
            network = defense.build_network(16, 32, 48, generator_for(0))
            weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
            own, penalty, both = (gradients(defense, network, *which) for which in ((0,), (1,), (0, 1)))
            assert same(weights, dict(network.state_dict()))
            assert all(torch.isfinite(gradient).all() for gradient in both.values())
            assert not own["features"].any()
            assert any(own[name].any() for name in weights)
            assert not any(penalty[name].any() for name in weights)
            assert all(torch.equal(both[name], own[name]) for name in weights)
            assert torch.equal(both["features"], penalty["features"])
