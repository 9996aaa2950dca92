"""Sums of clients' probes in a federated run, in this process: what is summed, which clients score, and which are missing."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

from clients.wire.records import tensors_of
from simulations.experiment.experiment import Experiment
from simulations.report.studies.control import validate
from simulations.report.studies.rows import read_rows
from simulations.report.studies.study import split
from simulations.server_app import run_experiment
from strategies.audit.jobs import AttackJob
from strategies.audit.pool import AttackPool
from strategies.federated.aggregates import groups_of
from strategies.federated.observations import AGGREGATE, SeenAggregate
from tests.lines import read_lines
from tests.local_grid import LocalGrid

SPEAR = "SpearPlusPlus()"
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


def audited(out: Path, wire: Wire, **changes: Any) -> tuple[Path, Wire, list[AttackJob]]:
    """A run, what crossed its wire, and its attack jobs."""
    jobs, submit = list[AttackJob](), AttackPool.submit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AttackPool, "submit", lambda self, job: (jobs.append(job), submit(self, job))[1])
        run_experiment(LocalGrid(4, wire), settings(out, **changes))
    return out, wire, jobs


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Wire, list[AttackJob]]:
    return audited(tmp_path_factory.mktemp("sums") / "run", Wire())


def assert_means(wire: Wire, jobs: list[AttackJob], sizes: list[int]) -> None:
    """What is attacked is the mean of the probes on the wire, of so many clients each."""
    seen = [one for job in jobs if job.kind is AGGREGATE for one in job.observed.seen if isinstance(one, SeenAggregate)]
    assert sorted(one.num_clients for one in seen) == sizes
    for one in seen:
        for name, tensor in one.update.items():
            parts = [wire.probes[p][f"target-{one.target}"][name].numpy().astype(np.float64) for p in one.judges]
            assert len(parts) == one.num_clients
            np.testing.assert_allclose(tensor.numpy(), sum(parts) / len(parts), rtol=0, atol=1e-6)


def test_a_dead_client_makes_its_group_smaller_and_the_rows_say_so(tmp_path: Path) -> None:
    """Of 4 clients 3 are left; of the two pairs one is whole, and of the other nothing is revealed."""
    attack = "InvertingGradients(iterations=1)"
    out, wire, jobs = audited(
        tmp_path / "run", Wire((1,)), model="lenet", probe_attacks="", aggregate_clients="2,4", min_usable=0.25,
        aggregate_attacks=attack, probe_targets=2,
    )  # fmt: skip
    assert_means(wire, jobs, [2] * 2 + [3] * 2)
    rows = read_lines(out / "rows.jsonl")
    psnr = of_sums(rows, "psnr", attack)
    assert {clients: row["n"] for clients, row in psnr.items()} == {3: 6, 2: 4}
    assert psnr[3]["card"]["clients_missing"] == "1 of 4 did not answer"
    (withheld,) = [row for row in rows if row["metric"] == "aggregates-withheld"]
    assert (withheld["value"], withheld["n"], withheld["status"]) == (1, 2, "failed")


@pytest.mark.slow
def test_an_exact_attack_finds_the_images_of_all_clients(whole: tuple[Path, Wire, list[AttackJob]]) -> None:
    out, wire, jobs = whole
    assert_means(wire, jobs, [1] * 16 + [2] * 8 + [4] * 4)
    seen = [one for job in jobs if job.kind is AGGREGATE for one in job.observed.seen if isinstance(one, SeenAggregate)]
    assert all(list(one.judges) in groups_of(range(4), one.num_clients, 0) for one in seen)
    rows = read_lines(out / "rows.jsonl")
    psnr, picked = of_sums(rows, "psnr"), of_sums(rows, "identified")
    assert {clients: row["n"] for clients, row in psnr.items()} == {1: 16, 2: 16, 4: 16}
    assert all(row["value"] > 60 for row in psnr.values())
    assert all(row["value"] == 1 for row in picked.values())
    # Four guesses may each be the one that is nearest: the chance of a null guess says so where candidates do not suffice.
    assert picked[4]["card"]["chance"] > picked[1]["card"]["chance"]
    hidden = "sum of 2 clients; single updates are hidden by secure aggregation"
    assert psnr[2]["card"]["aggregation"].startswith(hidden)
    assert "plain probe" in psnr[1]["card"]["aggregation"]
    plain = next(r for r in rows if r["metric"] == "psnr" and r["attack"] == SPEAR and "clients" not in r["card"])
    assert psnr[1]["value"] == pytest.approx(plain["value"], abs=1.0)
    assert not of_sums(rows, "label-accuracy"), "no client knows whose a class of a sum is"
    nulls = of_sums(rows, "psnr", "mean")
    assert len({round(row["value"], 6) for row in nulls.values()}) == 1
    # Sums are a section of their own and not in the headline.
    (study,) = split(validate(read_rows(out / "rows.jsonl")[0]), [""])
    assert not any(row.card.clients for row in study.rows)
    assert {cell.observation for cell in study.cells} == {"one-step probe"}
    assert "assumed, not run" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.numeric
def test_blind_guesses_are_picked_out_no_more_often_than_the_row_says() -> None:
    """The nearest of 8 null guesses is chosen for each image: the chance covers that choice, where 1 in candidates would not."""
    from attacks.metrics.images import IDENTIFIED, IDENTIFIED_CHANCE
    from attacks.scoring.metrics import optimal_assignment
    from clients.scoring.retrieval import Known, identified

    generator, hits, chance = torch.Generator().manual_seed(0), 0.0, 0.0
    trials, classes = 400, torch.zeros(40, dtype=torch.int64)
    for _ in range(trials):
        images = torch.rand(48, 1, 2, 2, generator=generator)
        pairs = optimal_assignment(images[:8], images[8:9])
        own, others = Known(images[8:9], classes[:1]), Known(images[9:], classes[1:])
        found = identified(images[:8], pairs, own, others, paired=False)
        hits, chance = hits + found[IDENTIFIED.of("original")][0], found[IDENTIFIED_CHANCE.of()][0]
    assert chance == 8 / 40
    assert 2 / 40 < hits / trials <= chance + 3 * (chance * (1 - chance) / trials) ** 0.5
