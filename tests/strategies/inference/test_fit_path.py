"""Rows along a fit against a slow direct computation, on images that nothing has learned from; and pictures of masks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.normalisation import normalise
from attacks.scoring.intervals import binomial_interval
from clients.inference.plan import InferencePlan
from clients.task.auxiliary import Auxiliary
from clients.task.task import Task
from defenses import DeltaAutoencoder, FeaturePCA, FitContext, Pipeline, parse
from strategies.inference import fit_path
from strategies.inference.fit_path import (
    MOST_POINTS,
    OBSERVATION,
    few,
    fit_with_path,
    overlay,
    picture_masks,
    static_adversary,
)
from strategies.inference.public_model import OwnImages, PublicTraining

PLAN = InferencePlan(
    scenario="inference", dataset="photo-face", data_dir="", download=False, image_size=28, train_limit=160, test_limit=40,
    model="vgg_small", width=4, norm="group", pipeline="", seed=3, rounds=1, local_epochs=1, batch_size=16, learning_rate=0.05,
    momentum=0.0, weight_decay=0.0, cuts="conv4", auxiliary_fraction=0.75,
    probe_targets=1, probe_images=1,
)  # fmt: skip
KEPT = 30
KEY = ("fit", 3)


class Kept:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.pictures: list[dict[str, Any]] = []

    def row(self, task: Task, *, metric: str, value: float | None, **fields: Any) -> None:
        self.rows.append({"metric": metric, "value": value, **fields})

    def picture(self, task: Task, image: Tensor, *, image_number: int, **fields: Any) -> None:
        self.pictures.append({"image": image, "number": image_number, **fields})


@pytest.fixture(scope="module", autouse=True)
def short_training() -> Any:
    """Of the adversary: it has to differ from chance, not to be good."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_path, "ADVERSARY", replace(fit_path.ADVERSARY, iterations=60))
        yield


@pytest.fixture(scope="module")
def own() -> OwnImages:
    return OwnImages(PLAN, KEPT)


def a_context(own: OwnImages, *, adversary: bool = False) -> FitContext:
    model, card = PLAN.build_cut("conv4"), PLAN.data_card()
    learned = own.learned.batch
    black = normalise(torch.zeros(1, *card.input_shape), card)[0, :, 0, 0]
    against = replace(PLAN, seed=4).build_cut("conv4").server if adversary else None
    return FitContext(
        model.client, model.server, against, normalise(learned.images, card), learned.targets.argmax(1), black
    )


def path_rows(text: str, own: OwnImages) -> tuple[list[dict[str, Any]], Pipeline]:
    recorder = Kept()
    fitted = fit_with_path(
        parse(text), a_context(own), KEY, PLAN.build_cut("conv4"), "conv4", own, PLAN.at(1), recorder
    )
    return recorder.rows, fitted


def test_what_is_kept_is_a_part_of_the_servers_images_that_nothing_learns_from(own: OwnImages) -> None:
    every = Auxiliary(PLAN).examples()
    together = torch.cat([own.learned.batch.images, own.kept.batch.images])
    assert (len(own.kept), len(own.learned)) == (KEPT, len(every) - KEPT)
    assert torch.equal(together.flatten(1).unique(dim=0), every.images.flatten(1).unique(dim=0))
    training = PublicTraining(PLAN, num_kept=KEPT)
    assert torch.equal(training.examples().images, own.learned.batch.images)
    assert torch.equal(training.training.examples.images, own.learned.batch.images)
    # Their attributes are those of the same images.
    hidden = Auxiliary(PLAN).sensitive()
    assert hidden is not None
    assert own.kept.sensitive is not None
    for image, value in zip(own.kept.batch.images, own.kept.sensitive, strict=True):
        same = (every.images == image).flatten(1).all(1)
        assert hidden[same].tolist() == [int(value)]


def counted(own: OwnImages, view: Callable[[Tensor], Tensor]) -> dict[str, dict[str, Any]]:
    """Accuracies of both readers with their intervals, one image at a time: ``view`` makes its features."""
    model, card, kept, right = PLAN.build_cut("conv4"), PLAN.data_card(), own.kept, {"server": 0, "adversary": 0}
    read = static_adversary(model, "conv4", own, PLAN.at(1))
    assert read is not None
    assert kept.sensitive is not None
    for at in range(KEPT):
        features = view(normalise(kept.batch.images[at : at + 1], card))
        right["server"] += int(model.server(features).argmax()) == int(kept.batch.targets[at].argmax())
        right["adversary"] += int(read(features)) == int(kept.sensitive[at])
    found = {who: binomial_interval(hits, KEPT) for who, hits in right.items()}
    return {n: {"value": share, "n": KEPT, "ci_low": low, "ci_high": high} for n, (share, low, high) in found.items()}


def test_rows_of_components_are_those_of_separate_fits_counted_one_by_one(own: OwnImages) -> None:
    """Slowly: a decomposition of its own for each number of components."""
    rows, fitted = path_rows("FeaturePCA(components=6)", own)
    assert fitted.version == parse("FeaturePCA(components=6)").fit(a_context(own), KEY).version
    client, expected = PLAN.build_cut("conv4").client, []
    for components in (0, 1, 2, 4, 6):
        defense = FeaturePCA(components=components).fit(a_context(own), torch.Generator()) if components else None
        found = counted(own, lambda image, d=defense: client(image) if d is None else d.decode(d.encode(client(image))))
        place = {"axis": "components", "position": components} if components else {}
        expected += [{"metric": f"path-{who}-accuracy"} | columns | place for who, columns in found.items()]
    assert rows == expected


