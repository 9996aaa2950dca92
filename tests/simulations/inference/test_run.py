"""Edge-cloud inference in this process: real clients, a really trained model, real attacks; only the transport is local."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from safetensors.torch import save_file
from torch import Tensor, nn

from attacks.normalisation import normalise
from clients.data.card import DataCard
from clients.data.images import to_float
from clients.models.classifiers import build_model
from clients.models.cuts import halves
from clients.models.library import ModelError
from clients.task.scenarios import read_task
from clients.wire.records import tensors_of, values_of
from defenses.spec import parse
from simulations.experiment.experiment import Experiment
from simulations.report.analysis.failures import failed_attacks
from simulations.runtime.local_run import EXIT_ATTACKS_FAILED, list_failures
from simulations.server_app import run_experiment
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.broken_replies import edit, on
from tests.simulations.run_folder.kills import Killed, killed_at
from tests.simulations.short_runs import Wire, rows_in, rows_of, untimed

INVERSION = "QueryInversion(iterations=40)"
NOISE = "FeatureNoise(std=0.5)"
LEARNED = "FeaturePCA(components=8) | FeatureNoise(std=0.1)"
RESUMED = {"defenses": LEARNED, "query_attacks": "QueryInversion(iterations=2)"}
"""Changes for runs that are compared with others of their kind."""


def inference_experiment(out: Path, **changes: Any) -> Experiment:
    """Two clients with 20 test digits each, three batches of 8, 8 and 4; the server trains on 80 examples of 100."""
    small = Experiment.of(
        scenario="inference", model="vgg_small", output_dir=str(out), dataset="mnist-5k", train_limit=100, test_limit=40,
        auxiliary_fraction=0.8, num_clients=2, rounds=2, local_epochs=1, batch_size=8, learning_rate=0.05, batches_per_message=2,
        defenses="", probe_targets=2, probe_images=2, attack_workers=0, adaptive=False, share_images=False,
        query_attacks=INVERSION,
    )  # fmt: skip
    return small.but(**changes)


Run = tuple[Path, list[dict[str, Any]], Wire]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Folder, rows and messages of a run without a defence and with noise, attacked on 16 images."""
    out, wire = tmp_path_factory.mktemp("audited") / "run", Wire()
    settings = inference_experiment(out, defenses=NOISE, share_images=True, probe_targets=2, probe_images=4)
    return out, rows_of(settings, wire), wire


def number(rows: list[dict[str, Any]], metric: str, defense: str, reference: str = "", attack: str = "") -> Any:
    """The only row of a number."""
    wanted = (metric, defense, reference, attack)
    (row,) = [row for row in rows if (row["metric"], row["defense"], row["reference"], row["attack"]) == wanted]
    return row


def pipeline_of(request: Message) -> str:
    return str(json.loads(str(request.content["config"]["task"]))["plan"]["pipeline"])


def latents(wire: Wire, defense: str) -> dict[int, Tensor]:
    """Partition -> what travelled of all its queries, in order."""
    found: dict[int, dict[int, Tensor]] = {}
    for partition, request, reply in wire.of("query.features"):
        if pipeline_of(request) == defense:
            mine = {int(name): tensor for name, tensor in tensors_of(reply, "features").items()}
            found.setdefault(partition, {}).update(mine)
    return {partition: torch.cat([mine[at] for at in sorted(mine)]) for partition, mine in found.items()}


def judged(wire: Wire, defense: str) -> dict[int, tuple[Mapping[str, Tensor], Tensor]]:
    """Partition -> weights of the whole model and the answers that it was sent."""
    return {
        partition: (tensors_of(request, "arrays"), tensors_of(request, "answers")["0"])
        for partition, request, _ in wire.of("evaluate")
        if pipeline_of(request) == defense
    }


def private(wire: Wire, partition: int) -> tuple[Tensor, Tensor, DataCard, nn.Module]:
    """A client's normalised test images and their labels, as its indices at the set-up say, the card, and an empty model."""
    setup = next(request for at, request, _ in wire.of("query.setup") if at == partition)
    task = read_task(setup.content["config"]["task"])  # type: ignore[arg-type, call-overload, index]
    data, card = task.plan.load_data(), task.plan.data_card()
    indices = tensors_of(setup, "indices")["test"]
    return (
        normalise(to_float(data.test.images[indices]), card), data.test.labels[indices], card, task.plan.build_model(),
    )  # fmt: skip


