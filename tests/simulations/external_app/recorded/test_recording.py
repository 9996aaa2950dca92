"""``fedveil attack FOLDER``: from the recording of somebody's strategy to a report, with and without the true images."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedProx
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner, Result

from attacks.metrics.names import GuessName, Role
from clients.data.datasets import load_dataset, to_float
from clients.flower_private import act_as_task, set_message_id
from clients.models.classifiers import build_model
from simulations.cli import app
from simulations.external_app.recorded import attack_recording, audit
from simulations.external_app.recorded.originals import Truth
from simulations.external_app.recorded.update_files import resembles_differences
from strategies.external_app.orders import OF_ROUND, OF_SETTINGS
from strategies.recording.strategy import RecordingStrategy
from tests.lines import read_lines

MEAN, STD, RATE = 0.1307, 0.3081, 0.1
NODES = tuple(range(11, 27))
EXACT = "Spear()"
DLG = "DLG(iterations=60, restarts=1, labels='auto')"


class Torch:
    """A grid of nodes that train a torch model by SGD: plain torch, nothing of ours."""

    def __init__(
        self, model: nn.Module, each: int, batch: int, originals: Path | None, names: bool, nodes: int
    ) -> None:
        act_as_task()
        self.model, self.each, self.batch, self.originals, self.names = model, each, batch, originals, names
        self.nodes = NODES[:nodes]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        return [self.answer(message) for message in messages]

    def answer(self, message: Message) -> Message:
        set_message_id(message, "m")
        node, config = message.metadata.dst_node_id, message.content["config"]
        images, labels = digits(NODES.index(node) * self.each, self.each)
        state = message.content["arrays"].to_torch_state_dict()
        self.model.load_state_dict(dict(zip(self.model.state_dict(), state.values(), strict=True)))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"])
        for at in range(0, self.each, self.batch):
            optimizer.zero_grad()
            part = slice(at, at + self.batch)
            F.cross_entropy(self.model((images[part] - MEAN) / STD), labels[part]).backward()
            optimizer.step()
        if self.originals:
            name = f"round-{config['server-round']:04d}-node-{node}.safetensors"
            save_file({"images": images, "labels": labels}, self.originals / name)
        content = RecordDict({"arrays": self.arrays(), "metrics": MetricRecord({"num-examples": self.each})})
        return Message(content, reply_to=message)

    def arrays(self) -> ArrayRecord:
        state = {name: value.clone() for name, value in self.model.state_dict().items()}
        return ArrayRecord(state if self.names else {f"net.{i}": value for i, value in enumerate(state.values())})


def digits(start: int, count: int) -> tuple[Tensor, Tensor]:
    data = load_dataset("mnist-5k").train
    at = slice(start * 7, (start + count) * 7, 7)
    return to_float(data.images[at]), data.labels[at].contiguous()


def record(
    folder: Path,
    *,
    model: str = "lenet",
    each: int = 1,
    batch: int = 1,
    rounds: int = 1,
    names: bool = True,
    nodes: int = 2,
    mu: float = 0.0,
    **settings: Any,
) -> Path:
    """A recording in ``folder``/rec, and the true images in ``folder``/originals."""
    originals = folder / "originals"
    originals.mkdir(parents=True)
    net = build_model(model, num_classes=10, input_shape=(1, 28, 28), seed=4)
    grid = Torch(net, each, batch, originals, names, nodes)
    strategy = RecordingStrategy(FedProx(fraction_evaluate=0.0, proximal_mu=mu), folder / "rec", settings=settings)
    strategy.start(grid, grid.arrays(), num_rounds=rounds, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
    return folder / "rec"


def invoke(update: Path, *options: Any, **changes: Any) -> Result:
    values = {"model": "lenet", "num_classes": 10, "input_shape": "1,28,28", "mean": MEAN, "std": STD} | changes
    named = [word for key, v in values.items() if v is not None for word in (f"--{key.replace('_', '-')}", str(v))]
    return CliRunner().invoke(app, ["attack", str(update), *named, *map(str, options)])


CLAIMS = re.compile("[Nn]o defence(?! known| is known)|[Ww]ithout a defence|undefended run")
"""Nobody told the recorder whether a defence acted: a page that says one of these knows more than the recording."""


def page_of(out: Path) -> str:
    """The report's text, which claims nothing of defences."""
    page = " ".join((out / "report.html").read_text(encoding="utf-8").split())
    for claim in CLAIMS.finditer(page):
        raise AssertionError(page[max(0, claim.start() - 200) :][:300])
    return page


