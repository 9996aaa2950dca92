"""The pipeline: which combinations it refuses, where each stage acts, and what each stage's randomness depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from defenses import (
    ATS,
    DPSGD,
    Batch,
    BatchShuffle,
    Blur,
    ClientDP,
    Clip,
    Defense,
    DefenseError,
    FeatureDP,
    FeatureNoise,
    FlowerClipping,
    FlowerLocalDP,
    GaussianNoise,
    ImageNoise,
    InputDefense,
    InstaHide,
    LaplaceNoise,
    PatchShuffle,
    Pipeline,
    Pruning,
    SiloBN,
    SmashedDefense,
    SpectralShuffle,
    STAdam,
    Training,
    TrainingDefense,
)
from defenses.random_draws import generator_for, spawned
from defenses.spec import parse


@dataclass(frozen=True, repr=False)
class Draw(InputDefense):
    """Replaces images by one draw of its stream, so that a test can see the stream."""

    tag: int = 0

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        return Batch(torch.rand(batch.images.shape, generator=generator), batch.targets)


@dataclass(frozen=True, repr=False)
class DrawOnce(Draw):
    resamples: ClassVar[bool] = False
    at_inference: ClassVar[bool] = True


@dataclass(frozen=True, repr=False)
class AddFeature(SmashedDefense):
    amount: float = 1.0

    def protect_features(self, features: Tensor, generator: torch.Generator) -> Tensor:
        return features + self.amount


@dataclass(frozen=True, repr=False)
class Reverse(SmashedDefense):
    """Reverses the tokens of every image, behind the client's blocks."""

    def order(self, num_images: int, num_tokens: int, generator: torch.Generator) -> Tensor:
        return super().order(num_images, num_tokens, generator).flip(1)

    def protect_features(self, features: Tensor, generator: torch.Generator) -> Tensor:
        return features.flip(1)


@dataclass(frozen=True, repr=False)
class OtherTraining(TrainingDefense):
    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        return training


@pytest.fixture
def batch() -> Batch:
    return Batch(torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.eye(4))


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        ((InstaHide(), DPSGD()), "InstaHide.* mixes several examples.*per-example bound of DPSGD"),
        ((InstaHide(), Clip(), DPSGD()), "mixes several examples"),
        ((GaussianNoise(), DPSGD()), "set per='update'"),
        ((DPSGD(), Clip(per="step")), "set per='update'"),
        ((BatchShuffle(), DPSGD()), "BatchShuffle.* mixes several examples.*per-example bound of DPSGD"),
        ((STAdam(), STAdam()), "both replace the optimizer; keep one"),
        ((STAdam(), DPSGD()), "both replace the optimizer"),
        ((DPSGD(noise_multiplier=1.0), DPSGD()), "both replace the optimizer"),
        (
            (SiloBN(), GaussianNoise(per="update")),
            r"GaussianNoise.* comes after SiloBN\(\).*SiloBN\(\) as the last update",
        ),
        ((SiloBN(), ATS(), ClientDP()), r"under SiloBN\(\) .* the bound of ClientDP.* does not cover these numbers"),
        ((GaussianNoise(), ClientDP(), SiloBN(), ATS()), r"the bound of ClientDP.* does not cover"),
        ((FlowerLocalDP(), SiloBN()), r"the bound of FlowerLocalDP.* does not cover"),
        ((DPSGD(), SiloBN()), r"the bound of DPSGD.* does not cover"),
        ((SiloBN(), SiloBN()), r"SiloBN\(\) stands twice; write it once"),
        ((SiloBN(), Clip(), GaussianNoise(per="update")), r"Clip.* comes after SiloBN\(\)"),
        ((DPSGD(), OtherTraining()), "OtherTraining.. comes after DPSGD.*could undo its sampling or noise"),
    ],
)
def test_combinations_that_would_lie_are_refused(stages: tuple[Defense, ...], reason: str):
    with pytest.raises(DefenseError, match=reason):
        Pipeline(stages)


@pytest.mark.parametrize(
    "stages",
    [
        (),
        (ATS(), DPSGD(), Clip(), GaussianNoise(per="update")),
        (GaussianNoise(), STAdam(), Pruning()),
        (OtherTraining(), DPSGD()),
        (InstaHide(), STAdam(), Pruning()),
        (Clip(), Clip(2.0)),
        (GaussianNoise(), FlowerClipping(), SiloBN(), ATS()),
        (PatchShuffle(), FeatureDP(), DPSGD()),
    ],
)
def test_honest_combinations_are_accepted(stages: tuple[Defense, ...]):
    assert Pipeline(stages).defenses == stages