def test_rows_of_epochs_end_in_the_fit_that_is_deployed(own: OwnImages) -> None:
    text = "DeltaAutoencoder(delta='max', epochs=2) | FeatureNoise(std=0.1)"
    rows, fitted = path_rows(text, own)
    assert [row.get("position") for row in rows if row["metric"] == "path-server-accuracy"] == [None, 0, 1, 2]
    assert {row.get("axis") for row in rows} == {None, "epochs"}
    assert fitted.version == parse(text).fit(a_context(own), KEY).version
    # The last point is of the deployed chain, noise and all; the draws of the noise are the same at every point.
    again, _ = path_rows(text, own)
    assert rows == again


def test_masked_images_have_rows_beside_the_curve_which_are_counted_one_by_one(own: OwnImages) -> None:
    text, context, shares = "DeltaAutoencoder(delta='max', epochs=1)", a_context(own), list[float]()
    rows, _ = path_rows(text, own)
    client, (stage,) = PLAN.build_cut("conv4").client, parse(text).fit(context, KEY).defenses
    assert isinstance(stage, DeltaAutoencoder)

    def masked(image: Tensor) -> Tensor:
        image, mask = stage.masks.apply(image, context)
        shares.append(float(mask.float().mean()))
        return client(image)

    found = {row["metric"]: row for row in rows if row["metric"].startswith("masked-")}
    for who, columns in counted(own, masked).items():
        assert found[f"masked-{who}-accuracy"].items() >= columns.items()
    assert found["masked-share"]["value"] == pytest.approx(sum(shares) / KEPT)
    assert 0 < found["masked-share"]["value"] < 1


def shown(text: str, own: OwnImages, *, adversary: bool) -> list[dict[str, Any]]:
    recorder: Any = Kept()
    context = a_context(own, adversary=adversary)
    picture_masks(parse(text).fit(context, KEY), context, KEY, "conv4", PLAN.at(1), recorder)
    pictures: list[dict[str, Any]] = recorder.pictures
    return pictures


def test_pictures_show_image_maps_mask_and_what_is_left(own: OwnImages) -> None:
    """Outside the mask the masked image is the image, inside it is black: by what was drawn alone."""
    found = shown("DeltaAutoencoder(delta='min', fill='black', epochs=0)", own, adversary=True)
    assert [one["kind"] for one in found[::3]] == ["image", "server-cam", "adversary-cam", "mask", "masked"]
    assert {one["observation"] for one in found} == {OBSERVATION}
    assert [one["caption"] for one in found[:3]] == [f"cut at conv4, image {at}" for at in (1, 2, 3)]
    image, mask, masked = (
        torch.stack([one["image"] for one in found if one["kind"] == k]) for k in ("image", "mask", "masked")
    )
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(masked, image * (1 - mask), atol=1e-6, rtol=0)
    every = own.learned.batch.images
    torch.testing.assert_close(image[0], every[0], atol=1e-6, rtol=0)


def test_an_overlay_runs_from_blue_over_green_to_red() -> None:
    """Against Matplotlib's rule for "jet" at its corners, half of it on a black image."""
    cams = torch.tensor([[[0.0, 0.25, 0.5, 0.75, 1.0]]])
    drawn = overlay(torch.zeros(1, 1, 1, 5), cams)[0, :, 0].T * 2
    expected = [[0, 0, 0.5], [0, 0.5, 1], [0.5, 1, 0.5], [1, 0.5, 0], [0.5, 0, 0]]
    torch.testing.assert_close(drawn, torch.tensor(expected))
    assert float(overlay(torch.ones(1, 3, 1, 5), cams).max()) <= 1


def test_one_static_adversary_sees_no_measured_image(own: OwnImages, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, Tensor]] = []
    fit = type(fit_path.ADVERSARY).fit

    def watched(self: Any, knowledge: Any, generator: torch.Generator) -> Any:
        seen.append((self.iterations, knowledge.auxiliary.images))
        return fit(self, knowledge, generator)

    monkeypatch.setattr(type(fit_path.ADVERSARY), "fit", watched)
    fresh = OwnImages(PLAN, KEPT)
    recipe, pipeline = replace(fit_path.ADVERSARY, iterations=7), parse("FeaturePCA(components=1)")
    fit_with_path(pipeline, a_context(own), KEY, PLAN.build_cut("conv4"), "conv4", fresh, PLAN.at(1), Kept(), recipe)
    path_rows("FeaturePCA(components=2)", fresh)
    ((steps, images),) = seen
    assert steps == 7, "the run's own static adversary is that of the curve"
    assert torch.equal(images, own.learned.batch.images)


def test_defences_that_learn_nothing_have_no_path_and_those_without_masks_no_pictures(own: OwnImages) -> None:
    for text in ("FeatureNoise(std=0.1)", ""):
        assert path_rows(text, own)[0] == []
    for text, kinds in (
        ("DeltaAutoencoder(delta='max', epochs=0) | FeatureNoise(std=0.1)", {"image", "server-cam", "mask", "masked"}),
        ("FeaturePCA(components=2)", set()),
        ("", set()),
    ):
        assert {one["kind"] for one in shown(text, own, adversary=False)} == kinds, text
    for count in (1, 2, MOST_POINTS, MOST_POINTS + 1, 61, 121):
        points = few(range(count))
        assert (points[0], points[-1], len(points)) == (0, count - 1, min(count, MOST_POINTS))
        assert list(points) == sorted(set(points))