def test_without_originals_it_guesses_reports_and_claims_nothing(tmp_path: Path) -> None:
    folder, out = record(tmp_path, rounds=2, names=False), tmp_path / "out"
    result = invoke(folder, "--local-steps", 1, out=out, attack=f"{DLG}; LabelInference()")
    assert result.exit_code == 0, result.output
    rows = read_lines(out / "rows.jsonl")
    assert {row["round"] for row in rows} == {1, 2}
    assert not [row for row in rows if row["metric"] in ("psnr", "ssim", "retrieval", "label-accuracy")]
    assert len(read_lines(out / "pictures" / "index.jsonl")) == 4, "a guess of each node in each round"
    page = page_of(out)
    assert "No guess was scored: the true images were not given" in page.split("Headline")[0]
    assert "No attack on the images has a score, so nothing is known about them" in page
    assert "so they were taken in order" in page
    assert "not known: Which classes the examples have" in result.output
    said = " ".join(result.output.split())
    assert "No guess was scored, as no originals were given. The guesses of" in said
    assert f"are in {out / 'guesses'}" in said
    assert result.output.splitlines()[-1] == f"report: {out / 'report.html'}"
    for word in (
        "Which loss the clients used",
        "dropout acted",
        "layers were frozen",
        "names and shapes",
        "hold weights",
    ):
        assert word in result.output
    assert (out / "guesses" / "round-0002-client-1.safetensors").is_file()


def test_who_interrupts_it_keeps_what_every_attack_has_found_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = record(tmp_path, rounds=3, names=False), tmp_path / "out"
    attacked = audit.guess_safely

    def interrupted(attack: Any, seen: Any, seed: int, server_round: int, client: int) -> Any:
        if server_round == 2 and "DLG" in repr(attack):
            raise KeyboardInterrupt
        return attacked(attack, seen, seed, server_round, client)

    monkeypatch.setattr(audit, "guess_safely", interrupted)
    result = invoke(folder, "--local-steps", 1, out=out, attack=f"LabelInference(); {DLG}")
    assert result.exit_code == 130
    assert f"stopped; what the attacks before had found is kept in {out}" in " ".join(result.output.split())
    rows = read_lines(out / "rows.jsonl")
    found = {
        (row["round"], row["attack"].partition("(")[0]) for row in rows if row["attack"] and ":" not in row["attack"]
    }
    assert {(1, "LabelInference"), (1, "DLG"), (2, "LabelInference")} <= found
    assert not found & {(2, "DLG"), (3, "LabelInference"), (3, "DLG")}
    assert json.loads((out / "config.json").read_text())["progress"]["finished"] is False
    assert (out / "report.html").is_file()
    with safe_open(out / "guesses" / "round-0002-client-1.safetensors", framework="pt") as kept:
        assert [name.partition("/")[0] for name in kept.keys()] == ["LabelInference"]  # noqa: SIM118 (not a mapping)