def test_the_empty_pipeline_returns_what_it_gets(batch: Batch):
    empty = Pipeline()
    update, features = {"w": torch.ones(2)}, torch.ones(1, 2, 3)
    for method in (empty.protect_once, empty.protect_batch, empty.protect_test):
        assert method(batch, (0,)) is batch
    assert empty.protect_update(update, (0,)) is update
    assert empty.protect_features(features, (0,)) is features


def test_stages_apply_in_order_to_what_they_protect(batch: Batch):
    pipeline = Pipeline(
        (Clip(1.0), Blur(1.0), GaussianNoise(0.0, "update"), AddFeature(2.0), Pruning(0.5, "update"), AddFeature(3.0))
    )
    update = {"w": torch.tensor([3.0, 4.0])}
    torch.testing.assert_close(pipeline.protect_update(update, (0,))["w"], torch.tensor([0.0, 0.8]))
    torch.testing.assert_close(pipeline.protect_features(torch.zeros(1, 2, 3), (0,)), torch.full((1, 2, 3), 5.0))
    assert not torch.equal(pipeline.protect_once(batch, (0,)).images, batch.images)
    clipped_last = Pipeline((Pruning(0.5, "update"), Clip(1.0))).protect_update(update, (0,))
    torch.testing.assert_close(clipped_last["w"], torch.tensor([0.0, 1.0]))


SHUFFLES = [
    (),
    (Blur(), PatchShuffle(), Clip()),
    (PatchShuffle(), PatchShuffle()),
    (PatchShuffle(), BatchShuffle(k=0.5)),
    (Reverse(), BatchShuffle(k=0.5, final_shuffle=False), AddFeature(0.0)),
    (BatchShuffle(k=0.5), Reverse(), FeatureNoise(0.0), BatchShuffle(k=0.25)),
]


@pytest.mark.parametrize("stages", SHUFFLES, ids=lambda stages: str(Pipeline(stages)))
def test_the_order_of_tokens_is_that_of_the_tokens_on_the_wire(stages: tuple[Defense, ...]):
    """Tokens that are their own numbers tell where they came from."""
    pipeline, key = Pipeline(stages), (3, "train", 1)
    numbers = torch.arange(4 * 8.0).view(4, 8, 1)
    on_wire = pipeline.protect_features(pipeline.protect_tokens(numbers, key), key)
    order = pipeline.token_order(4, 8, key)
    assert torch.equal(order, on_wire.squeeze(2).long())
    moved = any(isinstance(stage, PatchShuffle | BatchShuffle) for stage in stages)
    assert torch.equal(order, torch.arange(32).view(4, 8)) == (not moved)
    assert torch.equal(order, pipeline.token_order(4, 8, (4, "train", 1))) == (not moved)


def test_stages_on_tokens_come_before_the_blocks_and_the_others_behind():
    pipeline, tokens = Pipeline((AddFeature(2.0), PatchShuffle(), AddFeature(3.0))), torch.rand(2, 5, 3)
    assert torch.equal(pipeline.protect_features(tokens, (0,)), tokens + 2.0 + 3.0)
    # The shuffle has the stream of its position in the pipeline, whatever runs before it.
    expected = PatchShuffle().protect_features(tokens, generator_for(0, 1))
    assert torch.equal(pipeline.protect_tokens(tokens, (0,)), expected)
    assert pipeline.smashed_defenses == pipeline.defenses


def test_what_a_pipeline_asks_of_the_client_half():
    asked = [(p.edge_blocks, p.raw_patches, p.widening) for p in map(Pipeline, [(Clip(),), (PatchShuffle(),)])]
    assert asked == [(None, False, 1)] * 2
    spectral = Pipeline((Clip(), SpectralShuffle(fft_stage="pixel"), FeatureNoise()))
    assert (spectral.edge_blocks, spectral.raw_patches, spectral.widening) == (0, True, 2)
    assert not Pipeline((SpectralShuffle(),)).raw_patches


