"""The verdict on messages of one kind and size: exact tests, corrected for all attacks, and controls on smaller messages."""

import json
from dataclasses import replace
from math import comb

import pytest

from attacks.metrics.names import Role
from simulations.external_app.recorded.command import of_rows
from simulations.report.analysis.finding import Finding, findings_of
from simulations.report.analysis.message import Message, Verdict, judge
from simulations.report.analysis.run import ReadRun
from simulations.report.sections.external_app import RECORDED, recording
from simulations.report.studies.control import validate
from simulations.report.studies.intervals import LEVEL, by_chance
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import Strength, ThreatCard
from tests.simulations.report.report_run import hits, scored, study_of

UPDATE, ASKED = "training update", "one-step probe"


def card(images: int = 1, steps: int = 1, observation: str = ASKED) -> ThreatCard:
    return ThreatCard(observation=observation, images=images, local_steps=steps)


def attacked(found: int, seen: int = 0, *, n: int = 48, chance: float = 0.01, **given: object) -> list[Row]:
    """An attack on n images that identifies ``found`` of them, ``seen`` of these recognisably."""
    psnr = replace(scored(20.0, 18.0, n=n), **{"card": card()} | given)
    return [psnr, hits(psnr, found, chance), hits(psnr, seen, chance, "recognisable")]


def lines(*rows: list[Row]) -> list[Finding]:
    return findings_of(study_of([json.loads(one.line) for of in rows for one in of], ["", "D()"]), {})


def verdict(line: Finding, at: int = 0) -> Message:
    return line.messages[at]


def least(n: int, tried: int, chance: float = 0.01) -> int:
    """Images from which on a verdict is reached: the binomial tail by its definition."""
    tail = [sum(comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(hits, n + 1)) for hits in range(n + 1)]
    return next(hits for hits, p in enumerate(tail) if tried * p <= LEVEL)


@pytest.mark.parametrize(("n", "tried"), [(16, 1), (48, 1), (48, 12)])
def test_the_least_count_of_a_verdict_is_that_of_the_binomial_law(n: int, tried: int) -> None:
    k = least(n, tried)
    others = [attacked(0, n=n, attack=f"Other{at}()") for at in range(tried - 1)]
    for found, word in ((k, Verdict.IDENTIFIABLE), (k - 1, Verdict.UNKNOWN)):
        assert verdict(lines(attacked(found, n=n), *others)[0]).verdict is word
    for seen, word in ((k, Verdict.RECOGNISABLE), (k - 1, Verdict.IDENTIFIABLE)):
        assert verdict(lines(attacked(n, seen, n=n), *others)[0]).verdict is word


def test_a_control_on_a_part_of_the_messages_leads_only_where_nothing_else_is_as_strong() -> None:
    whole, part = attacked(47, 47, attack="Solver()"), attacked(16, 16, n=16, attack="Search()")
    assert (verdict(lines(whole, part)[0]).attack, verdict(lines(whole, part)[0]).found) == ("Solver()", (47, 48))
    assert verdict(lines(attacked(40, 0, attack="Solver()"), part)[0]).attack == "Search()", "a worse verdict"


def test_nothing_is_found_only_where_the_control_passed_on_enough_images() -> None:
    broken, blind = attacked(40, 40), attacked(0, defense="D()")
    assert verdict(lines(broken, blind)[1]).verdict is Verdict.NOTHING
    assert verdict(lines(attacked(0), blind)[1]).verdict is Verdict.UNKNOWN
    assert verdict(lines(broken, attacked(0, n=8, defense="D()"))[1]).verdict is Verdict.UNKNOWN
    # Another attack's control does not answer for this one.
    assert verdict(lines(attacked(40, attack="B()"), blind)[1]).verdict is Verdict.UNKNOWN


def test_a_smaller_message_controls_a_larger_one_and_no_larger_one_a_smaller() -> None:
    small, large = card(1), card(16, 4, UPDATE)
    for found, (real, asked) in {
        (48, 0): (Verdict.NOTHING, Verdict.RECOGNISABLE),
        (0, 48): (Verdict.RECOGNISABLE, Verdict.UNKNOWN),
        (0, 0): (Verdict.UNKNOWN, Verdict.UNKNOWN),
    }.items():
        rows = [attacked(k, k, card=of) for k, of in zip(found, (small, large), strict=True)]
        judged = verdict(lines(*rows)[0]), verdict(lines(*rows)[0], 1)
        assert [one.real for one in judged] == [True, False]
        assert (judged[0].verdict, judged[1].verdict) == (real, asked)


def test_few_candidates_allow_no_verdict_however_many_are_found() -> None:
    assert by_chance(16, 16, 0.9) > LEVEL
    line = lines(attacked(16, 16, n=16, chance=0.9))[0]
    assert verdict(line).verdict is Verdict.UNKNOWN
    assert "could not be judged" in " ".join(line.all_caveats)
    assert judge([]) == []