def test_with_originals_it_scores_and_digits_come_back(tmp_path: Path) -> None:
    folder, out = record(tmp_path, **{"local-epochs": 1, "batch-size": 1}), tmp_path / "out"
    result = invoke(folder, "--json", originals=tmp_path / "originals", out=out, attack=f"{DLG}; LabelInference()")
    assert result.exit_code == 0, result.output
    rows = read_lines(out / "rows.jsonl")
    told = {one["attack"]: one for one in json.loads(result.stdout)["attacks"]}
    assert told["LabelInference()"]["labels"] == 1.0
    assert [(one["round"], one["psnr"], one["status"]) for name, one in told.items() if name.startswith("DLG")] == [
        (1, row["value"], row["status"]) for row in rows if row["attack"].startswith("DLG") and row["metric"] == "psnr"
    ]
    mine = {(row["attack"], row["metric"]): row for row in rows}
    attack = next(name for name, metric in mine if name.startswith("DLG") and metric == "psnr")
    assert mine[attack, "psnr"]["value"] > mine["grey", "psnr"]["value"] + 3
    assert mine[attack, "psnr"]["n"] == 2
    assert mine[attack, "psnr"]["status"] == "under-powered", "two images are no verdict"
    assert mine["LabelInference()", "label-accuracy"]["value"] == 1.0
    index = read_lines(out / "pictures" / "index.jsonl")
    assert sorted(one["kind"] for one in index) == ["original"] * 2 + ["reconstruction"] * 2
    assert "Under-powered: too few images for a verdict." in page_of(out)


def test_what_a_recorded_app_says_about_its_privacy_is_on_the_page_and_in_json(tmp_path: Path) -> None:
    """The metrics of every reply, and the strategy's wrapper by its name; JSON of a recording has no infinity."""
    folder, out = record(tmp_path, rounds=2), tmp_path / "out"
    about = json.loads((folder / "recording.json").read_text())
    wrapper = "DifferentialPrivacyServerSideFixedClipping"
    (folder / "recording.json").write_text(json.dumps(about | {"strategy": [wrapper, *about["strategy"]]}))
    for path, epsilon in zip(sorted(folder.glob("round-*/train-*.json")), (2.5, 7.0, "inf", 4.0), strict=True):
        reply = json.loads(path.read_text())
        reply["metrics"]["metrics"] |= {"epsilon": epsilon, "delta": 1e-5}
        path.write_text(json.dumps(reply))
    result = invoke(folder, "--local-steps", 1, "--json", out=out, attack="LabelInference()")
    assert result.exit_code == 0, result.output
    metrics, server = json.loads(result.stdout)["claims"]
    assert (metrics["epsilon"], metrics["lowest"], metrics["delta"], metrics["rounds"]) == (7.0, 2.5, 1e-5, 2)
    assert "1 value of epsilon was left out" in metrics["text"]
    assert f"The server's {wrapper} claims differential privacy in 2 rounds" in server["text"]
    said = [metrics["text"], server["text"]]
    assert all(row["card"]["claimed_privacy"] == said for row in read_lines(out / "rows.jsonl"))
    page = html.unescape(page_of(out))
    assert all(text in page for text in said)
    assert not json.loads(invoke(record(tmp_path / "b"), "--local-steps", 1, "--json", out=tmp_path / "c",
                                 attack="LabelInference()").stdout)["claims"]  # fmt: skip


def test_guesses_are_pictured_under_the_number_of_the_original_that_they_are_scored_against(tmp_path: Path) -> None:
    folder, out = record(tmp_path, model="mlp", each=4, batch=4), tmp_path / "out"
    attack = "InvertingGradients(iterations=2, restarts=1, max_images=2)"
    options = {"originals": tmp_path / "originals", "attack": attack, "model": "mlp"}
    assert invoke(folder, "--local-steps", 1, out=out, **options).exit_code == 0
    shown = [one for one in read_lines(out / "pictures" / "index.jsonl") if one["client"] == 0]
    guesses = load_file(out / "guesses" / "round-0001-client-0.safetensors")["InvertingGradients/images"]
    truth = load_file(tmp_path / "originals" / "round-0001-node-11.safetensors")["images"]
    numbers = Truth(truth, None, truth[:0]).pairs(guesses)[1].tolist()
    assert [one["image"] for one in shown if one["kind"] == "original"] == [0, 1, 2, 3]
    assert [one["image"] for one in shown if one["kind"] == "reconstruction"] == sorted(numbers)
    told = json.loads((out / "config.json").read_text())
    assert (told["config"]["scenario"], told["progress"]["finished"]) == ("recording", True)
    assert not (out / "jobs").exists()


