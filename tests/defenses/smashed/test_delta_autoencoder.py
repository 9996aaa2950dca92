"""The autoencoder of delta protection: what must come back exactly, what training must reach, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from defenses import DefenseError, DeltaAutoencoder, FitContext, Pipeline, parse
from defenses.fitting import in_eval_mode, version_of
from defenses.random_draws import generator_for
from defenses.smashed.delta_autoencoder import VARIANTS
from defenses.smashed.delta_masks import DeltaMasks

QUICK = DeltaAutoencoder(delta="max", epochs=2)


def pictures(count: int = 40, side: int = 12, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def a_context(channels: int = 8, side: int = 12, *, rectified: bool = True) -> FitContext:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        client = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels))
        if rectified:
            client.append(nn.ReLU(inplace=True))
        server, adversary = (
            nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * side**2, n))
            for n in (3, 2)
        )
    return FitContext(client, server, adversary, pictures(side=side), torch.arange(40) % 3, torch.full((3,), -2.0))


def features_of(context: FitContext, images: Tensor) -> Tensor:
    with in_eval_mode(context.client), torch.no_grad():
        features: Tensor = context.client(images)
    return features


# ---- exact


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stride", [1, 2])
def test_an_identity_gives_the_server_what_it_had(variant: str, stride: int):
    """Weights that pass channels through: what the first C / 2^depth channels hold (and, at stride 2, every 2^depth-th
    position) comes back exactly, so the server half decides as without protection.
    """
    channels, depth = 16, VARIANTS[variant]
    defense = replace(QUICK, variant=variant, stride=stride, epochs=0).fit(a_context(channels), generator_for(0))
    state = defense.state()
    for name in state:
        if name.endswith("bias"):
            state[name].zero_()
        if name.endswith("weight"):
            state[name].zero_()
            narrow = state[name].shape[0]
            state[name][range(narrow), range(narrow), 1, 1] = 1
    identity = defense.with_state(state)
    features = features_of(a_context(channels), pictures()).double()
    features[:, channels >> depth :] = 0
    if stride == 2:
        kept = torch.zeros_like(features)
        kept[..., :: 2**depth, :: 2**depth] = features[..., :: 2**depth, :: 2**depth]
        features = kept
    protected = identity.protect_features(features, generator_for(0))
    assert torch.equal(protected, features)
    server = a_context(channels).server.double()
    assert features.any()
    assert torch.equal(server(protected).argmax(1), server(features).argmax(1))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("sides", [(8, 8), (9, 15), (14, 11), (28, 28)])
def test_every_shape_that_is_accepted_comes_back(variant: str, stride: int, sides: tuple[int, int]):
    """28 x 28 becomes 14, 7 and 4 at stride 2, from which 28 x 28 must come back."""
    defense = replace(QUICK, variant=variant, stride=stride)
    shapes = defense.shapes(16, *sides)
    state = {name: 0.1 * torch.ones(shape) for name, shape in shapes.items()}
    state |= {"shape": torch.tensor([16, *sides]), "rectified": torch.tensor(data=False)}
    fitted = defense.with_state(state)
    features = torch.rand(2, 16, *sides)
    latent = fitted.encode(features)
    assert latent.shape[1:] == defense.latent_shape(16, *sides)
    expected = tuple(-(-side // stride ** VARIANTS[variant]) for side in sides)
    assert latent.shape[1:] == (16 >> VARIANTS[variant], *expected)
    restored = fitted.decode(latent)
    assert restored.shape == features.shape
    assert (restored > 0.1).all(), "a row or column that nothing reaches would hold the bias alone"


def test_the_latent_is_that_of_the_papers_split():
    """VGG16 at convolution 8: 512 x 28 x 28 features, of which "decreasing" sends a half."""
    assert QUICK.latent_shape(512, 28, 28) == (256, 28, 28)
    assert replace(QUICK, variant="extra_deep").latent_shape(512, 28, 28) == (64, 28, 28)
    assert replace(QUICK, variant="extra_deep", stride=2).latent_shape(512, 28, 28) == (64, 4, 4)


# ---- learned


def squares(count: int, seed: int) -> Tensor:
    """Black images with a red, a green and a blue square, each in another quarter: (N, 3, 16, 16) in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, 3, 16, 16)
    for image in images:
        for color, quarter in enumerate(torch.randperm(4, generator=generator)[:3].tolist()):
            down, right = (int(torch.randint(1, 4, (), generator=generator)) for _ in "ab")
            down, right = down + 8 * (quarter // 2), right + 8 * (quarter % 2)
            image[color, down : down + 4, right : right + 4] = 1
    return images


def looks_at(color: int) -> nn.Sequential:
    """A network that decides by one colour alone."""
    net = nn.Sequential(nn.Conv2d(4, 1, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(256, 2, bias=False))
    net[0].weight.data = torch.zeros(1, 4, 3, 3)
    net[0].weight.data[:, color] = 1 / 9
    net[2].weight.data = torch.stack([torch.ones(256), torch.zeros(256)])
    return net


@pytest.mark.parametrize(("delta", "kept"), [("max", (1, 0, 0)), ("min", (1, 1, 0))])
def test_it_forgets_what_only_the_adversary_looks_at_and_with_max_all_that_the_server_does_not(
    delta: str, kept: tuple[int, ...]
):
    """The server half needs red, the adversary blue, nobody green: shares of each colour that are left in new images."""
    client = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.ReLU())
    client[0].weight.data = torch.eye(4, 3)[:, :, None, None]
    context = FitContext(client, looks_at(0), looks_at(2), squares(64, 0), torch.zeros(64), torch.zeros(3))
    defense = DeltaAutoencoder(delta=delta, fill="black", epochs=60, learning_rate=1e-2, batch_size=16)
    features = features_of(context, squares(50, 1))
    protected = defense.fit(context, generator_for("fit")).protect_features(features, generator_for(0))
    shares = [float((protected * features)[:, color].sum() / features[:, color].sum()) for color in range(3)]
    assert shares == pytest.approx(kept, abs=0.2)


def test_the_fit_is_the_last_of_its_epochs_and_each_lowers_the_error():
    context, defense = a_context(), replace(QUICK, epochs=6)
    stages = [stage for _, stage in defense.path(context, generator_for("fit"))]
    assert len(stages) == 7
    assert version_of(stages[-1].state()) == version_of(defense.fit(context, generator_for("fit")).state())
    assert len({version_of(stage.state()) for stage in stages}) == 7
    features = features_of(context, context.images)
    wanted = features_of(context, defense.masks.apply(context.images, context)[0])
    errors = [float((s.protect_features(features, generator_for(0)) - wanted).square().mean()) for s in stages]
    assert errors == sorted(errors, reverse=True)


def test_another_seed_gives_other_tensors_and_no_epochs_the_initial_ones():
    context = a_context()
    assert version_of(QUICK.fit(context, generator_for(0)).state()) != version_of(
        QUICK.fit(context, generator_for(1)).state()
    )
    initial = replace(QUICK, epochs=0).fit(context, generator_for(0))
    assert version_of(initial.state()) == version_of(next(QUICK.path(context, generator_for(0)))[1].state())


@pytest.mark.parametrize("rectified", [True, False])
def test_the_output_is_rectified_where_the_features_are(rectified: bool):
    context = a_context(rectified=rectified)
    fitted = QUICK.fit(context, generator_for(0))
    assert bool(fitted.state()["rectified"]) == rectified
    protected = fitted.protect_features(features_of(context, pictures(seed=1)), generator_for(0))
    assert bool((protected >= 0).all()) == rectified


def test_both_halves_are_the_same_after_the_fit():
    context = a_context()
    assert context.adversary is not None
    halves = nn.ModuleList([context.client, context.server, context.adversary]).train()
    before = version_of(halves.state_dict())
    parse("DeltaAutoencoder(epochs=1) | FeatureNoise(std=0.1)").fit(context, ("fit",))
    assert version_of(halves.state_dict()) == before
    assert all(layer.training for layer in halves.modules())
    assert all(weight.grad is None for weight in halves.parameters())


# ---- settings and refusals


def test_the_papers_iterations_and_thresholds_are_the_defaults():
    assert DeltaAutoencoder().masks == DeltaMasks("min", "blur", 2, "scalar", 0.3775)
    assert DeltaAutoencoder(delta="max", mode="percentile").masks == DeltaMasks("max", "blur", 1, "percentile", 0.99)
    assert DeltaAutoencoder(delta="max", iterations=3, threshold=0.5).masks == DeltaMasks(
        "max", "blur", 3, "scalar", 0.5
    )


@pytest.mark.parametrize(
    ("channels", "side", "variant", "stride", "message"),
    [
        (6, 12, "deep", 1, "halves the channels 2 times, and 6 cannot be divided by 4"),
        (12, 12, "extra_deep", 1, "halves the channels 3 times, and 12 cannot be divided by 8"),
        (8, 6, "extra_deep", 2, "halves height and width 3 times, for which maps of 6 x 6 are too small"),
    ],
)
def test_a_split_that_cannot_be_restored_is_refused(channels: int, side: int, variant: str, stride: int, message: str):
    defense = replace(QUICK, variant=variant, stride=stride)
    with pytest.raises(DefenseError, match=message):
        defense.latent_shape(channels, side, side)
    with pytest.raises(DefenseError, match=message):
        Pipeline((defense,)).fit(a_context(channels, side), ("fit",))


def test_what_the_context_lacks_is_said():
    with pytest.raises(DefenseError, match="allowed: a context with one, or delta='max'"):
        DeltaAutoencoder().fit(replace(a_context(), adversary=None), generator_for(0))
    with pytest.raises(DefenseError, match=r"the client half returns features \(1, 432\); allowed: maps"):
        DeltaAutoencoder().fit(replace(a_context(), client=nn.Flatten()), generator_for(0))


def test_training_that_diverges_is_refused():
    with pytest.raises(DefenseError, match="not finite; lower the learning rate"):
        replace(QUICK, variant="deep", learning_rate=1e12).fit(a_context(), generator_for(0))
