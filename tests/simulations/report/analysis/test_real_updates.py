"""The headline says what one-step probes give, and beside it what the updates give that training sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attacks.metrics.names import Role
from simulations.report import Row, validate
from simulations.report.analysis.line import Line
from simulations.report.analysis.outcome import outcomes
from simulations.report.analysis.real_updates import apart, stand_ins
from simulations.report.analysis.sentences import sentence
from simulations.report.analysis.summary import summarise
from simulations.report.studies.study import split
from strategies.audit.threat_card import ThreatCard

PROBE = ThreatCard(observation="one-step probe", images=4, local_steps=1)
UPDATE = ThreatCard(observation="training update", images=16, local_steps=4)
MEANS = {"grey": 8.0, "mean": 12.0}
RESTORER = {"adaptive_attacks": ["Restorer"]}


def psnr(card: ThreatCard, value: float, half: float = 0.5, n: int = 16, **given: Any) -> list[Row]:
    """A PSNR with its interval, and how many true images were picked out: all where the interval is above the mean image."""
    ends = {"ci_low": value - half, "ci_high": value + half, "worst": value + 2}
    base = Row(metric="psnr", reference="original", attack="A()", card=card, round=1, value=value, n=n, **ends)
    one = replace(base, **given)
    hits = float(value - half > 12)
    found = replace(one, metric="retrieval", value=hits, ci_low=None, ci_high=None, card=card.but(chance=0.01))
    return [one, found]


def line(*groups: list[Row], defense: str = "D()", known: dict[str, Any] | None = None) -> Line:
    """Of a defence, with an undefended run that is broken on both observations unless rows of it are given."""
    rows = [row for group in groups for row in group]
    if not any(row.defense == "" for row in rows):
        rows += [row for card in (PROBE, UPDATE) for row in psnr(card, 30.0)]
    nulls = [
        psnr(card, v, attack=name, role=Role.NULL_BASELINE)[0] for card in (PROBE, UPDATE) for name, v in MEANS.items()
    ]
    study = split(validate([*rows, *nulls]), ["", "D()"])[0]
    return next(one for one in summarise(study, {"D()": known}) if one.defense == defense)


def test_probes_stand_in_for_what_training_sends() -> None:
    assert stand_ins() == {"one-step probe": "training update"}


def test_both_are_said_each_with_its_number_and_interval() -> None:
    found = line(psnr(PROBE, 20.0, defense="D()"), psnr(UPDATE, 11.0, 1.0, n=64, defense="D()"))
    assert sentence(found) == (
        "One-step probe: the strongest attack recovered 16 of 16 images (95 % interval 79.4 to 100.0 %; chance of as many "
        "by the best of 2 null guesses: at most 1e\N{MINUS SIGN}32). "
        "Its mean PSNR is 20.0 dB (95 % interval 19.5 to 20.5), above the mean image (12.0 dB). "
        "Training update of 4 steps on 16 images: the strongest attack recovered 0 of 64 guessed images "
        "(95 % interval 0.0 to 5.6 %) and identified 0 of 64 among 100 candidates. "
        "Its mean PSNR is 11.0 dB (95 % interval 10.0 to 12.0), no better than the mean image (12.0 dB); "
        "the highest PSNR of one image is 13.0 dB."
    )
    assert [cell.observation for cell in found.leading] == ["one-step probe", "training update"]


def test_each_part_has_the_strongest_attack_on_its_own_observation() -> None:
    rows = [psnr(card, value, defense="D()", attack=name) for card, name, value in (
        (PROBE, "A()", 20.0), (PROBE, "B()", 25.0), (UPDATE, "A()", 18.0), (UPDATE, "B()", 15.0),
    )]  # fmt: skip
    plain = [psnr(card, 30.0, attack=name) for card in (PROBE, UPDATE) for name in ("A()", "B()")]
    for order in (1, -1):
        found = line(*plain, *rows[::order])
        assert found.probe is not None
        assert found.update is not None
        assert (found.probe.attack, found.update.attack) == ("B()", "A()")
        assert found.strongest == found.probe
        # The real update comes second even where it gives more.
        more = line(*plain, *rows[::order], psnr(UPDATE, 28.0, defense="D()", attack="C()"))
        assert more.strongest == more.update
        assert sentence(more).index("One-step probe") < sentence(more).index("Training update of 4 steps on 16 images")


def test_where_only_probes_were_attacked_it_says_so() -> None:
    only = psnr(PROBE, 20.0, defense="D()")
    assert sentence(line(only)).endswith(". Real updates: not attacked.")
    # A test of membership on real updates is an attack on them, and says nothing of their images.
    member = Row(metric="membership-auc", attack="M()", card=UPDATE, round=1, value=0.6, n=100, defense="D()")
    assert sentence(line(only, [member])).endswith(". Real updates: no attack has a score of their images.")
    # Nor does what no server can do.
    told = psnr(UPDATE.but(upper_bound="knows the labels"), 28.0, defense="D()")
    found = line(only, told)
    assert found.update is None
    assert sentence(found).endswith(". Real updates: not attacked.")


def test_where_only_real_updates_were_attacked_nothing_is_said_of_probes() -> None:
    text = sentence(line(psnr(UPDATE.but(local_steps=1), 20.0, defense="D()")))
    assert text.startswith(
        "Training update of 1 step on 16 images: the strongest attack recovered 16 of 16 guessed images ("
    )
    assert "probe" not in text


def test_other_observations_are_told_as_ever() -> None:
    smashed = ThreatCard(observation="smashed data", images=16)
    found = line(psnr(smashed, 20.0), defense="")
    assert (found.probe, found.update, apart([])) == (None, None, ([], []))
    assert sentence(found).startswith(
        "the strongest attack identified 16 of 16 among 100 candidates. Its mean PSNR is 20.0"
    )


def test_seeds_are_counted_for_each_of_the_two() -> None:
    two = [psnr(PROBE, 20.0, defense="D()", seed=seed) for seed in (0, 1)]
    text = sentence(line(*two, psnr(UPDATE, 11.0, defense="D()")))
    # There are null baselines of seed 0 alone: what the other seed recovers is not known, and neither is the share of both.
    assert "the strongest attack identified 32 of 32 among 100 candidates. Its mean PSNR is 20.0 dB" in text
    assert "n = 32 over 2 seeds" in text
    assert "recovered 0 of 16 guessed images (" in text


def test_a_failed_control_on_real_updates_is_said_although_the_probe_leads() -> None:
    plain = [*psnr(PROBE, 30.0), *psnr(UPDATE, 9.0)]
    found = line(plain, psnr(PROBE, 20.0, defense="D()"), psnr(UPDATE, 8.5, defense="D()"), known={"caveats": []})
    doubt = "not validated: this attack did not break the undefended run either, so its failure shows nothing"
    assert found.caveats_by_message == {"one-step probe": (), "training update": (doubt,)}
    assert f"training update: {doubt}" in found.all_caveats
    probe, update = outcomes([found])
    assert (doubt in probe.warnings, doubt in update.warnings) == (False, True)
    undefended = line(plain, defense="")
    failed = "training update: positive control failed: this attack does not break the undefended run"
    assert failed in undefended.all_caveats
    assert not [one for one in undefended.caveats if "control" in one]


def test_doubts_on_real_updates_stay_where_another_kind_of_message_leads() -> None:
    other = ThreatCard(observation="probe of a manipulated model", images=16, local_steps=1)
    plain = [*psnr(PROBE, 30.0), *psnr(UPDATE, 9.0), *psnr(other, 30.0)]
    rows = [psnr(PROBE, 9.0, defense="D()"), psnr(UPDATE, 8.5, defense="D()"), psnr(other, 40.0, defense="D()")]
    found = line(plain, *rows)
    assert found.strongest is not None
    assert found.strongest.observation == other.observation
    (first,) = outcomes([found])
    assert any(one.startswith("training update: not validated") for one in first.warnings)
    assert any(one.startswith("not validated") for one in found.caveats_by_message["training update"])


@pytest.mark.parametrize(("refined", "silent"), [((PROBE,), False), ((UPDATE,), True), ((PROBE, UPDATE), True)])
def test_it_says_where_adaptive_attacks_on_images_ran_on_probes_only(
    refined: tuple[ThreatCard, ...], silent: bool
) -> None:
    rows = [psnr(card, 20.0, defense="D()") for card in (PROBE, UPDATE)]
    rows += [psnr(card, 18.0, defense="D()", attack="A() | Restorer()") for card in refined]
    caveat = "training update: no adaptive attack on images ran, only on probes"
    assert (caveat not in line(*rows, known=RESTORER).all_caveats) is silent


@pytest.mark.parametrize(
    ("effort", "said"),
    [
        ({}, "Training update of 4 steps on 16 images: "),
        ({"iterations": 60, "restarts": 1}, "Training update of 4 steps on 16 images, searched by 60 iterations: "),
        (
            {"iterations": 1, "restarts": 2},
            "Training update of 4 steps on 16 images, searched by 1 iteration from each of 2 starts: ",
        ),
        ({"iterations": "4 steps of up to 20 evaluations"}, "searched by 4 steps of up to 20 evaluations: "),
    ],
)
def test_a_real_update_is_said_with_the_budget_of_its_attack(effort: dict[str, object], said: str) -> None:
    text = sentence(line(psnr(PROBE, 20.0, defense="D()"), psnr(UPDATE.but(**effort), 11.0, n=64, defense="D()")))
    assert said in text
    assert "One-step probe: " in text