@pytest.mark.parametrize("scored", [True, False])
def test_an_attack_that_fails_on_every_reply_leaves_a_row_and_alone_ends_with_1(tmp_path: Path, scored: bool) -> None:
    """The exact attack reads a linear layer on the pixels, which a convolutional network lacks."""
    folder, out = record(tmp_path), tmp_path / "out"
    originals = {"originals": tmp_path / "originals"} if scored else {}
    result = invoke(folder, "--local-steps", 1, out=out, attack=EXACT, **originals)
    assert result.exit_code == 1, result.output
    (row,) = [row for row in read_lines(out / "rows.jsonl") if row["metric"] == "attack"]
    assert (row["status"], row["n"], row["failures"]) == ("failed", 2, 2)
    assert row["message"] == "; ".join(row["card"]["attack_failures"]) != ""


def test_a_recording_of_somebodys_own_network(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n"
        "    def __init__(self, num_classes):\n        super().__init__()\n"
        "        self.last = torch.nn.Linear(784, num_classes)\n\n"
        "    def forward(self, images):\n        return self.last(torch.sinc(images.flatten(1)))\n"
    )
    folder, out = record(tmp_path, model=f"{file}:Net", **{"local-epochs": 1, "batch-size": 1}), tmp_path / "out"
    result = invoke(folder, originals=tmp_path / "originals", out=out, attack="LabelInference()", model=f"{file}:Net")
    assert result.exit_code == 0, result.output
    rows = [row for row in read_lines(out / "rows.jsonl") if row["metric"] == "label-accuracy"]
    assert [row["value"] for row in rows if row["attack"] == "LabelInference()"] == [1.0]
    refused = invoke(folder, out=tmp_path / "other", attack="LabelInference()", model=f"{file}:Other")
    assert refused.exit_code == 2
    assert "has no 'Other'; in it are Net" in " ".join(refused.stderr.split())
    assert not (tmp_path / "other").exists()


def test_a_batch_of_32_on_a_relu_network_gets_a_plain_verdict(tmp_path: Path) -> None:
    """The oldest open wish of the field: a usual batch of a usual network, from a recording; a weak attack is not validated."""
    folder, out = (
        record(tmp_path, model="cnn", each=32, batch=32, **{"local-epochs": 1, "batch-size": 32}),
        tmp_path / "out",
    )
    attack = "InvertingGradients(iterations=3, restarts=1, max_images=32)"
    options = {
        "originals": tmp_path / "originals",
        "auxiliary": "mnist-5k",
        "out": out,
        "attack": attack,
        "model": "cnn",
    }
    result = invoke(folder, **options)
    assert result.exit_code == 0, result.output
    rows = read_lines(out / "rows.jsonl")
    psnr = next(row for row in rows if row["metric"] == "psnr" and row["attack"].startswith("Inv"))
    assert (psnr["n"], psnr["status"]) == (64, "not-validated")
    assert (psnr["card"]["batch"], psnr["card"]["local_steps"]) == (32, 1)
    page = page_of(out)
    assert "Not validated: no attack here recovered these images (the run as recorded scores no better than " in page
    assert "No defence known" in page
    assert psnr["card"]["reported_defence"].startswith("none: whether one acted on the replies before they were sent")


