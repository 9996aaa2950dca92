from typing import Any

from simulations.report.analysis.finding import findings_of
from simulations.report.sections.outsourced import outsourced_training
from tests.simulations.report.report_run import CONFIG, NULLS, looked_for, row, study_of
from tests.simulations.report.shown import cells, tables

LOOKING, RESTORED, MEANS = "AsUploaded()", "AsUploaded() | LearnedRestorer()", "AsUploaded() | WindowMean()"
MIXER = "Mixer(window=4)"
SETTINGS = CONFIG | {"pipelines": ["", MIXER], "defenses": {MIXER: {"adaptive_attacks": ["LearnedRestorer"]}}}
PSNR = {("", LOOKING): 100.0, (MIXER, LOOKING): 14.0, (MIXER, RESTORED): 17.5, (MIXER, MEANS): 13.25}
DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
CARD = {"observation": "uploaded images", "images": 2, "labels": "uploaded with the images", "auxiliary_data": "none"}


def known(defense: str, **given: Any) -> dict[str, Any]:
    return {"defense": defense, "scenario": "outsourced"} | given


def training(defense: str, seed: int = 0) -> list[dict[str, Any]]:
    at_first = {
        "clients-failed": 0.0, "upload-bytes": 2e6, "uploaded-images": 640.0, "upload-seconds": 0.5 + bool(defense),
    }  # fmt: skip
    found = [row(metric=name, value=value, n=4, **known(defense, seed=seed)) for name, value in at_first.items()]
    for at in (1, 2):
        mine = known(defense, seed=seed, round=at)
        for reference, value in (("original", 0.5), ("transformed", 0.6 + 0.1 * at)):
            found.append(row(metric="test-accuracy", reference=reference, value=value, n=400, **mine))
        found.append(row(metric="server-seconds", value=float(2 * at), **mine))
    return found


def attack(defense: str, name: str, psnr: float, **given: Any) -> list[dict[str, Any]]:
    mine = known(defense, attack=name, card=CARD, n=32) | given
    ends = {"ci_low": psnr - 1, "ci_high": psnr + 1, "worst": psnr + 5}
    return [
        row(**{"metric": "psnr", "reference": "original", "value": psnr} | ends | mine),
        row(**{"metric": "psnr", "reference": "transformed", "value": 100.0} | mine),
        row(**{"metric": "ssim", "reference": "original", "value": psnr / 100} | mine),
        *looked_for(1.0, **mine),
        row(**{"metric": "attack-seconds", "value": 1.0} | mine),
    ]


def outsourced_rows(seeds: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    found = []
    for seed in seeds:
        found += training("", seed) + training(MIXER, seed)
        for (defense, name), psnr in PSNR.items():
            # What adds seeds moves the looking alone: gains are of means.
            found += attack(defense, name, psnr - seed * (name == LOOKING and bool(defense)), seed=seed)
        for defense in ("", MIXER):
            mine = known(defense, seed=seed, role="null baseline", metric="psnr", reference="original")
            card = {"observation": CARD["observation"]}
            found += [row(attack=name, value=value, card=card, **mine) for name, value in NULLS.items()]
    return found


def gains(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int], object]:
    mine = study_of(rows, ["", MIXER])
    table = tables(outsourced_training(mine, findings_of(mine, SETTINGS["defenses"])))[1]
    gained = [one["over the upload"].text for one in cells(table)]
    return {(one.defense, one.attack, one.round): gain for one, gain in zip(table.rows, gained, strict=True)}


def test_a_gain_is_what_an_attack_adds_to_looking_at_the_same_defence_in_the_same_round() -> None:
    rows = outsourced_rows()
    found = {place[:2]: gain for place, gain in gains(rows).items()}
    assert [found["", LOOKING], *(found[MIXER, one] for one in (LOOKING, RESTORED, MEANS))] == [
        DASH, DASH, "+3.5", f"{MINUS}0.8",
    ]  # fmt: skip
    # Over two seeds, looking has 14 and 13 dB.
    assert gains(outsourced_rows((0, 1)))[MIXER, RESTORED, 1] == "+4.0"
    later = attack(MIXER, LOOKING, 10.0, round=2) + attack(MIXER, RESTORED, 12.0, round=2)
    found = gains(rows + later)
    assert (found[MIXER, RESTORED, 1], found[MIXER, RESTORED, 2]) == ("+3.5", "+2.0")
    # Where no attack looked, or an attack failed, there is none. Attacks on the model are no reads of uploads.
    blind = [one for one in rows if (one["defense"], one["attack"]) != (MIXER, LOOKING)]
    assert gains(blind)[MIXER, RESTORED, 1] == DASH
    broken = row(metric="attack", attack="Broken()", status="failed", card=CARD, **known(MIXER))
    assert gains([*rows, broken])[MIXER, "Broken()", 1] == DASH
    drawn = known(MIXER, round=3, attack="Drawn()", card={"observation": "trained model"})
    assert gains([*rows, row(metric="psnr", reference="original", value=11.0, **drawn)]).keys() == gains(rows).keys()
