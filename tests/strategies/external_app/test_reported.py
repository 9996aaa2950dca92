"""What rows and page say of an audited app is what is known: its mods, its learning rate, its examples, and what a probe is not."""

import html
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch.utils.data import TensorDataset

from clients.data.card import DataCard
from clients.external_app.client import AppClient, OwnExamples, card_of, examples_of, read_data
from clients.secrets.draws import Draws
from defenses.base import Batch
from simulations.report.analysis.run import read_run
from strategies.external_app.settings import AuditSettings
from strategies.external_app.trainings import ASSUMED, NOT_IN_PROBE, OBSERVED
from tests.strategies.external_app.app import MEAN, STD, Net, State, an_app, an_epoch, app_that, digits
from tests.strategies.external_app.audits import EXACT, attacked, node_of, page_of, run


class Falling(FedAvg):
    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        config["lr"] = 0.1 if server_round == 1 else 0.001
        return super().configure_train(server_round, arrays, config, grid)


def test_a_learning_rate_that_falls_is_told_as_it_falls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from strategies.federated.observations import UPDATE

    seen, observations = list[tuple[int, float]](), UPDATE.observations

    def spied(observed: Any) -> list[Any]:
        found = observations(observed)
        seen.append((observed.task.round, found[0].learning_rate))
        return found

    monkeypatch.setitem(vars(UPDATE), "observations", spied)
    rows = run(tmp_path / "out", an_app(), Falling(fraction_evaluate=0.0), rounds=2, probe_attacks="")
    assert seen == [(1, 0.1), (2, 0.001)]
    assert {row["card"]["learning_rate"] for row in attacked(rows, "training update")} == {OBSERVED}


class Uneven(FedAvg):
    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        first, second = super().configure_train(server_round, arrays, config, grid)
        own = ConfigRecord({**second.content["config"], "lr": 0.001})
        changed = RecordDict({"arrays": second.content["arrays"], "config": own})
        return [first, Message(changed, dst_node_id=second.metadata.dst_node_id, message_type="train")]


def test_a_node_that_trains_at_another_rate_is_left_out(tmp_path: Path) -> None:
    rows = run(tmp_path / "out", an_app(), Uneven(fraction_evaluate=0.0))
    assert {row["n"] for row in attacked(rows, "training update") if row["metric"] == "label-accuracy"} == {1}
    (why,) = [row["message"] for row in rows if row["metric"] == "client"]
    assert why.startswith("train: it trained by SGD with learning rate 0.")
    assert "other nodes by SGD with learning rate 0." in why


def test_a_probe_decays_and_looks_ahead_as_the_server_reckons(subtests: pytest.Subtests) -> None:
    """Against torch's own SGD, with the momentum that a first step does not show unless it is Nesterov's."""
    for nesterov in [False, True]:
        with subtests.test(nesterov=nesterov):
            images, labels = digits(node_of(0)).tensors
            batch = Batch(images[:2], torch.nn.functional.one_hot(labels[:2], 10).float())
            torch.manual_seed(1)
            model = Net()
            before = {name: value.clone() for name, value in model.state_dict().items()}
            card, loss = DataCard(10, (1, 8, 8), (MEAN,), (STD,)), torch.nn.functional.cross_entropy
            plan = replace(AuditSettings(Net).plan(), momentum=0.9, nesterov=nesterov, weight_decay=0.05)
            task = plan.at(1, 0.1)
            client = AppClient(OwnExamples(task, 0, batch, card, Draws.simulated(0, 0)))
            moved = client.one_step(Net, before, batch, loss)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=0.05)
            loss(model((images[:2] - MEAN) / STD), labels[:2]).backward()
            optimizer.step()
            for name, value in model.state_dict().items():
                torch.testing.assert_close(moved[name], value, rtol=0, atol=1e-7)


def test_a_weight_decay_that_is_seen_costs_the_exact_attack_nothing(tmp_path: Path) -> None:
    app = app_that(partial(an_epoch, weight_decay=0.05, momentum=0.9, nesterov=True))
    rows = run(tmp_path / "out", app, probe_attacks=EXACT, update_attacks="")
    exact = [row for row in rows if row["attack"].startswith("Spear")]
    (psnr,) = [row for row in exact if (row["metric"], row["reference"]) == ("psnr", "original")]
    assert psnr["value"] > 80, "subtracted from answers that never decayed it was 51 dB"