def test_what_an_exact_attack_recovers_is_validated(tmp_path: Path) -> None:
    """A linear layer that sees the pixels gives a single image away: a closed form, so the verdict must be the opposite."""
    steps = {"local-epochs": 1, "batch-size": 1}
    folder, out = record(tmp_path, model="mlp", nodes=16, **steps), tmp_path / "out"
    options = {"originals": tmp_path / "originals", "auxiliary": "mnist-5k", "model": "mlp", "attack": EXACT}
    result = invoke(folder, out=out, **options)
    assert result.exit_code == 0, result.output
    psnr = next(
        row for row in read_lines(out / "rows.jsonl") if row["metric"] == "psnr" and row["attack"].startswith("Spear")
    )
    assert (psnr["n"], psnr["status"]) == (16, "ok")
    assert psnr["value"] > 60, "exact but for the rounding of float32 weights, whose difference the update is"
    page = page_of(out)
    assert "in round 1 recovered images from these updates." in page
    assert "Where no defence is known: readable (" in page
    result = invoke(folder, out=tmp_path / "told", defense="GaussianNoise(std=0.1)", **options)
    assert result.exit_code == 0, result.output
    page = page_of(tmp_path / "told")
    assert "Without an undefended recording the report cannot show" in page
    assert "there is no run without the defence beside this one" in page


