from typing import Any

from simulations.report import Row, validate
from simulations.report.analysis.adaptive import apart, stand_ins
from simulations.report.analysis.line import Line
from simulations.report.analysis.outcome import outcomes
from simulations.report.analysis.sentences import sentence
from simulations.report.analysis.summary import summarise
from simulations.report.studies.study import split
from strategies.audit.threat_card import ThreatCard
from tests.simulations.report.report_run import hits, null, scored

PROBE = ThreatCard(observation="one-step probe", images=4, local_steps=1)
UPDATE = ThreatCard(observation="training update", images=16, local_steps=4)
OTHER = ThreatCard(observation="probe of a manipulated model", images=16, local_steps=1)


def psnr(card: ThreatCard, value: float, defense: str = "D()", half: float = 0.5, **given: Any) -> list[Row]:
    ends = {"ci_high": value + half, "worst": value + 2, "card": card, "defense": defense}
    one = scored(value, value - half, **ends | given)
    return [one, hits(one, one.n * (value - half > 12))]


def line(*groups: list[Row], defense: str = "D()", known: dict[str, Any] | None = None) -> Line:
    rows = [row for group in groups for row in group]
    if not any(row.defense == "" for row in rows):
        rows += [row for card in (PROBE, UPDATE) for row in psnr(card, 30.0, "")]
    means = {"grey": 8.0, "mean": 12.0}.items()
    nulls = [null(v, name, card=card) for card in (PROBE, UPDATE, OTHER) for name, v in means]
    study = split(validate([*rows, *nulls]), ["", "D()"])[0]
    return next(one for one in summarise(study, {"D()": known}) if one.defense == defense)


def test_each_kind_of_message_has_its_strongest_attack_number_and_interval() -> None:
    assert stand_ins() == {"one-step probe": "training update"}
    text = sentence(line(psnr(PROBE, 20.0), psnr(UPDATE.but(iterations=60, restarts=2), 11.0, half=1.0, n=64)))
    searched = "searched by 60 iterations from each of 2 starts"
    first, second = text.split(f" Training update of 4 steps on 16 images, {searched}: ")
    assert first.startswith("One-step probe: the strongest attack recovered 16 of 16 images (95 % interval 79.4 to 100")
    assert second.startswith("the strongest attack recovered 0 of 64 guessed images (95 % interval 0.0 to 5.6 %)")
    assert "11.0 dB (95 % interval 10.0 to 12.0), no better than the mean image (12.0 dB)" in second
    values = ((PROBE, "A()", 20.0), (PROBE, "B()", 25.0), (UPDATE, "A()", 18.0), (UPDATE, "B()", 15.0))
    rows = [psnr(card, value, attack=name) for card, name, value in values]
    plain = [psnr(card, 30.0, "", attack=name) for card in (PROBE, UPDATE) for name in ("A()", "B()")]
    for order in (1, -1):
        found = line(*plain, *rows[::order])
        assert (found.probe.attack, found.update.attack, found.strongest) == ("B()", "A()", found.probe)
        # The real update comes second even where it gives more.
        more = line(*plain, *rows[::order], psnr(UPDATE, 28.0, attack="C()"))
        assert more.strongest == more.update
        assert [cell.observation for cell in more.leading] == ["one-step probe", "training update"]


def test_what_was_not_attacked_is_said_and_other_observations_are_told_as_ever() -> None:
    only = psnr(PROBE, 20.0)
    assert sentence(line(only)).endswith(". Real updates: not attacked.")
    # A test of membership on real updates is an attack on them, and says nothing of their images.
    member = Row(metric="membership-auc", attack="M()", card=UPDATE, round=1, value=0.6, n=100, defense="D()")
    assert sentence(line(only, [member])).endswith(". Real updates: no attack has a score of their images.")
    # Nor does what no server can do.
    told = line(only, psnr(UPDATE.but(upper_bound="knows the labels"), 28.0))
    assert told.update is None
    assert "probe" not in sentence(line(psnr(UPDATE, 20.0)))
    smashed = line(psnr(ThreatCard(observation="smashed data"), 20.0, ""), defense="")
    assert (smashed.probe, smashed.update, apart([])) == (None, None, ([], []))
    # Null baselines of seed 0 alone: what the other seed recovers is not known, and neither is the share of both.
    text = sentence(line(psnr(PROBE, 20.0, seed=0), psnr(PROBE, 20.0, seed=1), psnr(UPDATE, 11.0)))
    assert "identified 32 of 32 among 100 candidates" in text
    assert ("n = 32 over 2 seeds" in text) & ("recovered 0 of 16 guessed images (" in text)


def test_a_failed_control_on_real_updates_is_said_whatever_leads() -> None:
    plain = [*psnr(PROBE, 30.0, ""), *psnr(UPDATE, 9.0, ""), *psnr(OTHER, 30.0, "")]
    doubt = "not validated: this attack did not break the undefended run either, so its failure shows nothing"
    found = line(plain, psnr(PROBE, 20.0), psnr(UPDATE, 8.5), known={"caveats": []})
    assert found.caveats_by_message == {"one-step probe": (), "training update": (doubt,)}
    assert f"training update: {doubt}" in found.all_caveats
    assert [doubt in one.warnings for one in outcomes([found])] == [False, True]
    undefended = line(plain, defense="")
    failed = "training update: positive control failed: this attack does not break the undefended run"
    assert failed in undefended.all_caveats
    found = line(plain, psnr(PROBE, 9.0), psnr(UPDATE, 8.5), psnr(OTHER, 40.0))
    assert found.strongest.observation == OTHER.observation
    (first,) = outcomes([found])
    assert any(one.startswith("training update: not validated") for one in first.warnings)
