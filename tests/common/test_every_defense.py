"""Properties that every defence must have. A new class is tested as soon as ``defenses`` exports it."""

from __future__ import annotations

import itertools
import json
import pickle
import re
import subprocess
import sys
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
from defenses.base import Update
from defenses.fitting import version_of
from defenses.random_draws import generator_for
from defenses.registry import DEFENSES
from defenses.spec import parse

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:Optimal order is the")

CLASSES: dict[str, Callable[..., Any]] = DEFENSES

# Settings at which a defence must return exactly what it gets.
IDENTITIES = [
    'ATS(policies="28-39")',
    "AdversarialTraining(weight=0)",
    "Blur(std=0)",
    "Clip(max_norm=inf)",
    "Downsample(factor=1)",
    "FeatureDP(clip=1e9, noise_multiplier=0)",
    "FeatureNoise(std=0)",
    "GaussianNoise(std=0)",
    "ImageNoise(std=0)",
    "LaplaceNoise(scale=0)",
    "Pruning(fraction=0)",
    "VisualMixer(window_lower=1, window_upper=1)",
]


# ---- every class with every argument changed once


def other_values(default: Any) -> list[Any]:
    """Candidates for a non-default value; the first that the class accepts is used."""
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [default + 1, default + 2, 2 * default, default - 1, 1]
    if isinstance(default, float):
        return [default / 2, default * 2, 0.25, 0.75, 2.0]
    return [0.75, 2.0, 1]


def texts_of(cls: Callable[..., Any], spec: Field[Any]) -> list[Any]:
    """Candidates for a value of another field, numbers and the texts that a refusal names."""
    if not isinstance(spec.default, str):
        return other_values(spec.default) if spec.default is None else []
    try:
        cls(**cls.quick | {spec.name: "no such text"})
    except ValueError as refusal:
        return re.findall(r"[\w-]+", str(refusal).partition("allowed:")[2])
    return []


def changed(cls: Callable[..., Any], name: str, default: Any) -> Any:
    """An instance whose field ``name`` differs from what it is by default, or in a quick fit."""
    quick: dict[str, Any] = cls.quick
    candidates = other_values(default)
    if isinstance(default, str):
        with pytest.raises(ValueError) as refusal:  # noqa: PT011 (the message says which texts are allowed)
            cls(**quick | {name: "no such text"})
        candidates = re.findall(r"[\w-]+", str(refusal.value).split("allowed:")[1])
    # Some values are allowed beside another one only: a public sample rate beside the neighbours that need one.
    beside = [
        {},
        *({other.name: value} for other in fields(cls) if other.name != name for value in texts_of(cls, other)),
    ]
    for value, more in itertools.product(candidates, beside):
        try:
            instance = cls(**quick | more | {name: value})
        except ValueError:
            continue
        if getattr(instance, name) == value != default:
            return instance
    raise AssertionError(f"no allowed value found for {cls.__name__}({name}=...); tried {candidates}")


def instances() -> list[Any]:
    """Every class with its defaults, or as it is quick to fit, and with each field changed."""
    found = []
    for cls in CLASSES.values():
        first = cls(**cls.quick)
        found.append(first)
        found += [changed(cls, f.name, getattr(first, f.name)) for f in fields(cls) if f.init]  # type: ignore[arg-type]
    return found


INSTANCES = instances()
every_class = pytest.mark.parametrize("cls", list(CLASSES.values()), ids=list(CLASSES))
every_instance = pytest.mark.parametrize("defense", INSTANCES, ids=list(map(repr, INSTANCES)))


def of_kind(kind: type[Defense]) -> pytest.MarkDecorator:
    chosen = [defense for defense in INSTANCES if isinstance(defense, kind)]
    return pytest.mark.parametrize("defense", chosen, ids=list(map(repr, chosen)))


# ---- what each kind of defence gets, and what comes out, as plain tensors


