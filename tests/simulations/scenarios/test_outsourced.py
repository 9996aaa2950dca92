"""Settings of outsourced training that cannot work are refused by name before anything is uploaded."""

from pathlib import Path
from typing import Any

import pytest

from clients.data.card import DataCard
from defenses.spec import parse
from simulations.experiment.experiment import Experiment, scenarios
from simulations.experiment.scenario import KnownClients
from simulations.settings.errors import ConfigError
from strategies.outsourced.observations import COLLECTION, MODEL, UPLOAD
from tests.simulations.outsourced.test_run import outsourced_experiment
from tests.simulations.short_runs import Cases, assert_refused

TRAINS = "protects what a client trains, and with scenario = 'outsourced' the server trains"
BAD: Cases = [
    # Defences of what is never sent.
    ({"defenses": "DPSGD(target_epsilon=8.0)"}, ("DPSGD(target_epsilon=8.0)", TRAINS, "optimizers such as STAdam")),
    ({"defenses": "PatchShuffle()"}, ("PatchShuffle() protects tokens, which no client sends with scenario = 'outsourced'",)),
    # The second pipeline, and a stage behind one that may stay, are checked before the first is trained.
    ({"defenses": "VisualMixer(); VisualMixer() | Pruning(fraction=0.5)"}, ("Pruning(fraction=0.5, per='step')", TRAINS)),
    # Views of an image that no client makes.
    ({"crop-padding": 2}, ("crop-padding is 2", "allowed with scenario = 'outsourced': 0 and False", "uploaded once")),
    # The server's own examples.
    ({"auxiliary-data": "private"}, ("auxiliary-data is 'private'; allowed with scenario = 'outsourced': 'held-out'",)),
    # Sizes.
    ({"probe-targets": 4}, ("probe-targets is 4, and a client with 48", "uploads 3 batches of 16", "lower one of the two")),
    ({"probe-images": 17}, ("probe-images is 17; allowed: up to batch-size = 16",)),
    ({"local-steps": 3}, ("local-steps is 3; allowed with scenario = 'outsourced': 0",)),
    ({"attack-rounds": "first"}, ("attack-rounds is 'first'", "add final to attack-rounds, or set model-attacks = ''")),
    ({"batches-per-message": 30_000}, ("batches-per-message is 30000", "1.4 GiB", "1 GiB is allowed")),
    # Attacks on something else.
    ({"upload-attacks": "DLG()"}, ("upload-attacks: DLG() does not attack uploaded images but one-step probes", "AsUploaded")),
    ({"upload-attacks": "WindowMean()"}, ("upload-attacks: ", "WindowMean() refines", "AsUploaded() | WindowMean()")),
    ({"model-attacks": "AsUploaded()"}, ("AsUploaded() does not attack trained models but uploaded images (see upload-attacks)",)),
    ({"upload-attacks": "AsUploaded(); JointEncodingInversion()"}, ("upload-passes is 1", "JointEncodingInversion(", "2 or more")),
]  # fmt: skip


def test_what_cannot_work_is_refused_by_name(tmp_path: Path) -> None:
    assert_refused(outsourced_experiment, BAD, tmp_path)


def check(settings: Experiment, train: int = 48) -> None:
    card = DataCard(10, (1, 28, 28), (0.5,), (0.5,))
    settings.check_clients(KnownClients(card, {0: (train, 15), 1: (48, 15)}, {}))


def test_what_the_messages_advise_is_accepted(tmp_path: Path) -> None:
    advised: list[dict[str, Any]] = [
        {}, {"probe_targets": 3}, {"batches_per_message": 16_000}, {"defenses": "VisualMixer() | STAdam(); ATS(); InstaHide()"},
        {"upload_attacks": "AsUploaded(); AsUploaded() | WindowMean() | LearnedRestorer(iterations=5)"},
        {"upload_attacks": "", "model_attacks": ""}, {"model_attacks": "ShadowModels(); ClassGAN()"},
    ]  # fmt: skip
    for changes in advised:
        check(outsourced_experiment(tmp_path / "run", **changes))


def test_an_image_that_is_left_over_makes_no_batch_to_attack(tmp_path: Path) -> None:
    settings = outsourced_experiment(tmp_path / "run", probe_targets=3)
    check(settings, 34)
    with pytest.raises(ConfigError, match="a client with 33 training examples uploads 2 batches"):
        check(settings, 33)


def test_refinements_that_know_a_defence_are_put_behind_the_images_as_uploaded(tmp_path: Path) -> None:
    mixer = parse("VisualMixer(window_lower=4, window_upper=4)")
    settings = outsourced_experiment(tmp_path / "run", defenses=str(mixer), adaptive=True)
    found = [repr(attack) for attack in settings.attacks_on(mixer, UPLOAD)]
    known = ("LearnedRestorer", "WindowMean", "Shredder", "Jigsaw")
    assert found == ["AsUploaded()", *(f"AsUploaded() | {name}()" for name in known)]
    assert [repr(attack) for attack in settings.attacks_on(mixer, MODEL)] == ["LossThreshold()"]
    assert [repr(attack) for attack in settings.attacks_on(parse(""), UPLOAD)] == ["AsUploaded()"]
    assert settings.attacks_on(mixer, scenarios()["federated"].kinds[0]) == []
    assert not settings.but(upload_attacks="").attacks_on(mixer, UPLOAD)


def test_attacks_on_single_uploads_and_on_all_of_a_client_stand_in_one_setting(tmp_path: Path) -> None:
    settings = outsourced_experiment(
        tmp_path / "run", defenses="", upload_attacks="PassAveraging(); AsUploaded()", upload_passes=2
    )
    found = {kind: [repr(attack) for attack in settings.attacks_on(parse(""), kind)] for kind in (UPLOAD, COLLECTION)}
    assert found == {UPLOAD: ["AsUploaded()"], COLLECTION: ["PassAveraging()"]}
