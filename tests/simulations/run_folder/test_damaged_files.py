"""Files that are cut off, have a bit turned over or hold something else: read, left out with a note, or refused by name."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from attacks.metrics.names import Role
from clients.data.files.decoding import decode
from clients.data.images import DataError
from defenses.base import DefenseError
from defenses.images.ats import ATS
from defenses.pipeline import Pipeline
from simulations.experiment.experiment import Experiment
from simulations.preflight import preflight
from simulations.report.drawing.picture_index import read_index
from simulations.report.studies.rows import read_rows
from simulations.run.requested import requested
from simulations.run_folder.rows import Row
from simulations.runtime.progress import read_progress
from simulations.search.algorithm import PolicySearch
from simulations.search.settings import Search
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from strategies.audit.whole_files import save_tensors
from strategies.recording.files import RecordingError, RecordingWriter, read_recording
from tests import hostile
from tests.local_grid import LocalGrid
from tests.simulations.commands import refused
from tests.simulations.federated.test_federation import experiment
from tests.simulations.run_folder.kills import Killed, after_round_one, begin, killed_at

few = settings(
    max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)

Damage = Callable[[bytes], bytes]
other_things = st.sampled_from(
    [b"", b"\0" * 64, b"[]", b"{}", b"null", b"3", b'"x"', hostile.BOMB.encode(), b"9" * 10_000, b"\xff\xfe", b'{"config": []}',
     b'{"config": {"scenario": []}}', b'{"config": {}, "own-code": [1]}', b'{"metric": "x", "round": "inf"}', b'{"a": 1e999}',
     b"\xff" * 8 + b"{}", (2**40).to_bytes(8, "little") + b"{}"]
)  # fmt: skip


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """What happens to a file: some of its bytes go, one bit turns over, or something else is there."""
    at, bit, other = draw(st.floats(0, 1, exclude_max=True)), draw(st.integers(0, 7)), draw(other_things)

    def cut(data: bytes) -> bytes:
        return data[: int(at * len(data))]

    def flip(data: bytes) -> bytes:
        found = bytearray(data)
        if found:
            found[int(at * len(found))] ^= 1 << bit
        return bytes(found)

    return draw(st.sampled_from([cut, flip, flip, lambda data: other]))


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@cache
def run_files() -> dict[str, bytes]:
    """The files of a run of one round, as it leaves them."""
    with TemporaryDirectory() as folder:
        return files_below(after_round_one(Path(folder), "told"))


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


FILES = ["config.json", "rows.jsonl", "pictures/index.jsonl", "checkpoints/p00.safetensors"]


@few
@given(st.sampled_from(FILES), damages())
@example("config.json", lambda data: hostile.BOMB.encode())
@example("config.json", lambda data: b'{"config": []}')
@example("config.json", lambda data: b'{"progress": 3}')
@example("rows.jsonl", lambda data: data[:-20])
@example("rows.jsonl", lambda data: hostile.BOMB.encode())
@example("pictures/index.jsonl", lambda data: b"{}\n")
@example("checkpoints/p00.safetensors", lambda data: data[:-3])
def test_a_damaged_run_is_resumed_or_refused(name: str, damage: Damage) -> None:
    """Never resumed without saying so where something is lost: then a person must know."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        _write(folder, {**run_files(), name: damage(run_files()[name])})
        # The live display reads it twice a second while another process may be writing anything there.
        assert isinstance(read_progress(folder), dict)
        rows, notes = read_rows(folder / "rows.jsonl")
        assert rows or notes or not (folder / "rows.jsonl").read_bytes().strip()
        try:
            requested(None, {}, resume=folder)
            run = begin(folder, resume=True)
        except ConfigError as error:
            if name.split("/")[-1] not in str(error) and "resume" not in str(error) and "config.json" not in name:
                raise
            return
        with suppress(ConfigError):
            run.checkpoint(Pipeline())
        run.close()


@cache
def recorded() -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        writer = RecordingWriter(Path(folder), 10**6, {"settings": {"learning-rate": 0.1}})
        arrays = {"weight": np.ones((2, 2), np.float32)}
        writer.keep_arrays("round-0001/sent-0-0.safetensors", arrays)
        contents = [{"arrays": {"arrays": "sent-0-0.safetensors"}, "config": {}, "metrics": {}}]
        writer.keep_json("round-0001/sent.json", {"round": 1, "nodes": {"5": 0}, "contents": contents})
        writer.keep_arrays("round-0001/train-0000-0.safetensors", arrays)
        reply = {
            "round": 1, "node": 5, "sent": 0, "arrays": {"arrays": "train-0000-0.safetensors"},
            "metrics": {"m": {"n": 1}},
        }  # fmt: skip
        writer.keep_json("round-0001/train-0000.json", reply)
        return files_below(Path(folder))


