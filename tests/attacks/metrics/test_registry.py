"""The declarations of metrics, and the texts of scores in messages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attacks.metrics.guesses import COLUMN
from attacks.metrics.metric import FAMILIES, Interval, OverSeeds, Values
from attacks.metrics.names import GuessName, Role, ScoreName, names_of, scores_to_texts
from attacks.metrics.registry import MEASURED, METRICS, known_metric, metric_of


@pytest.mark.parametrize("name", METRICS)
def test_a_declaration_does_not_contradict_itself(name: str) -> None:
    one = METRICS[name]
    exact = one.interval is Interval.EXACT or one.over_seeds is OverSeeds.EXACT
    assert not exact or one.values is Values.HIT, "an exact interval is of trials that are 1 or 0"
    within = one.interval in (Interval.BATCHES, Interval.CELLS) or one.over_seeds in (
        OverSeeds.CLUSTERED,
        OverSeeds.AREA,
    )
    assert not within or one.values.in_unit, "these intervals lie within 0 and 1"
    assert not (one.family and one.of_training)
    assert one.values is not Values.BOUND or one.of_training


def test_each_family_is_decided_by_one_of_its_metrics() -> None:
    for family in FAMILIES:
        assert METRICS[family.decides[0]].family is not None
        assert any(one.family is family for one in METRICS.values())


def test_every_measure_gives_one_number_for_each_image() -> None:
    guess, truth = torch.rand(2, 3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    for one in MEASURED:
        assert one.measure is not None
        found, exact = one.measure(guess, truth), one.measure(truth, truth)
        assert found.shape == (3,)
        assert (exact > found).all() == one.higher_leaks


def test_the_beginning_of_a_name_finds_the_metric_of_a_column() -> None:
    assert known_metric("column age") is COLUMN
    assert known_metric("column ") is COLUMN
    assert known_metric("unheard-of") is None
    assert metric_of("unheard-of").shown == ()


texts = st.text(max_size=20)


@given(st.sampled_from(Role), texts, texts, texts)
def test_names_of_scores_survive_a_message(role: Role, guess: str, metric: str, reference: str) -> None:
    """Names of columns are a person's own: they may hold what stands between the parts."""
    names = GuessName(role, guess), ScoreName(metric, reference)
    (text,) = scores_to_texts({names[0]: {names[1]: [1.0]}})
    assert names_of(text) == names


@pytest.mark.parametrize(
    "text", ["", "psnr", "attack/psnr/original", "somebody//psnr/original", "attack//psnr/original/"]
)
def test_other_texts_name_no_score(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        names_of(text)
