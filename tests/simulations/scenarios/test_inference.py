"""Settings of edge-cloud inference that cannot work are refused by name before anything is trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attacks.local_model import shared_tensors
from clients.data.card import DataCard
from clients.models.classifiers import build_model
from defenses.spec import parse
from simulations.experiment.scenario import KnownClients
from simulations.settings.errors import ConfigError
from tests.simulations.inference.test_run import inference_experiment
from tests.simulations.short_runs import Cases, assert_refused

TRAINS = "protects what a client trains, and with scenario = 'inference' clients train nothing"
BAD: Cases = [
    # Models and cuts.
    ({"cuts": "conv3"}, ("cuts is 'conv3'; allowed with model = 'vgg_small': conv2, conv4, conv6",)),
    ({"weights": "model.pt", "rounds": 1}, ("weights is 'model.pt'; expected 'efficientnet-lite0', or an absolute path",)),
    ({"weights": "efficientnet-lite0"}, ("allowed with model = 'efficientnet_lite0' only, not 'vgg_small'",)),
    # Defences of what is never sent.
    ({"defenses": "DPSGD(target_epsilon=8.0)"}, ("DPSGD(target_epsilon=8.0)", TRAINS)),
    ({"defenses": "FeatureNoise(std=1.0); FeatureNoise(std=1.0) | Pruning(fraction=0.5)"}, ("Pruning(fraction=0.5", TRAINS)),
    ({"defenses": "PatchShuffle()"}, ("PatchShuffle() protects tokens", "clients send feature maps (B, C, H, W)")),
    ({"defenses": "ATS()"}, ("protects images that are trained on", "clients send test images")),
    # Views and steps that no client makes.
    ({"crop-padding": 2}, ("crop-padding is 2", "as clients train nothing")),
    ({"local-steps": 3}, ("local-steps is 3; allowed with scenario = 'inference': 0",)),
    # The server's own images.
    ({"auxiliary-fraction": 0.0}, ("auxiliary-fraction is 0; allowed with scenario = 'inference': above 0",)),
    ({"auxiliary-fraction": 0.001}, ("auxiliary-fraction is 0.001", "leaves the server no image to train on")),
    ({"defenses": "FeaturePCA(components=80)"}, ("defenses: FeaturePCA(components=80) needs 81", "learns from 80 images")),
    ({"defenses": "FeaturePCA(components=1000000)"}, ("defenses: FeaturePCA(components=1000000): 16 x 28 x 28",)),
    (
        {"dataset": "photo-face", "auxiliary-limit": 15, "defenses": "DeltaAutoencoder()", "attribute-attacks": ""},
        ("needs an adversary, of 16 images or more; the server learns from 15 images", "auxiliary-limit"),
    ),
    # Sizes.
    ({"probe-targets": 4}, ("probe-targets is 4, and a client with 20 test examples asks 3 batches of 8",)),
    ({"probe-images": 9}, ("probe-images is 9; allowed: up to batch-size = 8",)),
    ({"attack-rounds": "first"}, ("attack-rounds is 'first'", "add final, or set query-attacks = ''")),
    ({"batches-per-message": 100_000}, ("batches-per-message is 100000", "GiB, and 1 GiB is allowed")),
    (
        {"image-size": 64, "defenses": "FeaturePCA(components=5000)"},
        ("FeaturePCA(components=5000) learns 1.2 GiB for features of 16 x 64 x 64 at conv2", "a message may hold 1 GiB"),
    ),
    # Attacks on something else.
    ({"query-attacks": "AttributeInference()"}, ("does not attack queries but attributes of queries (see attribute-attacks)",)),
    (
        {"dataset": "photo-face", "query-attacks": "", "attack-rounds": "first"},
        ("attack-rounds is 'first'", "set attribute-attacks = ''"),
    ),
    ({"query-attacks": "DLG()"}, ("query-attacks: DLG() does not attack queries but one-step probes", "QueryInversion")),
]  # fmt: skip


def test_what_cannot_work_is_refused_by_name(tmp_path: Path) -> None:
    assert_refused(inference_experiment, BAD, tmp_path)


GREY = DataCard(10, (1, 28, 28), (0.5,), (0.5,))


def test_what_the_data_tell_is_refused_before_any_process_starts(tmp_path: Path) -> None:
    settings = inference_experiment(tmp_path / "run", auxiliary_fraction=1e-9)
    with pytest.raises(ConfigError, match="leaves the server no image"):
        settings.check_data(parse(""), DataCard.of(settings.plan(parse("")).load_data()))
    for changes, card, said in (
        ({"normalisation": "imagenet"}, DataCard(10, (2, 28, 28), (0.5,) * 2, (0.5,) * 2), "for images of 1 or 3 channels, not 2"),
        ({}, DataCard(10, (1, 2, 2), (0.5,), (0.5,)), "images of 2x2"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            inference_experiment(tmp_path / "run", **changes).check_data(parse(""), card)


def test_what_the_messages_advise_is_accepted(tmp_path: Path) -> None:
    clients = KnownClients(GREY, {0: (10, 20), 1: (10, 20)}, {})
    advised: list[dict[str, Any]] = [
        {}, {"cuts": "conv6,conv2"}, {"model": "resnet20", "cuts": "block8"}, {"probe_targets": 3}, {"query_attacks": ""},
        {"defenses": "DeltaAutoencoder(delta='max'); FeaturePCA(components=4) | FeatureNoise(std=0.1)"},
        {"defenses": "FeatureDP(clip=1.0, noise_multiplier=1.0); VisualMixer() | FeatureNoise(std=1.0); ImageNoise()"},
        {"query_attacks": "", "attack_rounds": "first"},
    ]  # fmt: skip
    for changes in advised:
        inference_experiment(tmp_path / "run", **changes).check_clients(clients)


def test_features_of_queries_must_fit_into_the_memory_for_images(tmp_path: Path) -> None:
    """Of 100 queries, 16 floats of each pixel at the first cut, held twice."""
    settings = inference_experiment(tmp_path / "run", dataset="photo-face")
    card = DataCard.of(settings.plan(parse("")).load_data())
    most = 2 * 4 * 100 * 16 * card.input_shape[1] * card.input_shape[2] / 2**30

    def check(queries: int, **changes: Any) -> None:
        settings.but(**changes).check_clients(KnownClients(card, {0: (10, queries - 40), 1: (10, 40)}, {}))

    check(100, image_memory=most)
    check(101, image_memory=most, attribute_attacks="")
    for queries, memory in ((101, most), (100, 0.99 * most)):
        with pytest.raises(ConfigError, match=r"attribute-attacks read features of 10[01] queries"):
            check(queries, image_memory=memory)


def state(**changes: Any) -> dict[str, Any]:
    model = build_model("vgg_small", num_classes=10, input_shape=(1, 28, 28))
    return {**shared_tensors(model), **changes}


def test_a_file_of_other_weights_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    settings = inference_experiment(tmp_path / "run", weights=str(file), rounds=1)
    for held, said in (
        ({"0.weight": torch.zeros(3)}, "holds 1 tensors, the model 28"),
        (state(**{"0.weight": torch.zeros(3)}), "0.weight has shape (3,), expected (16, 1, 3, 3)"),
        (state(**{"0.weight": torch.full((16, 1, 3, 3), torch.nan)}), "holds NaN or infinite values in 0.weight"),
        ([1, 2], "it holds no tensors by name"),
        ("not a checkpoint", "is no checkpoint"),
    ):
        file.write_text(held) if isinstance(held, str) else torch.save(held, file)
        with pytest.raises(ConfigError) as caught:
            settings.check_data(parse(""), GREY)
        assert said in str(caught.value)
        assert str(file) in str(caught.value)


def test_only_a_model_that_can_answer_has_one_round(tmp_path: Path) -> None:
    """A file for other classes has no last layer for these, and more rounds train it."""
    torch_file = tmp_path / "model.pt"
    torch.save(state(), torch_file)
    settings = inference_experiment(tmp_path / "run", weights=str(torch_file), rounds=2)
    with pytest.raises(ConfigError, match=r"^rounds is 2; allowed with weights .* as many classes as the data: 1"):
        settings.check_data(parse(""), GREY)
    for changes, classes in (({"rounds": 1}, 10), ({}, 4), ({"rounds": 1}, 4)):
        settings.but(**changes).check_data(parse(""), replace(GREY, num_classes=classes))
