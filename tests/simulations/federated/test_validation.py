"""The positive control on real images: guesses made without looking never pass it, readable ones do."""

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
    columns = [{**one, "card": one["card"].to_json()} for one in score_rows(scores, CARD)]
    return [Row.from_json({"attack": guess.name, "role": guess.role, **one}) for one in columns]


@cache
def baseline_rows(dataset: str, seed: int) -> tuple[Row, ...]:
    pooled: dict[GuessName, Scores] = {}
    for client in clients(dataset, seed):
        for guess, scores in audit_baselines(client, "probe", pictures=False).scores.items():
            for name, values in scores.items():
                pooled.setdefault(guess, {}).setdefault(name, []).extend(values)
    return tuple(row for guess, scores in pooled.items() for row in rows_of(guess, scores))


def guessed(dataset: str, guesser: Guesser, seed: int = 0) -> list[Row]:
    """Rows of guesses of 16 images, and of the baselines."""
    pooled: Scores = {}
    for client in clients(dataset, seed):
        guesses = []
        for target in range(TARGETS):
            images = guesser(client, client.probed(target).original.images, client.data.partition * TARGETS + target)
            guesses.append((Reconstruction(images, torch.full((len(images),), -1)), None))
        for name, values in audit_guesses(client, "probe", guesses).scores[ALONE].items():
            pooled.setdefault(name, []).extend(values)
    return [*rows_of(GuessName(Role.ATTACK, "A()"), pooled), *baseline_rows(dataset, seed)]


def judged(dataset: str, guesser: Guesser, seed: int = 0) -> tuple[str, str]:
    """The status of the guesses' PSNR on 16 images, and the reason of the control."""
    rows = guessed(dataset, guesser, seed)
    (control,) = [one for one in controls(rows) if one.row.metric == "identified"]
    assert (control.row.n, control.too_few) == (16, False)
    return next(row.status for row in validate(rows) if row.metric == "psnr"), control.reason


def noise(like: Tensor, number: int, std: float) -> Tensor:
    return std * torch.randn(like.shape, generator=torch.Generator().manual_seed(number))


def mean_image(client: LocalClient, truth: Tensor, number: int) -> Tensor:
    return client.data.originals().images.mean(0, keepdim=True)


def another(client: LocalClient, number: int) -> Tensor:
    return other_images(client.data, client.probed(number % TARGETS), number).images[:1]


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


def assert_blind_guesses_fail(dataset: str, seed: int) -> None:
    found = {name: judged(dataset, guesser, seed) for name, guesser in BLIND.items()}
    passed = [name for name, (status, reason) in found.items() if status == "ok" or not reason]
    assert len(passed) <= 1, (dataset, passed)  # each passes in 5 % of audits at most


@pytest.mark.numeric
def test_guesses_made_without_looking_never_pass() -> None:
    assert_blind_guesses_fail("photos", 0)


@pytest.mark.long
@pytest.mark.numeric
def test_guesses_made_without_looking_never_pass_under_other_draws_and_data() -> None:
    for dataset, seed in (("photos", 1), ("photos", 2), *(("mnist-5k", seed) for seed in range(3))):
        assert_blind_guesses_fail(dataset, seed)


@pytest.mark.numeric
def test_readable_guesses_pass_also_where_a_blurred_truth_scores_30_decibels() -> None:
    """On smooth photographs nothing but the truth could pass with the blurred truth as a bar."""
    scores = [row for row in baseline_rows("photos", 0) if (row.metric, row.reference) == ("psnr", "original")]
    value = {row.attack: row.value or 0.0 for row in scores}
    assert value["blurred"] > 22.9 > value["mean"] + 5
    for dataset in DATASETS:
        for name, guesser in READABLE.items():
            assert judged(dataset, guesser) == ("ok", ""), (dataset, name)
        # A truth so dimmed that a person sees black: it identifies its image, and shows nothing of it.
        rows = guessed(dataset, lambda client, truth, number: 0.02 * truth)
        shares = {row.metric: row.value for row in rows if row.role is Role.ATTACK}
        assert (shares["identified"], shares["recognisable"]) == (1.0, 0.0), dataset
