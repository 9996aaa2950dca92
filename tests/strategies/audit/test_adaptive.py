"""Which attacks a run adds for the defences that it audits."""

from __future__ import annotations

from typing import Any

import pytest

from attacks.observations import AttackError
from attacks.registry import ATTACKS
from attacks.spec import parse_attacks
from defenses.registry import DEFENSES
from defenses.spec import parse_pipelines
from strategies.audit.adaptive import adaptive_attacks, adaptive_names
from strategies.federated.observations import PROBE, PROBE_ATTRIBUTE, UPDATE
from strategies.inference.observations import ATTRIBUTE, QUERY
from strategies.split.observations import SMASHED, TOKEN_ATTRIBUTE

CHOSEN = parse_attacks("DLG(); InvertingGradients(); LabelInference()")


def texts(*arguments: Any) -> list[str]:
    return [repr(attack) for attack in adaptive_attacks(*arguments)]


def test_refinements_stand_behind_the_first_inversion_and_controls_alone() -> None:
    plain, shuffled, noisy = parse_pipelines("VisualMixer(); GaussianNoise(std=0.1)")
    everything = [plain, shuffled, noisy]
    found = texts(shuffled, everything, CHOSEN, PROBE)
    assert "DLG() | LearnedRestorer()" in found
    assert all(text.startswith("DLG() | ") for text in found)
    assert texts(noisy, everything, CHOSEN, PROBE) == ["NoiseModelInversion()"]
    assert texts(plain, everything, CHOSEN, PROBE) == ["NoiseModelInversion()"], "its positive control"


def test_attacks_on_training_updates_do_not_run_on_probes() -> None:
    _, private = parse_pipelines("DPSGD(target_epsilon=1.0)")
    assert texts(private, [private], CHOSEN, PROBE) == []
    assert texts(private, [private], CHOSEN, UPDATE) == ["LossThreshold()", "ShadowModels()"]


def test_an_attack_with_settings_of_its_own_is_not_added_again() -> None:
    _, mixed = parse_pipelines("PatchShuffle()")
    chosen = parse_attacks("TokenJigsaw(iterations=3)")
    assert texts(mixed, [mixed], chosen, SMASHED) == ["AdaptiveDecoder()"]


def test_a_static_adversary_does_not_stand_for_the_adaptive_one() -> None:
    _, learned = parse_pipelines("FeaturePCA(components=2)")
    static, retrained = (parse_attacks(f"AttributeInference(training='{how}')") for how in ("static", "retrained"))
    assert texts(learned, [learned], static, ATTRIBUTE) == ["AttributeInference()"]
    assert texts(learned, [learned], retrained, ATTRIBUTE) == []


def test_what_is_kept_from_knowing_the_defences_says_so_and_what_it_learns_is_one_for_all() -> None:
    for text, knows in (
        ("AttributeInference(training='static')", False), ("AttributeInference()", True),
        ("InverseNetwork(training='static')", False), ("InverseNetwork()", True),
        ("BackwardReconstruction(plug_in='ignored')", False), ("BackwardReconstruction()", True),
        ("InvertingGradients() | LearnedRestorer()", True),
    ):  # fmt: skip
        (attack,) = parse_attacks(text)
        assert (attack.knows_defenses, attack.learns_from_defenses) == (knows, knows), text


def test_a_static_adversary_is_joined_by_itself_retrained() -> None:
    """With the same settings, whatever the defence names; its positive control runs without a defence."""
    for kind, text, defense in (
        (ATTRIBUTE, "AttributeInference(training='static', iterations=7)", "FeaturePCA(components=2)"),
        (TOKEN_ATTRIBUTE, "AttributeInference(training='static', iterations=7)", "PatchShuffle()"),
        (PROBE_ATTRIBUTE, "PropertyInference(training='static', updates=70)", "Pruning(fraction=0.5)"),
        (QUERY, "InverseNetwork(training='static', width=8)", "FeatureNoise(std=0.1)"),
    ):
        plain, defended = parse_pipelines(defense)
        static = parse_attacks(text)
        twin = repr(static[0]).replace("training='static', ", "")
        for pipeline in (plain, defended):
            found = texts(pipeline, [plain, defended], static, kind)
            assert found[0] == twin
            assert len([one for one in found if one.startswith(type(static[0]).__name__)]) == 1
        assert texts(plain, [plain], static, kind) == []
        both = [*static, *parse_attacks(twin)]
        assert twin not in texts(defended, [plain, defended], both, kind)


def test_adaptive_attacks_that_defences_name_exist_and_only_those_that_can_run_are_expected() -> None:
    for name, defense in DEFENSES.items():
        assert set(defense.adaptive_attacks) <= set(ATTACKS), name
    _, blurred = parse_pipelines("Downsample(factor=2)")
    assert adaptive_names(blurred, (PROBE, UPDATE)) == ["LearnedRestorer"]
    assert adaptive_names(blurred, (SMASHED,)) == ["TokenDecoder"]


def test_chains_begin_with_an_inversion_and_go_on_with_refinements() -> None:
    for text, why in (
        ("LearnedRestorer()", "refines the guess of another attack"),
        ("LearnedRestorer() | InvertingGradients()", "must not be a refinement"),
        ("DLG() | InvertingGradients()", "is no refinement"),
    ):
        with pytest.raises(AttackError, match=why):
            parse_attacks(text)
    (chain,) = parse_attacks("DLG(iterations=3) | WindowMean() | LearnedRestorer(iterations=5)")
    assert parse_attacks(repr(chain)) == [chain]
