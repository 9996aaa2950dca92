"""Settings of a split run that cannot work are refused by name before anything is trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from clients.data.card import DataCard
from simulations.experiment.experiment import Experiment
from simulations.experiment.scenario import KnownClients
from simulations.settings.errors import ConfigError
from tests.clients.data.table_files import write_census
from tests.simulations.short_runs import Cases, assert_refused
from tests.simulations.split.test_run import split_experiment

BAD: Cases = [
    ({"patch-size": 5}, ("patch-size is 5", "allowed: 1, 2, 4, 7, 14", "28 x 28")),
    ({"heads": 3}, ("heads is 3", "allowed: 1, 2, 4, 8, 16", "width = 16")),
    ({"edge-blocks": 2}, ("edge-blocks is 2", "allowed: 0 to 1, below depth")),
    ({"model": "vitt"}, ("unknown split model 'vitt'", "did you mean 'vit'?", "t2t-performer")),
    ({"batches-per-message": 100_000}, ("batches-per-message is 100000", "1.5 GiB", "1 GiB is allowed")),
    ({"nesterov": True, "optimizer": "adamw"}, ("nesterov is True; allowed with optimizer = 'adamw': False",)),
    # Pretrained weights.
    ({"weights": "/no/such.pth"}, ("cannot read /no/such.pth", "the server and every client need the file")),
    ({"weights": "weights.pth"}, ("weights is 'weights.pth'", "expected an absolute path")),
    ({"weights": "/no/such.pth", "model": "t2t"}, ("allowed with model = 'vit' only, not 't2t'", "performer")),
    # Labels and the server's own examples.
    ({"partition": "node"}, ("labels is 'server'", "partition = 'node'", "set labels = 'client'")),
    # Defences.
    ({"defenses": "BatchShuffle(k=0.4)", "batch-size": 1}, ("BatchShuffle(k=0.4)", "a batch of 1")),
    ({"defenses": "BatchShuffle(k=0.05)"}, ("would keep none of 16 tokens", "at least 1/16")),
    ({"defenses": "PatchShuffle() | SpectralShuffle()"}, ("cannot follow each other",)),
    ({"defenses": "DPSGD()"}, ("DPSGD", "training of whole models", "scenario = 'split'")),
    (
        {"defenses": "FeatureDP(clip=1.0, noise_multiplier=1.0)", "train-edge": True},
        ("FeatureDP", "also sends updates", "epsilon does not cover", "unset train-edge"),
    ),
    (
        {"defenses": "AdversarialTraining() | FeatureDP(clip=1.0, noise_multiplier=1.0)"},
        ("FeatureDP", "also sends updates", "take away the defence that trains it"),
    ),
    ({"defenses": "FeaturePCA() | FeatureNoise()"}, ("FeaturePCA(components=5) is fitted to maps", "send tokens")),
    ({"defenses": "GaussianNoise(std=0.1)"}, ("GaussianNoise(std=0.1", "set train-edge")),
    ({"defenses": "InstaHide()"}, ("InstaHide(num_mixed=4) mixes labels", "set labels = 'client'")),
    # The second pipeline is checked before the first is trained.
    ({"defenses": "PatchShuffle(); BatchShuffle(k=0.01)"}, ("BatchShuffle(k=0.01)", "would keep none")),
    # Attacks.
    (
        {"smashed-attacks": "DLG()"},
        ("DLG() does not attack smashed data but one-step probes; these do", "TokenDecoder"),
    ),
]


def test_what_cannot_work_is_refused_by_name(tmp_path: Path) -> None:
    assert_refused(split_experiment, BAD, tmp_path)


def clients_with(shape: tuple[int, int, int], sizes: tuple[int, int] = (48, 15)) -> KnownClients:
    channels = (0.5,) * shape[0]
    return KnownClients(DataCard(10, shape, channels, channels), {0: sizes, 1: (48, 15)}, {})


def test_spectral_shuffling_wants_a_square_of_tokens_and_each_client_two_images(tmp_path: Path) -> None:
    settings, oblong = split_experiment(tmp_path / "run", defenses="SpectralShuffle()"), clients_with((1, 28, 14))
    with pytest.raises(ConfigError, match="needs a square grid of tokens, and images give 4 x 2"):
        settings.check_clients(oblong)
    split_experiment(tmp_path / "run", defenses="PatchShuffle()").check_clients(oblong)
    for sizes in ((1, 15), (48, 1)):
        with pytest.raises(ConfigError, match=f"client 0 holds {sizes[0]} training and {sizes[1]} test examples"):
            split_experiment(tmp_path / "run").check_clients(clients_with((1, 28, 28), sizes))
    split_experiment(tmp_path / "run").check_clients(clients_with((1, 28, 28), (2, 2)))


def test_what_the_messages_advise_is_accepted(tmp_path: Path) -> None:
    advised: list[dict[str, Any]] = [
        {}, {"defenses": "GaussianNoise(std=0.001)", "train_edge": True}, {"defenses": "InstaHide()", "labels": "client"},
        {"defenses": "BatchShuffle(k=0.4)", "labels": "client"}, {"partition": "node", "labels": "client"},
        {"auxiliary_data": "photos"}, {"defenses": "SpectralShuffle()"},
    ]  # fmt: skip
    for changes in advised:
        split_experiment(tmp_path / "run", **changes).check_clients(clients_with((1, 28, 28)))


def test_pretrained_weights_reach_both_halves_before_anything_is_trained(tmp_path: Path) -> None:
    file = tmp_path / "vit.pth"
    whole = VisionTransformer(img_size=28, patch_size=7, in_chans=1, embed_dim=16, depth=2, num_heads=2)
    torch.save(whole.state_dict(), file)
    settings, clients = split_experiment(tmp_path / "run", weights=str(file)), clients_with((1, 28, 28))
    settings.check_clients(clients)
    edge, server = settings.plan(settings.pipelines[0], card=clients.card).build_halves()
    assert torch.equal(edge.embedding.state_dict()["proj.weight"], whole.patch_embed.proj.weight)
    assert torch.equal(server.blocks.state_dict()["0.attn.qkv.weight"], whole.blocks[1].attn.qkv.weight)
    with pytest.raises(ConfigError, match=r"blocks\.2\.norm1\.weight is missing, .*; set depth = 2, as in the file"):
        settings.but(depth=3).check_clients(clients)


SPLIT = {"scenario": "split", "model": "vit"}
TABLE = {"scenario": "split", "model": "difm", "dataset": "census", "smashed-attacks": "FieldReading()"}
FACES = SPLIT | {"dataset": "celeba:all"}
REFUSED: Cases = [
    (TABLE | {"smashed-attacks": "TokenDecoder()"}, ("smashed-attacks: TokenDecoder() does not attack a table", "FieldReading")),
    (TABLE | {"dataset": "mnist-5k", "model": "vit", "patch-size": 7}, ("FieldReading() does not attack images",)),
    (TABLE | {"image-size": 8}, ("image-size is 8; allowed with dataset = 'census', a table: unset",)),
    (TABLE | {"horizontal-flip": True}, ("horizontal-flip is True",)),
    (TABLE | {"defenses": "VisualMixer()"}, ("VisualMixer", "protects pixels, and dataset = 'census' is a table")),
    (TABLE | {"defenses": "SpectralShuffle()"}, ("protects pixels",)),
    (TABLE | {"defenses": "AdversarialTraining()", "train-edge": True}, ("protects pixels",)),
    (TABLE | {"auxiliary-data": "photos"}, ("auxiliary-data is 'photos'; allowed with a table: held-out or private",)),
    *(({"scenario": one, "dataset": "census"}, ("dataset is 'census', a table; allowed with", f"'{one}': images"))
      for one in ("federated", "outsourced")),
    *(({"scenario": one, "dataset": faces}, ("several labels each; allowed with", f"'{one}': one class", "'split'"))
      for one in ("federated", "outsourced", "inference") for faces in ("celeba:all", "celeba:Male,Smiling,Young")),
    (FACES | {"partition": "dirichlet(alpha=0.5)"}, ("partition is 'dirichlet(alpha=0.5)'", "iid or node")),
    (FACES | {"smashed-attacks": "ServerPrediction()"}, ("smashed-attacks: ServerPrediction() is about the class",)),
    (SPLIT | {"train-edge": True, "defenses": "ClientDP()"}, ("its epsilon does not cover",)),
]  # fmt: skip


def test_what_cannot_work_is_refused_by_key_and_value(tmp_path: Path) -> None:
    data = str(write_census(tmp_path / "census", train=40, test=20))
    for changes, parts in REFUSED:
        with pytest.raises(ConfigError) as refusal:
            Experiment.from_mapping({"defenses": "", "adaptive": False, "data-dir": data, **changes})
        missing = [part for part in parts if part not in str(refusal.value)]
        assert not missing, f"{changes}: {refusal.value}"