def a_batch(count: int = 6, dtype: torch.dtype = torch.float32, channels: int = 3) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, channels, 16, 16, generator=generator).to(dtype)
    return Batch(images, torch.eye(10, dtype=dtype)[torch.arange(count) % 10])


def an_update(scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Update:
    generator = torch.Generator().manual_seed(0)
    shapes = {"conv.weight": (4, 3, 3, 3), "conv.bias": (4,), "scale": (), "none": (0,), "head": (5, 4)}
    return {name: (scale * torch.randn(shape, generator=generator)).to(dtype) for name, shape in shapes.items()}


def some_tokens(count: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    """Tokens of a 4 x 4 grid, each of which could be a 4 x 4 patch of two planes."""
    return torch.randn(count, 16, 32, generator=torch.Generator().manual_seed(0)).to(dtype)


def some_smashed(defense: SmashedDefense, count: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a client half sends under such a defence: tokens (B, N, D), or maps (B, C, H, W) where it was fitted to a network's."""
    if not isinstance(defense, FittedDefense):
        return some_tokens(count, dtype)
    return torch.randn(count, 8, 8, 8, generator=torch.Generator().manual_seed(0)).to(dtype)


@cache
def a_context() -> FitContext:
    """A small network cut behind its first layer, an adversary, and 24 public images."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        client = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        ).train()
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
        loader=DataLoader(TensorDataset(images, targets), batch_size=4, shuffle=True, generator=generator_for("order")),
        loss=lambda model, images, targets: F.cross_entropy(model(images), targets),
        epochs=1,
        total_epochs=2,
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


def gradients(defense: EdgeTrainingDefense, network: nn.Module, *which: int) -> dict[str, Tensor]:
    """Gradients of the sum of the chosen losses, of the network's weights by name and of "features"; zeros where none."""
    features = some_tokens().requires_grad_()
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


@every_instance
def test_its_text_reads_back_as_itself(defense: Any):
    assert parse(repr(defense)) == Pipeline((defense,))
    assert hash(parse(repr(defense)).defenses[0]) == hash(defense)


@every_instance
def test_it_can_be_pickled(defense: Any):
    assert pickle.loads(pickle.dumps(defense)) == defense


@every_class
def test_it_says_what_an_evaluator_must_know(cls: Any):
    assert issubclass(cls, InputDefense | UpdateDefense | SmashedDefense | TrainingDefense | EdgeTrainingDefense)
    assert len(cls.source) > 10
    for flag in ("mixes_examples", "at_inference", "resamples"):
        assert isinstance(getattr(cls, flag), bool)
    assert isinstance(cls.adaptive_attacks, tuple)
    assert all(isinstance(name, str) for name in cls.adaptive_attacks)
    assert cls.__doc__
    assert not cls.__doc__.startswith(cls.__name__ + "(")


@every_class
def test_it_is_immutable(cls: Any):
    defense = cls()
    for field in fields(cls):
        with pytest.raises(AttributeError):
            setattr(defense, field.name, 0)


@every_class
def test_bad_values_are_refused_with_field_value_and_allowed_range(cls: Any):
    for field in fields(cls):
        for value in (float("nan"), "no such text", (), b"1", [1.0]):
            with pytest.raises(ValueError, match="; allowed: ") as refusal:
                cls(**{field.name: value})
            assert f"{field.name} is {value!r}" in str(refusal.value)


# ---- randomness


@every_instance
def test_the_same_generator_gives_the_same_output_and_the_global_one_is_not_used(defense: Any):
    torch.manual_seed(1)
    first = outcome(defense, generator_for(0))
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    second = outcome(defense, generator_for(0))
    assert same(first, second)
    assert torch.equal(before, torch.random.get_rng_state())


@every_instance
def test_another_generator_gives_another_output_exactly_if_randomness_is_used(defense: Any):
    generator = generator_for(0)
    untouched = generator.get_state().clone()
    first = outcome(defense, generator)
    uses_randomness = not torch.equal(untouched, generator.get_state())
    assert same(first, outcome(defense, generator_for(1))) == (not uses_randomness)
    if not uses_randomness and isinstance(defense, InputDefense):
        assert not defense.resamples, "without randomness there is nothing to draw again"


# ---- images


@of_kind(InputDefense)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("count", "channels"), [(6, 3), (1, 3), (5, 1), (0, 3)])
def test_images_keep_shape_type_and_range(defense: InputDefense, dtype: torch.dtype, count: int, channels: int):
    batch = a_batch(count, dtype, channels)
    kept = Batch(batch.images.clone(), batch.targets.clone())
    protected = defense.protect_batch(batch, generator_for(0))
    assert torch.equal(batch.images, kept.images)
    assert torch.equal(batch.targets, kept.targets)
    for new, old in ((protected.images, kept.images), (protected.targets, kept.targets)):
        assert (new.shape, new.dtype, new.device) == (old.shape, old.dtype, old.device)
        assert torch.isfinite(new).all()
    if "clamp=False" not in repr(defense):
        assert ((protected.images >= 0) & (protected.images <= 1)).all()
    torch.testing.assert_close(protected.targets.sum(1), torch.ones(count, dtype=dtype))
    if not defense.mixes_examples:
        assert torch.equal(protected.targets, kept.targets)


@of_kind(InputDefense)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_black_and_white_images_stay_finite_and_in_range(defense: InputDefense, value: float):
    batch = Batch(torch.full((3, 3, 16, 16), value), torch.eye(3))
    protected = defense.protect_batch(batch, generator_for(0)).images
    assert torch.isfinite(protected).all()
    if "clamp=False" not in repr(defense):
        assert ((protected >= 0) & (protected <= 1)).all()


@of_kind(InputDefense)
def test_an_image_depends_on_others_only_where_the_class_says_so(defense: InputDefense):
    batch = a_batch()
    images = batch.images.clone()
    images[0] = 1 - images[0]
    first = defense.protect_batch(batch, generator_for(0)).images
    second = defense.protect_batch(Batch(images, batch.targets), generator_for(0)).images
    assert not torch.equal(first[0], second[0])
    others_changed = not torch.equal(first[1:], second[1:])
    if not defense.mixes_examples:
        assert not others_changed
    elif repr(defense) == repr(type(defense)()):
        assert others_changed


# ---- updates


@of_kind(UpdateDefense)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 0.0, 1e-20])
def test_updates_keep_names_shapes_and_types(defense: UpdateDefense, dtype: torch.dtype, scale: float):
    update = an_update(scale, dtype)
    kept = {name: tensor.clone() for name, tensor in update.items()}
    protected = defense.protect_update(update, generator_for(0))
    assert same(update, kept)
    assert list(protected) == list(kept)
    for name, tensor in protected.items():
        assert (tensor.shape, tensor.dtype, tensor.device) == (kept[name].shape, dtype, kept[name].device)
        assert torch.isfinite(tensor).all()


