"""Chains with stages that must be fitted: what each learns from, what travels, and what comes back."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import defenses.fitting as fitting
from defenses import DefenseError, DeltaAutoencoder, FeaturePCA, FitContext, parse
from defenses.fitting import SHAPE, features_by_row, version_of
from defenses.random_draws import generator_for

CHAIN = "DeltaAutoencoder(delta='max', epochs=1) | FeatureNoise(std=0.1) | FeaturePCA(components=4)"


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def a_context(**other: Any) -> FitContext:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        client = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        server = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 3))
    context = FitContext(client, server, None, random(20, 3, 8, 8), torch.arange(20) % 3, torch.zeros(3))
    return replace(context, **other)


def plain(images: Tensor) -> FitContext:
    """Features are the images."""
    black = torch.zeros(images.shape[1])
    return a_context(client=nn.Identity(), images=images, labels=torch.zeros(len(images)), black=black)


def test_a_chain_is_fitted_by_text_and_keeps_its_text() -> None:
    pipeline = parse(CHAIN)
    fitted, again, other = (pipeline.fit(a_context(), (key,)) for key in ("secret", "secret", "other"))
    assert (pipeline.fitted, fitted.fitted) == (False, True)
    assert (str(fitted), fitted, hash(fitted)) == (str(pipeline), parse(str(fitted)), hash(pipeline))
    state, features = fitted.state(), random(5, 4, 8, 8)
    assert version_of(state) == version_of(again.state()) != version_of(other.state())
    assert len(version_of(state)) == 16
    # Tensors travel under the number of their stage.
    assert {name.partition(".")[0] for name in state} == {"0", "2"}
    assert {"0.encoder.0.weight", "0.shape", "2.mean", "2.basis", "2.shape"} <= set(state)
    wanted = fitted.protect_features(features, ("use",))
    for copied in (parse(CHAIN).with_state(state), pickle.loads(pickle.dumps(fitted))):
        assert version_of(copied.state()) == version_of(state)
        assert torch.equal(copied.protect_features(features, ("use",)), wanted)
    moved = features.requires_grad_()
    fitted.protect_features(moved, ("use",)).square().sum().backward()
    assert moved.grad.abs().sum() > 0


def test_decoders_run_in_reverse() -> None:
    fitted = parse(CHAIN).fit(a_context(), ("secret",))
    autoencoder, _, pca = fitted.smashed_defenses
    assert isinstance(autoencoder, DeltaAutoencoder)
    assert isinstance(pca, FeaturePCA)
    latent = fitted.encode_features(random(5, 4, 8, 8), ("use",))
    assert latent.shape[1:] == fitted.latent_shape(4, 8, 8) == (4,)
    assert torch.equal(fitted.decode_features(latent), autoencoder.decode(pca.decode(latent)))
    assert pca.state()["mean"].shape == autoencoder.latent_shape(4, 8, 8) == (2, 8, 8)
    learned = [tensor for name, tensor in fitted.state().items() if not name.endswith(SHAPE)]
    assert parse(CHAIN).learned_numbers(4, 8, 8) == sum(tensor.numel() for tensor in learned)


def test_a_chain_without_them_needs_no_fit_and_one_on_images_and_updates_is_left_to_its_places() -> None:
    pipeline, features = parse("FeatureNoise(std=0.5)"), random(5, 4, 8, 8)
    assert pipeline.fit(a_context(), ("secret",)) == pipeline
    assert (pipeline.fitted, pipeline.version, pipeline.state()) == (True, "", {})
    assert torch.equal(pipeline.encode_features(features, ("use",)), pipeline.protect_features(features, ("use",)))
    assert torch.equal(pipeline.decode_features(features), features)
    text, rows = "Blur(std=1) | FeaturePCA(components=3) | Clip(max_norm=1)", plain(random(12, 4, 8, 8))
    fitted, alone = (parse(one).fit(rows, ("fit",)) for one in (text, "FeaturePCA(components=3)"))
    assert str(fitted) == str(parse(text))
    assert torch.equal(fitted.state()["1.basis"], alone.state()["0.basis"])


def test_stages_behind_act_on_what_travels() -> None:
    """Noise behind PCA is noise on k numbers: what it changes lies in the space of the components."""
    rows = random(12, 4, 8, 8)
    pipeline = parse("FeaturePCA(components=3) | FeatureNoise(std=0.5)").fit(plain(rows), ("fit",))
    pca = parse("FeaturePCA(components=3)").fit(plain(rows), ("fit",))
    assert pipeline.latent_shape(4, 8, 8) == (3,)
    noise = pipeline.encode_features(rows, ("use",)) - pca.encode_features(rows, ("use",))
    assert noise.shape == (12, 3)
    changed = pipeline.protect_features(rows, ("use",)) - pca.protect_features(rows, ("use",))
    torch.testing.assert_close(changed, torch.einsum("bk,kchw->bchw", noise, pca.state()["0.basis"]))
    bounded = parse("FeaturePCA(components=3) | FeatureDP(clip=0.5,noise_multiplier=0)").fit(plain(10 * rows), ("fit",))
    latent = bounded.encode_features(10 * rows, ("use",))
    torch.testing.assert_close(latent.norm(dim=1), torch.full((12,), 0.5))


def test_a_stage_learns_from_what_the_earlier_ones_let_through() -> None:
    rows = random(12, 4, 8, 8)
    chain = parse("FeaturePCA(components=3) | FeatureDP(clip=1, noise_multiplier=0)").fit(plain(rows), ("fit",))
    behind = parse("FeatureDP(clip=1, noise_multiplier=0) | FeaturePCA(components=3)").fit(plain(rows), ("fit",))
    clipped = plain(rows / rows.flatten(1).norm(dim=1)[:, None, None, None])
    expected = FeaturePCA(components=3).fit(clipped, generator_for(0))
    torch.testing.assert_close(behind.state()["1.mean"], expected.state()["mean"])
    torch.testing.assert_close(behind.state()["1.basis"], expected.state()["basis"], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(behind.state()["1.mean"], chain.state()["0.mean"])
    # One image 64 times: with the same noise in both batches of 32 there would be 31 directions, so there are 63.
    images = random(1, 4, 4, 8).expand(64, -1, -1, -1)
    fitted = parse("FeatureNoise(std=1) | FeaturePCA(components=63)").fit(plain(images), ("fit",))
    assert fitted.state()["1.basis"].shape == (63, 4, 4, 8)


def test_what_does_not_fit_together_is_refused() -> None:
    features, state = random(1, 4, 8, 8), parse(CHAIN).fit(a_context(), ("secret",)).state()
    partly = parse(CHAIN).with_state({name: tensor for name, tensor in state.items() if name.startswith("0.")})
    other = parse("DeltaAutoencoder(delta='max') | FeatureNoise()")
    behind = parse("FeaturePCA(components=4) | DeltaAutoencoder(delta='max', epochs=1)")
    unfitted, none, zeros = parse(CHAIN).protect_features, ("use",), torch.zeros
    for message, use, *given in (
        (r"is not fitted: call Pipeline.fit\(context, key\)", unfitted, features, none),
        (r"FeaturePCA\(components=4\) is not fitted", partly.protect_features, features, none),
        (r"tensors \['2.basis', '2.mean', '2.shape'\] belong to no stage", other.with_state, state),
        (r"needs features \(C, H, W\), and gets \(4,\) .* before; write it first", behind.latent_shape, 4, 8, 8),
        (r"returns features \(1, 4\); allowed: maps", behind.fit, a_context(), none),
    ):
        with pytest.raises(DefenseError, match=message):
            use(*given)
    for message, given in (
        (r"images are \(0, 3, 8, 8\); allowed: \(N, C, H, W\) with N >= 1", {"images": zeros(0, 3, 8, 8)}),
        (r"images are \(20, 24\); allowed", {"images": zeros(20, 24)}),
        (r"labels are \(19,\); allowed: \(20,\)", {"labels": zeros(19)}),
        (r"black is \(1,\); allowed: \(3,\)", {"black": zeros(1)}),
    ):
        with pytest.raises(DefenseError, match=message):
            a_context(**given)


def test_a_version_is_that_of_names_shapes_types_and_values() -> None:
    tensors = {"a": torch.zeros(2, 3), "b": torch.tensor(data=True), "c": torch.ones(2, dtype=torch.bfloat16)}
    version = version_of(tensors)
    for same in (dict(reversed(tensors.items())), {n: t.clone() for n, t in tensors.items()}):
        assert version_of(same) == version
    for changed in (
        {"a": torch.zeros(3, 2)}, {"a": torch.zeros(2, 3).double()}, {"a": torch.full((2, 3), -0.0)},
        {"b": torch.tensor(data=False)}, {"d": torch.zeros(1)},
    ):  # fmt: skip
        assert version_of(tensors | changed) != version
    turned = torch.arange(6).view(2, 3).T
    assert version_of({"a": turned}) == version_of({"a": turned.contiguous()})


class Counted(nn.Module):
    """Counts the images that pass it; noise is fresh at every call."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.noise, self.images = noise, 0

    def forward(self, images: Tensor) -> Tensor:
        self.images += len(images)
        return 2 * images + self.noise * torch.rand(images.shape, generator=torch.Generator().manual_seed(self.images))


def test_features_are_kept_where_they_are_few_and_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for noise, most, passes in ((0.0, 2**30, 22), (0.0, 100, 31), (1.0, 2**30, 32)):
        monkeypatch.setattr(fitting, "MOST_KEPT", most)
        client, images = Counted(noise), random(20, 1, 4, 4)
        features, rows = features_by_row(client, images), torch.tensor([3, 3, 17, 0, 5])
        found = [features(rows) for _ in range(6)]
        assert client.images == passes
        assert all(one.shape == (5, 1, 4, 4) for one in found)
        if not noise:
            torch.testing.assert_close(found[-1], 2 * images[rows])
