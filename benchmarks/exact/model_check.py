"""How often ModelCheck refuses honest rounds, and the models of an active server: n of each, for several kinds of training.

    nice python benchmarks/exact/model_check.py [--rounds 6] [--seeds 3] [--only lenet resnet20]

Every setting trains honestly, by the code that clients run. Each client judges each round's honest model, which it then remembers,
and beforehand the models that every active attack would send it in that round. No timing is taken. The table is that of
benchmarks/results/exact_and_active.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from attacks import AttackError, ClassFishing, ImprintLayer, Knowledge, TrapWeights
from attacks.active.base import ActiveAttack, AgreedModel
from attacks.local_model import shared_tensors
from clients.data.partitions import partition_indices
from clients.federated.agreed_model import tried_on_own
from clients.federated.client import Ledger, LocalClient
from clients.federated.model_check import ModelCheck, Remembered
from clients.federated.plan import FederatedPlan
from clients.task.auxiliary import Auxiliary
from clients.task.local_data import LocalData
from clients.task.task import Task, load_weights
from defenses.random_draws import generator_for

CLIENTS = 4
ATTACKS: dict[str, ActiveAttack] = {
    "ImprintLayer": ImprintLayer(), "TrapWeights": TrapWeights(), "ClassFishing": ClassFishing(),
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One kind of training.

    Attributes:
        name: In the table.
        changes: Of the plan below.
        partition: How examples are dealt out.
        trained: Clients that train in a round; the others keep an older model.
    """

    name: str
    changes: Mapping[str, object]
    partition: str = "iid"
    trained: int = CLIENTS


SETTINGS = (
    Setting("mlp", {}),
    Setting("mlp, 1 step a round", {"local_steps": 1}),
    Setting("mlp, dirichlet(0.2)", {}, "dirichlet(alpha=0.2)"),
    Setting("mlp, 1 of 4 clients trains", {}, trained=1),
    Setting("mlp, DP-SGD", {"pipeline": "DPSGD(target_epsilon=8.0)"}),
    Setting("mlp, noise per update", {"pipeline": "GaussianNoise(std=0.01, per='update')"}),
    Setting("mlp, pruning", {"pipeline": "Pruning(fraction=0.99)"}),
    Setting("cnn", {"model": "cnn", "image_size": 16}),
    Setting("cnn, 2 classes a client", {"model": "cnn", "image_size": 16}, "shards(num_shards_per_partition=2)"),
    Setting("lenet", {"model": "lenet"}),
    Setting("resnet20, BatchNorm", {"model": "resnet20", "norm": "batch", "local_epochs": 1, "train_limit": 300}),
)
PLAN = FederatedPlan(
    scenario="federated", dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=800, test_limit=50,
    model="mlp", width=0, norm="group", pipeline="", seed=0, rounds=8, local_epochs=3, batch_size=16, learning_rate=0.05,
    momentum=0.9, weight_decay=0.0, probe_targets=1, probe_images=8, auxiliary_fraction=0.2,
)  # fmt: skip


@dataclass
class Counts:
    """Refusals of each kind of model, and of how many; why honest ones were refused."""

    refused: dict[str, int]
    judged: dict[str, int]
    why: list[str]

    def add(self, kind: str, why: str) -> None:
        """One verdict."""
        self.judged[kind] = self.judged.get(kind, 0) + 1
        self.refused[kind] = self.refused.get(kind, 0) + bool(why)
        if kind == "honest" and why:
            self.why.append(why)


