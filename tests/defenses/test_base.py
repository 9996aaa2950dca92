"""The pipeline: which combinations it refuses, where each stage acts, and what each stage's randomness depends on."""

import hashlib
from dataclasses import dataclass
from math import inf, nan
from typing import Annotated, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from defenses import ATS, Batch, Blur, Clip, DefenseError, InputDefense, LaplaceNoise, Pipeline, SmashedDefense
from defenses.checks import Limit, ShareOrNone, algorithm
from defenses.random_draws import generator_for, spawned
from defenses.smashed.patch_shuffle import PatchShuffle
from defenses.spec import parse


@dataclass(frozen=True, repr=False)
class Draw(InputDefense):
    """Replaces images by one draw of its stream, so that a test can see the stream."""

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        return Batch(torch.rand(batch.images.shape, generator=generator), batch.targets)


@dataclass(frozen=True, repr=False)
class DrawOnce(Draw):
    resamples: ClassVar[bool] = False
    at_inference: ClassVar[bool] = True


@dataclass(frozen=True, repr=False)
class Reverse(SmashedDefense):
    """Reverses the tokens of every image, behind the client's blocks, and adds a number."""

    amount: float = 0.0

    def order(self, num_images: int, num_tokens: int, generator: torch.Generator) -> Tensor:
        return super().order(num_images, num_tokens, generator).flip(1)

    def protect_features(self, features: Tensor, generator: torch.Generator) -> Tensor:
        return features.flip(1) + self.amount


@pytest.fixture
def batch() -> Batch:
    return Batch(torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.eye(4))


REFUSED = {
    "InstaHide() | DPSGD()": r"InstaHide.* mixes several examples.*per-example bound of DPSGD",
    "BatchShuffle() | DPSGD()": "BatchShuffle.* mixes several examples.*per-example bound of DPSGD",
    "GaussianNoise() | DPSGD()": "set per='update'",
    "DPSGD() | Clip(per='step')": "set per='update'",
    "STAdam() | STAdam()": "both replace the optimizer; keep one",
    "DPSGD() | Precode()": "Precode.* comes after DPSGD.*could undo its sampling or noise",
    # It would run after the clip whatever the text says, and the clip would cut the noise off.
    "Clip(max_norm=1.0) | GaussianNoise(std=0.1, per='step')": "write it first",
    "SiloBN() | GaussianNoise(per='update')": r"GaussianNoise.* comes after SiloBN\(\).*SiloBN\(\) as the last update",
    "SiloBN() | ATS() | ClientDP()": r"under SiloBN\(\) .* the bound of ClientDP.* does not cover these numbers",
    "FlowerLocalDP() | SiloBN()": r"the bound of FlowerLocalDP.* does not cover",
    "DPSGD() | SiloBN()": r"the bound of DPSGD.* does not cover",
    "SiloBN() | SiloBN()": r"SiloBN\(\) stands twice; write it once",
    "DPSGD() | ClientDP()": "each claim an epsilon",
    "PatchShuffle() | FeaturePCA(components=3)": r"PatchShuffle\(\) works on a transformer's tokens .* on maps",
    "SpectralShuffle() | PatchShuffle()": "cannot follow each other; keep one",
    "AdversarialTraining() | AdversarialTraining()": "both train the client half; keep one",
}
ALLOWED = (
    "ATS() | DPSGD() | Clip() | GaussianNoise(per='update')", "GaussianNoise() | STAdam() | Pruning()", "Precode() | DPSGD()",
    "InstaHide() | STAdam() | Pruning()", "Clip() | Clip(max_norm=2.0)", "GaussianNoise() | Clip() | SiloBN() | ATS()",
    "PatchShuffle() | FeatureDP() | DPSGD()", "PatchShuffle() | PatchShuffle()", "GaussianNoise(std=0.1) | Clip(max_norm=1.0)",
)  # fmt: skip


def test_combinations_that_would_lie_are_refused_and_honest_ones_accepted() -> None:
    for text, reason in REFUSED.items():
        with pytest.raises(DefenseError, match=reason):
            parse(text)
    for text in ALLOWED:
        assert len(parse(text).defenses) == text.count("|") + 1


@algorithm
class Ranged(InputDefense):
    size: Annotated[int, Limit(2, 4, also=0)] = 2
    mode: Literal["a", 1] = "a"
    share: ShareOrNone | None = None


def test_fields_hold_what_their_annotations_allow() -> None:
    body = {"__module__": __name__, "size": 3}  # of subclasses with another default
    again, late = (
        algorithm(type("Sub", (Ranged,), body | {"__annotations__": {"size": one}})) for one in (int, "Missing")
    )
    for name, good, bad, allowed in (
        ("size", (0, 2), (True, 2.0, 5, 10**400), "0, or a whole number from 2 to 4"),
        ("mode", ("a", 1), (True, "b"), "'a' or 1"), ("share", (None, 0, 0.5), (nan, inf), "a number from 0 to 1, or None"),
    ):  # fmt: skip
        assert [getattr(again(**{name: value}), name) for value in good] == list(good)
        for value in bad:
            with pytest.raises(ValueError, match=rf"{name} is .*; allowed: {allowed}"):
                again(**{name: value})
    with pytest.raises(TypeError, match="Sub: an annotation cannot be read: name 'Missing' is not defined"):
        late()


