"""The declarations of metrics, and the texts of scores in messages."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.metrics.guesses import COLUMN
from attacks.metrics.metric import FAMILIES, UNIT, Interval, OverSeeds, Values
from attacks.metrics.names import GuessName, Role, ScoreName, names_of, scores_to_texts
from attacks.metrics.registry import MEASURED, METRICS, known_metric, metric_of


def test_declarations_do_not_contradict_themselves() -> None:
    for name, one in METRICS.items():
        exact = one.interval is Interval.EXACT or one.over_seeds is OverSeeds.EXACT
        low, high = one.range
        assert low < high, name
        assert one.range == UNIT or one.values not in (Values.HIT, Values.SHARE) or name == "identified-chance"
        assert not exact or one.values is Values.HIT, f"{name}: an exact interval is of trials that are 1 or 0"
        within = one.interval in (Interval.BATCHES, Interval.CELLS)
        within |= one.over_seeds in (OverSeeds.CLUSTERED, OverSeeds.AREA)
        assert not within or one.range == UNIT, f"{name}: these intervals lie within 0 and 1"
        assert not (one.family and one.of_training), name
        assert one.values is not Values.BOUND or one.of_training, name
    for family in FAMILIES:
        assert METRICS[family.decides[0]].family is not None
        assert any(one.family is family for one in METRICS.values())
    assert known_metric("column age") is known_metric("column ") is COLUMN
    assert known_metric("unheard-of") is None
    assert metric_of("unheard-of").shown == ()


def test_every_measure_gives_one_number_for_each_image() -> None:
    guess, truth = torch.rand(2, 3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    for one in MEASURED:
        found, exact = one.measure(guess, truth), one.measure(truth, truth)
        assert found.shape == (3,)
        assert (exact > found).all() == one.higher_leaks


texts = st.text(max_size=20)


@given(st.sampled_from(Role), texts, texts, texts)
@settings(max_examples=50, deadline=None)
def test_names_of_scores_survive_a_message(role: Role, guess: str, metric: str, reference: str) -> None:
    """Names of columns are a person's own: they may hold what stands between the parts."""
    names = GuessName(role, guess), ScoreName(metric, reference)
    (text,) = scores_to_texts({names[0]: {names[1]: [1.0]}})
    assert names_of(text) == names


def test_other_texts_name_no_score() -> None:
    for text in ("", "psnr", "attack/psnr/original", "somebody//psnr/original", "attack//psnr/original/"):
        with pytest.raises(ValueError, match=r".+"):
            names_of(text)
