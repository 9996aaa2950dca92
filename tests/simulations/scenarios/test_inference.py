"""Settings of edge-cloud inference that cannot work are refused by name before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attacks.local_model import shared_tensors
from clients.data.card import DataCard
from clients.models.classifiers import build_model
from defenses.spec import parse
from simulations.experiment.experiment import Experiment
from simulations.experiment.scenario import KnownClients, scenario
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from tests.local_grid import LocalGrid
from tests.simulations.inference.test_run import inference_experiment

TRAINS = "protects what a client trains, and with scenario = 'inference' clients train nothing"
BAD: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    # Models and cuts.
    ({"model": "cnn"}, ("unknown model 'cnn'", "vgg_small")),
    ({"cuts": "conv3"}, ("cuts is 'conv3'; allowed with model = 'vgg_small': conv2, conv4, conv6",)),
    ({"model": "resnet20", "cuts": "conv2"}, ("cuts is 'conv2'; allowed with model = 'resnet20': block2",)),
    ({"weights": "model.pt", "rounds": 1}, ("weights is 'model.pt'; expected 'efficientnet-lite0', or an absolute path",)),
    ({"weights": "efficientnet-lite0"}, ("allowed with model = 'efficientnet_lite0' only, not 'vgg_small'",)),
    ({"weights": "/no-such-file.pt", "rounds": 1}, ("weights: cannot read /no-such-file.pt (No such file",)),
    ({"normalisation": "mnist"}, ("normalisation is 'mnist'; allowed: ", "'data' or 'imagenet' or 'efficientnet-lite0'")),
    # Defences of what is never sent.
    ({"defenses": "DPSGD(target_epsilon=8.0)"}, ("DPSGD(target_epsilon=8.0)", TRAINS)),
    ({"defenses": "GaussianNoise(std=0.1)"}, ("GaussianNoise(std=0.1", TRAINS)),
    ({"defenses": "FeatureNoise(std=1.0); FeatureNoise(std=1.0) | Pruning(fraction=0.5)"}, ("Pruning(fraction=0.5", TRAINS)),
    ({"defenses": "AdversarialTraining()"}, ("AdversarialTraining(weight=1.0)", TRAINS)),
    ({"defenses": "PatchShuffle()"}, ("PatchShuffle() protects tokens", "clients send feature maps (B, C, H, W)")),
    (
        {"defenses": "DeltaAutoencoder()"},
        ("delta='min'", "learns from an adversary", "dataset = 'mnist-5k' has no sensitive attribute", "set delta='max'"),
    ),
    ({"defenses": "DeltaAutoencoder(delta='max', variant='extra_deep', stride=2)", "cuts": "conv6"}, ("for which maps of",)),
    ({"defenses": "ATS()"}, ("protects images that are trained on", "clients send test images")),
    # Views and steps that nobody makes.
    ({"crop-padding": 2}, ("crop-padding is 2", "as clients train nothing")),
    ({"horizontal-flip": True}, ("horizontal-flip True",)),
    ({"local-steps": 3}, ("local-steps is 3; allowed with scenario = 'inference': 0",)),
    # The server's own images.
    ({"auxiliary-fraction": 0.0}, ("auxiliary-fraction is 0; allowed with scenario = 'inference': above 0",)),
    ({"auxiliary-fraction": 0.001}, ("auxiliary-fraction is 0.001", "leaves the server no image to train on")),
    ({"auxiliary-data": "photos"}, ("auxiliary-data is 'photos'; allowed with scenario = 'inference': 'held-out'",)),
    ({"path-images": -1}, ("path-images is -1", "allowed: at least 0")),
    ({"path-images": 2.5}, ("path-images is 2.5",)),
    ({"path-images": 41}, ("path-images is 41; allowed: up to 40, half of the server's 80 images; it learns from the others",)),
    ({"defenses": "FeaturePCA(components=80)"}, ("defenses: FeaturePCA(components=80) needs 81", "learns from 80 images")),
    (
        {"defenses": "FeaturePCA(components=60)", "path-images": 21},
        ("needs 61 images or more", "59 images, without the 21 of path-images"),
    ),
    ({"defenses": "FeaturePCA(components=1000000)"}, ("defenses: FeaturePCA(components=1000000): 16 x 28 x 28",)),
    (
        {"dataset": "photo-face", "auxiliary-limit": 15, "defenses": "DeltaAutoencoder()", "attribute-attacks": ""},
        ("needs an adversary, of 16 images or more; the server learns from 15 images", "auxiliary-limit"),
    ),
    (
        {"dataset": "photo-face", "auxiliary-limit": 15},
        ("attribute-attacks is 'auto'", "16 images or more", "the server has 15"),
    ),
    # Sizes.
    ({"probe-targets": 4}, ("probe-targets is 4, and a client with 20 test examples asks 3 batches of 8",)),
    ({"probe-images": 9}, ("probe-images is 9; allowed: up to batch-size = 8",)),
    ({"attack-rounds": "first"}, ("attack-rounds is 'first'", "add final, or set query-attacks = ''")),
    ({"query-batches": 0}, ("query-batches is 0", "allowed: at least 1")),
    ({"query-batches": 100_000}, ("query-batches is 100000", "GiB, and 1 GiB is allowed")),
    (
        {"image-size": 64, "defenses": "FeaturePCA(components=5000)"},
        ("FeaturePCA(components=5000) learns 1.2 GiB for features of 16 x 64 x 64 at conv2", "a message may hold 1 GiB"),
    ),
    # What the data lack.
    (
        {"attribute-attacks": "AttributeInference()"},
        ("attribute-attacks is 'AttributeInference()', and dataset = 'mnist-5k' has no sensitive attribute: take garment-digit",),
    ),
    # Attacks on something else.
    ({"query-attacks": "AttributeInference()"}, ("does not attack queries but attributes of queries (see attribute-attacks)",)),
    (
        {"dataset": "photo-face", "attribute-attacks": "QueryInversion()"},
        ("does not attack attributes of queries but queries (see query-attacks)",),
    ),
    (
        {"dataset": "photo-face", "query-attacks": "", "attack-rounds": "first"},
        ("attack-rounds is 'first'", "set attribute-attacks = ''"),
    ),
    ({"offline-adversary": "whole"}, ("offline-adversary is 'whole'; allowed: 'split' or 'tuned' or 'full'",)),
    ({"cuts": "conv2,conv2"}, ("cuts is 'conv2,conv2'", "each once")),
    ({"query-attacks": "DLG()"}, ("query-attacks: DLG() does not attack queries but one-step probes", "QueryInversion")),
    ({"query-attacks": "TokenDecoder()"}, ("TokenDecoder() does not attack queries but smashed data",)),
    # What belongs to others.
    ({"labels": "known"}, ("labels is 'known'; allowed with scenario = 'inference': 'unknown'",)),
    ({"upload-batches": 3}, ("upload-batches is 3; it is a setting of outsourced, and scenario is 'inference'",)),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), BAD, ids=lambda value: str(value)[:60])
def test_what_cannot_work_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], said: tuple[str, ...]) -> None:
    grid, good = LocalGrid(2), inference_experiment(tmp_path / "run").to_mapping()
    with pytest.raises(ConfigError) as caught:
        run_experiment(grid, Experiment.from_mapping({**good, **changes}))
    for part in said:
        assert part in str(caught.value)
    assert {kind for kind, _ in grid.sent} <= {"query.partition", "query.setup"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"path_images": 41}, "path-images is 41"), ({"auxiliary_fraction": 1e-9}, "leaves the server no image")],
    ids=str,
)
def test_what_the_data_tell_is_refused_before_any_process_starts(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    settings = inference_experiment(tmp_path / "run", **changes)
    card = DataCard.of(settings.plan(parse("")).load_data())
    with pytest.raises(ConfigError, match=said):
        scenario("inference").check_data(settings, parse(""), card)


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"cuts": "conv6,conv2"}, {"model": "resnet20", "cuts": "block8"}, {"probe_targets": 3}, {"query_attacks": ""},
        {"defenses": "DeltaAutoencoder(delta='max'); FeaturePCA(components=4) | FeatureNoise(std=0.1)"},
        {"defenses": "FeatureDP(clip=1.0, noise_multiplier=1.0); VisualMixer() | FeatureNoise(std=1.0); ImageNoise()"},
        {"query_attacks": "", "attack_rounds": "first"}, {"path_images": 40},
    ],
    ids=str,
)  # fmt: skip
def test_what_the_messages_advise_is_accepted(tmp_path: Path, changes: dict[str, Any]) -> None:
    card = DataCard(10, (1, 28, 28), (0.5,), (0.5,))
    clients = KnownClients(card, {0: (10, 20), 1: (10, 20)}, {})
    scenario("inference").check_clients(inference_experiment(tmp_path / "run", **changes), clients)


def state(**changes: Any) -> dict[str, Any]:
    model = build_model("vgg_small", num_classes=10, input_shape=(1, 28, 28))
    return {**shared_tensors(model), **changes}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"0.weight": torch.zeros(3)}, "holds 1 tensors, the model 28"),
        (state(**{"0.weight": torch.zeros(3)}), "0.weight has shape (3,), expected (16, 1, 3, 3)"),
        (state(**{"0.weight": torch.full((16, 1, 3, 3), torch.nan)}), "holds NaN or infinite values in 0.weight"),
        ([1, 2], "holds a list, not tensors by name"),
        (None, "is no checkpoint"),
    ],
    ids=["others", "shape", "nan", "list", "text"],
)
def test_a_file_of_other_weights_is_refused_before_anything_is_asked(tmp_path: Path, held: Any, said: str) -> None:
    file = tmp_path / "model.pt"
    if held is None:
        file.write_text("not a checkpoint")
    else:
        torch.save(held, file)
    settings = inference_experiment(tmp_path / "run", weights=str(file), rounds=1)
    with pytest.raises(ConfigError) as caught:
        scenario("inference").check_data(settings, parse(""), DataCard(10, (1, 28, 28), (0.5,), (0.5,)))
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_only_a_model_that_can_answer_has_one_round(tmp_path: Path) -> None:
    """A file for other classes has no last layer for these, and more rounds train it."""
    card, torch_file = DataCard(10, (1, 28, 28), (0.5,), (0.5,)), tmp_path / "model.pt"
    torch.save(state(), torch_file)
    settings = inference_experiment(tmp_path / "run", weights=str(torch_file), rounds=2)
    with pytest.raises(ConfigError, match=r"^rounds is 2; allowed with weights .* as many classes as the data: 1"):
        scenario("inference").check_data(settings, parse(""), card)
    for changes, classes in (({"rounds": 1}, 10), ({}, 4), ({"rounds": 1}, 4)):
        scenario("inference").check_data(replace(settings, **changes), parse(""), replace(card, num_classes=classes))


def test_images_that_weights_cannot_take_are_refused_as_such(tmp_path: Path) -> None:
    settings = inference_experiment(tmp_path / "run", normalisation="imagenet")
    with pytest.raises(ConfigError, match="normalisation 'imagenet' is for images of 1 or 3 channels, not 2"):
        scenario("inference").check_data(settings, parse(""), DataCard(10, (2, 28, 28), (0.5,) * 2, (0.5,) * 2))


def test_images_that_the_model_cannot_take_are_refused_as_such(tmp_path: Path) -> None:
    card = DataCard(10, (1, 2, 2), (0.5,), (0.5,))
    with pytest.raises(ConfigError, match="images of 2x2"):
        scenario("inference").check_data(inference_experiment(tmp_path / "run"), parse(""), card)


@pytest.mark.parametrize(("batches", "messages"), [(2, 2), (9, 1)])
def test_queries_take_as_many_messages_as_their_setting_says(tmp_path: Path, batches: int, messages: int) -> None:
    settings = inference_experiment(tmp_path / "run", query_batches=batches, attack_rounds="", rounds=1)
    grid = LocalGrid(2)
    run_experiment(grid, settings)
    assert len([kind for kind, _ in grid.sent if kind in ("query.features", "evaluate")]) == 2 * (messages + 1)
