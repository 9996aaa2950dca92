"""Settings: defaults agree everywhere, and every bad value is refused by name before anything starts."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from clients.wire.schema import fields_of
from defenses import Blur
from simulations.console.command_line import read_toml
from simulations.experiment.experiment import Experiment, all_settings, scenarios
from simulations.runtime.local_run import EXIT_ATTACKS_FAILED, list_failures
from simulations.search.settings import Search
from simulations.server_app import app as app_of_flower
from simulations.settings.common import CHOSEN_HERE, REPLACES
from simulations.settings.errors import ConfigError
from tests.local_grid import LocalGrid
from tests.simulations.report.report_run import demo_rows, row, write_run

ROOT = Path(__file__).resolve().parents[3]


def test_rates_fall_after_numbered_rounds_and_after_shares_of_all() -> None:
    for rounds, text, expected in (
        (16, None, (10, 14)), (6, None, (4, 5)), (1, None, ()), (2, None, (1,)),
        (8, "7,1/4", (2, 7)), (8, "5/8,5/8,5", (5,)), (8, "", ()),
    ):  # fmt: skip
        given = {} if text is None else {"learning-rate-milestones": text}
        assert Experiment.from_mapping({"rounds": rounds, **given}).milestones == expected, (rounds, text)


def test_rounds_are_attacked_by_number_and_by_name() -> None:
    assert Experiment.of(rounds=5, attack_rounds="first, 3,last").attacked_rounds == (1, 3, 5)
    assert Experiment.of(rounds=5, attack_rounds="last, final").attacked_rounds == (5, 6)
    assert Experiment.of(rounds=2, attack_rounds="all").attacked_rounds == (1, 2, 3)
    assert Experiment.of(attack_rounds="").attacked_rounds == ()


def test_the_app_and_all_scenarios_have_the_same_defaults() -> None:
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    usual = {key for one in scenarios().values() for key in (*one.usual, *one.usual_on_tables)}
    usual |= {CHOSEN_HERE, *REPLACES}
    assert shipped == {key: "auto" if key in usual else spec.default for key, spec in all_settings().items()}
    for one in scenarios().values():
        for key, spec in fields_of(one).items():
            assert spec.default == all_settings()[key].default, f"{one.name}: {key}"


def test_shipped_configurations_are_valid_and_say_what_they_show() -> None:
    for path in sorted((ROOT / "simulations" / "configs").glob("*.toml")):
        is_search = path.name.startswith("search")
        kind = Search.read if is_search else Experiment.from_mapping
        settings = kind(read_toml(path, None if is_search else ""))
        assert kind(settings.to_mapping()) == settings, path.name
        usual, _, paper = path.read_text().partition("\n[paper]\n")
        for text, words in ((usual, ("Shows", "Costs", "Expect")), (paper, ("Costs",))):
            assert not text or all(f"# {word}:" in text for word in words), path.name


BAD: list[tuple[dict[str, Any], str]] = [
    ({"bath-size": 3}, "unknown setting 'bath-size', did you mean 'batch-size'?"),
    ({"depth": 4.0}, "depth is 4.0; it is a setting of split, and scenario is 'federated'"),
    ({"batch-size": "32"}, "batch-size is '32' (str); expected int"),
    ({"momentum": 1.0}, "momentum is 1.0; allowed: a number of at least 0 and below 1"),
    ({"nesterov": True, "momentum": 0.0}, "nesterov is True, and momentum is 0; allowed: a momentum above 0"),
    (
        {"rounds": 6, "learning-rate-milestones": "2,6"},
        "learning-rate-milestones: '6'; allowed: numbers from 1 to 5, as",
    ),
    ({"learning-rate-milestones": "3,8/5"}, "learning-rate-milestones: '8/5'; allowed"),
    ({"image-size": 1}, "image-size is 1; allowed: 0, or a whole number from 2 to 4096"),
    ({"crop-padding": 2, "defenses": "VisualMixer()"}, "protects an image once and keeps the result"),
    ({"horizontal-flip": True, "defenses": "ImageNoise()"}, "leave one of the two out"),
    ({"model": "lenett"}, "unknown model 'lenett', did you mean 'lenet'?"),
    ({"partition": "iids"}, "partition: unknown partition 'iids', did you mean 'iid'?"),
    ({"defenses": "Clip(max_norm=-1)"}, "defenses: defence Clip: max_norm is -1"),
    ({"defenses": "Clip(maxnorm=1)"}, "defence Clip has no argument 'maxnorm', did you mean 'max_norm'?"),
    ({"defenses": "InstaHide() | DPSGD()"}, "mixes several examples"),
    ({"defenses": "STAdam() | DPSGD()"}, "both replace the optimizer"),
    ({"defenses": "Clip(max_norm=1.0) | Blur(std=1.0)"}, "protects images and runs before"),
    ({"scenario": "split", "defenses": "PatchShuffle() | VisualMixer()"}, "protects images and runs before"),
    ({"attack-rounds": "9", "rounds": 6}, "'9'; allowed: first, last, final, all and numbers from 1 to rounds = 6"),
    ({"output-dir": "report"}, "output-dir is 'report'; allowed: an absolute path"),
    ({"resume": True}, "resume needs output-dir"),
    ({"experiment": "\x1b[31m"}, "allowed: one line of at most 200 characters"),
]


def test_bad_settings_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for values, message in BAD:
        with pytest.raises(ConfigError) as caught:
            Experiment.from_mapping(values)
        assert message in str(caught.value), values
        assert len(str(caught.value)) < 1000, values
    monkeypatch.setattr(Blur, "adaptive_attacks", ("LearnedRestorer", "Nowhere"))
    with pytest.raises(ConfigError, match=r"Blur\(std=1.0\) names the adaptive attack Nowhere, which is unknown"):
        Experiment.of(defenses="Blur()")
    assert Experiment.of(defenses="Clip()").pipelines


def test_a_run_that_flower_starts_refuses_a_file_of_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server is another process, in another folder: whether a file is there decides nothing."""
    monkeypatch.chdir(tmp_path)
    Path("policies.json").write_text(json.dumps({"policies": "3-1-7", "channels": 1}))
    for name in ("policies.json", "missing.json", str(tmp_path / "policies.json")):
        values = {"dataset": "mnist-5k", "model": "lenet", "defenses": f"ATS(policies={name!r})"}
        values |= {"output-dir": str(tmp_path / "run")}
        told = r"defenses: defence ATS: .*allowed: the name of a file only in the configuration"
        with pytest.raises(ConfigError, match=told):
            app_of_flower(LocalGrid(2), Context(1, 0, {}, RecordDict(), values))
    assert not (tmp_path / "run").exists()


def test_a_run_of_failed_attacks_says_so_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = row(attack="Broken()", metric="attack", status="failed", message="no memory", n=4, failures=4)
    client = row(metric="client", status="failed", client=1, message="disk full")
    for name, more, code in (("well", [client], 0), ("lost", [lost], EXIT_ATTACKS_FAILED)):
        write_run(tmp_path / name, rows=[*demo_rows(), *more])
        assert list_failures(tmp_path / name) == code
    assert EXIT_ATTACKS_FAILED not in (0, 1, 2, 130)
    assert "Broken() on no defence, round 1: no memory" in capsys.readouterr().err
