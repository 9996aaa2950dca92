"""What cannot run ends before any work: each of these once took minutes, memory, or a traceback to be told."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from flwr.app import Message

from clients.data.datasets import load_dataset
from clients.data.images import fingerprint
from clients.models.pretrained import NORMALISATIONS
from clients.wire.schema import allowed, fields_of
from simulations.experiment.experiment import Experiment, all_settings, owners, scenarios
from simulations.run.requested import requested
from simulations.run.seeds import of_seeds
from simulations.run_folder.folder_lock import require_folder, require_new
from simulations.runtime.launch import ROOT
from simulations.server_app import run_experiment
from simulations.settings.common import read
from simulations.settings.errors import ConfigError
from simulations.settings.scenarios import SETTINGS, Normalisation
from tests.flower_private import get_fused_config_from_dir
from tests.local_grid import LocalGrid
from tests.simulations.commands import fedveil, refused

pytestmark = pytest.mark.usefixtures("as_its_own_process")


QUICK = ("run", "--preset", "quick", "-s", "dataset=mnist-5k")


def not_run(tmp_path: Path, *arguments: object) -> str:
    """The one line in which the command says why it does not run; nothing is left behind."""
    before = sorted(tmp_path.iterdir())
    told = refused(*QUICK, *arguments)
    assert sorted(tmp_path.iterdir()) == before
    return told


REFUSED = [
    # Numbers.
    ("rounds=1000000000", "rounds is 1000000000; allowed: a whole number from 1 to 1000000"),
    ("learning-rate=nan", "learning-rate is nan; allowed: a number from 1e-12 to 1e+06"),
    ("attack-gpus=1000", "attack-gpus is 1000; allowed: 0 to"),
    # Names and texts.
    ("experiment=" + "x" * 200_000, "(200002 characters); allowed: one line of at most 200 characters"),
    ("rounds", "-s 'rounds': expected key=value"),
    ("rounds=", "rounds is '' (str); expected int"),
    ("scenario=", "scenario is ''; allowed: 'federated' or 'inference'"),
    ("data-dir=/p\udce9", "data-dir is '/p\\udce9'; allowed: text in UTF-8"),
    ("resume=true", "resume is True; allowed: False. `fedveil run --resume DIR` goes on"),
    # Defences and attacks.
    ("defenses=DPSGD(target_epsilon=0.001, accountant='rdp')", "allowed: above 0.008367, which no noise goes below"),
    ("defenses=GaussianNoise(std=1e308)", "std is 1e+308; allowed: 0, or a number from 1e-12 to 1e+06"),
    ("defenses=Clip(max_norm=1); Clip(max_norm=1.0)", "given twice; allowed: each pipeline once"),
    ("defenses=Clip(max_norm=1) | VisualMixer()", "write VisualMixer"),
    ("defenses=Soteria(layer='nope')", "the model's fully connected layers are"),
    ("defenses=ATS(policies='3-1-7', channels=3)", "was searched for images of 3 channels, and these have 1"),
    ("probe-attacks=DLG(); DLG()", "probe-attacks: DLG() is given twice"),
    ("aggregate-clients=" + "9" * 5000, "; allowed: whole numbers of at least 1"),
    # What the data tell: 3,800 training images of 28 x 28, a fifth of them the server's.
    ("num-clients=1000000000", "1000000000 clients share 3800 training"),
    ("probe-targets=761", "probe-targets is 761, each of probe-images = 1; a client holds about 760 images"),
    ("probe-images=1, 0x4", "probe-images is '1, 0x4'; allowed: a whole number from 1 to 1048576, or a list such as '1, 4, 1x4'"),
    ("probe-images=1x4, 4", "probe-images is '1x4, 4'; allowed: "),
    ("probe-images=4, 4", "probe-images is '4, 4'; allowed: "),
    ("probe-images=1.5", "probe-images is 1.5 (float); expected int or str, such as 1"),
    ("probe-images=1, 30x30", "probe-images is '1, 30x30', and 30x30 is 900 images; a client holds about 760 images"),
    ("partition=shards(num_shards_per_partition=5000)", "partition: 4 partitions of 5000 shards need 20000 examples"),
    ("partition=node", "partition is 'node'; `fedveil run` simulates clients, which have no data of their own"),
    ("crop-padding=28", "crop-padding is 28; allowed: below 28"),
    ("image-memory=0.0001", "set auxiliary-limit to at most 34, or raise image-memory"),
    ("image-memory=0.0001 -s auxiliary-limit=30", "update-attacks: all images of a client are"),
    ("image-size=12 -s model=cnn", "cnn halves images twice, so images of 12x12 vanish; the smallest size that fits"),
    ("probe-attacks= -s update-attacks=;", "attack-rounds is 'final', and no attacks are named (probe-attacks, update-attacks"),
]  # fmt: skip
"""Settings of the preset quick on grey digits, and what the one error says."""


def test_settings_that_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, told in REFUSED:
        words = [word for pair in settings.split(" -s ") for word in ("-s", pair)]
        message = not_run(tmp_path, "--out", tmp_path / "out", *words)
        assert told in message, settings
        assert len(message) < 2500, settings
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    told = "attack-gpus is 1; allowed: 0 to 0, the graphics cards"
    assert told in not_run(tmp_path, "--dry-run", "--in-process", "-s", "attack-gpus=1")
    training_only = "-s probe-attacks= -s update-attacks= -s attack-rounds= --dry-run"
    assert fedveil(*QUICK, *training_only.split())[0] == 0


def test_a_folder_with_files_of_a_person_gets_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    for words in ([], ["--dry-run"], ["--seeds", "0..1"]):
        told = not_run(tmp_path, "--out", tmp_path / "mine", *words)
        assert "mine is not empty: it holds 'thesis.tex'; name another folder" in told, words
    (tmp_path / "mine" / "config.json").write_text("{}")
    told = not_run(tmp_path, "--out", tmp_path / "mine")
    assert f"holds 'config.json'; go on with --resume {tmp_path / 'mine'}, or name another folder" in told
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["config.json", "thesis.tex"]
    for name, code in (("jobs/p00.safetensors", 2), (".lock", 0), ("jobs/p01.safetensors", 0), ("mine/notes.txt", 2)):
        (tmp_path / "early" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "early" / name).touch()  # a run that was killed in its first round has a lock
        assert fedveil(*QUICK, "--out", tmp_path / "early", "--dry-run")[0] == code, name
    begun = tmp_path / "begun"  # what a run leaves that did not start, and what --seeds keeps
    for name in ("flower.log", ".command.lock", ".lock", "seed-0/seed.txt", "comparison.html"):
        (begun / name).parent.mkdir(parents=True, exist_ok=True)
        (begun / name).touch()
    require_new(begun / "seed-1", "output-dir")
    assert len(of_seeds(Experiment.of(output_dir=str(begun)), [0, 1])) == 2


def test_an_option_and_a_setting_that_differ(tmp_path: Path) -> None:
    told = not_run(tmp_path, "--out", tmp_path / "a", "-s", f"output-dir={tmp_path / 'b'}")
    assert f"--out is {tmp_path / 'a'}, and -s output-dir is {tmp_path / 'b'}" in told
    told = not_run(tmp_path, "--clients", "3", "-s", "num-clients=5")
    assert told == "error: --clients is 3, and num-clients is 5; give one of them"
    file = tmp_path / "settings.toml"
    file.write_text(f'num-clients = 5\noutput-dir = "{tmp_path / "b"}"\n')
    with pytest.raises(ConfigError, match="give one of them"):
        requested(file, {}, out=tmp_path / "a")
    assert requested(file, {"num-clients": 3}, clients=3).num_clients == 3
    assert requested(file, {}, clients=4).num_clients == 4  # an option stands over the file


FILES: list[tuple[bytes, str]] = [
    (b"\xff\xfe\x00rounds = 3", "is not text in UTF-8"),
    (b"rounds = ", "is not valid TOML"),
    (b"\xef\xbb\xbfrounds = 0", "rounds is 0; allowed"),
    (b"[rounds]\na = 1", "rounds is {'a': 1} (dict); expected int"),
    (b"experiment = 2020-01-01", "(date); expected str"),
    (b'scenario = ["split"]', "scenario is ['split'] (list); expected str"),
]


def test_files_that_cannot_be_meant(tmp_path: Path) -> None:
    for content, told in FILES:
        (tmp_path / "settings.toml").write_bytes(content)
        assert told in refused("run", tmp_path / "settings.toml"), content
    for path, why in ((tmp_path, f"cannot read {tmp_path}: Is a directory"), ("none.toml", "cannot read none.toml")):
        assert why in refused("run", path)


def test_switching_the_scenario_alone_works() -> None:
    """Also in a plain flwr run: Flower gives the app all that stands in its file, with what is set in its place."""
    for name in ("split", "outsourced", "inference"):
        code, told = fedveil("run", "-s", f"scenario={name}", "--dry-run")
        assert (code, "pipelines: " in told) == (0, True), told
    for given in ({"scenario": "split", "dataset": "census"}, *({"scenario": name} for name in SETTINGS)):
        model = "difm" if "dataset" in given else "vit" if given["scenario"] == "split" else "vgg_small"
        for more in ({}, {"model": model, "defenses": ""}):
            everything = get_fused_config_from_dir(ROOT, {**given, **more})
            experiment = Experiment.from_mapping(given | more)
            assert Experiment.from_mapping(everything) == experiment
            # Written out, as a run is started and taken up again, it is the same.
            assert Experiment.from_mapping(experiment.to_mapping()) == experiment


def test_plain_values_are_refused_without_torch(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("scenario = 'split'\ndepth = 0\n")
    code = (
        "import sys; from tests.simulations.commands import refused; "
        f"print(refused('run', {str(tmp_path / 'settings.toml')!r}), refused('run', '-s', 'ronds=3'), "
        "sorted({'torch', 'flwr', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "depth is 0; allowed" in done.stdout
    assert "did you mean 'rounds'?" in done.stdout
    assert done.stdout.endswith(" []\n")


def test_what_is_refused_without_torch_is_what_experiments_refuse() -> None:
    known = all_settings()
    for key, spec in fields_of(*SETTINGS.values()).items():
        assert spec.default == known[key].default
        assert allowed(spec) == allowed(known[key])
        wrong = {"scenario": owners(key)[0], key: object()}
        with pytest.raises(ConfigError) as early:
            read(wrong, SETTINGS)
        with pytest.raises(ConfigError) as late:
            Experiment.from_mapping(wrong)
        assert str(early.value) == str(late.value)
    assert known.keys() == fields_of(*SETTINGS.values()).keys()
    assert {*SETTINGS} == {*scenarios()}
    for name, one in scenarios().items():
        assert fields_of(SETTINGS[name]).keys() == fields_of(one).keys()
        assert (SETTINGS[name].usual, SETTINGS[name].usual_on_tables) == (one.usual, one.usual_on_tables)
    assert set(get_args(Normalisation)) == {"", "data", *NORMALISATIONS}


def test_a_split_that_differs_between_processes(tmp_path: Path) -> None:
    """Scores would be of other images than those that were attacked."""
    file = tmp_path / "mine.py"
    file.write_text(UNSEEDED)
    settings = Experiment.of(
        dataset=f"{file}:load", num_clients=2, rounds=1, output_dir=str(tmp_path / "run"), batch_size=8, model="lenet",
        defenses="", attack_workers=0, probe_targets=1,
    )  # fmt: skip
    load_dataset.cache_clear()
    mine = fingerprint(settings.plan().load_data())
    load_dataset.cache_clear()
    assert fingerprint(settings.plan().load_data()) != mine
    with pytest.raises(RuntimeError, match="reads other examples than the server does from dataset"):
        run_experiment(Forgetful(2), settings)


def test_a_node_that_says_something_odd_of_its_randomness(tmp_path: Path) -> None:
    """What one node says stands on the cards of all: no word of its own may come there."""
    settings = Experiment.of(
        dataset="mnist-5k", train_limit=40, test_limit=20, num_clients=2, rounds=1, output_dir=str(tmp_path / "run"),
        model="lenet", defenses="", attack_workers=0, probe_targets=1,
    )  # fmt: skip
    for odd in ("sead", "", 1.5):

        def changed(partition: int, request: Message, reply: Message, odd: Any = odd) -> Message:
            if (partition, request.metadata.message_type) == (1, "query.setup"):
                reply.content.config_records["card"]["randomness"] = odd
            return reply

        told = f"client 1 says that its randomness is {odd!r}; expected seed or secret"
        with pytest.raises(RuntimeError, match=told):
            run_experiment(LocalGrid(2, changed), settings.but(output_dir=str(tmp_path / str(odd))))


UNSEEDED = """
import torch
from torch.utils.data import TensorDataset, random_split

