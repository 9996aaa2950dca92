"""What the page of a search says of the run that attacked its result."""

import json
from pathlib import Path
from typing import Any

from attacks.metrics.names import Role
from defenses import ATS
from simulations.run_folder.rows import Row
from simulations.search.attacked import Attacked, read_attacked
from simulations.search.folder import AUDIT, SHARED, SearchFolder
from simulations.search.settings import Search
from strategies.audit.threat_card import ThreatCard

SEARCH = Search(dataset="photos", model="cnn")
RESULT = {"policies": "1-2+3", "random": ["4-5+6", "7-8+9"], "channels": 3}
KNOWING = "InvertingGradients() | PolicyInversion()"


def rows(policies: str, accuracy: float, seen: tuple[float, float], knowing: float, mean: float = 10.0) -> list[Row]:
    """Accuracy after round 2, and what two attacks recover from the initial and from the final model, beside the mean image."""
    shared: dict[str, Any] = {
        "experiment": "audit", "scenario": "federated", "dataset": "photos", "model": "cnn",
        "defense": repr(ATS(policies=policies, channels=3)) if policies else "",
    }  # fmt: skip
    found = [Row(metric="test-accuracy", reference="original", value=accuracy, n=100, round=2, **shared)]
    for at, final, value in ((1, False, seen[0]), (3, True, seen[1])):
        card = ThreatCard(observation="one-step probe", chance=0.01)
        for attack, height in (("InvertingGradients()", value), (KNOWING, knowing)):
            about = shared | {"attack": attack, "round": at, "final": final, "card": card, "n": 16}
            found += [
                Row(metric="psnr", reference="transformed", value=height, **about),
                Row(metric="psnr", reference="original", value=height - 1, ci_low=height - 2, ci_high=height, **about),
                Row(metric="retrieval", reference="original", value=1.0, **about),
            ]
        null = {"attack": "mean", "role": Role.NULL_BASELINE, "round": at, "final": final, "card": card, "n": 16}
        found += [Row(metric="psnr", reference=of, value=mean, **shared, **null) for of in ("original", "transformed")]
    return found


def written(
    path: Path, seen: tuple[float, float], accuracy: float, result: dict[str, Any] = RESULT, mean: float = 10.0
) -> Path:
    """A search's folder with a run beside it: the found hybrid's PSNR and accuracy vary, and the mean image's; others' do not."""
    (path / AUDIT).mkdir(parents=True)
    every = rows("", 0.8, (20.0, 19.0), 21.0, mean) + rows(result["policies"], accuracy, seen, 30.0)
    for policies in result["random"]:
        every += rows(policies, 0.5, (14.0, 18.0), 30.0)
    defenses = {row.defense: {"adaptive_attacks": ["PolicyInversion"]} for row in every if row.defense}
    settings = SEARCH.to_mapping()
    config = {"pipelines": ["", *defenses], "defenses": defenses, "config": {key: settings[key] for key in SHARED}}
    (path / AUDIT / "config.json").write_text(json.dumps(config))
    (path / AUDIT / "rows.jsonl").write_text("".join(row.to_json() + "\n" for row in every))
    return path


def read(path: Path) -> Attacked:
    found = read_attacked(SearchFolder(path, SEARCH), RESULT)
    assert isinstance(found, Attacked)
    return found


def test_numbers_are_those_of_the_run_and_the_attack_that_knows_stands_apart(tmp_path: Path) -> None:
    found = read(written(tmp_path, (13.0, 12.0), 0.78))
    assert found.found.seen == (13.0, 12.0)
    assert found.found.own == (12.0, 11.0)
    assert found.found.knowing == (29.0, 29.0)
    assert found.found.null == (10.0, 10.0)
    assert [one.policies for one in found.random] == ["4-5+6", "7-8+9"]
    assert (found.none.accuracy, found.found.accuracy, found.images) == (0.8, 0.78, 16)


def test_both_promises_are_judged(tmp_path: Path) -> None:
    """The mean image has 10 dB under all policies, the attack that knows the policies 29 dB to the original."""
    below, above = (
        ("below", 0, "33 %", "2.0 points", "within 3"),
        ("not below", 2, "100 %", "10.0 points", "not within 3"),
    )
    for at, (seen, accuracy, expected) in enumerate((((13.0, 12.0), 0.78, below), ((13.0, 18.5), 0.7, above))):
        judged, lower, chance, lost, within = expected
        first, gain, own, second = read(written(tmp_path / str(at), seen, accuracy)).verdicts
        assert (
            f"{max(seen)} dB to the transformed image: {judged} the mean of 2 random hybrids, 18.0 dB; {lower} of"
            in first
        )
        assert f"in {chance} of cases" in first
        assert gain.startswith(
            f"That is {max(seen) - 10:.1f} dB above the mean image there: {judged} the mean of 2 random"
        )
        assert "hybrids, 8.0 dB" in gain
        assert own.startswith("Of the original, the strongest of all attacks recovers 29.0 dB: not below the mean")
        assert second.startswith(
            f"It costs {lost} of accuracy (the random hybrids cost 30.0 in the mean): {within} points"
        )
        assert "some 11 points to each side" in second  # 1.96 sqrt(2 * 0.8 * 0.2 / 100)
