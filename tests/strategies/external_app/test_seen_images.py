"""Apps that name no data: guesses are compared with the images that the first training was given."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.nn import functional as F

from clients.external_app.seen_images import normalisation_of
from tests.strategies.external_app import audits
from tests.strategies.external_app.app import EXAMPLES, AppGrid, Net, State, app_that, node_digits
from tests.strategies.external_app.audits import EXACT, attacked

MEANS, STDS = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201)


def trains(
    sent: State, message: Message, context: Context, *, epochs: int = 1, batch: int = 2, mirrored: bool = False,
    one_hot: bool = False, levels: int = 255, drop_last: bool = False,
) -> State:  # fmt: skip
    """By SGD on ``node_digits`` of so many levels, shuffled, normalised by 0.5 and 0.25."""
    model = Net()
    model.load_state_dict(sent)
    images, labels = node_digits(context, levels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        order = torch.randperm(EXAMPLES)
        for at in range(0, EXAMPLES - (batch - 1) * drop_last, batch):
            mine = order[at : at + batch]
            given = (images[mine] - 0.5) / 0.25
            target = F.one_hot(labels[mine], 10).float() if one_hot else labels[mine]
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(model(given.flip(-1) if mirrored else given), target).backward()
            optimizer.step()
    return model.state_dict()


def run(out: Path, told: dict[str, Any] | None = None, rounds: int = 1, **of: Any) -> list[dict[str, Any]]:
    app = app_that(partial(trains, **of), **{"data": None, "mean": None, "std": None} | (told or {}))
    return audits.run(out, AppGrid(app), rounds=rounds, probe_attacks=EXACT, probe_targets=4)


def psnr(rows: list[dict[str, Any]]) -> list[float]:
    return [
        row["value"] for row in rows
        if row["attack"] == EXACT and (row["metric"], row["reference"]) == ("psnr", "original")
    ]  # fmt: skip


def test_images_classes_and_normalisation_are_those_of_the_training(tmp_path: Path) -> None:
    """The exact attack finds the pixels, in a second round, too, whose order is another; one-hot classes are classes."""
    for name, of in (("plain", {}), ("one-hot", {"one_hot": True}), ("epochs", {"epochs": 3, "batch": 4})):
        rows = run(tmp_path / name, rounds=2, **of)
        found = psnr(rows)
        assert len(found) == 2
        assert min(found) > 60, name
        assert not [row for row in rows if row["metric"] == "client"]
        (card, *_) = (row["card"] for row in attacked(rows, "training update"))
        assert card["data"] == "the app's own, from its first training"
        assert (
            "observed: every image that training saw is one of those that guesses are compared with" in card["caveats"]
        )
        assert card["images"] == EXAMPLES


def test_augmented_images_are_those_that_training_was_given_and_of_later_rounds_it_says_so(tmp_path: Path) -> None:
    rows = run(tmp_path / "out", mirrored=True)
    assert min(psnr(rows)) > 60


def test_a_batch_that_is_left_out_is_in_no_update(tmp_path: Path) -> None:
    """Twenty of 24 images are trained on: updates are of these."""
    rows = run(tmp_path / "out", batch=5, drop_last=True)
    (card, *_) = (row["card"] for row in attacked(rows, "training update"))
    assert card["images"] == 20


def test_what_does_not_show_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(
        audits.AuditError, match=r"images run from -2 to 2, and their normalisation does not show: give .* mean="
    ):
        run(tmp_path / "levels", levels=16)
    assert min(psnr(run(tmp_path / "told", {"mean": 0.5, "std": 0.25}, levels=16))) > 60
    with pytest.raises(audits.AuditError, match=r"with mean 0\.1 and std 0\.25 undone, images run from -0\.4 to 0\.6"):
        run(tmp_path / "wrong", {"mean": 0.1, "std": 0.25}, levels=16)

    def of_numbers(sent: State, message: Message, context: Context) -> State:
        model = Net()
        model.load_state_dict(sent)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        F.mse_loss(model(node_digits(context)[0]).amax(1), torch.rand(EXAMPLES)).backward()
        optimizer.step()
        return model.state_dict()

    app = app_that(of_numbers, data=None, mean=None, std=None)
    with pytest.raises(
        audits.AuditError, match=r"with classes for cross_entropy or nll_loss of torch\.nn\.functional: give"
    ):
        audits.run(tmp_path / "numbers", AppGrid(app))


def test_a_normalisation_shows_where_levels_do(subtests: pytest.Subtests) -> None:
    torch.manual_seed(0)
    eight = torch.randint(0, 256, (40, 3, 8, 8)) / 255
    eight[0, :, 0, 0], eight[0, :, 0, 1] = 0.0, 1.0
    grey = eight[:, :1]
    dark: Tensor = (grey * 255).clamp(max=250) / 255
    columns = [torch.tensor(one).view(-1, 1, 1) for one in (MEANS, STDS)]
    for name, images, expected in (
        ("colour", (eight - columns[0]) / columns[1], (MEANS, STDS)), ("none", eight, ((0.0,) * 3, (1.0,) * 3)),
        ("grey", (grey - 0.5) / 0.5, ((0.5,), (0.5,))), ("255", grey * 255, ((0.0,), (round(1 / 255, 5),))),
        ("not eight bits", torch.rand(4, 1, 8, 8), ((0.0,), (1.0,))), ("not eight bits, normalised", torch.randn(4, 1, 8, 8), None),
        ("no white", (dark - 0.5) / 0.5, None), ("16 levels", ((grey * 15).round() / 15 - 0.5) / 0.5, None),
        ("one colour", torch.full((2, 1, 4, 4), 3.0), None),
    ):  # fmt: skip
        with subtests.test(name):
            assert normalisation_of(images) == expected
