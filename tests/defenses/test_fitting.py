"""Chains with stages that must be fitted: what each learns from, what travels, and what comes back."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import defenses.fitting as fitting
from defenses import DefenseError, DeltaAutoencoder, FeaturePCA, FitContext, parse
from defenses.fitting import SHAPE, features_by_row, features_in_batches, in_eval_mode, placed, version_of
from defenses.random_draws import generator_for
from defenses.smashed.delta_autoencoder import _never_negative

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


# ---- chains


def test_a_chain_is_fitted_by_text_and_keeps_its_text():
    pipeline = parse(CHAIN)
    assert not pipeline.fitted
    fitted = pipeline.fit(a_context(), ("secret",))
    assert fitted.fitted
    assert (str(fitted), fitted, hash(fitted)) == (str(pipeline), parse(str(fitted)), hash(pipeline))
    assert not pipeline.fitted
    again, other = pipeline.fit(a_context(), ("secret",)), pipeline.fit(a_context(), ("other",))
    assert version_of(fitted.state()) == version_of(again.state()) != version_of(other.state())
    assert len(version_of(fitted.state())) == 16


def test_tensors_travel_under_the_number_of_their_stage():
    fitted = parse(CHAIN).fit(a_context(), ("secret",))
    state = fitted.state()
    assert {name.partition(".")[0] for name in state} == {"0", "2"}
    assert {"0.encoder.0.weight", "0.shape", "2.mean", "2.basis", "2.shape"} <= set(state)
    features = random(5, 4, 8, 8)
    wanted = fitted.protect_features(features, ("use",))
    for copied in (parse(CHAIN).with_state(state), pickle.loads(pickle.dumps(fitted))):
        assert version_of(copied.state()) == version_of(fitted.state())
        assert torch.equal(copied.protect_features(features, ("use",)), wanted)


def test_tensors_of_another_chain_are_refused():
    state = parse(CHAIN).fit(a_context(), ("secret",)).state()
    with pytest.raises(DefenseError, match=r"tensors \['2.basis', '2.mean', '2.shape'\] belong to no stage"):
        parse("DeltaAutoencoder(delta='max') | FeatureNoise()").with_state(state)
    partly = parse(CHAIN).with_state({name: tensor for name, tensor in state.items() if name.startswith("0.")})
    assert not partly.fitted
    with pytest.raises(DefenseError, match=r"FeaturePCA\(components=4\) is not fitted"):
        partly.protect_features(random(1, 4, 8, 8), ("use",))


def test_a_chain_without_them_needs_no_fit():
    pipeline = parse("FeatureNoise(std=0.5)")
    assert pipeline.fit(a_context(), ("secret",)) == pipeline
    assert (pipeline.fitted, pipeline.version, pipeline.state()) == (True, "", {})
    features = random(5, 4, 8, 8)
    assert torch.equal(pipeline.encode_features(features, ("use",)), pipeline.protect_features(features, ("use",)))
    assert torch.equal(pipeline.decode_features(features), features)


def test_unfitted_a_chain_says_so():
    with pytest.raises(DefenseError, match=r"is not fitted: call Pipeline.fit\(context, key\)"):
        parse(CHAIN).protect_features(random(1, 4, 8, 8), ("use",))


# ---- what travels


def test_stages_behind_act_on_what_travels():
    """Noise behind PCA is noise on k numbers: what it changes lies in the space of the components."""
    rows = random(12, 4, 8, 8)
    pipeline = parse("FeaturePCA(components=3) | FeatureNoise(std=0.5)").fit(plain(rows), ("fit",))
    pca = parse("FeaturePCA(components=3)").fit(plain(rows), ("fit",))
    assert pipeline.latent_shape(4, 8, 8) == (3,)
    noise = pipeline.encode_features(rows, ("use",)) - pca.encode_features(rows, ("use",))
    assert noise.shape == (12, 3)
    assert float(noise.std()) == pytest.approx(0.5, rel=0.35)
    changed = pipeline.protect_features(rows, ("use",)) - pca.protect_features(rows, ("use",))
    torch.testing.assert_close(changed, torch.einsum("bk,kchw->bchw", noise, pca.state()["0.basis"]))


def test_a_bound_behind_holds_of_what_travels():
    pipeline = parse("FeaturePCA(components=3) | FeatureDP(clip=0.5, noise_multiplier=0)")
    fitted = pipeline.fit(plain(10 * random(12, 4, 8, 8)), ("fit",))
    latent = fitted.encode_features(10 * random(12, 4, 8, 8), ("use",))
    torch.testing.assert_close(latent.norm(dim=1), torch.full((12,), 0.5))


def test_decoders_run_in_reverse():
    fitted = parse(CHAIN).fit(a_context(), ("secret",))
    autoencoder, pca = (stage for stage in fitted.smashed_defenses if not str(stage).startswith("FeatureNoise"))
    assert isinstance(autoencoder, DeltaAutoencoder)
    assert isinstance(pca, FeaturePCA)
    latent = fitted.encode_features(random(5, 4, 8, 8), ("use",))
    assert latent.shape == (5, 4)
    assert fitted.latent_shape(4, 8, 8) == (4,)
    assert torch.equal(fitted.decode_features(latent), autoencoder.decode(pca.decode(latent)))
    assert pca.state()["mean"].shape == autoencoder.latent_shape(4, 8, 8) == (2, 8, 8)
    learned = [tensor for name, tensor in fitted.state().items() if not name.endswith(SHAPE)]
    assert parse(CHAIN).learned_numbers(4, 8, 8) == sum(tensor.numel() for tensor in learned)


def test_autograd_passes_the_whole_chain():
    features = random(3, 4, 8, 8).requires_grad_()
    parse(CHAIN).fit(a_context(), ("secret",)).protect_features(features, ("use",)).square().sum().backward()
    assert features.grad is not None
    assert features.grad.abs().sum() > 0


# ---- what a stage learns from


def test_a_stage_learns_from_what_the_earlier_ones_let_through():
    rows = random(12, 4, 8, 8)
    chain = parse("FeaturePCA(components=3) | FeatureDP(clip=1, noise_multiplier=0)").fit(plain(rows), ("fit",))
    behind = parse("FeatureDP(clip=1, noise_multiplier=0) | FeaturePCA(components=3)").fit(plain(rows), ("fit",))
    clipped = plain(rows / rows.flatten(1).norm(dim=1)[:, None, None, None])
    expected = FeaturePCA(components=3).fit(clipped, generator_for(0))
    torch.testing.assert_close(behind.state()["1.mean"], expected.state()["mean"])
    torch.testing.assert_close(behind.state()["1.basis"], expected.state()["basis"], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(behind.state()["1.mean"], chain.state()["0.mean"])


def test_noise_in_front_is_fresh_in_every_batch():
    """One image 64 times: with the same noise in both batches of 32 there would be 31 directions, so there are 63."""
    images = random(1, 4, 4, 8).expand(64, -1, -1, -1)
    fitted = parse("FeatureNoise(std=1) | FeaturePCA(components=63)").fit(plain(images), ("fit",))
    assert fitted.state()["1.basis"].shape == (63, 4, 4, 8)


def test_stages_on_images_and_updates_are_left_to_their_places():
    text = "Blur(std=1) | FeaturePCA(components=3) | Clip(max_norm=1)"
    fitted = parse(text).fit(plain(random(12, 4, 8, 8)), ("fit",))
    assert str(fitted) == str(parse(text))
    alone = parse("FeaturePCA(components=3)").fit(plain(random(12, 4, 8, 8)), ("fit",))
    assert torch.equal(fitted.state()["1.basis"], alone.state()["0.basis"])


# ---- refusals


def test_tokens_and_maps_do_not_mix():
    with pytest.raises(DefenseError, match=r"PatchShuffle\(\) works on a transformer's tokens .* on maps"):
        parse("PatchShuffle() | FeaturePCA(components=3)")


def test_a_stage_that_needs_maps_does_not_follow_components():
    pipeline = parse("FeaturePCA(components=4) | DeltaAutoencoder(delta='max', epochs=1)")
    with pytest.raises(
        DefenseError, match=r"needs features \(C, H, W\), and gets \(4,\) from the stage before; write it first"
    ):
        pipeline.latent_shape(4, 8, 8)
    with pytest.raises(DefenseError, match=r"returns features \(1, 4\); allowed: maps"):
        pipeline.fit(a_context(), ("secret",))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"images": torch.zeros(0, 3, 8, 8)}, r"images are \(0, 3, 8, 8\); allowed: \(N, C, H, W\) with N >= 1"),
        ({"images": torch.zeros(20, 24)}, r"images are \(20, 24\); allowed"),
        ({"labels": torch.zeros(19)}, r"labels are \(19,\); allowed: \(20,\)"),
        ({"black": torch.zeros(1)}, r"black is \(1,\); allowed: \(3,\)"),
    ],
)
def test_a_context_that_does_not_fit_together_is_refused(given: dict[str, Tensor], message: str):
    with pytest.raises(DefenseError, match=message):
        a_context(**given)


# ---- parts


def test_modes_come_back_even_after_an_error():
    net = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm2d(2).eval(), nn.Dropout()))
    modes = [layer.training for layer in net.modules()]

    def fails() -> None:
        with in_eval_mode(net):
            assert not any(layer.training for layer in net.modules())
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert [layer.training for layer in net.modules()] == modes == [True, True, True, False, True]


def test_a_version_is_that_of_names_shapes_types_and_values():
    tensors = {"a": torch.zeros(2, 3), "b": torch.tensor(data=True), "c": torch.ones(2, dtype=torch.bfloat16)}
    version = version_of(tensors)
    assert (
        version_of(dict(reversed(tensors.items()))) == version_of({n: t.clone() for n, t in tensors.items()}) == version
    )
    for changed in (
        {"a": torch.zeros(3, 2)}, {"a": torch.zeros(2, 3).double()}, {"a": torch.full((2, 3), -0.0)},
        {"b": torch.tensor(data=False)}, {"d": torch.zeros(1)},
    ):  # fmt: skip
        assert version_of(tensors | changed) != version
    assert version_of({"a": torch.arange(6).view(2, 3).T}) == version_of(
        {"a": torch.arange(6).view(2, 3).T.contiguous()}
    )


# ---- devices


class Elsewhere(nn.Sequential):
    """A half on an accelerator, which refuses images that are not there; the device "meta" has tensors without values."""

    def forward(self, images: Tensor) -> Tensor:
        assert images.device.type == "meta"
        features: Tensor = super().forward(images)
        return features


def test_a_fit_takes_its_images_to_where_the_model_computes():
    """Images and draws are in main memory. A fit ends where it first has to look at a value: behind its features or masks."""
    with torch.device("meta"):
        client = Elsewhere(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        server = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 3))
    images = torch.rand(20, 3, 8, 8)
    context = FitContext(client, server, server, images, torch.zeros(20), torch.zeros(3))
    assert [features.device.type for features in features_in_batches(client, images)] == ["meta"]
    for text in ("FeaturePCA(components=2)", "DeltaAutoencoder(epochs=1)"):
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
            parse(text).fit(context, ("key",))
    assert _never_negative(client, images).device.type == "meta"
    autoencoder = DeltaAutoencoder(variant="decreasing")
    shapes = {name: shape for name, shape in autoencoder.shapes(4, 8, 8).items() if shape}
    weights = {name: torch.zeros(shape, device="meta", requires_grad=True) for name, shape in shapes.items()}
    kept = {"shape": torch.tensor([4, 8, 8]), "rectified": torch.ones((), dtype=torch.bool)}
    features = client(placed(images, client)).detach()
    autoencoder._step(features, features, weights | kept, torch.optim.Adam(weights.values()))
    assert all(weight.grad is not None for weight in weights.values())


class Counted(nn.Module):
    """Counts the images that pass it; noise is fresh at every call."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.noise, self.images = noise, 0

    def forward(self, images: Tensor) -> Tensor:
        self.images += len(images)
        return 2 * images + self.noise * torch.rand(images.shape, generator=torch.Generator().manual_seed(self.images))


@pytest.mark.parametrize(("noise", "most", "passes"), [(0.0, 2**30, 22), (0.0, 100, 31), (1.0, 2**30, 32)])
def test_features_are_kept_where_they_are_few_and_always_the_same(
    noise: float, most: int, passes: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fitting, "MOST_KEPT", most)
    client, images = Counted(noise), random(20, 1, 4, 4)
    features = features_by_row(client, images)
    rows = torch.tensor([3, 3, 17, 0, 5])
    found = [features(rows) for _ in range(6)]
    assert client.images == passes
    for one in found:
        assert one.shape == (5, 1, 4, 4)
        if not noise:
            torch.testing.assert_close(one, 2 * images[rows])