def test_upper_bounds_decide_nothing_and_are_not_counted_among_those_tried() -> None:
    bound = ThreatCard(observation=ASKED, images=1, local_steps=1, upper_bound="knows the labels")
    k = least(48, 1)
    rows = attacked(k), attacked(48, 48, attack="B()", card=bound, role=Role.UPPER_BOUND)
    judged = lines(*rows)[0].messages
    assert [one.verdict for one in judged] == [Verdict.IDENTIFIABLE]
    assert judged[0].cell is not None
    assert judged[0].cell.attack == "A()"


def test_the_strongest_attack_without_a_defence_that_does_not_apply_under_one_is_named() -> None:
    rows = attacked(40, 40), attacked(47, 47, attack="B()"), attacked(0, defense="D()")
    unable = [replace(scored(None, attack="B()", defense="D()", metric="attack"), status="not-applicable", card=card())]
    told = "B(), the strongest attack without a defence, does not apply to these messages"
    assert told in " ".join(lines(*rows, unable)[1].all_caveats)
    for other in ([replace(unable[0], card=card(4))], [replace(unable[0], status="failed")], []):
        assert told not in " ".join(lines(*rows, other)[1].all_caveats)
    # Other attacks may be all that breaks the defence.
    assert told in " ".join(lines(*rows[:2], attacked(40, 40, defense="D()"), unable)[1].all_caveats)


def test_a_probe_on_which_a_defence_acts_once_is_no_measure_of_its_strength_in_training() -> None:
    for strength, steps, words in (
        (Strength.ONE_STEP, 1, "on a probe of one step"),
        (Strength.FEW_STEPS, 4, "on a probe of 4 steps"),
        (Strength.UPDATE, 4, ""),
    ):
        of = card(4, steps, "probe of several steps" if steps > 1 else ASKED).but(defense_strength=strength)
        found = " ".join(lines(attacked(40, 40, card=of), attacked(0, defense="D()", card=of))[1].all_caveats)
        assert words in found
        assert ("acts once per update" in found) == bool(words)


def test_a_count_that_is_no_finding_is_said_to_be_no_more_than_chance_gives() -> None:
    finding = lines(attacked(40, 40), attacked(1, defense="D()", chance=0.02))[1]
    (message,) = finding.messages
    assert message.verdict == "nothing found"
    assert message.text.endswith("chance 2.0 %, no more than chance may give)")
    finding = lines(attacked(40, 40))[0]
    assert "no more" not in finding.messages[0].text


def test_seeds_are_pooled_and_the_probability_bounds_the_best_of_all_attacks() -> None:
    rows = [attacked(2, seed=seed) for seed in (0, 1)]
    judged = lines(*rows, attacked(0, attack="B()"))[0].messages[0]
    assert judged.found == (4, 96)
    assert judged.probability == pytest.approx(2 * by_chance(4, 96, 0.01))
    assert judged.verdict is Verdict.IDENTIFIABLE


def test_first_screen_banner_and_terminal_give_one_verdict_corrected_for_attacks_on_messages_of_its_size() -> None:
    sizes = {1: (4, 1), 2: (4, 1), 3: (16, 4), 4: (16, 4)}
    rows = [replace(scored(1.0, None, metric=RECORDED, attack=""), role=Role.TRAINING, extra={"scored": True})]
    keys = [(name, at) for name in ("A()", "B()") for at in sizes]
    for name, at in keys:
        size, found = card(*sizes[at], UPDATE), 3 * ((name, at) == keys[0])
        rows += attacked(found, n=16, chance=0.03, attack=name, round=at, card=size)
    # Four attacks were tried on messages of this size: three of 16 images are more than chance, and were not of eight.
    assert 4 * by_chance(3, 16, 0.03) <= LEVEL < 8 * by_chance(3, 16, 0.03)
    read = ReadRun(tuple(validate(rows)), {})
    (summary,) = read.summaries
    assert [one.verdict for one in summary.findings[0].messages] == [Verdict.IDENTIFIABLE, Verdict.UNKNOWN]
    assert recording(summary.study, summary.findings).first == "A() in round 1 found images of these updates."
    said = {(one.cell.attack, one.cell.round): one.verdict for one in of_rows(read, rows)}
    assert said == dict.fromkeys(keys, "unknown") | {keys[0]: "identifiable"}


def test_a_verdict_that_the_number_of_attacks_makes_unknown_says_why() -> None:
    assert by_chance(2, 16, 0.02) <= LEVEL < 3 * by_chance(2, 16, 0.02)
    others = [attacked(0, n=16, chance=0.02, attack=name) for name in ("B()", "C()")]
    for found in (1, 2):
        (message,) = lines(attacked(found, n=16, chance=0.02), *others)[0].messages
        assert (message.verdict, [one[:23] for one in message.warnings]) == ("unknown", ["positive control failed"])
