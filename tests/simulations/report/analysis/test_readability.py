"""One word for each defence, by stated thresholds, and the sentence that the top of a report says."""

from __future__ import annotations

import pytest

from simulations.report import Row, validate
from simulations.report.analysis.readability import Readability, conclusion, verdicts
from simulations.report.analysis.study import split
from simulations.report.analysis.summary import Line, summarise
from strategies.audit.threat_card import ThreatCard

UPDATE = ThreatCard(observation="training update", local_steps=4)
PROBE = ThreatCard(observation="one-step probe")


def told(
    defense: str, psnr: float, picked: float, n: int = 16, card: ThreatCard = PROBE, attack: str = "A()"
) -> list[Row]:
    """A score with an interval of half a decibel to both sides, and the share of images that it picks out of 100."""
    known = {"defense": defense, "attack": attack, "round": 1, "n": n, "reference": "original"}
    return [
        Row(metric="psnr", value=psnr, ci_low=psnr - 0.5, ci_high=psnr + 0.5, card=card, **known),
        Row(metric="retrieval", value=picked, card=card.but(chance=0.01), **known),
        *(
            Row(metric="psnr", value=v, card=card, **known | {"attack": f"baseline:{k}"})
            for k, v in (("grey", 8.0), ("mean", 12.0))
        ),
    ]


def lines(*rows: list[Row]) -> list[Line]:
    every = [row for some in rows for row in some]
    return summarise(split(validate(every), ["", "D()", "E()"])[0], {})


@pytest.mark.parametrize(
    ("psnr", "picked", "n", "expected"),
    [
        (20.0, 1.0, 16, Readability.READABLE),
        (20.0, 0.5, 16, Readability.READABLE),
        (20.0, 7 / 16, 16, Readability.PARTLY),
        (20.0, 0.0, 16, Readability.PARTLY),
        (10.0, 1.0, 16, Readability.PARTLY),
        (12.4, 0.0, 16, Readability.NOT_RECOVERED),  # the interval reaches below the mean image
        (20.0, 1.0, 15, Readability.UNKNOWN),
    ],
)
def test_the_word_follows_from_the_thresholds(psnr: float, picked: float, n: int, expected: Readability) -> None:
    found = lines(told("", 30.0, 1.0), told("D()", psnr, picked, n))
    assert verdicts(found[1]) == (("one-step probe", expected),)


def test_what_does_not_read_undefended_images_says_nothing_of_a_defence() -> None:
    found = lines(told("", 10.0, 0.0), told("D()", 9.0, 0.0))
    assert [verdicts(line)[0][1] for line in found[:2]] == [Readability.UNKNOWN] * 2
    text = conclusion(found)
    assert text == (
        "One-step probe: without a defence no attack is shown to read the images, so that nothing here is evidence for a defence."
    )


def test_the_conclusion_names_every_defence_with_its_verdict() -> None:
    found = lines(told("", 30.0, 1.0), told("D()", 9.0, 0.0), told("E()", 25.0, 1.0))
    assert conclusion(found) == (
        "One-step probe: without a defence the images are readable; of 2 defences 1 left them readable (E) and 1 kept these "
        "attacks from recovering them (D)."
    )


def test_probes_and_real_updates_are_concluded_apart() -> None:
    both = [
        told("", 30.0, 1.0),
        told("", 9.0, 0.0, card=UPDATE),
        told("D()", 9.0, 0.0),
        told("D()", 9.0, 0.0, card=UPDATE),
    ]
    found = lines(*both)
    assert verdicts(found[1]) == (
        ("one-step probe", Readability.NOT_RECOVERED),
        ("training update", Readability.UNKNOWN),
    )
    first, second = conclusion(found).split(". ")
    assert first.startswith("One-step probe: without a defence the images are readable; of 1 defence 1 kept")
    assert second.startswith("Training update: without a defence no attack is shown to read the images")


def test_nothing_is_concluded_before_an_attack() -> None:
    assert (
        conclusion(
            summarise(split([Row(metric="test-accuracy", reference="original", value=0.5, round=1)], [""])[0], {})
        )
        == ""
    )
