"""Settings of a federated run that belong to another scenario are refused by name; what the scenario says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from simulations.experiment.experiment import Experiment
from simulations.settings.errors import ConfigError

BAD = [
    ({"train-edge": True}, "train-edge is True; it is a setting of split, and scenario is 'federated'"),
    ({"optimizer": "adamw"}, "optimizer is 'adamw'; it is a setting of split"),
    ({"block-learning-rate": 0.1}, "block-learning-rate is 0.1; it is a setting of split"),
    ({"pretrained": "/no/such.pth"}, "pretrained is '/no/such.pth'; it is a setting of split"),
    ({"labels": "server"}, "labels is 'server'; allowed with scenario = 'federated': 'unknown' or 'known'"),
    ({"auxiliary-data": "private"}, "auxiliary-data is 'private'; allowed with scenario = 'federated': 'held-out'"),
    (
        {"defenses": "PatchShuffle()"},
        "PatchShuffle() protects smashed data, which clients of scenario = 'federated' do not send",
    ),
    ({"model": "vit"}, "unknown model 'vit'"),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=lambda value: str(value)[:40])
def test_what_belongs_to_split_learning_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Experiment.from_mapping({"model": "lenet", "defenses": "", **values})
    assert message in str(caught.value)