@of_kind(UpdateDefense)
def test_the_order_of_an_update_decides_nothing(defense: UpdateDefense):
    update = an_update()
    reordered = dict(reversed(update.items()))
    first, second = (defense.protect_update(u, generator_for(0)) for u in (update, reordered))
    assert list(second) == list(reordered)
    assert all(torch.equal(first[name], second[name]) for name in update)


@of_kind(UpdateDefense)
def test_an_empty_update_stays_empty(defense: UpdateDefense):
    assert defense.protect_update({}, generator_for(0)) == {}


@of_kind(UpdateDefense)
def test_integer_counters_are_refused(defense: UpdateDefense):
    with pytest.raises(DefenseError, match="'steps'"):
        defense.protect_update({"w": torch.ones(2), "steps": torch.tensor(3)}, generator_for(0))


# ---- smashed data


@of_kind(SmashedDefense)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [4, 1, 0])
def test_features_keep_shape_and_let_gradients_through(defense: SmashedDefense, count: int, dtype: torch.dtype):
    features = some_smashed(defense, count, dtype).requires_grad_()
    kept = features.detach().clone()
    try:
        defense.check_batch(*features.shape[:2])
    except DefenseError as refusal:
        with pytest.raises(DefenseError, match=re.escape(str(refusal))):
            defense.protect_features(features, generator_for(0))
        return
    protected = ready(defense).protect_features(features, generator_for(0))
    assert protected.shape == (*kept.shape[:-1], defense.widening * kept.shape[-1])
    assert (protected.dtype, protected.device) == (features.dtype, features.device)
    assert torch.equal(features, kept)
    (gradient,) = torch.autograd.grad((protected**2).sum(), features)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().sum() > 0 or count == 0