@pytest.mark.essential
def test_features_answers_and_their_scores_are_those_of_the_whole_model_on_the_test_images(audited: Run) -> None:
    """The model that the server trained, uncut, on images that no message holds."""
    _, rows, wire = audited
    plain_right, noisy_right, same = 0.0, 0.0, 0.0
    for partition in (0, 1):
        images, labels, _, model = private(wire, partition)
        weights, answers = judged(wire, "")[partition]
        model.load_state_dict(dict(weights), strict=False)
        with torch.no_grad():
            plain = model.eval()(images)
        torch.testing.assert_close(answers, plain, rtol=1e-4, atol=1e-4)
        noisy = judged(wire, NOISE)[partition][1]
        plain_right += float((plain.argmax(1) == labels).sum())
        noisy_right += float((noisy.argmax(1) == labels).sum())
        same += float((noisy.argmax(1) == plain.argmax(1)).sum())
    for defense, right, agreed in (("", plain_right, 40.0), (NOISE, noisy_right, same)):
        before, after = (number(rows, "test-accuracy", defense, of)["value"] for of in ("original", "transformed"))
        assert (before, after) == pytest.approx((plain_right / 40, right / 40))
        assert number(rows, "agreement", defense)["value"] == pytest.approx(agreed / 40)
        lost, gained = (number(rows, f"answers-{what}", defense)["value"] for what in ("lost", "gained"))
        assert lost - gained == pytest.approx(before - after, abs=1e-6)
    assert same < 40, "or agreement would say nothing"


def test_every_pipeline_has_rows_of_every_phase(audited: Run) -> None:
    _, rows, wire = audited
    assert {row["scenario"] for row in rows} == {"inference"}
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    served = {
        "queries", "query-bytes", "feature-bytes", "answer-bytes", "client-half-bytes", "query-seconds", "answer-seconds",
        "clients-failed", "agreement", "answers-lost", "answers-gained", "test-accuracy", "test-loss",
    }  # fmt: skip
    for defense in ("", NOISE):
        mine = [row for row in rows if row["defense"] == defense]
        by_round = {at: {row["metric"] for row in mine if row["round"] == at and not row["attack"]} for at in range(4)}
        assert by_round[0] == set()
        assert by_round[1] == by_round[2] == {"train-loss", "server-seconds"}
        assert by_round[3] == served
        assert {row["round"] for row in mine if row["attack"]} == {3}
        assert number(rows, "queries", defense)["value"] == 40
        sent = torch.cat(list(latents(wire, defense).values()))
        assert number(rows, "query-bytes", defense)["value"] == sent.nbytes / 40
        assert number(rows, "feature-bytes", defense)["value"] == sent.nbytes / 40
    # No defence takes part in training: all pipelines share one, to the second.
    for metric in ("train-loss", "server-seconds"):
        plain, noisy = ([r["value"] for r in rows if (r["metric"], r["defense"]) == (metric, d)] for d in ("", NOISE))
        assert plain == noisy


@pytest.mark.numeric
def test_without_a_defence_the_images_come_back_and_noise_makes_them_worse(audited: Run) -> None:
    out, rows, wire = audited
    plain, noisy = latents(wire, ""), latents(wire, NOISE)
    noise = torch.cat([noisy[at] - plain[at] for at in (0, 1)])
    # The only difference between what travels; bounds of five standard errors of 250,000 draws.
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)
    assert float(noise.mean()) == pytest.approx(0, abs=0.01)
    found = {d: number(rows, "psnr", d, "original", INVERSION) for d in ("", NOISE)}
    assert {row["n"] for row in found.values()} == {16}
    assert found[""]["value"] > found[NOISE]["value"] > number(rows, "psnr", "", "original", "mean")["value"]
    picked = number(rows, "identified", "", "original", INVERSION)
    assert picked["value"] >= 0.5, "all that have others of their class: few of 10 digits have"
    card = picked["card"]
    assert (card["observation"], card["transmissions"], picked["cut"]) == ("queries", 1, "conv2")
    assert number(rows, "psnr", "", "transformed", INVERSION)["value"] == found[""]["value"]
    drawn = {one["kind"] for one in read_lines(out / "pictures" / "index.jsonl") if one["observation"] == "queries"}
    assert drawn == {"original", "protected", "reconstruction"}