def test_a_stages_stream_is_its_own(batch: Batch):
    """Neither the neighbours nor the amount of randomness that they use changes what a stage draws."""
    last = [Pipeline((other, Draw())).protect_batch(batch, ("k",)).images for other in (Clip(), Draw(1), ATS())]
    assert torch.equal(last[0], last[1])
    assert torch.equal(last[0], last[2])
    assert torch.equal(last[0], Pipeline((Blur(), Draw(), Clip())).protect_batch(batch, ("k",)).images)
    elsewhere = Pipeline((Clip(), Clip(), Draw())).protect_batch(batch, ("k",)).images
    assert not torch.equal(last[0], elsewhere)
    assert not torch.equal(last[0], Pipeline((Clip(), Draw())).protect_batch(batch, ("other",)).images)


def test_stages_per_step_and_per_update_act_each_in_their_position():
    pipeline = Pipeline((Clip(1.0, "step"), Pruning(0.5, "update"), Clip(0.5)))
    given = {"w": torch.tensor([3.0, 4.0])}
    torch.testing.assert_close(pipeline.protect_gradient(given, (0,))["w"], torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(pipeline.protect_update(given, (0,))["w"], torch.tensor([0.0, 0.5]))
    assert [str(d.per) for d in pipeline.update_defenses] == ["step", "update", "update"]
    for per in ("round", None, 1):
        with pytest.raises(ValueError, match=r"per is .*; allowed: step \| update"):
            Pruning(0.5, per)  # type: ignore[arg-type]


def test_noise_of_two_stages_is_independent():
    update = {"w": torch.zeros(20_000)}
    both = Pipeline((GaussianNoise(1.0, "update"), GaussianNoise(1.0, "update"))).protect_update(update, (0,))["w"]
    # Equal streams would add to twice the same noise, of standard deviation 2.
    assert both.std().item() == pytest.approx(2**0.5, rel=0.03)


def test_protection_is_split_where_freshness_begins(batch: Batch):
    pipeline = Pipeline((Blur(1.0), ImageNoise(), Draw(), Blur(2.0)))
    once = pipeline.protect_once(batch, (0,))
    expected = Pipeline((Blur(1.0), ImageNoise())).protect_once(batch, (0,))
    assert torch.equal(once.images, expected.images)
    fresh = [pipeline.protect_batch(once, (0, step)).images for step in (1, 2, 1)]
    assert not torch.equal(fresh[0], fresh[1])
    assert torch.equal(fresh[0], fresh[2])
    # The later blur cannot be done beforehand, although it does not resample: it acts on what does.
    drawn = torch.rand(batch.images.shape, generator=generator_for(0, 1, 2))
    expected = Blur(2.0).protect_batch(Batch(drawn, batch.targets), generator_for(9)).images
    torch.testing.assert_close(fresh[0], expected)


def test_test_images_pass_only_the_stages_that_ask_for_it(batch: Batch):
    pipeline = Pipeline((ATS(), DrawOnce(), InstaHide()))
    protected = pipeline.protect_test(batch, ("test",))
    assert torch.equal(protected.images, torch.rand(batch.images.shape, generator=generator_for("test", 1)))
    assert torch.equal(protected.targets, batch.targets)
    assert pipeline.at_inference
    assert not Pipeline((ATS(), InstaHide())).at_inference
    assert Pipeline((DPSGD(),)).needs_group_norm
    assert not pipeline.needs_group_norm


@pytest.mark.parametrize(
    ("text", "draws"),
    [
        ("", False),
        ("FeaturePCA(components=3)", False),
        ("DeltaAutoencoder(delta='max') | FeaturePCA(components=3)", False),
        ("ATS(policies='3-1-7')", False),  # Test images pass it unchanged.
        ("FeaturePCA(components=3) | FeatureNoise(std=0.1)", True),
        ("VisualMixer()", True),
        ("PatchShuffle()", True),
    ],
)
def test_what_is_sent_of_a_test_image_is_fixed_only_if_no_stage_draws(text: str, draws: bool):
    assert parse(text).draws_at_inference == draws


def test_adaptive_attacks_are_listed_once_in_order():
    class First(Clip):
        adaptive_attacks: ClassVar[tuple[str, ...]] = ("A", "B")

    class Second(Clip):
        adaptive_attacks: ClassVar[tuple[str, ...]] = ("B", "C")

    assert Pipeline((First(), Second())).adaptive_attacks == ("A", "B", "C")


def test_generators_depend_on_the_whole_key_and_nothing_else():
    torch.manual_seed(1)
    first = torch.rand(4, generator=generator_for(7, "train", 1, 2))
    torch.manual_seed(2)
    assert torch.equal(first, torch.rand(4, generator=generator_for(7, "train", 1, 2)))
    others = [(7, "train", 2, 1), (7, "train", 12), (7, "train", "1", 2), (71, "train", 1, 2), (7, "probe", 1, 2)]
    for key in others:
        assert not torch.equal(first, torch.rand(4, generator=generator_for(*key)))


def test_a_stream_is_numpys_mersenne_twister_in_the_state_that_shake_gives_for_the_key() -> None:
    key = (b"secret", "train", 3)
    words = np.frombuffer(hashlib.shake_256(repr(key).encode()).digest(624 * 4), dtype="<u4")
    reference = np.random.MT19937()
    reference.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    drawn = torch.randint(1 << 24, (2000,), generator=generator_for(*key))
    assert np.array_equal(drawn.numpy(), reference.random_raw(2000) % (1 << 24))


def test_a_seed_is_cut_to_32_bits_where_a_key_is_not() -> None:
    """Why streams are not seeded: with seeds one can try all of them, and 65,000 streams collide."""
    low, high = (torch.Generator().manual_seed(5 + (at << 32)) for at in (0, 1))
    assert torch.equal(torch.rand(9, generator=low), torch.rand(9, generator=high))
    low, high = (generator_for(5 + (at << 32)) for at in (0, 1))
    assert not torch.equal(torch.rand(9, generator=low), torch.rand(9, generator=high))


@pytest.mark.parametrize("draw", [torch.rand, torch.randn], ids=lambda draw: draw.__name__)
def test_a_stream_is_uniform_and_normal_from_its_first_number_on(draw: Callable[..., Tensor]) -> None:
    """Over 4,000 keys: a state that is set must not leave a half-used normal number or an old position behind."""
    first = torch.stack([draw(4, generator=generator_for("stream", at)) for at in range(4000)]).double()
    mean, std = (0.5, 12**-0.5) if draw is torch.rand else (0.0, 1.0)
    assert (first.mean(0) - mean).abs().max() < 5 * std / 4000**0.5
    assert (first.std(0) - std).abs().max() < 5 * std / 4000**0.5
    assert (torch.corrcoef(first.T) - torch.eye(4)).abs().max() < 5 / 4000**0.5


def test_a_spawned_stream_depends_on_256_bits_of_its_parents() -> None:
    parents = [generator_for("parent", at) for at in (0, 0, 1)]
    same, again, other = (torch.rand(9, generator=spawned(parent)) for parent in parents)
    assert torch.equal(same, again)
    assert not torch.equal(same, other)
    parent = generator_for("parent", 0)
    assert not torch.equal(torch.rand(9, generator=spawned(parent)), torch.rand(9, generator=spawned(parent)))
    sixteen = torch.randint(1 << 16, (16,), generator=generator_for("parent", 0)).tolist()
    assert torch.equal(same, torch.rand(9, generator=generator_for("spawned", *sixteen)))


def test_text_shows_the_strength_and_what_differs_from_the_default():
    assert str(Pipeline((Clip(), STAdam()))) == "Clip(max_norm=1.0, per='update') | STAdam()"
    assert str(Pipeline((GaussianNoise(std=0.5), Pruning()))) == (
        "GaussianNoise(std=0.5, per='step') | Pruning(fraction=0.7, per='step')"
    )
    assert repr(LaplaceNoise(scale=np.float64(0.25))) == "LaplaceNoise(scale=0.25, per='step')"
    assert str(Pipeline()) == ""


def test_a_stage_of_the_finished_update_cannot_be_written_before_one_of_every_step() -> None:
    """It would run after it whatever the text says: the clip would cut the noise off."""
    with pytest.raises(DefenseError, match="write it first"):
        Pipeline((Clip(1.0), GaussianNoise(0.1, "step")))
    for fine in ((GaussianNoise(0.1, "step"), Clip(1.0)), (Clip(1.0), GaussianNoise(0.1, "update"))):
        assert Pipeline(fine).update_defenses == fine