@of_kind(SmashedDefense)
def test_no_smashed_defence_refuses_an_ordinary_batch(defense: SmashedDefense):
    defense.check_batch(32, 196)


@of_kind(SmashedDefense)
def test_features_of_zero_stay_finite_and_so_do_their_gradients(defense: SmashedDefense):
    features = torch.zeros_like(some_smashed(defense)).requires_grad_()
    protected = ready(defense).protect_features(features, generator_for(0))
    (gradient,) = torch.autograd.grad(protected.sum(), features)
    assert torch.isfinite(protected).all()
    assert torch.isfinite(gradient).all()


@of_kind(SmashedDefense)
def test_an_order_names_every_token_once(defense: SmashedDefense):
    order = defense.order(4, 16, generator_for(0))
    assert (order.shape, order.dtype) == ((4, 16), torch.int64)
    assert torch.equal(order.flatten().sort().values, torch.arange(64))
    stays_within_its_image = torch.equal(order // 16, torch.arange(4)[:, None].expand(4, 16))
    assert stays_within_its_image == (not defense.mixes_examples)


@of_kind(SmashedDefense)
def test_smashed_data_depend_on_other_images_only_where_the_class_says_so(defense: SmashedDefense):
    changed_first = some_smashed(defense)
    changed_first[0] *= -2
    sent = (some_smashed(defense), changed_first)
    first, second = (ready(defense).protect_features(features, generator_for(0)) for features in sent)
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[1:], second[1:]) == (not defense.mixes_examples)


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


@of_kind(FittedDefense)
def test_unfitted_it_refuses_to_protect(defense: FittedDefense):
    assert (defense.fitted, defense.state()) == (False, {})
    for use in (defense.encode, defense.decode, lambda features: defense.protect_features(features, generator_for(0))):
        with pytest.raises(DefenseError, match=re.escape(f"{defense!r} is not fitted")):
            use(some_smashed(defense))


@of_kind(FittedDefense)
def test_a_fit_gives_a_new_object_with_the_same_text_and_leaves_the_context_alone(defense: FittedDefense):
    before = context_bits()
    fitted = defense.fit(a_context(), generator_for("fit"))
    assert same(before, context_bits())
    assert not defense.fitted
    assert fitted.fitted
    assert repr(fitted) == repr(defense)
    assert parse(repr(fitted)) == Pipeline((fitted,))
    assert version_of(fitted.state()) == version_of(ready(defense).state())


@of_kind(FittedDefense)
def test_its_tensors_survive_pickling_and_export(defense: FittedDefense):
    fitted = ready(defense)
    wanted = outcome(defense, generator_for(0))["features"]
    for copied in (pickle.loads(pickle.dumps(fitted)), defense.with_state(fitted.state())):
        assert version_of(copied.state()) == version_of(fitted.state())
        assert torch.equal(copied.protect_features(some_smashed(defense), generator_for(0)), wanted)
    fitted.state()["shape"].zero_()
    assert torch.equal(ready(defense).protect_features(some_smashed(defense), generator_for(0)), wanted)


@of_kind(FittedDefense)
def test_other_settings_have_no_tensors(defense: FittedDefense):
    assert not replace(ready(defense)).fitted  # type: ignore[type-var]