images = torch.rand(120, 1, 28, 28, generator=torch.Generator().manual_seed(0))

def load():
    return random_split(TensorDataset(images, torch.arange(120) % 10), [80, 40])
"""


class Forgetful(LocalGrid):
    """A grid whose nodes read the data anew, as other processes do."""

    def answer(self, message: Message) -> Message | None:
        load_dataset.cache_clear()
        return super().answer(message)


def test_a_file_where_results_should_go_ends_the_command_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    for below in ("", "deeper", "deeper/still"):
        told = refused("run", "--dry-run", "--out", str(tmp_path / "taken" / below))
        assert f"output-dir: {tmp_path / 'taken'} is a file" in told
    assert (tmp_path / "taken").read_text() == "a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="may not be written to"):
        require_folder(tmp_path / "new")


def test_folders_that_do_not_exist_yet_are_allowed_and_impossible_names_are_not(tmp_path: Path) -> None:
    require_folder(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"output-dir: .*embedded null byte; name another folder"):
        require_folder(tmp_path / "a\0b")


def test_folders_in_which_no_file_can_be_made_are_refused_in_a_dry_run_too() -> None:
    """Root may write everywhere, says the system, until it tries."""
    for folder in ("/proc", "/sys"):
        assert f"output-dir: {folder}" in refused("run", "--dry-run", "--out", f"{folder}/fedveil-test")


LONG = "y" * 300
LINES = [
    ("output-dir", "run --dry-run --out {}"), ("output-dir", "run --dry-run --out {}/deeper"),
    ("output-dir", "run --dry-run -s output-dir={}"), ("output-dir", "run --dry-run --seeds 0..1 --out {}"),
    ("--resume", "run --resume {}"), ("data-dir", "run --dry-run -s dataset=folder -s data-dir={}"),
    ("DIRECTORY", "report {}"), ("DIR", "compare {}"),
]  # fmt: skip


def test_names_that_are_too_long_are_told_with_what_names_them(tmp_path: Path) -> None:
    for below in ("", "new"):
        for key, line in LINES:
            told = refused(*(word.format(tmp_path / below / LONG) for word in line.split()))
            assert told.startswith("error: "), line
            if not below or key == "output-dir":  # elsewhere a missing folder is told first
                assert key in told, line
                assert "File name too long" in told, line
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_machine_or_the_data_have_is_refused(tmp_path: Path) -> None:
    held_out = ["-s", "train-limit=100", "-s", "auxiliary-fraction=0.3"]
    for words, told in (
        (["--cpus-per-client", "9999"], "--cpus-per-client is 9999"),
        (["--gpus-per-client", "99"], "--gpus-per-client is 99"),
        (["--gpus-per-client", "nan"], "--gpus-per-client is nan"),
        (
            [*held_out, "--clients", "71"],
            "71 clients share 100 training examples, of which the server holds 30 (auxiliary-fr",
        ),
        ([*held_out, "-s", "batch-size=71"], "batch-size is 71; all clients together hold 70 training examples"),
    ):
        assert told in refused("run", *words, "--out", str(tmp_path / "out")), words
        assert not (tmp_path / "out").exists()