def test_stages_apply_in_order_to_what_they_protect(batch: Batch) -> None:
    empty, update, features = Pipeline(), {"w": torch.tensor([3.0, 4.0])}, torch.zeros(1, 2, 3)
    assert all(one(batch, (0,)) is batch for one in (empty.protect_once, empty.protect_batch, empty.protect_test))
    assert empty.protect_update(update, (0,)) is update
    assert empty.protect_features(features, (0,)) is features
    for text, updated in (
        ("Clip(1.0) | Blur(1.0) | GaussianNoise(0.0, 'update') | Pruning(0.5, 'update')", [0.0, 0.8]),
        ("Pruning(0.5, 'update') | Clip(1.0)", [0.0, 1.0]),
        ("Clip(1.0, 'step') | Pruning(0.5, 'update') | Clip(0.5)", [0.0, 0.5]),
    ):
        torch.testing.assert_close(parse(text).protect_update(update, (0,))["w"], torch.tensor(updated))
    torch.testing.assert_close(parse(text).protect_gradient(update, (0,))["w"], torch.tensor([0.6, 0.8]))
    assert [str(d.per) for d in parse(text).update_defenses] == ["step", "update", "update"]
    # Stages on tokens come before the blocks, the others behind; the shuffle has the stream of its position.
    pipeline, tokens = Pipeline((Reverse(2.0), PatchShuffle(), Reverse(3.0))), torch.rand(2, 5, 3)
    torch.testing.assert_close(pipeline.protect_features(tokens, (0,)), tokens + 2.0 + 3.0)
    expected = PatchShuffle().protect_features(tokens, generator_for(0, 1))
    assert torch.equal(pipeline.protect_tokens(tokens, (0,)), expected)
    assert pipeline.smashed_defenses == pipeline.defenses


def test_the_order_of_tokens_is_that_of_the_tokens_on_the_wire() -> None:
    """Tokens that are their own numbers tell where they came from."""
    for text in (
        "", "Blur() | PatchShuffle() | Clip()", "PatchShuffle() | PatchShuffle()", "PatchShuffle() | BatchShuffle(k=0.5)",
        "Reverse() | BatchShuffle(k=0.5)",
        "BatchShuffle(k=0.5) | Reverse() | FeatureNoise(std=0.0) | BatchShuffle(k=0.25)",
    ):  # fmt: skip
        stages = [Reverse() if one == "Reverse()" else parse(one).defenses[0] for one in text.split(" | ") if one]
        pipeline, key = Pipeline(tuple(stages)), (3, "train", 1)
        numbers = torch.arange(4 * 8.0).view(4, 8, 1)
        on_wire = pipeline.protect_features(pipeline.protect_tokens(numbers, key), key)
        order = pipeline.token_order(4, 8, key)
        assert torch.equal(order, on_wire.squeeze(2).long()), text
        moved = "Shuffle" in text
        assert torch.equal(order, torch.arange(32).view(4, 8)) == (not moved)
        assert torch.equal(order, pipeline.token_order(4, 8, (4, "train", 1))) == (not moved)


def test_a_stages_stream_is_its_own(batch: Batch) -> None:
    """Neither the neighbours nor the amount of randomness that they use changes what a stage draws."""
    first, *others = (Pipeline((one, Draw())).protect_batch(batch, ("k",)).images for one in (Clip(), Draw(), ATS()))
    others.append(Pipeline((Blur(), Draw(), Clip())).protect_batch(batch, ("k",)).images)
    assert all(torch.equal(first, other) for other in others)
    for stages, key in (((Clip(), Clip(), Draw()), "k"), ((Clip(), Draw()), "other")):
        assert not torch.equal(first, Pipeline(stages).protect_batch(batch, (key,)).images)
    both = parse("GaussianNoise(1.0, 'update') | GaussianNoise(1.0, 'update')")
    noise = both.protect_update({"w": torch.zeros(20_000)}, (0,))["w"]
    # Equal streams would add to twice the same noise, of standard deviation 2; a standard error is 0.5 %.
    assert noise.std().item() == pytest.approx(2**0.5, rel=0.03)


