"""Several cuts of one model in one run of edge-cloud inference, and the sensitive attribute behind its queries; in this process."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from attacks.normalisation import normalise
from clients.data.images import to_float
from clients.task.scenarios import read_task
from clients.wire.records import tensors_of, values_of
from defenses import FeatureDP
from defenses.spec import parse
from simulations.experiment.experiment import Experiment, scenarios
from simulations.server_app import run_experiment
from tests.local_grid import LocalGrid
from tests.simulations.inference.test_run import inference_experiment
from tests.simulations.run_folder.kills import Killed, killed_at
from tests.simulations.short_runs import Wire, rows_in, rows_of, untimed

pytestmark = pytest.mark.long

CUTS = ("conv4", "conv6")
DELTA = "DeltaAutoencoder(delta='min', fill='black', epochs=1)"
BOUNDED = "FeatureDP(clip=5.0, noise_multiplier=2.0)"
STATIC, RETRAINED = (
    f"AttributeInference(training='{training}', iterations=8, batch_size=8)" for training in ("static", "retrained")
)
STATIC, RETRAINED = (repr(one) for one in scenarios()["inference"].kinds[1].parse(f"{STATIC}; {RETRAINED}"))


def cuts_experiment(out: Path, **changes: Any) -> Experiment:
    """Two clients with 20 test images each; the server trains on 64 examples, and very little."""
    small = inference_experiment(
        out, dataset="photo-face", image_size=32, train_limit=80, test_limit=0, rounds=1, cuts=",".join(CUTS), batch_size=16,
        defenses=f"{DELTA}; {BOUNDED}", probe_targets=1, probe_images=2, query_attacks="",
        attribute_attacks=f"{STATIC}; {RETRAINED}", offline_iterations=8,
    )  # fmt: skip
    return small.but(**changes)


Run = tuple[list[dict[str, Any]], Wire]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Rows and messages of a run at two cuts."""
    wire = Wire()
    return rows_of(cuts_experiment(tmp_path_factory.mktemp("cuts") / "run"), wire), wire


def own_rows(wire: Wire, partition: int) -> Tensor:
    """A client's test images among those of the data set, as the server dealt them out."""
    setup = next(request for at, request, _ in wire.of("query.setup") if at == partition)
    return tensors_of(setup, "indices")["test"]


def task_of(request: Any) -> Any:
    return read_task(request.content["config"]["task"])


def test_each_cut_is_a_phase_with_rows_that_name_it(run: Run) -> None:
    rows, _ = run
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    for defense in ("", DELTA, BOUNDED):
        phases = [row for row in rows if row["defense"] == str(parse(defense)) and row["round"] > 1]
        told = {(row["round"], row["final"], row["cut"]) for row in phases}
        assert told == {(2, True, "conv4"), (3, True, "conv6")}
        for at in (2, 3):
            own = [row for row in phases if row["round"] == at and not row["attack"] and "path-" not in row["metric"]]
            metrics = Counter((row["metric"], row["reference"]) for row in own)
            assert set(metrics.values()) == {1}
            needed = {("test-accuracy", "original"), ("test-accuracy", "transformed"), ("query-bytes", "")}
            assert needed <= set(metrics)
    # 32 x 32 images: 32 channels of 16 x 16, and 64 of 8 x 8.
    sizes = {row["cut"]: row["value"] for row in rows if (row["metric"], row["defense"]) == ("feature-bytes", "")}
    assert sizes == {"conv4": 4 * 32 * 16 * 16, "conv6": 4 * 64 * 8 * 8}
    whole = {row["value"] for row in rows if (row["metric"], row["reference"]) == ("test-accuracy", "original")}
    assert len(whole) == 1, "all cuts are of one model, which no defence has touched"


def test_what_travels_at_each_cut_is_what_that_layer_makes_of_the_test_images(run: Run) -> None:
    _, wire = run
    seen = set()
    for partition, request, reply in wire.of("query.features"):
        task = task_of(request)
        if task.plan.pipeline:
            continue
        cut = CUTS[task.round - 2]
        weights = next(tensors_of(one, "arrays") for _, one, _ in wire.of("evaluate"))
        whole = task.plan.build_model()
        whole.load_state_dict(dict(weights), strict=False)
        data, mine = task.plan.load_data(), own_rows(wire, partition)
        found = normalise(to_float(data.test.images[mine]), task.plan.data_card())
        with torch.no_grad():
            for layer in list(whole.eval().children())[: {"conv4": 13, "conv6": 20}[cut]]:
                found = layer(found)
        sent = torch.cat([tensor for _, tensor in sorted(tensors_of(reply, "features").items())])
        torch.testing.assert_close(sent, found[: len(sent)], rtol=1e-4, atol=1e-4)
        seen.add((partition, cut))
    assert seen == {(at, cut) for at in (0, 1) for cut in CUTS}