def measured(setting: Setting, rounds: int, seed: int) -> Counts:
    """One run of honest training, judged by all clients in all rounds."""
    plan = replace(PLAN, rounds=rounds, seed=seed, **setting.changes)  # type: ignore[arg-type]
    clients = list(_clients(plan, setting.partition))
    initial = {name: value.clone() for name, value in shared_tensors(plan.build_model()).items()}
    weights, memories = initial, [Remembered(0, initial) for _ in clients]
    counts, ledgers = Counts({}, {}, []), [Ledger() for _ in clients]
    for at in range(1, rounds + 2):  # the model behind the last round is probed, too
        task = plan.at(at)
        sent = dict(_manipulated(task, weights))
        order = torch.randperm(len(clients), generator=generator_for(seed, "sample", at)).tolist()[: setting.trained]
        updates = []
        for number, client in enumerate(clients):
            if number not in order:
                continue
            client.data.task = task
            for kind, model in {**sent, "honest": weights}.items():
                when = "" if kind == "honest" else ", round 1" if at == 1 else ", round 2 on"
                counts.add(kind + when, _fault(client, model, initial, memories[number], at))
            memories[number] = replace(memories[number], round=at, weights=weights)
            if at <= rounds:
                result = client.train(weights, ledgers[number])
                ledgers[number] = result.ledger
                memories[number] = memories[number].after(result.updates[0])
                updates.append((result.num_examples, result.updates[0]))
        total = sum(count for count, _ in updates)
        if updates:
            weights = {n: _moved(n, w, sum(c * u[n] for c, u in updates) / total) for n, w in weights.items()}
    return counts


def _moved(name: str, weight: Tensor, mean: Tensor | int) -> Tensor:
    moved = weight + mean
    return moved.clamp(min=0) if name.endswith("running_var") else moved


def _fault(
    client: LocalClient, model: Mapping[str, Tensor], initial: Mapping[str, Tensor], last: Remembered, at: int
) -> str:
    classes = client.data.card.num_classes
    return ModelCheck().fault(model, initial, last, at, lambda one: tried_on_own(client, one), classes)


def _clients(plan: FederatedPlan, partition: str) -> Iterator[LocalClient]:
    data, held = plan.load_data(), set(Auxiliary(plan).held_out(plan.load_data().train.strata()).tolist())
    free = torch.tensor([at for at in range(len(data.train)) if at not in held])
    parts = partition_indices(data.train.labels[free].numpy(), partition, CLIENTS, plan.seed)
    for number, part in enumerate(parts):
        yield LocalClient(LocalData(plan.at(1), number, free[torch.as_tensor(part)].tolist(), range(20)))


def _manipulated(task: Task, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """What each attack that applies would send instead of ``weights``."""
    card, model = task.plan.data_card(), load_weights(task.plan.build_model(), weights)
    agreed = AgreedModel(model, card.input_shape, card.mean, card.std)
    examples = Auxiliary(task.plan).examples()
    own = Knowledge(examples, task.plan.defenses(), card.mean, card.std, lambda *_: model)
    for name, attack in ATTACKS.items():
        generator = generator_for("attack", task.plan.seed, name, task.round)
        try:
            sent = attack.fit(own, generator).manipulated(agreed, generator)
        except AttackError:
            continue
        yield name, {key: value.clone() for key, value in shared_tensors(sent).items()}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[""], help="settings whose names begin so; all by default")
    chosen = parser.parse_args()
    kinds = ["honest", *(f"{name}, round {at}" for name in ATTACKS for at in ("1", "2 on"))]
    print(
        f"refused / judged; {chosen.rounds} rounds and the final model, seeds 0 to {chosen.seeds - 1}, {CLIENTS} clients\n"
    )
    print(f"| training | {' | '.join(kinds)} |\n|---|{'---|' * len(kinds)}")
    reasons: list[str] = []
    for setting in (one for one in SETTINGS if one.name.startswith(tuple(chosen.only))):
        found = [measured(setting, chosen.rounds, seed) for seed in range(chosen.seeds)]
        cells = []
        for kind in kinds:
            judged = sum(one.judged.get(kind, 0) for one in found)
            cells.append(f"{sum(one.refused.get(kind, 0) for one in found)} / {judged}" if judged else "does not apply")
        print(f"| {setting.name} | {' | '.join(cells)} |", flush=True)
        reasons += [f"{setting.name}: {why}" for one in found for why in one.why]
    print("\nhonest models were refused because:" if reasons else "\nno honest model was refused", *reasons, sep="\n")


if __name__ == "__main__":
    main()
