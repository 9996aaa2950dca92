import statistics
from typing import Any

import pytest

from attacks.metrics.names import Role
from simulations.report import Row, validate
from simulations.report.analysis.conclusion import not_distinguished, verdicts
from simulations.report.analysis.line import Line
from simulations.report.analysis.readability import Readability
from simulations.report.analysis.summary import summarise
from simulations.report.studies.study import split
from strategies.audit.threat_card import ThreatCard
from tests.simulations.report.report_run import hits, null, scored

UPDATE = ThreatCard(observation="training update", local_steps=4)
PROBE = ThreatCard(observation="one-step probe")
READABLE, PARTLY, NOT = Readability.READABLE, Readability.PARTLY, Readability.NOT_RECOVERED
UNKNOWN = Readability.UNKNOWN


def told(defense: str, value: float, share: float, n: int = 16, card: ThreatCard = PROBE) -> list[Row]:
    one = scored(value, value - 0.5, ci_high=value + 0.5, defense=defense, n=n, card=card)
    nulls = [null(v, name, defense=defense, n=n, card=card) for name, v in (("grey", 8.0), ("mean", 12.0))]
    return [one, hits(one, round(share * n)), *nulls]


def singly(
    defense: str, psnrs: list[float], k: int, seed: int = 0, of_class: float | None = None, **given: Any
) -> list[Row]:
    mean, spread = statistics.mean(psnrs), statistics.stdev(psnrs) * 2.13 / len(psnrs) ** 0.5
    known = {"defense": defense, "n": len(psnrs), "seed": seed, "card": PROBE} | given
    one = scored(mean, mean - spread, ci_high=mean + spread, **known)
    scale = [] if of_class is None else [scored(of_class, **known | {"attack": "class-mean", "role": Role.SCALE})]
    return [one, hits(one, k, extra={"picked_psnr": sorted(psnrs[:k])}, card=PROBE.but(chance=0.01)),
            null(12.0, "mean", **{**known, "attack": "mean"}), *scale]  # fmt: skip


def lines(*rows: list[Row]) -> list[Line]:
    return summarise(split(validate([row for some in rows for row in some]), ["", "D()", "E()"])[0], {})


def verdict(*rows: list[Row]) -> Readability:
    ((_, word),) = verdicts(lines(*rows)[1])
    return word


PLAIN = [29.5, 30.5] * 8
CONTROL = singly("", PLAIN, 16)
BOTH = [CONTROL, singly("", PLAIN, 16, attack="B()")]


def test_the_word_follows_from_the_thresholds() -> None:
    for psnr, share, n, expected in (
        (20.0, 1.0, 16, READABLE), (20.0, 0.5, 16, READABLE), (20.0, 7 / 16, 16, PARTLY), (20.0, 0.0, 16, PARTLY),
        (10.0, 1.0, 16, PARTLY), (11.9, 0.0, 16, NOT), (20.0, 1.0, 15, UNKNOWN),
        (12.4, 0.0, 16, UNKNOWN),  # the interval reaches below the mean image, and above it
    ):  # fmt: skip
        assert verdict(told("", 30.0, 1.0), told("D()", psnr, share, n)) is expected, (psnr, share, n)


def test_every_image_counts() -> None:
    for psnrs, k, expected, read in (
        ([40.0] * 4 + [8.0, 8.2] * 6, 4, PARTLY, 4),  # the mean is far from significant, four people are seen
        ([40.0] + [8.0, 8.2] * 7 + [8.0], 1, PARTLY, 1),
        ([12.3, 12.5] * 8, 8, PARTLY, 0),  # identified, but hardly better than the mean image
        ([14.9, 14.8] * 8, 16, PARTLY, 0),
        ([15.1, 15.0] * 8, 8, READABLE, 8),
        ([15.1, 15.0] * 8, 7, PARTLY, 7),
        ([9.0, 9.2] * 8, 1, NOT, 0),
    ):
        found = lines(CONTROL, singly("D()", psnrs, k))
        assert verdicts(found[1]) == (("one-step probe", expected),)
        assert found[1].recovered == (read, 16)
    # What says no more than the class is no image.
    for value, expected in ((15.0, NOT), (18.0, PARTLY)):
        found = lines(CONTROL, singly("D()", [value, value + 0.2] * 8, 0, of_class=17.1))
        assert verdicts(found[1])[0][1] is expected
        assert found[1].recovered == (0, 16)


