"""One word for each defence, by stated thresholds, and the sentence that the top of a report says."""

from __future__ import annotations

import statistics

import pytest

from attacks.metrics.names import Role
from simulations.report import Row, validate
from simulations.report.analysis.conclusion import conclusion, verdicts
from simulations.report.analysis.line import Line
from simulations.report.analysis.readability import Readability
from simulations.report.analysis.sentences import sentence
from simulations.report.analysis.summary import summarise
from simulations.report.studies.study import split
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
            Row(metric="psnr", value=v, card=card, **known | {"attack": k, "role": Role.NULL_BASELINE})
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
        (12.4, 0.0, 16, Readability.UNKNOWN),  # the interval reaches below the mean image, and above it
        (11.9, 0.0, 16, Readability.NOT_RECOVERED),
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
        "One-step probes. Without a defence: unknown (0 of 16 recovered): no attack is shown to recover the images, so nothing "
        "here is evidence for a defence."
    )


def test_the_conclusion_names_every_defence_with_its_verdict() -> None:
    found = lines(told("", 30.0, 1.0), told("D()", 9.0, 0.0), told("E()", 25.0, 1.0))
    assert conclusion(found) == (
        "One-step probes. Without a defence: readable (16 of 16 recovered). D: not recovered (0 of 16 recovered). "
        "E: readable (16 of 16 recovered). Not distinguishable from no defence (Fisher's exact test): E."
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
    first, second = conclusion(found).split(" Training updates. ")
    assert first == (
        "One-step probes. Without a defence: readable (16 of 16 recovered). D: not recovered (0 of 16 recovered)."
    )
    assert second.startswith("Without a defence: unknown (0 of 16 recovered): no attack is shown to recover the images")
    assert "D:" not in second


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
    assert ("(0 of 16 recovered, \N{MINUS SIGN}5.0 points)" in text) == cost
    said = "he model has not learned without a defence (accuracy 11.7 %, 7.3 to 18.1; chance 12.5 %): the cost of a defence"
    said += " cannot be measured"
    assert ((f"T{said}." in text) + (f"t{said}" in caveats)) == (0 if cost else 2)
    assert (found[1].change and found[1].change.mean) == (pytest.approx(-0.05) if cost else None)


def test_nothing_is_concluded_before_an_attack() -> None:
    assert (
        conclusion(
            summarise(split([Row(metric="test-accuracy", reference="original", value=0.5, round=1)], [""])[0], {})
        )
        == ""
    )


def singly(
    defense: str, psnrs: list[float], picked: int, seed: int = 0, of_class: float | None = None, attack: str = "A()"
) -> list[Row]:
    """Scores of which every image is known: the first ``picked`` of them are nearest to their guesses."""
    spread = statistics.stdev(psnrs) * 2.13 / len(psnrs) ** 0.5
    mean = statistics.mean(psnrs)
    known = {
        "defense": defense, "attack": attack, "round": 1, "n": len(psnrs), "reference": "original", "seed": seed,
    }  # fmt: skip
    more = {"picked_psnr": sorted(psnrs[:picked])}
    scale = (
        []
        if of_class is None
        else [Row(metric="psnr", value=of_class, card=PROBE, **known | {"attack": "class-mean", "role": Role.SCALE})]
    )
    return [
        Row(metric="psnr", value=mean, ci_low=mean - spread, ci_high=mean + spread, card=PROBE, **known),
        Row(metric="retrieval", value=picked / len(psnrs), card=PROBE.but(chance=0.01), extra=more, **known),
        Row(metric="psnr", value=12.0, card=PROBE, **known | {"attack": "mean", "role": Role.NULL_BASELINE}),
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
    told = (
        f"{read} of 16 recovered"
        if read or expected is not Readability.PARTLY
        else f"0 of 16 recovered, {picked} of 16 identified"
    )
    assert f"D: {expected} ({told})" in conclusion(found)


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
    assert "D: partly readable (16 of 80 recovered)" in conclusion(found)
    # Above the mean image in one seed alone, and nobody is read: what one seed shows no other takes back.
    every = [singly("", PLAIN, 16, seed) for seed in range(5)]
    every += [singly("D()", [8.9, 9.1] * 8 if seed else [13.0, 14.0] * 8, 0, seed) for seed in range(5)]
    assert verdicts(lines(*every)[1])[0][1] is Readability.PARTLY
    # Every seed above it by less than its own interval, and all together by more than that over seeds.
    several = [singly("", PLAIN, 16, seed) for seed in range(5)]
    several += [singly("D()", [11.0, 13.5] * 8, 0, seed) for seed in range(5)]
    assert verdicts(lines(*several)[1])[0][1] is Readability.PARTLY
    assert verdicts(lines(*several[:2], *several[5:7])[1])[0][1] is Readability.PARTLY
    assert verdicts(lines(several[0], several[5])[1])[0][1] is Readability.UNKNOWN


def test_two_seeds_do_not_hide_what_each_shows() -> None:
    """18.5 and 20.5 dB, each above the mean of the class with its whole interval: Student's over two seeds is 6.8 to 32.2."""
    every = [singly("", PLAIN, 16, seed) for seed in (0, 1)]
    every += [singly("D()", [psnr - 0.1, psnr + 0.1] * 8, 0, seed, 17.1) for seed, psnr in ((0, 18.5), (1, 20.5))]
    found = lines(*every)[1]
    assert found.strongest is not None
    assert found.strongest.psnr is not None
    assert found.strongest.psnr.low == pytest.approx(6.8, abs=0.1)
    assert verdicts(found)[0][1] is Readability.PARTLY
    # Neither shows it, and both together are above it by less than any interval: nobody can say.
    every[2:] = [singly("D()", [psnr - 6, psnr + 6] * 8, 0, seed, 17.1) for seed, psnr in ((0, 18.5), (1, 16.5))]
    assert verdicts(lines(*every)[1])[0][1] is Readability.UNKNOWN


def test_the_verdict_is_of_the_attack_that_reads_most() -> None:
    plain = [singly("", PLAIN, 16), singly("", PLAIN, 16, attack="B()")]
    # A has the higher mean and reads 7; B reads 9.
    high, more = singly("D()", [40.0] * 7 + [12.0] * 9, 7), singly("D()", [16.0] * 9 + [9.0] * 7, 9, attack="B()")
    found = lines(*plain, high, more)
    assert found[1].strongest is not None
    assert found[1].strongest.attack == "B()"
    assert verdicts(found[1])[0][1] is Readability.READABLE
    assert "D: readable (9 of 16 recovered)" in conclusion(found)
    assert "the strongest attack recovered 9 of 16 images" in sentence(found[1])
    assert sentence(found[1]).endswith(
        " The best-recovered image of all attacks is by A(), round 1, one-step probe: 40.0 dB, 28.0 dB above the best null "
        "baseline for it."
    )
    # Alone, A is what is told of.
    assert "of all attacks" not in sentence(lines(*plain, high)[1])


def test_no_attack_above_the_mean_image_hides_one_that_reads_people() -> None:
    """A is above the mean image and below the mean of the class, and reads nobody; B reads five of sixteen."""
    plain = [singly("", PLAIN, 16), singly("", PLAIN, 16, attack="B()")]
    blurred = singly("D()", [13.0, 13.2] * 8, 0, of_class=17.1)
    five = singly("D()", [20.0] * 5 + [8.0] * 11, 5, attack="B()")
    found = lines(*plain, blurred, five)
    assert found[1].strongest is not None
    assert found[1].strongest.attack == "B()"
    assert verdicts(found[1])[0][1] is Readability.PARTLY
    assert "D: partly readable (5 of 16 recovered)" in conclusion(found)
    assert verdicts(lines(*plain, blurred)[1])[0][1] is Readability.NOT_RECOVERED


def test_a_failure_without_a_control_takes_nothing_from_one_with_it() -> None:
    """B never broke the undefended run: that it is not clearly above the mean image is no evidence for or against."""
    failed, untried = singly("D()", [9.0, 9.2] * 8, 0), singly("D()", [11.0, 13.5] * 8, 0, attack="B()")
    control = singly("", PLAIN, 16)
    assert verdicts(lines(control, failed, untried)[1])[0][1] is Readability.NOT_RECOVERED
    # With a control it is open whether B recovers anything.
    both = lines(control, singly("", PLAIN, 16, attack="B()"), failed, untried)
    assert verdicts(both[1])[0][1] is Readability.UNKNOWN


def test_beside_the_images_that_are_read_stand_those_that_the_class_tells() -> None:
    of_class = Row(
        metric="retrieval", value=1 / 16, n=16, round=1, reference="original", attack="class-mean", role=Role.SCALE,
        card=PROBE.but(chance=0.01), extra={"picked_psnr": [15.2]},
    )  # fmt: skip
    one = singly("D()", [15.5] + [8.0, 8.2] * 7 + [8.0], 1, of_class=11.0)
    found = lines(singly("", PLAIN, 16, of_class=11.0), one, [of_class])
    assert "D: partly readable (1 of 16 recovered, class mean 1 of 16)" in conclusion(found)
    # Not above the bar, it reads nobody.
    below = Row(**{**vars(of_class), "extra": {"picked_psnr": [14.9]}})
    assert "D: partly readable (1 of 16 recovered)" in conclusion(
        lines(singly("", PLAIN, 16, of_class=11.0), one, [below])
    )


def test_where_neither_is_read_nor_picked_out_the_mean_is_told() -> None:
    found = lines(singly("", PLAIN, 16), singly("D()", [18.0, 18.2] * 8, 0, of_class=17.1))
    assert "D: partly readable (0 of 16 recovered, 18.1 dB)" in conclusion(found)
