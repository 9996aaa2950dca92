from pathlib import Path

from simulations.report.analysis.finding import findings_of
from tests.simulations.report.report_run import MEMBERS, PIPELINES, Page, attack_rows, build, member_rows, study_of

MIXER = PIPELINES[1]
SURE = (0.65, 0.75)
FEW = [one for defense in PIPELINES[:2] for one in attack_rows(defense)]


def membership_rows(found: Page) -> list[dict[str, list[str]]]:
    # Those that tell members from others, then those at chance, which are folded.
    return [one for at in range(len(found.tables["membership"])) for one in found.table("membership", at)]


def test_an_auc_that_says_nothing_carries_its_mark_wherever_it_stands(tmp_path: Path) -> None:
    for at, (plain, mixed, status) in enumerate([
        (SURE, (0.48, 0.56), "✓ ok"),
        ((0.45, 0.95), (0.48, 0.56), "† not validated"),  # did not break the undefended run
        (SURE, (0.45, 0.75), "† under-powered"),  # no leak, or all of the undefended 0.70
    ]):  # fmt: skip
        rows = member_rows("", 0.7, plain) + member_rows(MIXER, 0.52, mixed)
        mark = "" if status == "✓ ok" else " †"
        found = build(tmp_path / str(at), FEW + rows)
        shown = membership_rows(found)[1]
        assert (shown["Status"], shown["AUC"][0]) == ([status], f"0.52{mark}")
        assert found.table("cost")[1]["member AUC"][0] == f"0.52{mark}"
        assert found.table("cost")[0]["member AUC"][0] == "0.70" + (" †" if "validated" in status else "")
        written = (tmp_path / str(at) / "rows.csv").read_text(encoding="utf-8")
        assert ("not-validated" in written, "under-powered" in written) == ("not v" in status, "under" in status)


def test_rates_are_marked_where_the_non_members_cannot_have_them(tmp_path: Path) -> None:
    for at, (others, mark) in enumerate([(99, " †"), (100, "")]):
        line = build(tmp_path / str(at), member_rows("", 0.7, SURE, others=others)).table("membership")[0]
        assert line["TPR at 1 % FPR"] == [f"12.5 %{mark}", "10.0 to 15.0"]
        assert line["AUC"][0] == "0.70"


def test_members_found_are_of_the_attack_with_the_highest_rate(tmp_path: Path) -> None:
    others = member_rows("", 0.6, (0.55, 0.65), attack="ShadowModels()")
    others[1] |= {"value": 0.375, "ci_high": 0.4}
    (line,) = findings_of(study_of(member_rows("", 0.7, SURE) + others), {})
    assert (line.membership.attack, line.membership_rate.attack) == (MEMBERS, "ShadowModels()")
    shown = build(tmp_path, member_rows("", 0.7, SURE) + others).table("cost")[0]
    assert next(shown[name][0] for name in shown if name.startswith("TPR")) == "37.5 %"