def test_no_message_holds_more_than_it_should(audited: Run) -> None:
    """Up go features and numbers, no labels; a client half holds no layer of the server's."""
    _, _, wire = audited
    requests = {
        "query.partition": {"config"}, "query.setup": {"config", "indices"}, "query.audit": {"config", "guesses", "oracle"},
        "query.features": {"config", "client", "learned"}, "evaluate": {"config", "answers", "arrays"},
    }  # fmt: skip
    for _, kind, request, reply in wire.messages:
        assert set(request.content) <= requests[kind]
        if kind == "query.features":
            assert set(reply.content) == {"features", "metrics"}
            assert set(reply.content["metrics"]) == {"num-examples", "query-seconds"}
            whole = tensors_of(wire.of("evaluate")[0][1], "arrays")
            assert 0 < len(tensors_of(request, "client")) < len(whole)
    asked = [(at, pipeline_of(request)) for at, request, _ in wire.of("query.features")]
    # 20 images a client: three batches in two messages, under each pipeline once.
    assert {place: asked.count(place) for place in asked} == {(at, d): 2 for at in (0, 1) for d in ("", NOISE)}


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_what_a_defence_has_learned_travels_and_its_latent_is_what_is_counted(tmp_path: Path) -> None:
    """Clients and server work with the tensors that the server fitted; by hand from those of the message."""
    wire, settings = Wire(), inference_experiment(tmp_path / "run", defenses="FeaturePCA(components=8)")
    rows = rows_of(settings, wire)
    defense = "FeaturePCA(components=8)"
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    assert number(rows, "query-bytes", defense)["value"] == 4 * 8
    assert number(rows, "feature-bytes", defense)["value"] == 4 * latents(wire, "")[0][0].numel()
    requests = [request for _, request, _ in wire.of("query.features") if pipeline_of(request) == defense]
    fitted = parse(defense).with_state(tensors_of(requests[0], "learned"))
    assert fitted.version == number(rows, "client-half-bytes", defense)["version"]
    assert {values_of(request, "config")["version"] for request in requests} == {fitted.version}
    assert fitted.version == parse(defense).with_state(tensors_of(requests[-1], "learned")).version
    for partition in (0, 1):
        plain, sent = latents(wire, "")[partition], latents(wire, defense)[partition]
        torch.testing.assert_close(sent, fitted.encode_features(plain, ("none",)), rtol=1e-4, atol=1e-4)
        answers, direct = judged(wire, defense)[partition][1], judged(wire, "")[partition][1]
        assert answers.shape == direct.shape
        assert not torch.equal(answers, direct)


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_same_seed_same_rows_other_seed_others_and_the_size_of_messages_changes_no_number(tmp_path: Path) -> None:
    runs = {}
    for name, changes in (("a", {}), ("b", {"batches_per_message": 1}), ("c", {"seed": 1})):
        settings = inference_experiment(tmp_path / name, **RESUMED | changes)
        runs[name] = untimed(rows_of(settings))
    assert runs["a"] == runs["b"]
    for metric in ("psnr", "train-loss", "test-loss"):
        values = [[row["value"] for row in runs[name] if row["metric"] == metric] for name in "ac"]
        assert values[0] != values[1]


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_a_model_from_a_file_is_used_as_it_is(tmp_path: Path) -> None:
    """The checkpoint of a run that trained it: the same answers, nothing trained; and taken up again behind the queries."""
    common = RESUMED | {"rounds": 1}
    trained = untimed(rows_of(inference_experiment(tmp_path / "trained", **common)))
    file = str(tmp_path / "trained" / "checkpoints" / "p00.safetensors")
    settings = inference_experiment(tmp_path / "run", weights=file, **common)
    with pytest.raises(Killed):
        run_experiment(LocalGrid(2, killed_at("query.audit", 7)), settings)
    # Another model in the same file ends the run before anything is asked: its rows would be of two.
    kept = Path(file).read_bytes()
    model = build_model("vgg_small", num_classes=10, input_shape=(1, 28, 28), seed=5)
    save_file({f"model/{name}": tensor for name, tensor in model.state_dict().items()}, file)
    grid = LocalGrid(2)
    with pytest.raises(ModelError, match=r"^weights: the file has changed since the run began"):
        run_experiment(grid, settings.but(resume=True))
    assert {kind for kind, _ in grid.sent} <= {"query.partition", "query.setup"}
    Path(file).write_bytes(kept)
    run_experiment(LocalGrid(2), settings.but(resume=True))
    assert untimed(rows_in(settings)) == [row for row in trained if row["metric"] != "train-loss"]


