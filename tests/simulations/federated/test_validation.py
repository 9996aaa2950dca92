"""The positive control on real images: guesses made without looking never pass it, readable ones do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.guesses import Reconstruction
from attacks.metrics.names import GuessName, Role, Scores
from attacks.scoring.metrics import blurred
from clients.federated.client import LocalClient
from clients.scoring.audit import ALONE, audit_baselines, audit_guesses
from clients.scoring.retrieval import other_images
from clients.task.local_data import LocalData
from simulations.experiment.experiment import Experiment
from simulations.report import Row, validate
from simulations.report.studies.control import controls
from strategies.audit.score_rows import score_rows
from strategies.audit.threat_card import ThreatCard

"""Tracing lines costs such runs half of their time again, and other tests run the same lines."""

CLIENTS, TARGETS = 4, 4
CARD = ThreatCard(observation="one-step probe", images=1, local_steps=1)
DATASETS = ["photos", "mnist-5k"]
Guesser = Callable[[LocalClient, Tensor, int], Tensor]
"""(client, attacked images (1, C, H, W), number) -> a guess of them."""


@cache
def clients(dataset: str, seed: int) -> tuple[LocalClient, ...]:
    """Four clients with 120 training and 20 test examples each."""
    settings = Experiment.of(dataset=dataset, train_limit=480, test_limit=80, probe_targets=TARGETS, seed=seed)
    task = settings.plan(settings.pipelines[0]).at(0)
    parts = [(range(at * 120, at * 120 + 120), range(at * 20, at * 20 + 20)) for at in range(CLIENTS)]
    return tuple(LocalClient(LocalData(task, at, *part)) for at, part in enumerate(parts))


def rows_of(guess: GuessName, scores: Scores) -> list[Row]:
    """As the server writes them."""
    columns = score_rows(scores, CARD)
    return [
        Row.from_json({"attack": guess.name, "role": guess.role, **one, "card": one["card"].to_json()})
        for one in columns
    ]


def baseline_rows(dataset: str, seed: int) -> list[Row]:
    pooled: dict[GuessName, Scores] = {}
    for client in clients(dataset, seed):
        for guess, scores in audit_baselines(client, "probe", pictures=False).scores.items():
            for name, values in scores.items():
                pooled.setdefault(guess, {}).setdefault(name, []).extend(values)
    return [row for guess, scores in pooled.items() for row in rows_of(guess, scores)]


def judged(dataset: str, guesser: Guesser, seed: int = 0) -> tuple[str, str]:
    """The status of the guesses' PSNR on 16 images, and the reason of the control."""
    pooled: Scores = {}
    for client in clients(dataset, seed):
        guesses = []
        for target in range(TARGETS):
            images = guesser(client, client.probed(target).original.images, client.data.partition * TARGETS + target)
            guesses.append((Reconstruction(images, torch.full((len(images),), -1)), None))
        for name, values in audit_guesses(client, "probe", guesses).scores[ALONE].items():
            pooled.setdefault(name, []).extend(values)
    rows = rows_of(GuessName(Role.ATTACK, "A()"), pooled) + baseline_rows(dataset, seed)
    (control,) = [one for one in controls(rows) if one.row.metric == "psnr"]
    assert (control.row.n, control.too_few) == (16, False)
    return next(row.status for row in validate(rows) if row.metric == "psnr"), control.reason


def noise(like: Tensor, number: int, std: float) -> Tensor:
    return std * torch.randn(like.shape, generator=torch.Generator().manual_seed(number))


def mean_image(client: LocalClient, truth: Tensor, number: int) -> Tensor:
    return client.data.originals().images.mean(0, keepdim=True)


def another(client: LocalClient, number: int) -> Tensor:
    return other_images(client.data, client.probed(number % TARGETS), number)[:1]


BLIND: dict[str, Guesser] = {
    "mean image": mean_image,
    "grey image": lambda client, truth, number: torch.full_like(truth, 0.5),
    "black image": lambda client, truth, number: torch.zeros_like(truth),
    "fresh noise": lambda client, truth, number: (0.5 + noise(truth, number, 0.25)).clamp(0, 1),
    "noise around the mean image": lambda c, truth, number: mean_image(c, truth, number) + noise(truth, number, 0.05),
    "another image of the kind": lambda client, truth, number: another(client, number),
    "a blurred image of the kind": lambda client, truth, number: blurred(another(client, number), 4.0),
}
READABLE: dict[str, Guesser] = {
    "the truth": lambda client, truth, number: truth,
    "22 dB": lambda client, truth, number: truth + noise(truth, number, 0.08),
    "half the pixels": lambda client, truth, number: F.interpolate(F.avg_pool2d(truth, 2), scale_factor=2),
    "a stain on it": lambda client, truth, number: torch.cat([truth[..., :24], truth[..., 24:] * 0 + 0.5], -1),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BLIND)
@pytest.mark.parametrize("dataset", DATASETS)
def test_guesses_made_without_looking_never_pass(dataset: str, name: str, seed: int) -> None:
    status, reason = judged(dataset, BLIND[name], seed)
    assert status == "not-validated"
    assert reason


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("dataset", DATASETS)
def test_readable_guesses_pass(dataset: str, name: str) -> None:
    assert judged(dataset, READABLE[name]) == ("ok", "")


def test_readable_guesses_pass_on_smooth_photographs_where_a_blurred_truth_scores_30_decibels() -> None:
    """The finding: with the blurred truth as a bar, nothing but the truth could pass."""
    scores = [row for row in baseline_rows("photos", 0) if (row.metric, row.reference) == ("psnr", "original")]
    value = {row.attack: row.value or 0.0 for row in scores}
    assert value["blurred"] > 22.9 > value["mean"] + 5
    assert judged("photos", READABLE["22 dB"]) == ("ok", "")


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_guess_below_the_mean_image_does_not_pass_although_it_names_its_image(dataset: str) -> None:
    """A truth so dimmed that only the client, who knows it, could tell: what a person sees is black."""
    status, reason = judged(dataset, lambda client, truth, number: 0.02 * truth)
    assert (status, "no better than mean" in reason) == ("not-validated", True)