@few
@given(st.sampled_from(sorted(recorded())), damages())
@example("recording.json", lambda data: hostile.BOMB.encode())
@example("round-0001/sent.json", lambda data: b'{"contents": 3}')
@example("round-0001/sent.json", lambda data: b'{"nodes": {"5": 7}, "contents": [3]}')
@example("round-0001/train-0000.json", lambda data: b'{"node": [], "sent": "x", "arrays": 3, "metrics": []}')
@example(
    "round-0001/train-0000.json", lambda data: b'{"arrays": {"arrays": "../../../etc/passwd"}, "node": 5, "sent": 0}'
)
@example("round-0001/train-0000.json", lambda data: b'{"node": 5, "sent": 0, "error": 3}')
@example("round-0001/train-0000-0.safetensors", lambda data: (2**60).to_bytes(8, "little") + data[8:])
def test_a_damaged_recording_is_read_or_refused(name: str, damage: Damage) -> None:
    with TemporaryDirectory() as place:
        folder = Path(place)
        _write(folder, {**recorded(), name: damage(recorded()[name])})
        try:
            for reply in read_recording(folder):
                if not reply.unusable:
                    assert isinstance(reply.number("n", "learning-rate"), int | float | None)
                    for arrays in (reply.arrays(), reply.sent_arrays()):
                        assert all(isinstance(array, np.ndarray) for array in arrays.values())
        except RecordingError as error:
            if str(folder) not in str(error):
                raise


def test_an_undamaged_run_is_resumed_and_a_config_that_is_no_object_says_so(tmp_path: Path) -> None:
    _write(tmp_path, run_files())
    assert set(FILES) <= set(run_files())
    run = begin(tmp_path, resume=True)
    assert [row.metric for row in run._rows] == ["client"]
    done = run.checkpoint(Pipeline())
    assert (done and done.round) == 1
    run.close()
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(ConfigError, match=r"config\.json is no configuration of a run: it holds a list; allowed: an o"):
        requested(None, {}, resume=tmp_path)


BREAKS = ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r", "\n", "\r\n"]
"""Every text at which ``str.splitlines`` ends a line."""
ODD = [*BREAKS, "\x00", "\x1b[31m", "\x7f", "\ud800", "\udcff", "\ufeff", "\u202e", "\U0001f600", '"', "\\", "e\u0301"]


def test_a_run_goes_on_whatever_its_texts_hold(tmp_path: Path) -> None:
    told = [f"not{odd}told" for odd in ODD]
    folder = after_round_one(tmp_path / "run", *told)
    data = (folder / "rows.jsonl").read_bytes()
    assert data.isascii(), "any reader of lines finds one row a line"
    assert len(data.decode().splitlines()) == len(ODD)
    run = begin(folder, resume=True)
    assert sorted(row.message for row in run._rows) == sorted(told)
    run.close()
    # A page is UTF-8, which has no halves of characters.
    shown = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in told]
    assert {row.message for row in read_rows(folder / "rows.jsonl")[0]} == set(shown)
    row = Row(metric="client", message="\ud800")
    assert Row.from_json(json.loads(row.line)) == row


def test_a_run_goes_on_that_an_earlier_version_wrote_without_escapes(tmp_path: Path) -> None:
    told = [f"not{odd}told{at}" for at, odd in enumerate(("\x85", "\u2028", "\u2029"))]
    folder = after_round_one(tmp_path / "run", *told)
    for name in ("rows.jsonl", "pictures/index.jsonl"):
        lines = [json.loads(line) for line in (folder / name).read_text().split("\n") if line]
        (folder / name).write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines), "utf-8")
    run = begin(folder, resume=True)
    assert [row.message for row in run._rows] == told
    assert len(run._pictures) == len(read_index(folder)[0]) == 3
    run.close()