@pytest.mark.long
@pytest.mark.usefixtures("no_report")
def test_weights_for_other_classes_are_trained_on_and_normalise_everybodys_images(tmp_path: Path) -> None:
    """Clients, too, normalise as the weights want it, not as their data would."""
    model = build_model("vgg_small", num_classes=4, input_shape=(1, 28, 28), norm="batch", seed=5)
    torch.save(model.state_dict(), tmp_path / "other.pt")
    common: dict[str, Any] = RESUMED | {"norm": "batch", "weights": str(tmp_path / "other.pt")}
    runs, wire = {}, Wire()
    for name in ("efficientnet-lite0", "data"):
        settings = inference_experiment(tmp_path / name, normalisation=name, **common)
        runs[name] = untimed(rows_of(settings, wire if name != "data" else None))
    losses = {
        name: [row["value"] for row in rows if row["metric"] == "train-loss" and not row["defense"]]
        for name, rows in runs.items()
    }
    assert len(losses["data"]) == 2, "rounds of training"
    assert losses["data"] != losses["efficientnet-lite0"]

    images, _, card, whole = private(wire, 0)
    weights, _ = judged(wire, "")[0]
    whole.load_state_dict(dict(weights), strict=False)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (card.mean, card.std))
    as_weights_want = (images * std + mean - 127 / 255) / (128 / 255)
    with torch.no_grad():
        torch.testing.assert_close(
            latents(wire, "")[0], halves(whole.eval(), "vgg_small", "conv2")[0](as_weights_want), rtol=1e-4, atol=1e-4
        )


@pytest.mark.usefixtures("no_report")
def test_a_defence_that_cannot_learn_costs_its_own_rows_only(tmp_path: Path) -> None:
    """It is told in a row, in the report's list and by the exit code; the pipelines behind it run."""
    diverging = "DeltaAutoencoder(variant='deep', delta='max', epochs=2, learning_rate=1e12)"
    settings = inference_experiment(
        tmp_path / "run", defenses=f"{diverging}; {NOISE}", query_attacks="QueryInversion(iterations=2)", rounds=1
    )
    rows = rows_of(settings)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["progress"]["finished"]
    (failed,) = [row for row in rows if row["status"] == "failed"]
    assert (failed["metric"], failed["cut"], failed["round"]) == ("fit", "conv2", 2)
    assert failed["defense"].startswith("DeltaAutoencoder(")
    assert "DefenseError: DeltaAutoencoder" in failed["message"]
    assert "not finite" in failed["message"]
    assert not [row for row in rows if row["defense"] == failed["defense"] and row["metric"] == "test-accuracy"]
    assert [row for row in rows if row["defense"] == NOISE and row["metric"] == "psnr"]
    (told,) = [str(one) for one in failed_attacks(tmp_path / "run")]
    assert told.startswith("fit of defences on DeltaAutoencoder(")
    assert list_failures(tmp_path / "run") == EXIT_ATTACKS_FAILED


@pytest.mark.usefixtures("no_report")
def test_a_reply_of_another_shape_is_refused_and_a_node_without_audits_costs_scores_only(tmp_path: Path) -> None:
    settings = inference_experiment(tmp_path / "run", min_usable=0.5)
    tamper = on("query.features", edit("features", lambda arrays: arrays.pop("0")), partitions=(0,))
    run_experiment(LocalGrid(2, tamper, node_config={1: {"audits": False}}), settings)
    rows = rows_in(settings)
    (failed,) = [row for row in rows if row["status"] == "failed"]
    assert failed["message"].startswith("query.features: features: names differ")
    (refused,) = [row for row in rows if row["status"] == "refused"]
    assert (refused["client"], refused["round"]) == (1, 3)
    assert number(rows, "test-accuracy", "", "original")["n"] == 20
    assert not [row for row in rows if row["attack"]]
