"""The rule by which claims are confirmed, refuted or open, on made-up rows."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import records
import verdict
import write
from catalogue import Cell, Claim, Table, possible
from scipy import stats

from attacks.metrics.names import Role
from simulations.report.studies.intervals import interval, wilson
from simulations.report.studies.score import merge
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import ThreatCard

LEFT, RIGHT = Cell("psnr", "Blur()", "A()", "original", run="r"), Cell("psnr", "", "A()", "original", run="r")
BELOW = Claim("Blur hides.", ((1.0, LEFT), (-1.0, RIGHT)), "below", 0.0, "dB")
ACCURACY, PLAIN = (Cell("test-accuracy", defense, reference="deployed", run="r") for defense in ("Blur()", ""))
AT_MOST = Claim("At most 60 %.", ((1.0, ACCURACY),), "below", 0.6)


def rows(seed: int, defended: float, plain: float, half: float = 1.0, status: str = "ok") -> list[Row]:
    """Of one seed: the attack under the defence and without one, each with an interval."""
    return [
        Row(metric="psnr", seed=seed, defense=cell.defense, attack="A()", role=Role.ATTACK, reference="original", value=value,
            n=16, ci_low=value - half, ci_high=value + half, status=status)
        for cell, value in ((LEFT, defended), (RIGHT, plain))
    ]  # fmt: skip


def judged(*seeds: Sequence[Row]) -> verdict.Judged:
    return verdict.judge(BELOW, {"r": dict(enumerate(seeds))})


def earlier(**found: object) -> verdict.Judged:
    """Judged by what an earlier page has, a difference that is claimed to lie above 0."""
    return verdict.measured_earlier(Claim("s", side="above", unit="dB", earlier=found))


def accuracies(seed: int, *values: float) -> list[Row]:
    """Of one seed: the accuracy under the defence and without one, on 400 images."""
    return [
        Row(metric="test-accuracy", seed=seed, defense=cell.defense, reference="original", value=value, n=400)
        for cell, value in zip((ACCURACY, PLAIN), values, strict=False)
    ]


def words(*verdicts: str, **kind: object) -> list[verdict.Judged]:
    """Judged claims with these verdicts, of one kind."""
    return [verdict.Judged(replace(BELOW, **kind), one, 1.0) for one in verdicts]  # type: ignore[arg-type]


def test_seeds_decide_by_students_t_of_paired_differences() -> None:
    clear = judged(rows(0, 10.0, 20.0), rows(1, 15.0, 25.5), rows(2, 5.0, 14.5))
    half = stats.t.ppf(0.975, 2) * 0.5 / 3**0.5
    assert (clear.verdict, clear.value) == (verdict.CONFIRMED, pytest.approx(-10.0))
    assert (clear.low, clear.high) == (pytest.approx(-10 - half), pytest.approx(-10 + half))
    assert (clear.n, clear.seeds) == ("48", (0, 1, 2))
    assert judged(rows(0, 20.0, 10.0), rows(1, 25.5, 15.0), rows(2, 14.5, 5.0)).verdict == verdict.REFUTED
    assert judged(rows(0, 10.0, 11.0), rows(1, 12.0, 11.0), rows(2, 9.0, 11.0)).verdict == verdict.OPEN


def test_fewer_than_three_seeds_decide_nothing() -> None:
    assert judged(rows(0, 10.0, 13.0)).low == pytest.approx(-5.0), "the rows' own intervals"
    for plain, said in ((13.0, verdict.CONFIRMED), (10.0, ""), (7.0, verdict.REFUTED)):
        one, two = judged(rows(0, 10.0, plain)), judged(rows(0, 10.0, plain - 0.01), rows(1, 10.0, plain + 0.01))
        for found, seeds in ((one, "one seed"), (two, "two seeds")):
            expected = f"{said}, but {seeds}" if said else ""
            assert (found.verdict, found.note) == (verdict.OPEN, expected), (plain, seeds)


def test_an_accuracy_that_still_moves_decides_nothing() -> None:
    def after(**rounds: float) -> verdict.Judged:
        found = {
            seed: [replace(accuracies(seed, value)[0], round=int(at[1:])) for at, value in rounds.items()]
            for seed in range(3)
        }
        return verdict.judge(AT_MOST, {"r": found})

    still = "confirmed, but convergence not shown"
    assert (after(r3=0.41, r4=0.4).verdict, after(r6=0.4, r7=0.2, r8=0.4).verdict) == ("confirmed", "confirmed")
    assert (after(r3=0.42, r4=0.4).note, after(r4=0.4).note, after(r1=0.4, r4=0.4).note) == (still, still, still)
    lasting = replace(AT_MOST, terms=(), bound=60.0, unit="points")
    page = {"interval": [40.0, 39.0, 41.0], "n": "400", "seeds": [0, 1, 2]}
    assert verdict.measured_earlier(replace(lasting, earlier=page)).note == still
    assert verdict.measured_earlier(replace(lasting, earlier=page, unit="dB")).verdict == "confirmed"


def test_missing_or_unvalidated_numbers_leave_a_claim_open_with_a_reason() -> None:
    for status in ("not-validated", "under-powered"):
        found = judged(rows(0, 10.0, 30.0, status=status))
        assert (found.verdict, found.note) == (verdict.OPEN, status)
        mixed = judged(rows(0, 10.0, 20.0), rows(1, 10.0, 20.0, status=status), rows(2, 10.0, 20.1))
        assert mixed.verdict == verdict.OPEN
    assert judged().note == "not run yet"
    assert judged(rows(0, 1.0, 2.0)[:1]).note == "the runs have no such number"
    failed = judged(rows(0, 10.0, 20.0), rows(1, 10.0, 20.1), rows(2, 10.0, 20.0)[1:])
    assert (failed.verdict, failed.note, failed.seeds) == (verdict.OPEN, "no number in seed 2", (0, 1))


def test_seeds_that_agree_on_the_same_images_say_nothing_of_other_images() -> None:
    for values in ((0.59, 0.5925, 0.5875), (0.59, 0.59, 0.59)):
        found = {"r": {seed: accuracies(seed, value) for seed, value in enumerate(values)}}
        one = verdict.judge(AT_MOST, found)
        low, high = wilson(0.59, 400)
        assert (one.verdict, one.value) == (verdict.OPEN, pytest.approx(0.59))
        assert one.low <= low + 0.001  # type: ignore[operator]
        assert one.high >= high - 0.001  # type: ignore[operator]
        line = merge([row for of in found["r"].values() for row in records.chosen(of, ACCURACY)])
        assert one.low <= line.low  # type: ignore[operator]


def test_differences_on_the_same_images_are_never_narrower_than_one_seeds() -> None:
    costs = Claim("At most 3 points.", ((1.0, ACCURACY), (-1.0, PLAIN)), "above", -0.03)
    found = {"r": {seed: accuracies(seed, 0.59 + at, 0.6 + at) for seed, at in enumerate((0.0, 0.003, 0.0055))}}
    found["r"][2][0] = accuracies(2, 0.596)[0]
    one = verdict.judge(costs, found)
    low, high = wilson(0.593, 400)[0], wilson(0.603, 400)[1]
    assert one.verdict == verdict.OPEN
    # Newcombe 1998, method 10: the two distances to the ends of Wilson's intervals add up as the sides of a right angle.
    assert one.low == pytest.approx(-0.01 - ((0.593 - low) ** 2 + (high - 0.603) ** 2) ** 0.5, abs=0.002)
    apart = earlier(by_seed=[[20.0, 60.0], [30.0, 60.0]], tests=100000)
    assert (apart.low, apart.high) == interval([-40.0, -30.0])
    alike, single = earlier(by_seed=[[59.0, 60.0], [59.1, 60.1]], tests=400), earlier(shares=[59.05, 60.05], tests=400)
    assert (alike.low, alike.high) == (pytest.approx(single.low), pytest.approx(single.high))
    assert (alike.seeds, single.seeds, alike.n) == ((0, 1), (0,), "400")


def test_attacked_images_of_every_seed_are_others_unless_they_are_queries() -> None:
    half = stats.t.ppf(0.975, 2) * 0.1 / 3**0.5
    for observation, low, high in (("one-step probe", -10.1 - half, -10.1 + half), ("queries", -12.1, -8.1)):
        found = [rows(0, 10.0, 20.0), rows(1, 10.0, 20.1), rows(2, 10.0, 20.2)]
        one = judged(*([replace(row, card=ThreatCard(observation=observation)) for row in of] for of in found))
        assert (one.low, one.high) == (pytest.approx(low), pytest.approx(high)), observation


def test_an_attack_that_fails_without_a_defence_refutes_that_it_works() -> None:
    for value, status, control, expected in (
        (-7.0, "not-validated", True, verdict.REFUTED), (7.0, "not-validated", True, verdict.CONFIRMED),
        (-7.0, "not-validated", False, verdict.OPEN), (-7.0, "under-powered", True, verdict.OPEN),
    ):  # fmt: skip
        claim = Claim("It works.", ((1.0, RIGHT),), "above", 0.0, "dB", control=control)
        found = verdict.judge(claim, {"r": {seed: rows(seed, 0.0, value + seed, status=status) for seed in range(3)}})
        assert found.verdict == expected, (value, status, control)


def test_one_claim_refutes_a_table_and_all_confirm_it() -> None:
    """Controls, variants and comparisons of ours decide nothing, and an attack that fails anyway confirms nothing."""
    failed, ours = words("refuted", control=True), words("refuted", ours="a bound of ours")
    for claims, expected in (
        (words("confirmed", "refuted", "open"), "refuted"), (words("confirmed", "confirmed"), "confirmed"),
        (words("confirmed", "open"), "open"), ([], "open"),
        ([*failed, *words("confirmed")], "open"), ([*failed, *words("refuted")], "refuted"), (failed, "refuted"),
        ([*words("refuted", variant=True), *words("confirmed")], "confirmed"),
        ([*words("confirmed", variant=True), *words("open")], "open"),
        *(([*ours, *words(word)], word) for word in ("confirmed", "open", "refuted")),
    ):  # fmt: skip
        assert verdict.overall(claims) == expected, claims
    assert verdict.counting([*failed, *ours, *words("open", "confirmed")]) == words("open", "confirmed")
    better = words("refuted", favours="ADP")
    assert verdict.favoured([*better, *words("open")]) == "ADP"
    assert verdict.favoured([*better, *words("refuted")]) == ""
    assert (write.word(better[0]), write.word(ours[0])) == ("refuted (in favour of ADP)", "refuted (a bound of ours)")


def test_intervals_end_where_the_quantity_does() -> None:
    for metric, (low, high) in (
        ("membership-auc", (0.0, 1.0)), ("test-accuracy", (0.0, 1.0)), ("ms-ssim", (0.0, 1.0)), ("psnr", (0.0, 100.0)),
    ):  # fmt: skip
        cell = Cell(metric)
        assert possible(Claim("s", ((1.0, cell),), "above")) == (low, high)
        assert possible(Claim("s", ((1.0, cell), (-1.0, cell)), "above")) == (low - high, high - low)
    assert possible(Claim("s", ((1.0, ACCURACY), (-1.0, PLAIN)), scale=100.0)) == (-100.0, 100.0)
    area = Claim("s", ((1.0, Cell("membership-auc")),), "above", 0.6, earlier={"by_seed": [0.73, 0.78], "n": "9"})
    one, half = verdict.measured_earlier(area), stats.t.ppf(0.975, 1) * 0.025
    assert (one.low, one.high, one.verdict) == (pytest.approx(0.755 - half), 1.0, "open")
    tokens = replace(area, terms=(), within=(0.0, 0.8))
    assert verdict.measured_earlier(tokens).high == 0.8


def test_earlier_numbers_have_the_interval_that_they_allow() -> None:
    both = earlier(cells=[[10.0, 9.0, 11.0], [7.0, 6.5, 7.5]], n="16", seeds=[0, 1, 2])
    assert (both.value, both.low, both.high, both.verdict, both.seeds) == (3.0, 1.5, 4.5, "confirmed", (0, 1, 2))
    widened = earlier(interval=[-7.0, -8.8, -5.3], shares=[73.4, 80.4], tests=2000)
    assert (widened.value, widened.low, widened.high) == pytest.approx((-7.0, -9.6, -4.4), abs=0.1)
    assert earlier(shares=[76.4, 83.7], tests=2000, value=-7.2).value == -7.2
    nothing = earlier(value=-0.9, n="32")
    assert (nothing.verdict, nothing.note, nothing.low) == ("open", "no interval", None)
    assert (earlier(n="48", note="not measured").value, earlier(n="48", seeds="-").seeds) == (None, "-")


def test_an_earlier_number_decides_until_as_many_seeds_measured_the_same_claim() -> None:
    claim = replace(BELOW, earlier={"interval": [5.0, 4.0, 6.0], "n": "16", "seeds": [0, 1, 2]})
    clear = {seed: rows(seed, 10.0, 20.0 + seed / 10) for seed in range(3)}
    for seeds in range(3):
        (one,) = verdict.judged(Table("Table 1", "s", (claim,)), {"r": {seed: clear[seed] for seed in range(seeds)}})
        assert (one.value, one.verdict) == (5.0, verdict.REFUTED)
    (one,) = verdict.judged(Table("Table 1", "s", (claim,)), {"r": clear})
    assert (one.value, one.verdict) == (pytest.approx(-10.1), verdict.CONFIRMED)
    without = replace(claim, earlier={**claim.earlier, "seeds": "-"})
    for found, value in (({}, 5.0), ({"r": {0: clear[0]}}, -10.0)):
        assert verdict.judged(Table("Table 1", "s", (without,)), found)[0].value == value


def test_a_note_holds_a_claim_open_whether_a_run_or_a_page_measured_it() -> None:
    high = {"r": {seed: [Row(metric="psnr", value=0.9 + seed / 100, n=400, seed=seed)] for seed in range(3)}}
    cell = Cell("psnr", run="r")
    claim = Claim("It costs nothing.", ((1.0, cell),), "above", 0.5)
    held = replace(claim, note="an under-trained baseline", ours="a bound of ours")
    assert verdict.judge(claim, high).verdict == "confirmed"
    noted = verdict.judge(held, high)
    assert (noted.verdict, noted.note, noted.value) == ("open", "an under-trained baseline", pytest.approx(0.91))
    page = {"interval": [0.9, 0.8, 1.0], "n": "400", "seeds": [0, 1, 2]}
    for own, found, expected in (
        (held, page, ("open", "an under-trained baseline")),
        (claim, page, ("confirmed", "")),
        (claim, {**page, "note": "another measure"}, ("open", "another measure")),
    ):
        one = verdict.measured_earlier(replace(own, earlier=found))
        assert (one.verdict, one.note) == expected


def test_rounds_references_and_null_baselines_are_told_apart() -> None:
    def row(value: float, reference: str = "original", **other: object) -> Row:
        return Row(metric="psnr", reference=reference, value=value, n=4, **other)  # type: ignore[arg-type]

    found = [row(at, attack="A()", role=Role.ATTACK, round=at) for at in (1, 3, 9)]
    found.append(row(50.0, attack="mean", role=Role.NULL_BASELINE, round=1))
    for at, value in (("first", 1.0), ("last", 9.0), (3, 3.0)):
        assert [one.value for one in records.chosen(found, Cell("psnr", "", "A()", "original", at))] == [value]
    assert [one.value for one in records.chosen(found, Cell("psnr", "", "mean", "original"))] == [50.0]
    assert records.chosen(found, Cell("psnr", "", "A()", "deployed"))[0].value == 9.0
    both = [*found, row(7.0, "transformed", attack="A()", role=Role.ATTACK, round=9)]
    assert [one.value for one in records.chosen(both, Cell("psnr", "", "A()", "deployed"))] == [7.0]
    uploads = row(8.0, attack="mean", role=Role.NULL_BASELINE, round=1, card=ThreatCard(observation="uploaded images"))
    assert len(records.chosen([*found, uploads], Cell("psnr", "", "mean", "original"))) == 2
    seen = Cell("psnr", "", "mean", "original", observation="uploaded images")
    assert records.chosen([*found, uploads], seen) == [uploads]