def test_a_run_goes_on_with_rows_of_a_role_that_earlier_versions_had(tmp_path: Path) -> None:
    folder = after_round_one(tmp_path / "run", "first")
    old = Row(metric="psnr", attack="Some()", role=Role.NULL_CONTROL, round=1, value=6.0, n=4)
    with (folder / "rows.jsonl").open("a") as file:
        file.write(old.line)
    run = begin(folder, resume=True)
    run.flush()
    run.close()
    rows, notes = read_rows(folder / "rows.jsonl")
    assert [row for row in rows if row.attack] == [old]
    assert not old.is_attack
    assert notes == ["rows.jsonl: 1 row of null controls, which earlier versions had: not shown"]


def test_a_last_line_that_is_cut_off_does_not_end_a_run_and_is_reported(tmp_path: Path) -> None:
    for name, cut in product(("rows.jsonl", "pictures/index.jsonl"), (1, 2, 20)):
        folder = after_round_one(tmp_path / f"{name[:4]}{cut}", "first", "second")
        path, whole = folder / name, cut == 1  # only the line feed is missing
        path.write_bytes(path.read_bytes()[:-cut])
        run = begin(folder, resume=True)
        kept = [row.message for row in run._rows if row.metric == "client"] if "rows" in name else run._pictures
        assert len(kept) == (2 if whole else 1), (name, cut)
        lost = [(row.status, row.round, row.message) for row in run._rows if row.metric == "lines-lost"]
        assert [(status, at) for status, at, _ in lost] == ([] if whole else [("failed", 1)])
        assert whole or f"{path.name}: line 2 is cut off" in lost[0][2]
        run.flush()
        run.close()
        again = begin(folder, resume=True)  # the loss stays on record, and is counted once
        assert sum(row.metric == "lines-lost" for row in again._rows) == (not whole)
        again.close()


def test_a_run_does_not_go_on_without_any_row_of_complete_rounds(tmp_path: Path) -> None:
    for at, left in enumerate((b"", b"\n\n")):
        folder = after_round_one(tmp_path / str(at), "first", "second")
        (folder / "rows.jsonl").write_bytes(left)
        with pytest.raises(ConfigError, match=r"rows\.jsonl has no row of complete rounds of the part without"):
            begin(folder, resume=True)


def test_rows_of_complete_rounds_that_are_missing_are_reported_once(tmp_path: Path) -> None:
    folder = after_round_one(tmp_path / "run", "first", "second", "third", "fourth")
    path = folder / "rows.jsonl"
    for left, told in ((3, [1]), (3, [1]), (1, [1, 2])):
        lines = path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if "lines-lost" not in line][:left]
        path.write_text("".join(kept + [line for line in lines if "lines-lost" in line]))
        run = begin(folder, resume=True)
        lost = [row for row in run._rows if row.metric == "lines-lost"]
        assert sorted(row.n for row in lost) == told
        assert all(f"lines are missing, at least {row.n} of those that complete rounds" in row.message for row in lost)
        run.flush()
        run.close()


def test_a_damaged_line_in_the_middle_is_named_and_following_the_advice_helps(tmp_path: Path) -> None:
    damages = (b"{", b"[]", b'{"metric": 3}', b"\xff\xfe")
    for name, (number, damage) in product(("rows.jsonl", "pictures/index.jsonl"), enumerate(damages)):
        folder = after_round_one(tmp_path / f"{name[:4]}{number}", "first", "second", "third")
        path = folder / name
        lines = path.read_bytes().split(b"\n")
        path.write_bytes(b"\n".join([lines[0], damage, *lines[2:]]))
        with pytest.raises(ConfigError, match=rf"line 2 of .*{path.name} is damaged") as refused:
            begin(folder, resume=True)
        assert "delete that line" in str(refused.value)
        assert "--resume" not in str(refused.value), "the same command again would end in the same way"
        path.write_bytes(b"\n".join([lines[0], *lines[2:]]))  # as the error says
        run = begin(folder, resume=True)
        # A line less is a loss, and on record.
        assert [row.status for row in run._rows].count("failed") == ("rows" in name)
        assert len(run._rows) == 3
        run.close()


def test_damage_is_found_before_anything_starts_and_lost_lines_are_announced(tmp_path: Path) -> None:
    folder = after_round_one(tmp_path / "run", "first", "second", "third")
    path = folder / "rows.jsonl"
    whole = path.read_bytes()
    experiment = Experiment.of(dataset="folder", data_dir=str(tmp_path / "none"), output_dir=str(folder), resume=True)
    path.write_bytes(whole.replace(b'"metric"', b'"metric', 1))
    with pytest.raises(ConfigError, match=r"line 1 of .*rows\.jsonl is damaged"):
        preflight(experiment, lambda told: None)
    path.write_bytes(whole[:-3])
    told: list[str] = []
    with pytest.raises(ConfigError, match="data-dir"):  # the next check
        preflight(experiment, told.append)
    assert told[0].startswith("warning: rows.jsonl: line 3 is cut off")


