"""The autoencoder of delta protection: what must come back exactly, what training must reach, and what it refuses."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from defenses import DefenseError, DeltaAutoencoder, FitContext, Pipeline
from defenses.fitting import in_eval_mode
from defenses.random_draws import generator_for
from defenses.smashed.delta_autoencoder import VARIANTS

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


def test_an_identity_gives_the_server_what_it_had() -> None:
    """Weights that pass channels through: what the first C / 2^depth channels hold comes back exactly, so the server half decides
    as without protection.
    """
    channels, context = 16, a_context(16)
    server = a_context(16).server.double()
    for variant, depth in VARIANTS.items():
        defense = replace(QUICK, variant=variant, epochs=0).fit(context, generator_for(0))
        state = defense.state()
        for name, tensor in state.items():
            if name.endswith(("bias", "weight")):
                tensor.zero_()
            if name.endswith("weight"):
                tensor[range(len(tensor)), range(len(tensor)), 1, 1] = 1
        features = features_of(context, pictures()).double()
        features[:, channels >> depth :] = 0
        protected = defense.with_state(state).protect_features(features, generator_for(0))
        assert torch.equal(protected, features), variant
        assert features.any()
        assert torch.equal(server(protected).argmax(1), server(features).argmax(1))


def test_every_shape_that_is_accepted_comes_back_and_the_latent_is_that_of_the_papers_split() -> None:
    for (variant, depth), sides in itertools.product(VARIANTS.items(), ((9, 15), (28, 28))):
        defense = replace(QUICK, variant=variant)
        state = {name: 0.1 * torch.ones(shape) for name, shape in defense.shapes(16, *sides).items()}
        state |= {"shape": torch.tensor([16, *sides]), "rectified": torch.tensor(data=False)}
        fitted, features = defense.with_state(state), torch.rand(2, 16, *sides)
        latent = fitted.encode(features)
        assert latent.shape[1:] == defense.latent_shape(16, *sides) == (16 >> depth, *sides)
        restored = fitted.decode(latent)
        assert restored.shape == features.shape
        assert (restored > 0.1).all(), "a row or column that nothing reaches would hold the bias alone"
    # VGG16 at convolution 8: 512 x 28 x 28 features, of which "decreasing" sends a half.
    assert QUICK.latent_shape(512, 28, 28) == (256, 28, 28)
    assert replace(QUICK, variant="extra_deep").latent_shape(512, 28, 28) == (64, 28, 28)


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


@pytest.mark.numeric
def test_it_forgets_what_only_the_adversary_looks_at_and_with_max_all_that_the_server_does_not() -> None:
    """The server half needs red, the adversary blue, neither green: shares of each colour that are left in new images."""
    client = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.ReLU())
    client[0].weight.data = torch.eye(4, 3)[:, :, None, None]
    context = FitContext(client, looks_at(0), looks_at(2), squares(64, 0), torch.zeros(64), torch.zeros(3))
    features = features_of(context, squares(50, 1))
    for delta, kept in (("max", (1, 0, 0)), ("min", (1, 1, 0))):
        defense = DeltaAutoencoder(delta=delta, fill="black", epochs=60, learning_rate=5e-3, batch_size=8)
        protected = defense.fit(context, generator_for("fit")).protect_features(features, generator_for(0))
        shares = [float((protected * features)[:, color].sum() / features[:, color].sum()) for color in range(3)]
        assert shares == pytest.approx(kept, abs=0.25)


def test_the_output_is_rectified_where_the_features_are() -> None:
    for rectified in (True, False):
        context = a_context(rectified=rectified)
        fitted = QUICK.fit(context, generator_for(0))
        assert bool(fitted.state()["rectified"]) == rectified
        protected = fitted.protect_features(features_of(context, pictures(seed=1)), generator_for(0))
        assert bool((protected >= 0).all()) == rectified


def test_what_cannot_be_learned_or_restored_is_refused() -> None:
    defense = replace(QUICK, variant="deep")
    for use in (lambda: defense.latent_shape(6, 12, 12), lambda: Pipeline((defense,)).fit(a_context(6), ("fit",))):
        with pytest.raises(DefenseError, match="halves the channels 2 times, and 6 cannot be divided by 4"):
            use()
    for defense, context, message in (
        (DeltaAutoencoder(), replace(a_context(), adversary=None), "allowed: a context with one, or delta='max'"),
        (DeltaAutoencoder(), replace(a_context(), client=nn.Flatten()), r"returns features \(1, 432\); allowed: maps"),
        (replace(QUICK, variant="deep", learning_rate=1e12), a_context(), "not finite; lower the learning rate"),
    ):
        with pytest.raises(DefenseError, match=message):
            defense.fit(context, generator_for(0))