def test_originals_that_went_through_the_apps_normalisation_are_no_decoys_and_nothing_to_learn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digits of the clients are of the auxiliary data set, too, and differ from it by float errors."""
    folder = record(tmp_path, model="mlp", nodes=16, **{"local-epochs": 1, "batch-size": 1})
    true = set[bytes]()
    for file in (tmp_path / "originals").iterdir():
        with safe_open(file, framework="pt") as found:
            images, labels = found.get_tensor("images"), found.get_tensor("labels")
        true.add((images * 255).round().to(torch.uint8).numpy().tobytes())
        again = (((images - MEAN) / STD) * STD + MEAN).clamp(0, 1)
        assert not torch.equal(again, images)
        save_file({"images": again, "labels": labels}, file)
    learned = list[Any]()
    real = attack_recording.fit
    monkeypatch.setattr(attack_recording, "fit", lambda a, s, known: (learned.append(known), real(a, s, known))[1])
    options = {"originals": tmp_path / "originals", "auxiliary": "mnist-5k", "model": "mlp", "attack": EXACT}
    result = invoke(folder, out=tmp_path / "out", **options)
    assert result.exit_code == 0, result.output
    rows = read_lines(tmp_path / "out" / "rows.jsonl")
    (picked,) = [row for row in rows if row["metric"] == "retrieval" and row["attack"].startswith("Spear")]
    assert (picked["value"], picked["n"]) == (1.0, 16)
    pixels = [(one * 255).round().to(torch.uint8).numpy().tobytes() for one in learned[0].auxiliary.images]
    total = len(load_dataset("mnist-5k").train)
    assert true.isdisjoint(pixels)
    assert len(pixels) == total - 16 == total - len(true)
    said = f"16 of the {total} images of --auxiliary mnist-5k are true images"
    assert said in page_of(tmp_path / "out")
    assert f"whose originals are not here: {said}" in " ".join(result.output.split())


def test_without_other_images_there_is_no_mean_image() -> None:
    """The mean of none is no baseline; grey under its name was one."""
    dark = 0.3 * torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert GuessName(Role.NULL_BASELINE, "mean") not in Truth(dark, None, dark[:0]).baselines(10)
    other = torch.full((1, 1, 8, 8), 0.25)
    found = Truth(dark, None, other).baselines(10)[GuessName(Role.NULL_BASELINE, "mean")]["mse", "original"]
    expected = (dark - 0.25).square().mean((1, 2, 3))  # guesses are alike, so that any assignment is the best
    torch.testing.assert_close(torch.tensor(sorted(found)), expected.sort().values)


def test_nobody_can_say_without_originals_what_auxiliary_data_hold(foreign: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = invoke(foreign, "--local-steps", 1, out=out, attack="LabelInference()", auxiliary="mnist-5k")
    assert result.exit_code == 0, result.output
    assert "Whether mnist-5k holds the clients&#39; own images" in page_of(out)


class Differences(Torch):
    """Clients that send how their weights changed."""

    def answer(self, message: Message) -> Message:
        reply = super().answer(message)
        sent, came = (one.content["arrays"].to_torch_state_dict() for one in (message, reply))
        reply.content["arrays"] = ArrayRecord({name: came[name] - sent[name] for name in came})
        return reply


def test_replies_that_hold_differences_are_refused_and_can_be_attacked_as_single_updates(tmp_path: Path) -> None:
    net = build_model("mlp", num_classes=10, input_shape=(1, 28, 28), seed=4)
    grid = Differences(net, 1, 1, None, True, 2)
    strategy = RecordingStrategy(FedProx(fraction_evaluate=0.0, proximal_mu=0.0), tmp_path / "rec")
    strategy.start(grid, grid.arrays(), num_rounds=1, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
    result = invoke(tmp_path / "rec", "--local-steps", 1, out=tmp_path / "out", attack=EXACT, model="mlp")
    assert result.exit_code == 2
    assert "seems to hold differences (local - global), not weights" in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()
    first = tmp_path / "rec" / "round-0001"
    single = invoke(
        first / "train-0000-0.safetensors", out=tmp_path / "single", attack=EXACT, model="mlp",
        weights=first / "sent-0-0.safetensors", learning_rate=RATE,
    )  # fmt: skip
    assert single.exit_code == 0, single.output
    images = load_file(tmp_path / "single" / "guesses.safetensors")["Spear/images"]
    node = json.loads((first / "train-0000.json").read_text())["node"]  # nodes are asked in any order
    torch.testing.assert_close(images, digits(NODES.index(int(node)), 1)[0], atol=1e-3, rtol=0)


def test_weights_that_training_shrank_are_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    sent = {"a": torch.randn(40, 50, generator=generator), "b": torch.randn(50, generator=generator)}
    moved = {name: 0.05 * torch.randn(value.shape, generator=generator) for name, value in sent.items()}
    assert resembles_differences(moved, sent)
    assert resembles_differences({name: -0.1 * value for name, value in sent.items()}, sent), "the change of a decay"
    for scale in (0.1, 0.3, 1.0, 2.0):
        assert not resembles_differences({name: scale * value + moved[name] for name, value in sent.items()}, sent)
    assert not resembles_differences(moved, {name: torch.zeros_like(value) for name, value in sent.items()})


def test_where_the_learning_rate_comes_from_is_on_the_card(tmp_path: Path) -> None:
    folder = record(tmp_path, **{"local-epochs": 1, "batch-size": 1})
    told = {}
    for name, options in (("round", {}), ("option", {"learning_rate": RATE})):
        result = invoke(
            folder, out=tmp_path / name, attack="LabelInference()", originals=tmp_path / "originals", **options
        )
        assert result.exit_code == 0, result.output
        rows = [row for row in read_lines(tmp_path / name / "rows.jsonl") if row["attack"] == "LabelInference()"]
        told[name] = {row["card"]["learning_rate"] for row in rows}
    assert told == {"round": {OF_ROUND}, "option": {"as --learning-rate says, the same in every round"}}
    for file in (folder / "round-0001").glob("*.json"):
        file.write_text(file.read_text().replace('"lr"', '"rate"'))
    about = json.loads((folder / "recording.json").read_text())
    (folder / "recording.json").write_text(json.dumps(about | {"settings": about["settings"] | {"lr": RATE}}))
    result = invoke(folder, out=tmp_path / "settings", attack="LabelInference()")
    assert result.exit_code == 0, result.output
    rows = [row for row in read_lines(tmp_path / "settings" / "rows.jsonl") if row["attack"] == "LabelInference()"]
    assert {row["card"]["learning_rate"] for row in rows} == {OF_SETTINGS}


def test_several_local_steps_are_counted(tmp_path: Path) -> None:
    folder = record(tmp_path, each=6, batch=2, mu=0.3)
    out = tmp_path / "out"
    result = invoke(folder, "--local-epochs", 1, "--batch-size", 2, out=out, attack="LabelInference()")
    assert result.exit_code == 0, result.output
    about = next(row for row in read_lines(out / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert about["local_steps"] == [3, 3]
    assert any("a proximal term of weight 0.3" in text for text in about["assumed"])
    assert about["examples"] == [6, 6]
    assert about["clients"] == {"0": "11", "1": "12"}


@pytest.mark.parametrize(("options", "told"), [({}, True), ({"batch_size": 2}, False)])
def test_steps_without_a_batch_size_are_said_to_be_of_full_batches(
    tmp_path: Path, options: dict[str, Any], told: bool
) -> None:
    folder, out = record(tmp_path, each=6, batch=2), tmp_path / "out"
    result = invoke(folder, "--local-steps", 3, out=out, attack="LabelInference()", **options)
    assert result.exit_code == 0, result.output
    about = next(row for row in read_lines(out / "rows.jsonl") if row["metric"] == "recorded-updates")
    said = "How many examples a step saw: all of them in each of the 3 local steps, for want of --batch-size."
    assert (said in about["assumed"]) == told
    assert (said in " ".join((out / "report.html").read_text(encoding="utf-8").split())) == told


def test_a_batch_size_that_the_recording_tells_is_not_assumed(tmp_path: Path) -> None:
    folder, out = record(tmp_path, each=6, batch=2, **{"batch-size": 2}), tmp_path / "out"
    result = invoke(folder, "--local-steps", 3, out=out, attack="LabelInference()")
    assert result.exit_code == 0, result.output
    about = next(row for row in read_lines(out / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert not any("How many examples a step saw" in text for text in about["assumed"])


class Falling(FedProx):
    """0.1 in the first round, 0.01 in the second."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
        config["lr"] = 0.1**server_round
        return super().configure_train(server_round, arrays, config, grid)


