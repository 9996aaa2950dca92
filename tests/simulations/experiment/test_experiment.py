"""Settings: defaults agree everywhere, and every bad value is refused by name before anything starts."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from defenses import Blur
from simulations.cli import app
from simulations.console.command_line import read_toml
from simulations.experiment.experiment import Experiment, all_settings
from simulations.experiment.scenario import scenarios
from simulations.runtime.local_run import EXIT_ATTACKS_FAILED, list_failures
from simulations.search.settings import Search
from simulations.server_app import run_experiment
from simulations.settings.common import CHOSEN_HERE
from simulations.settings.errors import ConfigError
from simulations.settings.fields import key_of
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.report.report_run import demo_rows, row, write_run

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("rounds", "text", "expected"),
    [
        (16, None, (10, 14)),
        (6, None, (4, 5)),
        (1, None, ()),
        (2, None, (1,)),
        (8, "7,1/4", (2, 7)),
        (8, "5/8,5/8,5", (5,)),
        (8, "", ()),
    ],
)
def test_rates_fall_after_numbered_rounds_and_after_shares_of_all(
    rounds: int, text: str | None, expected: tuple[int, ...]
) -> None:
    given = {} if text is None else {"learning-rate-milestones": text}
    assert Experiment.from_mapping({"rounds": rounds, **given}).milestones == expected


def test_flower_app_config_has_the_same_defaults() -> None:
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    usual = {key for one in scenarios().values() for key in (*one.settings.usual, *one.settings.usual_on_tables)}
    usual.add(CHOSEN_HERE)
    assert shipped == {key: "auto" if key in usual else spec.default for key, spec in all_settings().items()}


def test_what_scenarios_share_has_one_default() -> None:
    for one in scenarios().values():
        for spec in fields(one.settings):
            assert spec.default == all_settings()[key_of(spec.name)].default, f"{one.name}: {spec.name}"


@pytest.mark.parametrize("path", sorted((ROOT / "simulations" / "configs").glob("*.toml")), ids=lambda p: p.name)
def test_shipped_configs_are_valid_and_say_what_they_show(path: Path) -> None:
    kind = Search if path.name.startswith("search") else Experiment
    settings = kind.from_mapping(read_toml(path, None if kind is Search else ""))
    assert kind.from_mapping(settings.to_mapping()) == settings
    usual, _, paper = path.read_text().partition("\n[paper]\n")
    for text, words in ((usual, ("Shows", "Costs", "Expect")), (paper, ("Costs",))):
        assert not text or all(f"# {word}:" in text for word in words)


BAD = [
    ({"bath-size": 3}, "unknown setting 'bath-size', did you mean 'batch-size'?"),
    ({"batch-size": "32"}, "batch-size is '32' (str); expected int"),
    ({"batch-size": True}, "batch-size is True (bool); expected int"),
    ({"batch-size": 0}, "batch-size is 0; allowed: at least 1"),
    ({"local-steps": -1}, "local-steps is -1; allowed: at least 0"),
    ({"local-steps": 1.0}, "local-steps is 1.0 (float); expected int"),
    ({"local-step": 1}, "unknown setting 'local-step', did you mean 'local-steps'?"),
    ({"rounds": 2.5}, "rounds is 2.5 (float); expected int"),
    ({"learning-rate": 0.0}, "learning-rate is 0.0; allowed: at least 1e-12"),
    ({"learning-rate": float("nan")}, "learning-rate is nan; allowed: at least 1e-12"),
    ({"momentum": 1.0}, "momentum is 1.0; allowed: at least 0, below 1"),
    ({"nesterov": True, "momentum": 0.0}, "nesterov is True, and momentum is 0; allowed: a momentum above 0"),
    (
        {"rounds": 6, "learning-rate-milestones": "2,6"},
        "learning-rate-milestones: '6'; allowed: numbers from 1 to 5, as rounds = 6, and shares such as 5/8",
    ),
    ({"learning-rate-milestones": "3,8/5"}, "learning-rate-milestones: '8/5'; allowed"),
    ({"learning-rate-milestones": "1/"}, "learning-rate-milestones: '1/'; allowed"),
    ({"learning-rate-milestones": "half"}, "learning-rate-milestones: 'half'; allowed"),
    ({"learning-rate-factor": 0.0}, "learning-rate-factor is 0.0; allowed: above 0, at most 1"),
    ({"seed": 2**64}, "seed is 18446744073709551616; allowed: at least 0, at most 9223372036854775807"),
    ({"rounds": 10**9}, "rounds is 1000000000; allowed: at least 1, at most 1000000"),
    ({"image-size": 10**9}, "image-size is 1000000000; allowed: 0, or at least 2, at most 4096"),
    ({"image-size": 1}, "image-size is 1; allowed: 0, or at least 2, at most 4096"),
    ({"attack-workers": 10**9}, "attack-workers is 1000000000; allowed: at least 0, at most 1024"),
    ({"crop-padding": -1}, "crop-padding is -1; allowed: at least 0"),
    ({"horizontal-flip": 1}, "horizontal-flip is 1 (int); expected bool"),
    ({"crop-padding": 2, "defenses": "VisualMixer()"}, "protects an image once and keeps the result"),
    ({"horizontal-flip": True, "defenses": "ImageNoise()"}, "leave one of the two out"),
    ({"probe-mode": "test"}, "probe-mode is 'test'; allowed: 'train' or 'eval'"),
    ({"fraction-train": 1.5}, "fraction-train is 1.5; allowed: above 0, at most 1"),
    ({"dataset": "mnist5k"}, "unknown dataset 'mnist5k', did you mean 'mnist-5k'?"),
    ({"model": "lenett"}, "unknown model 'lenett', did you mean 'lenet'?"),
    ({"norm": "layer"}, "norm is 'layer'; allowed: 'group' or 'batch'"),
    ({"partition": "dirichlet(alpha=-1)"}, "partition: "),
    ({"partition": "iids"}, "partition: unknown partition 'iids', did you mean 'iid'?"),
    ({"defenses": "VisualMixr()"}, "defenses: unknown defence 'VisualMixr', did you mean 'VisualMixer'?"),
    ({"defenses": "Clip(max_norm=-1)"}, "defenses: defence Clip: max_norm is -1"),
    ({"defenses": "Clip(maxnorm=1)"}, "defence Clip has no argument 'maxnorm', did you mean 'max_norm'?"),
    ({"defenses": "InstaHide() | DPSGD()"}, "mixes several examples"),
    ({"defenses": "STAdam() | DPSGD()"}, "both replace the optimizer"),
    ({"defenses": "__import__('os')"}, "unknown defence '__import__'"),
    ({"probe-attacks": "DGL()"}, "probe-attacks: unknown attack 'DGL', did you mean 'DLG'?"),
    (
        {"probe-attacks": "TokenDecoder()"},
        "does not attack one-step probes but smashed data; these do: AdamCosine",
    ),
    (
        {"rounds": 6, "attack-rounds": "9"},
        "attack-rounds: '9'; allowed: first, last, final, all and numbers from 1 to rounds = 6",
    ),
    ({"output-dir": "report"}, "output-dir is 'report'; allowed: an absolute path"),
    ({"resume": True}, "resume needs output-dir"),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=lambda value: str(value)[:40])
def test_bad_settings_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Experiment.from_mapping(values)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-s", "defenses=Blurr()"], "did you mean 'Blur'?"),
        (["-s", "rounds=many"], "rounds is 'many' (str); expected int"),
        (["-s", "rounds"], "expected key=value"),
        (["-s", "dataset=cifar10", "-s", "data-dir=/no/such/folder"], "/no/such/folder"),
        (["-s", "image-size=1"], "image-size is 1; allowed: 0, or at least 2, at most 4096"),
        (
            ["-s", "image-size=12"],
            "image-size is 12, model is 'cnn': cnn halves images twice, so images of 12x12 vanish; the smallest size that fits",
        ),
        (["-s", "model=convnet", "-s", "image-size=4"], "image-size is 4, model is 'convnet'"),
        (["-s", "probe-images=2000"], "probe-images is 2000; a client holds about 111 images"),
        (["-s", "image-memory=1e-9"], "image-memory is 1e-09; raise image-memory"),
        (
            ["-s", "train-limit=3"],
            "4 clients share 3 training examples, of which the server holds 1 (auxiliary-fraction = 0.2)",
        ),
        (
            ["-s", "test-limit=3"],
            "and 3 test examples, which is less than one each; use fewer clients (--clients)",
        ),
        (["missing.toml"], "cannot read missing.toml"),
        (["--resume", "nowhere"], "nowhere holds no run"),
        (
            ["-s", "partition=node"],
            "partition is 'node'; `fedveil run` simulates clients, which have no data of their own",
        ),
    ],
)
def test_the_command_refuses_before_starting_anything(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(
        app, ["run", "--out", "out", *arguments] if "--resume" not in arguments else ["run", *arguments]
    )
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_with_another_setting_is_refused_before_starting_anything(tmp_path: Path) -> None:
    kept = Experiment.from_mapping({"num-clients": 2, "output-dir": str(tmp_path)}).to_mapping()
    (tmp_path / "config.json").write_text(json.dumps({"config": kept}))
    result = CliRunner().invoke(app, ["run", "--resume", str(tmp_path), "-s", "rounds=3", "--dry-run"])
    assert result.exit_code == 2
    assert "rounds was 16 and is now 3; resume with the settings of the run" in " ".join(result.output.split())


def test_list_names_everything_with_source() -> None:
    from defenses.registry import DEFENSES

    output = CliRunner().invoke(app, ["list"]).output
    for name in [*DEFENSES, "InvertingGradients", "mnist-5k", "resnet20", "batch-size", "semi-share"]:
        assert name in output
    assert output.count("source: ") >= len(DEFENSES)
    assert "learned=" not in output


def test_attacked_rounds() -> None:
    assert Experiment.of(rounds=5, attack_rounds="first, 3,last").attacked_rounds == (1, 3, 5)
    assert Experiment.of(rounds=5, attack_rounds="last, final").attacked_rounds == (5, 6)
    assert Experiment.of(rounds=2, attack_rounds="all").attacked_rounds == (1, 2, 3)
    assert Experiment.of(attack_rounds="").attacked_rounds == ()


@pytest.mark.long
def test_local_steps_reach_the_clients_and_the_threat_card(tmp_path: Path) -> None:
    settings = Experiment.of(
        output_dir=str(tmp_path / "run"), train_limit=100, test_limit=20, num_clients=2, rounds=1, local_steps=1,
        batch_size=8, defenses="", probe_attacks="", update_attacks="LabelInference()", attack_rounds="first",
        attack_workers=0, adaptive=False,
    )  # fmt: skip
    run_experiment(LocalGrid(2), settings)
    found = [row for row in read_lines(tmp_path / "run" / "rows.jsonl") if row["attack"] == "LabelInference()"]
    assert found
    assert all((row["card"]["local_steps"], row["card"]["images"]) == (1, 8) for row in found)


def test_a_run_whose_attacks_failed_says_so_in_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = row(attack="Broken()", metric="attack", status="failed", message="no memory", n=4, failures=4)
    client = row(metric="client", status="failed", client=1, message="disk full")
    for name, more, code in (("well", [client], 0), ("lost", [lost], EXIT_ATTACKS_FAILED)):
        write_run(tmp_path / name, rows=[*demo_rows(), *more])
        assert list_failures(tmp_path / name) == code
    assert EXIT_ATTACKS_FAILED not in (0, 1, 2, 130)
    assert "Broken() on no defence, round 1: no memory" in capsys.readouterr().err


def test_a_defence_that_names_an_attack_which_is_not_there_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Blur, "adaptive_attacks", ("LearnedRestorer", "Nowhere"))
    with pytest.raises(
        ConfigError, match=r"defenses: Blur\(std=1.0\) names the adaptive attack Nowhere, which is unknown"
    ):
        Experiment.of(defenses="Blur()")
    assert Experiment.of(defenses="Clip()").pipelines


@pytest.mark.parametrize("text", ["Clip(max_norm=1.0) | Blur(std=1.0)", "PatchShuffle() | VisualMixer()"])
def test_stages_in_an_order_that_no_client_runs_are_refused(text: str) -> None:
    scenario = "split" if "Patch" in text else "federated"
    with pytest.raises(ConfigError, match=r"defenses: .* protects images and runs before .*: write .* first"):
        Experiment.of(scenario=scenario, defenses=text)


@pytest.mark.parametrize("name", ["x" * 201, "two\nlines", "\x1b[31m"])
def test_names_that_fill_a_screen_or_move_a_cursor_are_refused_in_few_words(name: str) -> None:
    with pytest.raises(ConfigError, match=r"experiment is .* allowed: one line of at most 200 characters") as raised:
        Experiment.of(experiment=name)
    assert len(str(raised.value)) < 400


def test_two_different_output_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f'output-dir = "{tmp_path / "one"}"')
    result = CliRunner().invoke(app, ["run", str(tmp_path / "a.toml"), "--out", str(tmp_path / "two"), "--dry-run"])
    assert result.exit_code == 2
    assert "give one of them" in " ".join(result.output.split())
