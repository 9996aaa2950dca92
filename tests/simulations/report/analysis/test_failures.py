import json
from pathlib import Path

from simulations.report.analysis.failures import each_once, failed_attacks, not_applicable, not_run
from simulations.report.studies.rows import read_rows
from simulations.run_folder.rows import Row
from tests.simulations.report.report_run import row

NOT_APPLICABLE = {"metric": "attack", "status": "not-applicable", "n": 4, "message": "does not apply: no linear layer"}


def test_attacks_without_a_score_are_those_that_failed_on_everything(tmp_path: Path) -> None:
    for fields, lost in (
        ({"metric": "attack", "status": "failed", "n": 4, "failures": 4}, True),
        ({"metric": "psnr", "value": 6.0, "n": 4, "failures": 4}, True),
        ({"metric": "psnr", "value": 6.0, "n": 4, "failures": 3}, False),
        (
            {
                "metric": "psnr",
                "value": 6.0,
                "n": 4,
                "failures": 4,
                "card": {"attack_failures": ["found 0 of 4"], "in_vain": True},
            },
            False,
        ),
        # A score of membership counts records in n and failed tests in failures: three tests may fail of five records.
        ({"metric": "membership-auc", "value": 0.7, "n": 3, "failures": 3}, False),
        ({"metric": "membership-auc", "status": "failed", "n": 9, "failures": 1}, True),
        # No attack that applies is an audit of nothing.
        (NOT_APPLICABLE, True),
    ):
        (tmp_path / "rows.jsonl").write_text(json.dumps(row(attack="Some()", **fields)) + "\n")
        assert bool(failed_attacks(tmp_path)) == lost, fields


def test_an_attack_without_a_place_is_no_failure_beside_another_that_was_tried(tmp_path: Path) -> None:
    rows = [row(attack="Some()", **NOT_APPLICABLE), row(attack="Other()", metric="psnr", value=6.0, n=4, failures=3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert failed_attacks(tmp_path) == []
    (told,) = not_applicable(read_rows(tmp_path / "rows.jsonl")[0])
    assert "Some()" in str(told)
    assert told.message == NOT_APPLICABLE["message"]


def test_the_attacks_that_did_not_run_stand_with_their_reason_and_their_defences() -> None:
    why = "does not apply: values 1 and 2 are {} and 3"
    unable = {"attack": "Some()"} | NOT_APPLICABLE
    found = [row(defense=of, **unable | {"message": why.format(at)}) for at, of in enumerate("AB")]
    found += [row(attack="Some()", defense="A", metric="attack", status="not-needed", message="not needed: all found")]
    found += [row(attack="Some()", defense="A", metric="attack", status="failed", message="out of memory")]
    told = not_run([Row.from_json(one) for one in found])
    assert told == [(why.format(0), ["Some()"], ["A", "B"]), ("not needed: all found", ["Some()"], ["A"])]


def test_reasons_that_differ_in_their_numbers_alone_are_told_once() -> None:
    reasons = ["rank 0.41 and 0.4e-3 of 8", "rank 0.42 and 0.41 of 8", "no linear layer", "rank 3 and 2 of 8"]
    assert each_once(reasons) == ["rank 0.41 and 0.4e-3 of 8 (and 2 more with other numbers)", "no linear layer"]
    assert each_once([]) == []