def test_every_learning_rate_of_the_rounds_is_told(tmp_path: Path) -> None:
    net = build_model("lenet", num_classes=10, input_shape=(1, 28, 28), seed=4)
    grid = Torch(net, 1, 1, None, True, 2)
    strategy = RecordingStrategy(Falling(fraction_evaluate=0.0, proximal_mu=0.0), tmp_path / "rec")
    strategy.start(grid, grid.arrays(), num_rounds=2, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
    result = invoke(tmp_path / "rec", "--local-steps", 1, out=tmp_path / "out", attack="LabelInference()")
    assert result.exit_code == 0, result.output
    about = next(row for row in read_lines(tmp_path / "out" / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert any(text.startswith("The learning rate: 0.1, 0.01 was read") for text in about["assumed"])
    assert "Learning rates differ" not in result.output
    # One rate for all rounds is that of the first alone.
    result = invoke(
        tmp_path / "rec", "--local-steps", 1, out=tmp_path / "given", attack="LabelInference()", learning_rate=0.1
    )
    assert result.exit_code == 0, result.output
    text = "Learning rates differ in round 2: attacks use 0.1 for every client, and 2 of 2 clients were sent or reported 0.01."
    page = " ".join((tmp_path / "given" / "report.html").read_text(encoding="utf-8").split())
    assert text in " ".join(result.output.split())
    assert text in page
    assert "Learning rates differ in round 1" not in page


CASES: dict[str, tuple[list[str], str]] = {
    "steps": ([], "does not tell how often a client stepped; name --local-steps, or --local-epochs and --batch-size"),
    "epochs": (
        ["--local-epochs", "-1", "--batch-size", "1"],
        "--local-epochs is -1; allowed: a whole number of at least 0",
    ),
    "weights": (["--local-steps", "1", "--weights", "w"], "--weights is for a single update"),
    "labels": (["--local-steps", "1", "--labels", "3"], "--labels is for a single update"),
    "rounds": (["--local-steps", "1", "--rounds", "7"], "--rounds is '7'; allowed: of 1, such as 1,3"),
    "model": (["--local-steps", "1", "--model", "cnn"], "lacks '0.weight'"),
    "originals": (["--local-steps", "1", "--originals", "nowhere"], "nowhere has neither round-0001-node-1"),
}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("foreign"), names=False)


@pytest.mark.parametrize("case", CASES)
def test_refuses_before_any_work(foreign: Path, tmp_path: Path, case: str) -> None:
    options, message = CASES[case]
    result = invoke(foreign, *options, out=tmp_path / "out", attack=DLG)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split()), result.output
    assert not (tmp_path / "out").exists()


def test_refuses_what_is_no_recording(tmp_path: Path) -> None:
    assert "holds no recording" in invoke(tmp_path, "--local-steps", 1).output
    file = tmp_path / "update.safetensors"
    save_file({"a": torch.zeros(1)}, file)
    assert "--rounds is for recordings" in invoke(file, "--rounds", "1", "--learning-rate", 1).output
    words = " ".join(invoke(file, attack=DLG).output.split())
    assert "lacks '0.weight'" in words, "an update without a learning rate is read"


@pytest.mark.parametrize("told", [{"local-epochs": -1, "batch-size": 1}, {"local-epochs": 1, "batch-size": -2}])
def test_numbers_of_a_recording_that_are_none_blame_no_option(tmp_path: Path, told: dict[str, int]) -> None:
    folder = record(tmp_path, **told)
    words = " ".join(invoke(folder, out=tmp_path / "out", attack=DLG).output.split())
    assert "does not tell how often a client stepped; name --local-steps" in words
    path = folder / "round-0001" / "sent.json"
    path.write_text(path.read_text().replace(f'"lr": {RATE}', '"lr": -0.5'))
    words = " ".join(invoke(folder, "--local-steps", 1, out=tmp_path / "out", attack=DLG).output.split())
    assert "holds no 'lr' or 'learning-rate' or 'learning_rate' above 0 (-0.5); name --learning-rate" in words


def test_a_file_in_place_of_the_folder_of_results_is_told_first(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.touch()
    (tmp_path / "rec").mkdir()
    for there in (tmp_path / "rec", file):
        words = " ".join(invoke(there, "--learning-rate", 1, out=file / "inside").output.split())
        assert f"--out: {file} is a file, and results need a folder" in words


def test_a_reply_with_nan_is_told_and_the_others_are_attacked(tmp_path: Path) -> None:
    folder = record(tmp_path)
    path = folder / "round-0001" / "train-0001-0.safetensors"
    with safe_open(path, framework="pt") as file:
        order, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    arrays["0.weight"][0] = float("nan")
    save_file(arrays, path, order)
    result = invoke(folder, "--local-steps", 1, out=tmp_path / "out", attack="LabelInference()")
    assert result.exit_code == 0, result.output
    assert "'0.weight' holds NaN or infinite values" in " ".join(result.output.split())
    about = next(row for row in read_lines(tmp_path / "out" / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert (about["n"], len(about["unusable"])) == (1, 1)


def test_a_dropped_reply_is_told(foreign: Path, tmp_path: Path) -> None:
    """A reply whose arrays were dropped is told in the report, and the others are attacked."""
    path = foreign / "round-0001" / "train-0000.json"
    before = path.read_text()
    try:
        path.write_text(json.dumps(json.loads(before) | {"arrays": {}, "dropped": "arrays: the disk was full"}))
        result = invoke(foreign, "--local-steps", 1, out=tmp_path / "out", attack="LabelInference()")
    finally:
        path.write_text(before)
    assert result.exit_code == 0, result.output
    assert "its arrays were not recorded: arrays: the disk was full" in (tmp_path / "out" / "report.html").read_text(
        encoding="utf-8"
    )
