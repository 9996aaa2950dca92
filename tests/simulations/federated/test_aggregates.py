"""Sums of clients' probes in a federated run, in this process: what is summed, who scores, who is missing, what is refused."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

from clients.wire.records import tensors_of
from simulations.experiment.experiment import Experiment
from simulations.report.sections.aggregates import aggregates
from simulations.report.studies.control import validate
from simulations.report.studies.rows import read_rows
from simulations.report.studies.study import split
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from strategies.audit.jobs import AttackJob
from strategies.audit.pool import AttackPool
from strategies.federated.aggregates import groups_of
from strategies.federated.observations import AGGREGATE, SeenAggregate
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.federated.test_federation import untimed
from tests.simulations.run_folder.test_resume import killed_with_open_attacks

SPEAR = "Spear()"
Rows = list[dict[str, Any]]


def settings(out: Path, **changes: Any) -> Experiment:
    common = {
        "output_dir": str(out), "dataset": "mnist-5k", "model": "mlp", "train_limit": 400, "test_limit": 40, "num_clients": 4,
        "rounds": 1, "local_steps": 1, "auxiliary_fraction": 0.0, "defenses": "", "probe_attacks": SPEAR, "update_attacks": "",
        "probe_targets": 4, "probe_images": 1, "attack_rounds": "first", "attack_workers": 0, "adaptive": False,
        "aggregate_clients": "1,2,4", "aggregate_attacks": SPEAR,
    }  # fmt: skip
    return Experiment.of(**(common | changes))


def of_sums(rows: Rows, metric: str, attack: str = SPEAR) -> dict[int, dict[str, Any]]:
    """Clients of a sum -> the row of a metric against the original."""
    found = [r for r in rows if r["metric"] == metric and r["attack"] == attack and r["reference"] != "transformed"]
    return {r["card"]["clients"]: r for r in found if "clients" in r["card"]}


class Wire:
    """Keeps the probes as they crossed the wire; those of ``dead`` are lost."""

    def __init__(self, dead: tuple[int, ...] = ()) -> None:
        self.dead, self.probes = dead, defaultdict[int, dict[str, Any]](dict)

    def __call__(self, partition: int, request: Message, reply: Message) -> Message | None:
        if request.metadata.message_type == "train.probe":
            if partition in self.dead:
                raise RuntimeError("dead")
            self.probes[partition] = {f"target-{at}": tensors_of(reply, f"target-{at}") for at in range(4)}
        return reply


def jobs_of(patch: pytest.MonkeyPatch, kept: list[AttackJob]) -> None:
    submit = AttackPool.submit
    patch.setattr(AttackPool, "submit", lambda self, job: (kept.append(job), submit(self, job))[1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Wire, list[AttackJob]]:
    out, wire, jobs = tmp_path_factory.mktemp("sums") / "run", Wire(), list[AttackJob]()
    with pytest.MonkeyPatch.context() as patch:
        jobs_of(patch, jobs)
        run_experiment(LocalGrid(4, wire), settings(out))
    return out, wire, jobs


@pytest.mark.slow
def test_what_is_attacked_is_the_mean_of_the_probes_on_the_wire(whole: tuple[Path, Wire, list[AttackJob]]) -> None:
    _, wire, jobs = whole
    seen = [one for job in jobs if job.kind is AGGREGATE for one in job.observed.seen if isinstance(one, SeenAggregate)]
    assert sorted(one.num_clients for one in seen) == [1] * 16 + [2] * 8 + [4] * 4
    for one in seen:
        assert list(one.judges) in groups_of(range(4), one.num_clients, 0)
        for name, tensor in one.update.items():
            parts = [wire.probes[p][f"target-{one.target}"][name].numpy().astype(np.float64) for p in one.judges]
            np.testing.assert_allclose(tensor.numpy(), sum(parts) / len(parts), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_an_exact_attack_finds_the_images_of_all_clients(whole: tuple[Path, Wire, list[AttackJob]]) -> None:
    rows = read_lines(whole[0] / "rows.jsonl")
    psnr, picked = of_sums(rows, "psnr"), of_sums(rows, "retrieval")
    assert {clients: row["n"] for clients, row in psnr.items()} == {1: 16, 2: 16, 4: 16}
    assert all(row["value"] > 60 for row in psnr.values())
    assert all(row["value"] == 1 for row in picked.values())
    # Four guesses may each be the one that is nearest: the chance of a null guess says so where candidates do not suffice.
    assert picked[4]["card"]["chance"] > picked[1]["card"]["chance"]
    assert psnr[2]["card"]["aggregation"].startswith(
        "sum of 2 clients; single updates are hidden by secure aggregation"
    )
    assert "plain probe" in psnr[1]["card"]["aggregation"]
    plain = next(r for r in rows if r["metric"] == "psnr" and r["attack"] == SPEAR and "clients" not in r["card"])
    assert psnr[1]["value"] == pytest.approx(plain["value"], abs=1.0)
    assert not of_sums(rows, "label-accuracy"), "nobody knows whose a class of a sum is"
    nulls = of_sums(rows, "psnr", "mean")
    assert len({round(row["value"], 6) for row in nulls.values()}) == 1


@pytest.mark.slow
def test_sums_are_a_section_of_their_own_and_not_in_the_headline(whole: tuple[Path, Wire, list[AttackJob]]) -> None:
    rows, _ = read_rows(whole[0] / "rows.jsonl")
    (study,) = split(validate(rows), [""])
    assert not any(row.card.clients for row in study.rows)
    assert all(cell.observation == "one-step probe" for cell in study.cells)
    found = aggregates(study, ())
    assert found is not None
    assert [(one.clients, one.cell.status) for one in found.reads] == [(1, "ok"), (2, "ok"), (4, "ok")]
    assert all(one.cell.leaks and one.cell.picks for one in found.reads)
    page = (whole[0] / "report.html").read_text(encoding="utf-8")
    assert "Sums of clients" in page
    assert "assumed, not run" in page


@pytest.mark.long
def test_fresh_noise_at_the_clients_leaves_nothing_to_find(tmp_path: Path) -> None:
    """Updates drowned in noise: of two clients no image is picked out more often than chance, whatever the attack chooses from."""
    attack = "InvertingGradients(iterations=30)"
    run_experiment(LocalGrid(4), settings(
        tmp_path / "run", model="lenet", defenses="GaussianNoise(std=10.0, per='update')", probe_attacks="",
        aggregate_clients="2,4", aggregate_attacks=attack,
    ))  # fmt: skip
    rows = [row for row in read_lines(tmp_path / "run" / "rows.jsonl") if row["defense"]]
    for clients, row in of_sums(rows, "retrieval", attack).items():
        assert row["n"] == 16
        assert row["ci_low"] <= row["card"]["chance"], clients
        psnr, null = of_sums(rows, "psnr", attack)[clients], of_sums(rows, "psnr", "mean")[clients]
        assert psnr["value"] < null["value"]


@pytest.mark.long
def test_a_dead_client_makes_its_group_smaller_and_the_rows_say_so(tmp_path: Path) -> None:
    dead = 1
    run_experiment(
        LocalGrid(4, Wire((dead,))),
        settings(tmp_path / "run", probe_attacks="", aggregate_clients="2,4", min_usable=0.25),
    )
    rows = read_lines(tmp_path / "run" / "rows.jsonl")
    psnr = of_sums(rows, "psnr")
    # Of 4 clients 3 are left; of the two pairs one is whole, and of the other nothing is revealed.
    assert {clients: row["n"] for clients, row in psnr.items()} == {3: 12, 2: 8}
    assert psnr[3]["card"]["clients_missing"] == "1 of 4 did not answer"
    assert psnr[3]["value"] > 60
    (withheld,) = [row for row in rows if row["metric"] == "aggregates-withheld"]
    assert (withheld["value"], withheld["n"], withheld["status"]) == (1, 2, "failed")


@pytest.mark.slow
def test_open_attacks_on_sums_are_resumed(
    tmp_path: Path, whole: tuple[Path, Wire, list[AttackJob]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = settings(tmp_path / "run")
    killed_with_open_attacks(monkeypatch, LocalGrid(4), mine)
    names = {path.name for path in (tmp_path / "run" / "jobs").glob("*aggregate*")}
    assert names == {f"p00-r0001-aggregate-{n:03d}-{n:03d}-00.safetensors" for n in (1, 2, 4)}
    grid = LocalGrid(4)
    run_experiment(grid, replace(mine, resume=True))
    assert untimed(read_lines(tmp_path / "run" / "rows.jsonl")) == untimed(read_lines(whole[0] / "rows.jsonl"))
    assert "train.probe" not in {sent[0] for sent in grid.sent}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aggregate_clients": "2,5"}, "5 is more than all clients; allowed: at most 4"),
        ({"aggregate_clients": "1"}, "sum of one client is its plain probe"),
        ({"aggregate_clients": "2, 4,2"}, "names 2 more than once"),
        ({"aggregate_clients": "2,0"}, "'0' is no number of clients"),
        ({"aggregate_clients": "2,,4"}, "'' is no number of clients"),
        ({"aggregate_clients": "two"}, "'two' is no number of clients"),
        ({"aggregate_attacks": ""}, "aggregate-attacks is empty"),
        ({"aggregate_clients": ""}, "aggregate-clients is empty"),
        ({"aggregate_attacks": "LabelInference()"}, "does not attack sums of clients' one-step probes"),
    ],
)
def test_bad_settings_are_refused_with_what_is_allowed(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        settings(tmp_path / "run", **changes)


def test_more_than_the_connected_clients_is_refused_once_they_are_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="8 is more than all clients; allowed: at most 4"):
        run_experiment(LocalGrid(4), settings(tmp_path / "run", num_clients=0, aggregate_clients="2,8"))


def test_other_scenarios_know_no_sums() -> None:
    with pytest.raises(ConfigError, match="aggregate-clients"):
        Experiment.from_mapping({"scenario": "outsourced", "aggregate-clients": "1,2"})


def test_blind_guesses_are_picked_out_no_more_often_than_the_row_says() -> None:
    """The nearest of 8 null guesses is chosen for each image: the chance covers that choice, where 1 in candidates would not."""
    from attacks.guesses import Reconstruction
    from attacks.metrics.images import RETRIEVAL, RETRIEVAL_CHANCE
    from attacks.scoring.metrics import optimal_assignment
    from clients.scoring.retrieval import retrieval

    generator, hits, chance = torch.Generator().manual_seed(0), 0.0, 0.0
    trials = 400
    for _ in range(trials):
        images = torch.rand(48, 1, 2, 2, generator=generator)
        guess = Reconstruction(images[:8], torch.zeros(8))
        pairs = optimal_assignment(guess.images, images[8:9])
        found = retrieval(guess, pairs, images[8:9], images[9:], paired=False)
        hits, chance = hits + found[RETRIEVAL.of("original")][0], found[RETRIEVAL_CHANCE.of()][0]
    assert chance == 8 / 40
    assert 2 / 40 < hits / trials <= chance + 3 * (chance * (1 - chance) / trials) ** 0.5