def test_guessed_attributes_are_scored_by_their_owners(run: Run) -> None:
    """By hand: guesses from the messages, true values from the data set, and exact intervals."""
    rows, wire = run
    right, asked = Counter[tuple[int, str, str]](), Counter[tuple[int, int, str]]()
    for partition, request, reply in wire.of("query.audit"):
        config, task = values_of(request, "config"), task_of(request)
        assert (config["observation"], config["kind"], reply.content.keys()) == ("attribute", "attributes", {"metrics"})
        place = (partition, task.round, task.plan.pipeline)
        # The server asks about each value for all images first, then about the attacks in their order.
        attack = ("0", "1", STATIC, RETRAINED)[asked[place]]
        asked[place] += 1
        values = task.plan.load_data().test.sensitive[own_rows(wire, partition)]
        for target in range(int(config["guesses"])):
            guess = tensors_of(request, "guesses")[f"attributes-{target}"]
            assert guess.shape == (len(values), 2)
            right[task.round, task.plan.pipeline, attack] += int((guess.argmax(1) == values).sum())
    audited = [row for row in rows if row["metric"] == "attribute-accuracy"]
    assert len(audited) == 2 * 3 * 3
    for row in audited:
        place = row["round"], row["defense"]
        blind = max(right[*place, value] for value in "01")
        hits = blind if row["attack"] == "majority" else right[*place, row["attack"]]
        exact = binomtest(hits, 40).proportion_ci(0.95, "exact")
        assert (row["value"], row["ci_low"], row["ci_high"]) == pytest.approx((hits / 40, exact.low, exact.high))
        assert (row["n"], row["cut"]) == (40, CUTS[row["round"] - 2])
        assert row["card"]["observation"] == "attributes of queries"
    # Balanced data: either value is right half of the time, whoever is asked.
    assert {row["value"] for row in audited if row["attack"] == "majority"} == {0.5}
    # Eight steps teach nobody anything, and what does not beat the majority where nobody is protected is no evidence.
    weak = [row for row in audited if row["attack"] != "majority" and row["defense"] == "" and row["ci_low"] <= 0.5]
    assert weak
    assert {row["status"] for row in weak} == {"not-validated"}


def test_the_static_adversary_is_one_for_all_pipelines_and_its_card_says_that_it_does_not_adapt(run: Run) -> None:
    rows, _ = run
    told = [row for row in rows if row["metric"] == "holdout_accuracy"]
    for cut in CUTS:
        held = {one: [r["value"] for r in told if (r["cut"], r["attack"]) == (cut, one)] for one in (STATIC, RETRAINED)}
        assert [len(values) for values in held.values()] == [3, 3]
        assert len(set(held[STATIC])) == 1
    blind = [row for row in rows if row["card"].get("knows_defenses") is False]
    assert {row["attack"] for row in blind} == {STATIC}
    assert len(blind) == sum(row["attack"] == STATIC for row in rows)


def test_a_defence_that_needs_an_adversary_gets_one_at_each_cut_and_a_row_says_what_it_is_worth(run: Run) -> None:
    rows, _ = run
    found = [row for row in rows if row["metric"] == "offline-adversary-accuracy"]
    assert [(row["defense"], row["cut"], row["architecture"], row["n"]) for row in found] == [
        (str(parse(DELTA)), cut, "split", 8) for cut in CUTS
    ]
    for row in found:
        hits = round(row["value"] * 8)
        exact = binomtest(hits, 8).proportion_ci(0.95, "exact")
        assert (row["value"], row["ci_low"], row["ci_high"]) == pytest.approx((hits / 8, exact.low, exact.high))
        # Eight held-out images are few: none of them may have the value that is most frequent among the others.
        assert row["majority"] * 8 == pytest.approx(round(row["majority"] * 8))
    assert any(0 < row["majority"] < 1 for row in found)


def test_a_budget_is_of_one_cut_and_of_all_that_was_sent_of_an_image(run: Run) -> None:
    """Two releases under independent noise are one under noise that is smaller by the square root of 2."""
    rows, _ = run
    once, twice = (FeatureDP(clip=5.0, noise_multiplier=2.0 / times**0.5).epsilon() for times in (1, 2))
    spent = [row for row in rows if row["metric"].startswith("epsilon")]
    assert {row["defense"] for row in spent} == {str(parse(BOUNDED))}
    assert {(row["metric"], row["cut"]): (row["value"], row["releases"]) for row in spent} == {
        ("epsilon", "conv4"): (pytest.approx(once), 1),
        ("epsilon", "conv6"): (pytest.approx(once), 1),
        ("epsilon-all-cuts", "conv6"): (pytest.approx(twice), 2),
    }


@pytest.mark.usefixtures("no_report")
def test_a_killed_phase_is_done_again_and_those_before_are_not(tmp_path: Path, run: Run) -> None:
    """Killed at the second cut behind the delta masks, curves and all: nobody is asked again about the first one."""
    unbroken, _ = run
    settings = cuts_experiment(tmp_path / "run")
    # Two clients, two cuts, one message of queries each: 4 without a defence, then 2 at the first cut behind the delta masks.
    with pytest.raises(Killed):
        run_experiment(LocalGrid(2, killed_at("query.features", 7)), settings)
    grid = LocalGrid(2)
    run_experiment(grid, settings.but(resume=True))
    assert untimed(rows_in(settings)) == untimed(unbroken)
    assert len([kind for kind, _ in grid.sent if kind == "query.features"]) == 2 + 4
