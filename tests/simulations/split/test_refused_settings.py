"""What cannot work in a split run is refused before any work, by an error that names the key, the value and what is allowed."""

from pathlib import Path
from typing import Any

import pytest

from simulations.experiment.experiment import Experiment
from simulations.settings.errors import ConfigError
from tests.clients.data.table_files import write_census

SPLIT = {"scenario": "split", "model": "vit"}
TABLE = {"scenario": "split", "model": "difm", "dataset": "census", "smashed-attacks": "FieldReading()"}
FACES = SPLIT | {"dataset": "celeba:all"}
REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
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
