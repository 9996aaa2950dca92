"""A ladder of probes: each size has rows, pictures and people of its own, and the sizes of one round belong together."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from clients.wire.rungs import Rung, read_rungs
from simulations.experiment.experiment import Experiment
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.simulations.federated.test_attacks_in_runs import rows_of

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
    of = Counter(
        (one["defense"], one["client"], one["observation"], one.get("rung", ""), one["kind"]) for one in pictures
    )
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
        with pytest.raises(
            ConfigError, match=f"probe-images is '1, 4'; allowed with scenario = '{scenario}': one whole number"
        ):
            Experiment.of(scenario=scenario, probe_images="1, 4")