@of_kind(FittedDefense)
def test_what_travels_is_the_latent_whose_shape_is_known_before_the_fit(defense: FittedDefense):
    fitted, features = ready(defense), some_smashed(defense)
    latent = fitted.encode(features)
    assert latent.shape[1:] == defense.latent_shape(8, 8, 8)
    assert torch.equal(fitted.decode(latent), fitted.protect_features(features, generator_for(0)))


@of_kind(FittedDefense)
def test_features_of_another_split_are_refused(defense: FittedDefense):
    with pytest.raises(DefenseError, match=re.escape("features of shape (2, 8, 8, 6); allowed, as in its fit")):
        ready(defense).encode(torch.zeros(2, 8, 8, 6))
    with pytest.raises(DefenseError, match=re.escape("a latent of shape (2, 1); allowed, as in its fit")):
        ready(defense).decode(torch.zeros(2, 1))


@of_kind(FittedDefense)
def test_tensors_of_something_else_are_refused_by_name(defense: FittedDefense):
    state = ready(defense).state()
    name = next(name for name, tensor in state.items() if tensor.is_floating_point() and tensor.dim() > 0)
    without = {other: tensor for other, tensor in state.items() if other != name}
    for wrong in (without, state | {name: state[name][..., :-1]}, state | {name: state[name] * float("nan")}):
        with pytest.raises(DefenseError, match=re.escape(name)):
            defense.with_state(wrong)
    for shape in (torch.tensor([8, 8, 0]), torch.tensor([8.0, 8, 8]), torch.tensor([8, 8])):
        with pytest.raises(DefenseError, match="'shape'"):
            defense.with_state(state | {"shape": shape})


# ---- training


@of_kind(TrainingDefense)
@pytest.mark.parametrize("count", [12, 1])
def test_training_is_protected_without_touching_weights_data_or_state(defense: TrainingDefense, count: int):
    state = {"kept": [1, 2]}
    training = a_training(defense, count, state)
    before = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
    protected = defense.protect_training(training, generator_for(0))
    assert same(before, dict(protected.model.state_dict()))
    assert protected.epochs == training.epochs
    after = train(protected)
    assert all(torch.isfinite(tensor).all() for tensor in after.values())
    assert not same(before, after)
    assert training.state == {"kept": [1, 2]}
    assert json.loads(json.dumps(protected.state))["kept"] == [1, 2]


@of_kind(EdgeTrainingDefense)
def test_a_network_at_the_client_and_its_half_are_trained_on_a_loss_each(defense: EdgeTrainingDefense):
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


# ---- limits


@pytest.mark.parametrize("text", IDENTITIES)
def test_at_its_limit_it_is_the_identity(text: str):
    defense: Any = parse(text).defenses[0]
    if isinstance(defense, InputDefense):
        batch = a_batch()
        assert torch.equal(defense.protect_batch(batch, generator_for(0)).images, batch.images)
    elif isinstance(defense, SmashedDefense):
        features = some_smashed(defense)
        assert torch.equal(ready(defense).protect_features(features, generator_for(0)), features)
    elif isinstance(defense, EdgeTrainingDefense):
        assert not outcome(defense, generator_for(0))["gradient"].any()
    else:
        assert same(defense.protect_update(an_update(), generator_for(0)), an_update())


def test_instahide_of_one_image_only_flips_signs():
    batch = a_batch()
    protected = parse("InstaHide(num_mixed=1, max_weight=1)").protect_batch(batch, (0,)).images
    torch.testing.assert_close((2 * protected - 1).abs(), (2 * batch.images - 1).abs())


# ---- imports


@pytest.mark.parametrize("module", ["opacus", "scipy", "skimage", "flwr", "ray", "timm", "torchvision", "PIL"])
def test_importing_the_package_is_light(module: str):
    """One subprocess for all: torch alone may be slow."""
    assert module not in imported_modules()


_CACHE: list[set[str]] = []


def imported_modules() -> set[str]:
    if not _CACHE:
        code = "import sys, defenses; print(*(name.split('.')[0] for name in sys.modules))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        _CACHE.append(set(done.stdout.split()))
    return _CACHE[0]