def test_what_chance_may_explain_is_not_distinguished_from_no_defence() -> None:
    found = lines(told("", 30.0, 1.0), told("D()", 9.0, 0.0), told("E()", 25.0, 1.0))
    assert not_distinguished(found) == (
        "Not distinguishable from no defence (Fisher's exact test): E (one-step probe)."
    )
    # What does not read undefended images says nothing of a defence.
    updates = [told(of, 9.0, 0.0, card=UPDATE) for of in ("", "D()")]
    found = lines(told("", 30.0, 1.0), told("D()", 9.0, 0.0), *updates)
    assert verdicts(found[1]) == (("one-step probe", NOT), ("training update", UNKNOWN))
    assert not_distinguished(found) == ""
    assert not_distinguished(lines(told("", 30.0, 1.0, n=8), told("D()", 30.0, 1.0, n=8))) == ""


def test_a_model_that_has_not_learned_costs_nothing_that_could_be_told() -> None:
    for right, classes, cost in ((16 / 137, 8, False), (16 / 137, 100, True), (0.6, 8, True)):
        card = PROBE.but(num_classes=classes)
        known = {"metric": "test-accuracy", "reference": "original", "round": 1, "n": 137}
        accuracies = [Row(value=v, defense=of, **known) for of, v in (("", right), ("D()", right - 0.05))]
        found = lines(told("", 30.0, 1.0, card=card), told("D()", 9.0, 0.0, card=card), accuracies)
        said = (
            "the model has not learned without a defence (accuracy 11.7 %, 7.3 to 18.1; chance 12.5 %): the cost of a"
        )
        assert (said in " ".join(found[0].caveats)) == (not cost)
        assert (found[1].change and found[1].change.mean) == (pytest.approx(-0.05) if cost else None)
        rows = [row for some in (told("", 30.0, 1.0, card=card), accuracies) for row in some]
        (running, *_) = summarise(split(validate(rows), ["", "D()"])[0], {}, running=True)
        assert said not in " ".join(running.caveats), "the model that will be tested is not there yet"


def test_seeds_are_judged_together() -> None:
    def over(
        seeds: int, first: list[float], rest: list[float], k: int = 0, of_class: float | None = None
    ) -> Readability:
        plain = [singly("", PLAIN, 16, seed) for seed in range(seeds)]
        return verdict(*plain, singly("D()", first * 8, k, 0, of_class),
                       *(singly("D()", rest * 8, 0, seed, of_class) for seed in range(1, seeds)))  # fmt: skip

    # One of five seeds leaks: the mean over seeds does not, sixteen people do.
    assert over(5, [15.5, 16.5], [8.9, 9.1], k=16) is PARTLY
    # Above the mean image in one seed alone, and no image is recovered: what one seed shows no other takes back.
    assert over(5, [13.0, 14.0], [8.9, 9.1]) is PARTLY
    # Every seed above it by less than its own interval, and all together by more than that over seeds.
    assert (over(5, [11.0, 13.5], [11.0, 13.5]), over(2, [11.0, 13.5], [11.0, 13.5])) == (PARTLY, PARTLY)
    assert over(1, [11.0, 13.5], []) is UNKNOWN
    # 18.5 and 20.5 dB, each above the mean of the class with its whole interval: Student's over two seeds is 6.8 to 32.2.
    assert over(2, [18.4, 18.6], [20.4, 20.6], of_class=17.1) is PARTLY
    assert over(2, [12.5, 24.5], [10.5, 22.5], of_class=17.1) is UNKNOWN


def test_the_verdict_is_of_the_attack_that_reads_most() -> None:
    # A has the higher mean and reads 7; B reads 9. Or A is above the mean image alone, and B reads five.
    high, more = singly("D()", [40.0] * 7 + [12.0] * 9, 7), singly("D()", [16.0] * 9 + [9.0] * 7, 9, attack="B()")
    blurred = singly("D()", [13.0, 13.2] * 8, 0, of_class=17.1)
    five = singly("D()", [20.0] * 5 + [8.0] * 11, 5, attack="B()")
    for rows, expected, k in (((high, more), READABLE, 9), ((blurred, five), PARTLY, 5)):
        found = lines(*BOTH, *rows)
        assert (found[1].strongest.attack, verdicts(found[1])[0][1]) == ("B()", expected)
        assert found[1].recovered == (k, 16)
    assert verdict(*BOTH, blurred) is NOT
    # That an attack which never broke the undefended run is not clearly above the mean image is no evidence for or against.
    failed, untried = singly("D()", [9.0, 9.2] * 8, 0), singly("D()", [11.0, 13.5] * 8, 0, attack="B()")
    assert (verdict(CONTROL, failed, untried), verdict(*BOTH, failed, untried)) == (NOT, UNKNOWN)
