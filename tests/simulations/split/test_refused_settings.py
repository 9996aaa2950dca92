"""What cannot work in a split run is refused before any work, by an error that names the key, the value and what is allowed."""

from pathlib import Path
from typing import Any

import pytest

from simulations.experiment.experiment import Experiment
from simulations.experiment.scenario import KnownClients
from simulations.settings.errors import ConfigError
from tests.clients.data.table_files import write_census

SPLIT = {"scenario": "split", "model": "vit"}
ATTRIBUTES = {"auxiliary-fraction": 0.4, "attribute-attacks": "AttributeInference()"}
GARMENTS = SPLIT | ATTRIBUTES | {"dataset": "garment-digit:06-24,0-1"}
TABLE = {"scenario": "split", "model": "difm", "dataset": "census", "smashed-attacks": "FieldReading()"}
FACES = SPLIT | {"dataset": "celeba:all"}
REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (GARMENTS | {"dataset": "mnist-5k"}, ("attribute-attacks is 'Attr", "'mnist-5k' has no sensitive attribute: take garment")),
    (GARMENTS | {"attribute-attacks": "TokenDecoder()"}, ("does not attack attributes of smashed data but smashed data",)),
    (GARMENTS | {"smashed-attacks": "AttributeInference()"}, ("but attributes of smashed data (see attribute-attacks)",)),
    (GARMENTS | {"auxiliary-data": "photos"}, ("learn from examples with the same attribute", "auxiliary-data is 'photos'")),
    (GARMENTS | {"auxiliary-fraction": 0.0}, ("auxiliary-fraction is 0, raise it",)),
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


def test_tokens_that_would_not_fit_into_memory_are_refused(tmp_path: Path) -> None:
    changes = {"dataset": "photo-face", "image-memory": 0.00005, "width": 16, "patch-size": 16, "defenses": ""}
    settings = Experiment.from_mapping({**SPLIT, **ATTRIBUTES, **changes, "attribute-attacks": "auto"})
    kind = next(kind for kind in settings.kinds if kind.of_attributes)
    assert settings.attacks[kind] == settings.attacks_on(settings.pipelines[0], kind) == [], "auto chooses none here"
    tight = Experiment.from_mapping(settings.to_mapping() | {"attribute-attacks": "AttributeInference()"})
    clients = KnownClients(tight.plan(tight.pipelines[0]).data_card(), {0: (60, 48), 1: (60, 48)}, {})
    # 96 images of 16 tokens of length 16: 98 kB against 54 kB.
    with pytest.raises(ConfigError, match="image-memory is 5e-05, and attribute-attacks read features of 96 queries"):
        tight.check_clients(clients)
    tight.but(image_memory=0.0001).check_clients(clients)
