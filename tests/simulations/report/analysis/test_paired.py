"""Differences between a defence and none, by image."""

import json
from dataclasses import replace
from typing import Any

import pytest

from simulations.report.analysis.finding import Finding, findings_of
from simulations.report.analysis.paired import ALIKE, FEWER, PairedDifference, holm
from simulations.report.studies.messages import each_image
from tests.simulations.report.analysis.test_verdict import UPDATE, attacked, card, lines
from tests.simulations.report.report_run import hits, scored, study_of


def test_holm_multiplies_by_the_tests_that_are_left_and_keeps_the_order() -> None:
    def of(p: float) -> PairedDifference:
        return PairedDifference("identified", (0, 1), (1, 1), -1.0, -1.0, 0.0, p, True, 1)

    found = holm({"a": of(0.03), "b": of(0.01), "c": of(0.02)})
    assert {name: one.p for name, one in found.items()} == pytest.approx({"b": 0.03, "c": 0.04, "a": 0.04})


def test_a_defence_is_compared_with_none_by_the_same_images() -> None:
    plain, defended = lines(attacked(30, 30), attacked(20, 20, defense="D()"))
    assert plain.messages[0].difference is None
    (difference,) = (one.difference for one in defended.messages)
    assert (difference.under, difference.without, difference.paired) == ((20, 48), (30, 48), True)
    # The first 20 of the 30 are found under both: 10 discordant pairs, all in one direction.
    assert difference.p == pytest.approx(2 / 2**10)
    assert difference.word == FEWER
    (alike,) = (one.difference for one in lines(attacked(30, 30), attacked(28, 28, defense="D()"))[1].messages)
    assert alike.word == ALIKE


def difference_of(finding: Finding) -> PairedDifference:
    """Of the only kind and size of message."""
    (message,) = finding.messages
    assert message.difference is not None
    return message.difference


def placed(places: list[list[int]], *rows: Any) -> list[dict[str, Any]]:
    """Rows of attacks, those under a defence of images with these places."""
    found = [json.loads(one.line) for of in rows for one in of]
    return [one | ({"each_of": places} if one["defense"] and "each" in one else {}) for one in found]


def test_other_images_are_compared_without_pairs_and_those_in_common_by_pairs() -> None:
    rows = attacked(30, 30), attacked(20, 20, defense="D()")
    others = placed([[1, at] for at in range(48)], *rows)
    difference = difference_of(findings_of(study_of(others, ["", "D()"]), {})[1])
    assert not difference.paired
    assert difference.low < -10 / 48 < difference.high
    # 32 of the 48 images: the 20 that are found under the defence, and 12 of which 10 are found without it.
    part = placed([[0, at] for at in range(32)], rows[0], attacked(20, 20, n=32, defense="D()"))
    difference = difference_of(findings_of(study_of(part, ["", "D()"]), {})[1])
    assert (difference.paired, difference.under, difference.without) == (True, (20, 32), (30, 32))
    assert difference.p == pytest.approx(2 / 2**10)


def test_images_of_one_message_count_together_and_two_attacks_are_both_named() -> None:
    sizes = {"card": card(16)}
    # The defence's attack B has its control, which finds less than A does.
    rows = attacked(48, 48, **sizes), attacked(47, 47, attack="B()", **sizes)
    plain, defended = lines(*rows, attacked(32, 32, defense="D()", attack="B()", **sizes))
    difference = difference_of(defended)
    # One of three messages is lost as a whole.
    assert (difference.messages, difference.word) == (3, ALIKE)
    assert (difference.said, difference.by) == (ALIKE, "A")
    assert "n = 48 in 3 messages, without a defence by A" in difference.text
    assert plain.messages[0].score is not None
    assert plain.messages[0].score.messages == 3
    few = {"card": card(24)}
    two = difference_of(lines(attacked(48, 48, **few), attacked(0, defense="D()", **few))[1])
    assert (two.word, two.said) == (ALIKE, "too few messages to compare with no defence")
    # Smashed data keep the rows of images.
    smashed = {"card": card(16, observation="smashed data")}
    one = difference_of(lines(attacked(48, 48, **smashed), attacked(32, 32, defense="D()", **smashed))[1])
    assert (one.messages, one.word, one.said) == (48, FEWER, "fewer recognisable than without a defence")


def test_a_round_is_one_message_of_each_client_and_probes_are_numbered_by_their_images() -> None:
    """Three clients with 16 images each, at the places 0, 1, 2, ... of probes of 6, or anywhere among a client's examples."""
    for observation, messages in ((UPDATE, 3), ("one-step probe", 9), ("sum of clients' one-step probes", 3)):
        at = [37 * place for place in range(16)] if observation == UPDATE else list(range(16))
        row = hits(scored(20.0, n=48, card=card(6, observation=observation)))
        sent = replace(row, extra=row.extra | {"each_of": [[client, place] for client in range(3) for place in at]})
        assert len({message for message, _ in each_image([sent]).values()}) == messages, observation
    assert each_image([replace(sent, extra={})]) == {}
    odd = replace(sent, extra=row.extra | {"each_of": ["no place", *sent.extra["each_of"][1:]]})
    assert each_image([odd]) == {}, "a place is none"


def test_what_is_compared_is_what_the_verdict_without_a_defence_is_of() -> None:
    """One recognisable image among 45 identified ones does not hide that none is identified under a defence."""
    plain, defended = lines(attacked(45, 1), attacked(0, 0, defense="D()"))
    assert plain.messages[0].verdict == "identifiable"
    difference = difference_of(defended)
    assert (difference.of, difference.under, difference.without) == ("identified", (0, 48), (45, 48))
    assert difference.word == FEWER


def test_under_a_defence_the_attack_with_the_most_such_images_is_compared() -> None:
    rows = attacked(48, 48), attacked(48, 48, attack="B()"), attacked(30, 2, defense="D()")
    difference = difference_of(lines(*rows, attacked(20, 20, defense="D()", attack="B()"))[1])
    assert (difference.of, difference.under) == ("recognisable", (20, 48))