def flip(data: bytes) -> bytes:
    """One bit of the last value."""
    return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its second round, with what its attack on all rounds needs of the first."""
    out = tmp_path_factory.mktemp("killed") / "run"
    attacks = {"update_attacks": "ClassGAN(iterations=2, images_per_class=1)", "probe_attacks": ""}
    settings = experiment(out, defenses="", attack_rounds="all", **attacks)
    with pytest.raises(Killed):
        run_experiment(LocalGrid(3, killed_at("train", 5)), settings)
    return out


@pytest.mark.long
@pytest.mark.usefixtures("as_its_own_process")
def test_a_run_never_goes_on_with_other_numbers_than_it_kept_or_without_its_rows(killed: Path) -> None:
    for pattern, damage in product(("checkpoints/p00.safetensors", "history/*.safetensors"), (flip, lambda x: x[:-7])):
        (path,) = killed.glob(pattern)
        whole = path.read_bytes()
        path.write_bytes(damage(whole))
        told = refused("run", "--in-process", "--resume", killed)
        path.write_bytes(whole)
        assert f"{path} is damaged" in told
        assert "continue with" not in told
    path = killed / "rows.jsonl"
    path.rename(killed / "kept")
    for instead in ("nothing", "a folder"):
        if instead == "a folder":
            path.mkdir()
        assert f"{path} is no file" in refused("run", "--in-process", "--resume", killed)


def test_damaged_files_end_a_command_with_one_error_that_names_them(tmp_path: Path) -> None:
    path = tmp_path / "policies.json"
    for text in (hostile.BOMB, '{"policies": "3-1-7", "channels": Infinity}', '{"policies": "3-1-7", "channels": 1e999}',
                 "[]", "{", "\ufeff{}"):  # fmt: skip
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DefenseError, match="is no result of fedveil search"):
            ATS.read(path)
    told = refused("run", "--dry-run", "-s", f"defenses=ATS(policies={str(path)!r})")
    assert "is no result of fedveil search" in told
    for text in (hostile.BOMB, "[]", '{"search": 3}', '{"search": {}}'):
        (tmp_path / "search.json").write_text(text)
        assert f"{tmp_path / 'search.json'} is damaged" in refused("search", "--resume", tmp_path)
    search = PolicySearch.create(tmp_path / "s", Search(model="cnn"))
    save_tensors(tmp_path / "s" / "model.safetensors", {"weight": torch.ones(5)}, {})
    whole = (tmp_path / "s" / "model.safetensors").read_bytes()
    for damage in (flip, lambda data: data[:-7]):
        (tmp_path / "s" / "model.safetensors").write_bytes(damage(whole))
        with pytest.raises(ConfigError, match=r"model\.safetensors is damaged .* and the model is trained again"):
            search.run()
    search.close()
    (tmp_path / "s" / "scores.jsonl").write_text(hostile.BOMB + "\n")
    with pytest.raises(ConfigError, match=r"scores\.jsonl is damaged: none of its lines can be read"):
        PolicySearch.resume(tmp_path / "s", {})


def test_no_command_waits_for_what_is_no_regular_file(tmp_path: Path) -> None:
    """A link to the null device stands for a pipe, whose readers would wait in this test, too."""
    run = tmp_path / "run"
    for name in FILES:
        _write(run, run_files())
        (run / name).unlink()
        (run / name).symlink_to(os.devnull)
        with pytest.raises(ConfigError, match=r"it is a pipe, a socket or a device|rows\.jsonl is no file"):
            requested(None, {}, resume=run) if name == "config.json" else begin(run, resume=True)
        (run / name).unlink()
    for name in ("a.safetensors", "a.json", "a.toml"):
        (tmp_path / name).symlink_to(os.devnull)
    for words in (
        ["-s", "scenario=inference", "-s", f"weights={tmp_path / 'a.safetensors'}"], [tmp_path / "a.toml"],
        ["-s", f"defenses=ATS(policies={str(tmp_path / 'a.json')!r})"],
    ):  # fmt: skip
        told = refused("run", "--dry-run", *words)
        assert "a pipe, a socket or a device" in told or "no regular file" in told, told
    with pytest.raises(DataError, match="a pipe, a socket or a device"):
        decode(tmp_path / "a.json")
