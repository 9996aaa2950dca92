"""A sensitive attribute, looked for in the tokens of test images that a split run sends anyway; in this process."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import binomtest

from clients.task.scenarios import read_task
from clients.wire.records import tensors_of, values_of
from simulations.experiment.experiment import Experiment
from simulations.experiment.scenario import KnownClients, scenario
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.inference.test_run import no_report
from tests.simulations.run_folder.test_resume import Killed, killed_at
from tests.simulations.split.test_run import Wire, split_experiment, split_rows, untimed

__all__ = ["no_report"]  # a fixture

NOISE = "FeatureNoise(std=30.0)"
STATIC, RETRAINED = (
    f"AttributeInference({training}iterations=80, batch_size=16)" for training in ("training='static', ", "")
)
KIND = "smashed-attribute"


def attribute_experiment(out: Path, **changes: Any) -> Experiment:
    """Two clients with 48 garments and digits, 0 or 1, to test; the server has 96 of its own."""
    small = split_experiment(
        out, dataset="garment-digit:06-24,0-1", image_size=28, train_limit=240, test_limit=96, rounds=1, defenses=NOISE,
        auxiliary_fraction=0.4, smashed_attacks="", attribute_attacks=STATIC, adaptive=True, attack_rounds="first,final",
    )  # fmt: skip
    return replace(small, **changes)


Run = tuple[Path, list[dict[str, Any]], Wire]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out, wire = tmp_path_factory.mktemp("attributes") / "run", Wire()
    return out, split_rows(attribute_experiment(out), wire), wire


@pytest.mark.long
def test_guesses_of_what_the_evaluation_sent_are_scored_by_their_owners(run: Run) -> None:
    """By hand: guesses from the messages, true values from the data set, both in the order of the clients' test images."""
    _, rows, wire = run
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    mine: dict[int, torch.Tensor] = {
        at: tensors_of(request, "indices")["test"] for at, request, _ in wire.of("query.setup")
    }
    right: Counter[tuple[str, str]] = Counter()
    asked: Counter[tuple[int, str]] = Counter()
    for partition, request, _ in wire.of("query.audit"):
        config, task = values_of(request, "config"), read_task(request.content["config"]["task"])
        assert (config["observation"], config["kind"], config["guesses"]) == (KIND, "attributes", 1)
        logits = tensors_of(request, "guesses")["attributes-0"]
        truth = task.plan.load_data().test.sensitive[mine[partition]]
        # Always the one value and always the other first, then the chosen attack and the one that learns of the defences.
        attack = ("0", "1", STATIC, RETRAINED)[asked[partition, task.plan.pipeline]]
        asked[partition, task.plan.pipeline] += 1
        right[task.plan.pipeline, attack] += int((logits.argmax(1) == truth).sum())
        assert task.round == 1, "who attacks the final model attacks the last evaluation, which is the first here"
    audited = [row for row in rows if row["metric"] == "attribute-accuracy"]
    assert len(audited) == 2 * 3
    for row in audited:
        blind = max(right[row["defense"], value] for value in "01")
        hits = blind if row["attack"] == "majority" else right[row["defense"], row["attack"]]
        exact = binomtest(hits, 96).proportion_ci(0.95, "exact")
        assert (row["value"], row["n"], row["round"]) == (pytest.approx(hits / 96), 96, 1)
        assert (row["ci_low"], row["ci_high"]) == (pytest.approx(exact.low), pytest.approx(exact.high))
        assert row["card"]["observation"] == "attributes of smashed data"
        assert (row["card"]["attacked"], row["card"]["transmissions"]) == ("test images", 1)


@pytest.mark.long
def test_without_a_defence_the_attribute_is_read_and_heavy_noise_hides_it(run: Run) -> None:
    _, rows, _ = run
    found = {(row["defense"], row["attack"]): row for row in rows if row["metric"] == "attribute-accuracy"}
    assert found["", STATIC]["ci_low"] > 0.5, "well above the most frequent value, which is right half of the time"
    assert found["", STATIC]["status"] == "ok"
    assert found["", "majority"]["value"] == 0.5
    hidden = found[str(attribute_experiment(Path("/out")).pipelines[1]), RETRAINED]
    assert binomtest(round(hidden["value"] * 96), 96, 0.5).pvalue > 0.001


@pytest.mark.long
def test_no_message_is_added_for_it(run: Run, tmp_path: Path) -> None:
    _, rows, wire = run
    plain = Wire()
    unattacked = split_rows(attribute_experiment(tmp_path / "run", attribute_attacks=""), plain)
    assert [kind for _, kind, _, _ in wire.messages if kind != "query.audit"] == [
        kind for _, kind, _, _ in plain.messages
    ]
    assert [row for row in untimed(rows) if not row["attack"]] == untimed(unattacked)


@pytest.mark.long
def test_the_report_shows_both_adversaries_beside_the_most_frequent_value(run: Run) -> None:
    page = (run[0] / "report.html").read_text(encoding="utf-8")
    assert "Sensitive attribute" in page
    assert all(word in page for word in ("attributes of smashed data", ">static<", ">retrained<"))


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_a_run_killed_behind_an_evaluation_has_the_same_rows(tmp_path: Path, run: Run) -> None:
    settings = attribute_experiment(tmp_path / "run")
    # Four of the audit messages are about null guesses; the fifth ends the run, when the attacks are scored.
    with pytest.raises(Killed):
        run_experiment(LocalGrid(2, killed_at("query.audit", 5)), settings)
    run_experiment(LocalGrid(2), replace(settings, resume=True))
    assert untimed(read_lines(tmp_path / "run" / "rows.jsonl")) == untimed(run[1])


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"dataset": "mnist-5k"}, ("attribute-attacks is \"Attr", "'mnist-5k' has no sensitive attribute: take garment")),
        ({"attribute_attacks": "TokenDecoder()"}, ("does not attack attributes of smashed data but smashed data",)),
        ({"smashed_attacks": "AttributeInference()"}, ("but attributes of smashed data (see attribute-attacks)",)),
        ({"auxiliary_data": "photos"}, ("learn from examples with the same attribute", "auxiliary-data is 'photos'")),
        ({"auxiliary_fraction": 0.0}, ("auxiliary-fraction is 0, raise it",)),
        ({"attribute_queries": -1}, ("attribute-queries is -1; allowed: at least 0",)),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_work_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refusal:
        attribute_experiment(tmp_path / "run", **changes)
    assert all(part in str(refusal.value) for part in parts), refusal.value


def test_auto_attacks_nobody_here() -> None:
    settings = attribute_experiment(Path("/out"), attribute_attacks="auto")
    kind = next(kind for kind in settings.kinds if kind.of_attributes)
    assert settings.attacks[kind] == settings.attacks_on(settings.pipelines[1], kind) == []


def test_tokens_that_would_not_fit_into_memory_are_refused(tmp_path: Path) -> None:
    settings = attribute_experiment(tmp_path / "run", image_memory=0.00005)
    card = settings.plan(settings.pipelines[0]).data_card()
    clients = KnownClients(card, {0: (60, 48), 1: (60, 48)}, {})
    # 96 images of 16 tokens of length 16: 98 kB against 54 kB.
    with pytest.raises(ConfigError, match="attribute-queries is 0, and features of 96 queries"):
        scenario("split").check_clients(settings, clients)
    scenario("split").check_clients(replace(settings, attribute_queries=10), clients)
