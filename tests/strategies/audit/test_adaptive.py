"""Which attacks a run adds for the defences that it audits."""

from typing import Any

import pytest

from attacks.observations import AttackError
from attacks.spec import ATTACKS, parse_attacks
from defenses.base import DEFENSES
from defenses.spec import parse_pipelines
from strategies.audit.adaptive import adaptive_attacks, adaptive_names
from strategies.federated.observations import PROBE, UPDATE
from strategies.inference.observations import ATTRIBUTE, QUERY
from strategies.split.observations import SMASHED

CHOSEN = "DLG(); InvertingGradients(); LabelInference()"


def texts(*arguments: Any) -> list[str]:
    return [repr(attack) for attack in adaptive_attacks(*arguments)]


def test_attacks_that_a_defence_names_are_added_where_they_fit() -> None:
    private, mixed, learned = "DPSGD(target_epsilon=1.0)", "PatchShuffle()", "FeaturePCA(components=2)"
    for defense, chosen, kind, added in (
        # Attacks on training updates do not run on probes.
        (private, CHOSEN, PROBE, ["MatchedFilter()"]),
        (private, CHOSEN, UPDATE, ["LossThreshold()", "ShadowModels()"]),
        # One with settings of its own is not added again.
        (mixed, "TokenJigsaw(iterations=3)", SMASHED, ["AdaptiveDecoder()"]),
        # A static adversary does not stand for the adaptive one.
        (learned, "AttributeInference(training='static')", ATTRIBUTE, ["AttributeInference()"]),
        (learned, "AttributeInference(training='retrained')", ATTRIBUTE, []),
    ):  # fmt: skip
        pipeline = parse_pipelines(defense)[-1]
        assert texts(pipeline, [pipeline], parse_attacks(chosen), kind) == added, (defense, chosen)
    plain, shuffled, noisy = everything = parse_pipelines("VisualMixer(); GaussianNoise(std=0.1)")
    refined = texts(shuffled, everything, parse_attacks(CHOSEN), PROBE)
    assert "DLG() | LearnedRestorer()" in refined
    assert all(text.startswith("DLG() | ") for text in refined), "behind the first inversion alone"
    for pipeline in (noisy, plain):  # plain is its positive control
        assert texts(pipeline, everything, parse_attacks(CHOSEN), PROBE) == ["NoiseModelInversion()"]


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
