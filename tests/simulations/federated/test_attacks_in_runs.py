"""Attacks that learn, that match whole rounds, that are exact, on probes of several sizes, and the breaks of defences."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from clients.wire.rungs import Rung, read_rungs
from simulations.experiment.experiment import Experiment
from simulations.report.analysis.failures import failed_attacks
from simulations.report.analysis.run import read_run
from simulations.report.analysis.sentences import sentence
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from tests.attacks.wire import PatchNet
from tests.lines import read_lines
from tests.local_grid import LocalGrid


class OfDigits(PatchNet):
    """16 patches of 7 x 7 pixels."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(side=28, patch=7, num_classes=num_classes)


def rows_of(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    settings: dict[str, Any] = {
        "output-dir": str(folder), "dataset": "mnist-5k", "model": "lenet", "train-limit": 200, "test-limit": 40,
        "num-clients": 2, "rounds": 1, "local-steps": 2, "batch-size": 4, "learning-rate": 0.1, "attack-workers": 0,
        "probe-attacks": "", "update-attacks": "", "probe-targets": 2, "probe-images": 1, "adaptive": False, "defenses": "",
        "attack-rounds": "first", **{key.replace("_", "-"): value for key, value in changes.items()},
    }  # fmt: skip
    run_experiment(LocalGrid(2), Experiment.from_mapping(settings))
    return read_lines(folder / "rows.jsonl")


@pytest.mark.long
def test_whole_rounds_are_matched_at_a_surrogate_and_refined(tmp_path: Path) -> None:
    probed, matched = "InvertingGradients(iterations=2)", "SurrogateMatching(iterations=2)"
    mixer = "VisualMixer(window_lower=2, window_upper=4)"
    rows = rows_of(
        tmp_path / "run", defenses=mixer, train_limit=80, probe_attacks=probed,
        update_attacks=f"{matched}; {matched} | WindowMean(); CocktailParty()",
    )  # fmt: skip
    scored = {(r["defense"], r["attack"]) for r in rows if r["metric"] == "psnr" and "Matching" in r["attack"]}
    assert scored == {(defense, one) for defense in ("", mixer) for one in (matched, f"{matched} | WindowMean()")}
    plain = [row for row in rows if (row["attack"], row["defense"]) == (matched, "")]
    found = {row["metric"]: row for row in plain if row["reference"] in ("", "original")}
    assert found["psnr"]["n"] == 2 * 2 * 4  # Two clients, two steps of four images each.
    assert 0 <= found["alpha"]["value"] <= 1
    card = found["psnr"]["card"]
    assert (card["observation"], card["local_steps"], card["threat_class"]) == ("training update", 2, "B")
    # An attack of one step on whole rounds: a row that says what is for them.
    single = [row for row in rows if row["attack"] == "CocktailParty()"]
    assert {(row["metric"], row["status"]) for row in single} == {("attack", "not-applicable")}
    assert all("does not apply: the update has 2 local steps" in row["message"] for row in single)


@pytest.mark.long
def test_rounds_and_probes_run_under_defences_with_a_published_break_and_so_do_the_breaks(tmp_path: Path) -> None:
    quick = [f"{name}(iterations=3)" for name in ("InvertingGradients", "OmittedLayerInversion", "BottleneckInversion")]
    defenses = ("", "Soteria(fraction=0.8)", "Precode(size=8)")
    rows = rows_of(tmp_path / "run", defenses="; ".join(defenses[1:]), train_limit=60, probe_attacks="; ".join(quick))
    # Of so few auxiliary digits no oracle can be trained: that costs its own column, and no attack.
    failed = {(row["metric"], row["message"]) for row in rows if row["status"] in ("failed", "refused")}
    assert failed == {("oracle-accuracy", "an oracle needs at least 16 auxiliary images, there are 12")}
    assert "recognition" not in {row["metric"] for row in rows}
    assert failed_attacks(tmp_path / "run") == []
    tried = {(row["defense"], row["attack"]) for row in rows if row["metric"] == "psnr" and row["attack"] in quick}
    assert tried == {(defense, attack) for defense in defenses for attack in quick}
    masked = {r["defense"]: r["value"] for r in rows if (r["attack"], r["metric"]) == (quick[0], "masked_share")}
    # Columns of the last layer, the only one of fully connected ones in this network.
    assert masked["Soteria(fraction=0.8)"] > 10 * masked[""]


@pytest.mark.long
def test_an_exact_attack_recovers_the_patches_of_a_transformer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))  # a model in a file lets Python find what lies beside it
    attack = {"probe_attacks": "PatchEmbeddingInversion()", "probe_targets": 8, "batch_size": 32, "local_steps": 1}
    rows = rows_of(tmp_path / "vit", model=f"{__file__}:OfDigits", auxiliary_fraction=0.0, **attack)
    (finding,) = read_run(tmp_path / "vit").summaries[0].findings
    assert "recognisable, 16 of 16 images (79.4 to 100.0 %, chance 8.4 %), by PatchEmb" in sentence(finding)
    mine = [row for row in rows if row["attack"] == attack["probe_attacks"] and row["reference"] in ("", "original")]
    found = {row["metric"]: row["value"] for row in mine}
    assert (found["tokens"], found["rank"]) == (16, 16)
    assert found["psnr"] > 60, "exact but for the rounding of float32 weights, whose difference the update is"