def test_another_optimizer_and_other_images_are_warned_of(tmp_path: Path) -> None:
    def otherwise(sent: State, message: Message, context: Context) -> State:
        model = Net()
        model.load_state_dict(sent)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        images, labels = digits(context).tensors
        torch.nn.functional.cross_entropy(model((images.flip(-1) - MEAN) / STD), labels).backward()
        optimizer.step()
        return model.state_dict()

    rows = run(tmp_path / "out", app_that(otherwise))
    (about,) = [row for row in rows if row["metric"] == ASSUMED]
    assert about["warnings"] == [
        "The clients train with Adam: probes and attacks take steps of SGD.",
        "0 of the first 48 images that training saw are those of data as they are; the others were augmented or normalised in "
        "another way, or are others.",
    ]
    card = attacked(rows, "training update")[0]["card"]
    assert card["training"].startswith("observed: Adam with learning rate 0.01, in train mode")
    assert about["warnings"][0] in page_of(tmp_path / "out")


def test_data_that_is_not_what_was_trained_on_is_a_failure(tmp_path: Path) -> None:
    """Ten of 24 images: scores would be against other images than the reply is about."""

    def some(context: Context) -> TensorDataset:
        return TensorDataset(*(one[:10] for one in digits(context).tensors))

    out = tmp_path / "out"
    rows = run(out, an_app(data=some))
    failed = [row for row in rows if row["metric"] == "client"]
    assert {(row["client"], row["status"]) for row in failed} == {(0, "failed"), (1, "failed")}
    assert all("data gives 10 examples, and the reply to training counts 24" in row["message"] for row in failed)
    assert not attacked(rows, "training update")
    assert attacked(rows, "one-step probe")
    assert "data gives 10 examples" in page_of(out)


def noisy(sent: State, message: Message, context: Context) -> State:
    """Adds noise in its own code, where no mod shows it."""
    trained = an_epoch(sent, message, context)
    return {name: value + 5 * torch.randn(value.shape) for name, value in trained.items()}


def test_an_app_that_defends_itself_is_not_called_undefended_and_assumptions_are_on_the_page(tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = run(out, app_that(noisy), probe_attacks=EXACT, probe_targets=8)
    assert {row["card"]["mods"] for row in attacked(rows, "one-step probe")} == {"none known"}
    assert (
        "observed: every image that training saw is one of data, as it is"
        in attacked(rows, "training update")[0]["card"]["caveats"]
    )
    (line,) = read_run(out).summaries[0].findings
    assert any(NOT_IN_PROBE in caveat for caveat in line.all_caveats)
    page = page_of(out)
    for claim in ("No defence", "ithout a defence", "no defence", "undefended run"):
        assert claim not in page, page[page.find(claim) - 200 :][:300]
    (about,) = [row for row in rows if row["metric"] == ASSUMED]
    assert len(about["assumed"]) == 3
    (warning,) = about["warnings"]
    assert warning.startswith(
        "The clients do not send the weights that their last step left, and no known mod changes them"
    )
    for text in about["assumed"]:
        assert html.escape(text, quote=True).replace("&#x27;", "&#39;") in page


EACH = 3


def shown(node: int, count: int) -> TensorDataset:
    return TensorDataset(*(one[:count] for one in digits(node_of(node)).tensors))


def test_held_out_images_are_no_training_images() -> None:
    """A test of membership has others, and null guesses of classes and means count trained images alone."""
    own, strangers = shown(0, EACH), shown(9, 7)
    images, labels, count = read_data((own, strangers))
    card = card_of(images, Net(), MEAN, STD)
    task = AuditSettings(Net).plan().at(1)
    data = OwnExamples(task, 0, examples_of(images, labels, card), card, Draws.simulated(0, 0), count)
    assert (data.num_train, data.num_test) == (EACH, 7)
    assert torch.equal(data.test_plain(torch.tensor([6])).images[0], strangers[6][0])
    assert torch.equal(data.own_images(torch.tensor([EACH]))[0], strangers[0][0])
    assert torch.equal(data.originals().images, own.tensors[0])
    assert (len(data.train_labels()), len(data.test_labels())) == (EACH, 7)