def test_protection_is_split_where_freshness_begins(batch: Batch) -> None:
    pipeline = Pipeline((*parse("Blur(1.0) | ImageNoise()").defenses, Draw(), Blur(2.0)))
    once = pipeline.protect_once(batch, (0,))
    assert torch.equal(once.images, parse("Blur(1.0) | ImageNoise()").protect_once(batch, (0,)).images)
    assert not torch.equal(once.images, batch.images)
    fresh = [pipeline.protect_batch(once, (0, step)).images for step in (1, 2, 1)]
    assert not torch.equal(fresh[0], fresh[1])
    assert torch.equal(fresh[0], fresh[2])
    # The later blur cannot be done beforehand, although it does not resample: it acts on what does.
    drawn = torch.rand(batch.images.shape, generator=generator_for(0, 1, 2))
    expected = Blur(2.0).protect_batch(Batch(drawn, batch.targets), generator_for(9)).images
    torch.testing.assert_close(fresh[0], expected)
    assert torch.equal(parse("ImageNoise()").protect_batch(batch, (0,)).images, batch.images)  # made noisy once


def test_test_images_pass_only_the_stages_that_ask_for_it(batch: Batch) -> None:
    pipeline = Pipeline((ATS(), DrawOnce(), *parse("InstaHide()").defenses))
    protected = pipeline.protect_test(batch, ("test",))
    assert torch.equal(protected.images, torch.rand(batch.images.shape, generator=generator_for("test", 1)))
    assert torch.equal(protected.targets, batch.targets)
    assert (pipeline.at_inference, parse("ATS() | InstaHide()").at_inference) == (True, False)
    # What is sent of a test image is fixed only if no stage draws.
    for text, draws in {
        "": False, "FeaturePCA(components=3)": False, "DeltaAutoencoder(delta='max') | FeaturePCA(components=3)": False,
        "ATS(policies='3-1-7')": False, "FeaturePCA(components=3) | FeatureNoise(std=0.1)": True, "VisualMixer()": True,
        "PatchShuffle()": True,
    }.items():  # fmt: skip
        assert parse(text).draws_at_inference == draws, text


def test_what_a_chain_says_of_itself() -> None:
    class First(Clip):
        adaptive_attacks: ClassVar[tuple[str, ...]] = ("A", "B")

    class Second(Clip):
        adaptive_attacks: ClassVar[tuple[str, ...]] = ("B", "C")

    assert Pipeline((First(), Second())).adaptive_attacks == ("A", "B", "C")
    for text, wanted in {
        "Clip()": (None, 1), "PatchShuffle()": (None, 1), "Clip() | SpectralShuffle() | FeatureNoise()": (0, 2),
    }.items():  # fmt: skip
        assert (parse(text).edge_blocks, parse(text).widening) == wanted
    assert repr(LaplaceNoise(scale=np.float64(0.25))) == "LaplaceNoise(scale=0.25, per='step')"
    # Every stage without effect is named.
    pipeline = parse("ImageNoise(std=0) | Clip(per='update') | GaussianNoise(std=0, per='update')")
    assert [why.split("(")[0] for why in pipeline.idle(8, 8)] == ["ImageNoise", "GaussianNoise"]


# ---- streams


def test_generators_depend_on_the_whole_key_and_nothing_else() -> None:
    torch.manual_seed(1)
    first = torch.rand(4, generator=generator_for(7, "train", 1, 2))
    torch.manual_seed(2)
    assert torch.equal(first, torch.rand(4, generator=generator_for(7, "train", 1, 2)))
    others = [(7, "train", 2, 1), (7, "train", 12), (7, "train", "1", 2), (71, "train", 1, 2), (7, "probe", 1, 2)]
    assert not any(torch.equal(first, torch.rand(4, generator=generator_for(*key))) for key in others)
    # A seed is cut to 32 bits: one can try all of them, and 65,000 streams collide. A key is not.
    low, high = (torch.Generator().manual_seed(5 + (at << 32)) for at in (0, 1))
    assert torch.equal(torch.rand(9, generator=low), torch.rand(9, generator=high))
    low, high = (generator_for(5 + (at << 32)) for at in (0, 1))
    assert not torch.equal(torch.rand(9, generator=low), torch.rand(9, generator=high))


def test_a_stream_is_numpys_mersenne_twister_in_the_state_that_shake_gives_for_the_key() -> None:
    key = (b"secret", "train", 3)
    words = np.frombuffer(hashlib.shake_256(repr(key).encode()).digest(624 * 4), dtype="<u4")
    reference = np.random.MT19937()
    reference.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    drawn = torch.randint(1 << 24, (2000,), generator=generator_for(*key))
    assert np.array_equal(drawn.numpy(), reference.random_raw(2000) % (1 << 24))


def test_a_stream_is_uniform_and_normal_from_its_first_number_on() -> None:
    """Over 4,000 keys: a state that is set must not leave a half-used normal number or an old position behind."""
    for draw, mean, std in ((torch.rand, 0.5, 12**-0.5), (torch.randn, 0.0, 1.0)):
        first = torch.stack([draw(4, generator=generator_for("stream", at)) for at in range(4000)]).double()
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