EXACT = "SpearPlusPlus()"


@pytest.mark.long
def test_every_rung_is_attacked_scored_and_shown_apart(tmp_path: Path) -> None:
    noise = "DPSGD(noise_multiplier=100.0)"
    rows = rows_of(
        tmp_path / "run", model="mlp", probe_images="1, 4, 1x4", probe_targets=4, probe_attacks=EXACT, defenses=noise,
        update_attacks=f"{EXACT}; LossThreshold()", auxiliary_fraction=0.0,
    )  # fmt: skip
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if (row["metric"], row["reference"], row["attack"]) == ("psnr", "original", EXACT):
            card = row["card"]
            of = ("observation", "images", "batch", "local_steps")
            found[row["defense"], *(card[name] for name in of), card.get("rung", "")] = row
    rungs = {
        ("one-step probe", 1, 1, 1, ""): 8, ("one-step probe", 4, 4, 1, "4"): 8,
        ("probe of several steps", 4, 1, 4, "1x4"): 8, ("training update", 8, 4, 2, ""): 16,
    }  # fmt: skip
    assert {key[1:]: row["n"] for key, row in found.items() if not key[0]} == rungs
    hidden = [row for row in rows if (row["metric"], row["attack"], row["defense"]) == ("attack", EXACT, noise)]
    assert {row["status"] for row in hidden} == {"not-applicable"}
    for (defense, *_), row in found.items():
        assert (row["value"] > 60) == (defense == ""), row
    for row in rows:
        assert row["metric"] != "membership-auc" or row["card"]["observation"] == "training update"
    spent = [row["value"] for row in rows if row["metric"] == "epsilon-with-probes"]
    assert len(spent) == 2, "one row after all probes, one after the round"
    exact = [row for row in rows if (row["metric"], row["attack"], row["defense"]) == ("identified", EXACT, "")]
    probed = [row for row in exact if "probe" in row["card"]["observation"]]
    identified = {(one["card"]["images"], one["card"]["local_steps"]): (one["value"], one["n"]) for one in probed}
    assert identified == dict.fromkeys(((1, 1), (4, 1), (4, 4)), (1.0, 8))
    assert max(one["card"]["chance"] for one in probed) < 0.15
    pictures = read_lines(tmp_path / "run" / "pictures" / "index.jsonl")
    of = Counter((x["defense"], x["client"], x["observation"], x.get("rung", ""), x["kind"]) for x in pictures)
    probes = {"": "one-step probe", "4": "one-step probe", "1x4": "probe of several steps"}
    for client in (0, 1):
        for rung, title in probes.items():
            assert {of[defense, client, title, rung, "original"] for defense in ("", noise)} == {4}
        shown = {of["", client, "training update", "", kind] for kind in ("original", "protected", "reconstruction")}
        assert shown == {8}, "and of the round's own few images"
    assert len({one["file"] for one in pictures}) == len(pictures)


def test_a_ladder_shows_as_many_images_on_every_rung_and_other_scenarios_have_none() -> None:
    assert read_rungs(4, 3) == read_rungs("4", 3) == (Rung(4, 1, 3),)
    assert read_rungs("1, 4,1x4 , 16", 8) == (Rung(1, 1, 8), Rung(4, 1, 2), Rung(1, 4, 2), Rung(16, 1, 1))
    experiment = Experiment.of(probe_images="2, 1x4", probe_targets=6)
    assert experiment.but(seed=1).rungs == (Rung(2, 1, 6), Rung(1, 4, 3))
    assert type(Experiment.of(probe_images="4").probe_images) is int
    for scenario in ("split", "outsourced", "inference"):
        told = f"probe-images is '1, 4'; allowed with scenario = '{scenario}': one whole number"
        with pytest.raises(ConfigError, match=told):
            Experiment.of(scenario=scenario, probe_images="1, 4")
