"""Which scenarios there are: those of the folder, and those that other packages offer by entry points."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.task.scenarios import client_sides
from defenses.registry import RegistryError
from simulations.experiment.experiment import Experiment, scenarios
from simulations.settings.errors import ConfigError
from tests.other_package import offer

GROUP = "fedveil.scenarios"
MINE = """
from simulations.scenarios.federated import FederatedExperiment
class MINE(FederatedExperiment):
    name = "mine"
    label_holders = ("told", "untold")
"""


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    """Entry points are read once in a process."""
    scenarios.cache_clear()
    yield
    scenarios.cache_clear()


def test_every_scenario_has_a_client_side() -> None:
    assert set(scenarios()) >= {"federated", "inference", "outsourced", "split"}
    # The clients of anybody's own app answer audits too; there the run is that app's, and no scenario of ours.
    assert list(client_sides()) == ["audited", *scenarios()]
    assert all(name == one.name for name, one in scenarios().items())


def test_a_scenario_of_another_package_is_one_like_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=f"scenario is 'mine'; allowed: {' or '.join(map(repr, scenarios()))}$"):
        Experiment.from_mapping({"scenario": "mine"})
    scenarios.cache_clear()
    offer(monkeypatch, tmp_path, GROUP, MINE)
    settings = {"scenario": "mine", "model": "lenet", "defenses": ""}
    with pytest.raises(ConfigError, match=r"scenario is 'mine', and no package offers its client side"):
        Experiment.from_mapping(settings)
    sides = {**client_sides(), "mine": client_sides()["federated"]}
    monkeypatch.setattr("simulations.experiment.experiment.client_sides", lambda: sides)
    assert Experiment.from_mapping({**settings, "labels": "untold"}).who_holds_labels == "untold"
    assert Experiment.from_mapping(settings).who_holds_labels == "told"
    for change, why in (
        ({"labels": "known"}, "labels is 'known'; allowed with scenario = 'mine': 'told' or 'untold'"),
        ({"train-edge": True}, "train-edge is True; it is a setting of split, and scenario is 'mine'"),
        ({"scenario": "mime"}, "allowed: 'federated' or 'inference' or 'outsourced' or 'split' or 'mine'$"),
    ):
        with pytest.raises(ConfigError, match=why):
            Experiment.from_mapping({**settings, **change})


def test_a_wrong_entry_point_is_named_and_replaces_or_leaves_out_nothing_unseen(tmp_path: Path) -> None:
    for at, (source, why) in enumerate((
        ("from simulations.scenarios.split import SCENARIO as MINE", ": there is another scenario 'split'; rename one of them"),
        ("from simulations.settings.scenarios import SplitSettings as MINE", " is no Experiment but ModelMetaclass"),
        ("MINE = 'federated'", " is no Experiment but str"),
        ("import nowhere_to_be_found", " cannot be loaded: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("YOURS = 1", " cannot be loaded: AttributeError: "),
    )):  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            (folder := tmp_path / f"wrong_scenario_{at}").mkdir()
            where = offer(patch, folder, GROUP, source)
            for _ in range(2):  # what was refused once is refused again, also for a run that does not use it
                scenarios.cache_clear()
                with pytest.raises(RegistryError) as caught:
                    Experiment.from_mapping({"model": "lenet", "defenses": ""})
                assert str(caught.value).startswith(f"{where}{why}")
