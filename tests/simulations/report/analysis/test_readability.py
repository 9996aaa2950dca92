"""One word for each defence, by stated thresholds, and the sentence that the top of a report says."""

from __future__ import annotations

import statistics

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


@pytest.mark.parametrize(("right", "classes", "cost"), [(16 / 137, 8, False), (16 / 137, 100, True), (0.6, 8, True)])
def test_a_model_that_has_not_learned_costs_nothing_that_could_be_told(right: float, classes: int, cost: bool) -> None:
    """16 of 137 is 11.7 % (7.3 to 18.1): not shown to be above one in 8, and above one in 100."""
    card = PROBE.but(num_classes=classes)
    accuracies = [
        Row(metric="test-accuracy", reference="original", value=value, round=1, n=137, defense=defense)
        for defense, value in (("", right), ("D()", right - 0.05))
    ]
    found = lines(told("", 30.0, 1.0, card=card), told("D()", 9.0, 0.0, card=card), accuracies)
    text, caveats = conclusion(found), " ".join(found[0].caveats)
    assert ("(D \N{MINUS SIGN}5.0 points)" in text) == cost
    said = (
        "he model has not learned without a defence (accuracy 11.7 %, 7.3 to 18.1; chance 12.5 %): no cost of a defence"
    )
    said += " can be told"
    assert ((f"T{said}." in text) + (f"t{said}" in caveats)) == (0 if cost else 2)
    assert found[1].drop == (pytest.approx(0.05) if cost else None)


def test_nothing_is_concluded_before_an_attack() -> None:
    assert (
        conclusion(
            summarise(split([Row(metric="test-accuracy", reference="original", value=0.5, round=1)], [""])[0], {})
        )
        == ""
    )


def singly(defense: str, psnrs: list[float], picked: int, seed: int = 0, of_class: float | None = None) -> list[Row]:
    """Scores of which every image is known: the first ``picked`` of them are nearest to their guesses."""
    spread = statistics.stdev(psnrs) * 2.13 / len(psnrs) ** 0.5
    mean = statistics.mean(psnrs)
    known = {
        "defense": defense, "attack": "A()", "round": 1, "n": len(psnrs), "reference": "original", "seed": seed,
    }  # fmt: skip
    more = {"picked_psnr": sorted(psnrs[:picked])}
    scale = (
        []
        if of_class is None
        else [Row(metric="psnr", value=of_class, card=PROBE, **known | {"attack": "scale:class-mean"})]
    )
    return [
        Row(metric="psnr", value=mean, ci_low=mean - spread, ci_high=mean + spread, card=PROBE, **known),
        Row(metric="retrieval", value=picked / len(psnrs), card=PROBE.but(chance=0.01), extra=more, **known),
        Row(metric="psnr", value=12.0, card=PROBE, **known | {"attack": "baseline:mean"}),
        *scale,
    ]


PLAIN = [29.5, 30.5] * 8


@pytest.mark.parametrize(
    ("psnrs", "picked", "expected", "read"),
    [
        (
            [40.0] * 4 + [8.0, 8.2] * 6,
            4,
            Readability.PARTLY,
            4,
        ),  # the mean is far from significant, four people are seen
        ([40.0] + [8.0, 8.2] * 7 + [8.0], 1, Readability.PARTLY, 1),
        ([12.3, 12.5] * 8, 8, Readability.PARTLY, 0),  # picked out, but hardly better than the mean image
        ([14.9, 14.8] * 8, 16, Readability.PARTLY, 0),
        ([15.1, 15.0] * 8, 8, Readability.READABLE, 8),
        ([15.1, 15.0] * 8, 7, Readability.PARTLY, 7),
        ([9.0, 9.2] * 8, 1, Readability.NOT_RECOVERED, 0),
    ],
)
def test_every_image_counts(psnrs: list[float], picked: int, expected: Readability, read: int) -> None:
    found = lines(singly("", PLAIN, 16), singly("D()", psnrs, picked))
    assert verdicts(found[1]) == (("one-step probe", expected),)
    assert f"(D {read} of 16 read)" in conclusion(found)


def test_what_says_no_more_than_the_class_is_no_image() -> None:
    found = lines(singly("", PLAIN, 16), singly("D()", [15.0, 15.2] * 8, 0, of_class=17.1))
    assert verdicts(found[1])[0][1] is Readability.NOT_RECOVERED
    found = lines(singly("", PLAIN, 16), singly("D()", [18.0, 18.2] * 8, 0, of_class=17.1))
    assert verdicts(found[1])[0][1] is Readability.PARTLY


def test_seeds_are_judged_together() -> None:
    """One of five seeds leaks: the mean over seeds does not, sixteen people do."""
    every = [singly("", PLAIN, 16, seed) for seed in range(5)]
    every += [singly("D()", [8.9, 9.1] * 8 if seed else [15.5, 16.5] * 8, 0 if seed else 16, seed) for seed in range(5)]
    found = lines(*every)
    assert verdicts(found[1])[0][1] is Readability.PARTLY
    assert "(D 16 of 80 read)" in conclusion(found)
    # Above the mean image in one seed alone, and nobody is read: the interval over seeds decides.
    every = [singly("", PLAIN, 16, seed) for seed in range(5)]
    every += [singly("D()", [8.9, 9.1] * 8 if seed else [13.0, 14.0] * 8, 0, seed) for seed in range(5)]
    assert verdicts(lines(*every)[1])[0][1] is Readability.NOT_RECOVERED
