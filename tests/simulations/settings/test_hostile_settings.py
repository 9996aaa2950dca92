"""Whatever is written into a configuration is accepted or refused in this project's own words, and in little memory."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from attacks.spec import ATTACKS, parse_attacks
from defenses.base import DEFENSES
from defenses.spec import parse_pipelines, read_files, settings_of
from simulations.console.command_line import parse_seeds, read_toml, value_of
from simulations.experiment.experiment import Experiment, all_settings
from simulations.run.requested import requested
from simulations.settings.errors import ConfigError
from tests.bounded import bounded

few = settings(max_examples=100, deadline=None, derandomize=True, database=None)
HANGS, MOST_BYTES = 120, 2**29
"""Processor seconds after which something is taken to hang, and the most memory that may be reserved."""


@contextmanager
def accepted_or(refusal: type[Exception] = ConfigError) -> Iterator[None]:
    """Lets ``refusal`` pass if it says something, and nothing else."""
    try:
        with bounded(HANGS, MOST_BYTES):
            yield
    except refusal as error:
        if not str(error):
            raise


wild = st.sampled_from(
    ["0", "-1", "1", "2", "0.5", "1e308",
     "-1e308", "inf", "-inf", "nan", "10**9", "9" * 5000, str(2**70), "1e400", "0x" + "f" * 5000, "None", "True",
     "''", "'x'", "'3-1-7'", "'" + "A" * 10_000 + "'", "()", "(1, 2)", "(1,) * 9", "[]", "{}", "{1: 2}", "b''", "'update'", "...",
     "(" * 200 + ")" * 200, "-" * 5000 + "1", "__import__('os')", "lambda: 1", "1j", "f'{1}'", "x:=1",
     "*x", "'\\0'", "'../../etc/passwd'"]
)  # fmt: skip


@st.composite
def calls(draw: st.DrawFn, registry: dict[str, Any]) -> str:
    """One class of a registry with arguments of any kind."""
    name = draw(st.sampled_from(sorted(registry)))
    known = sorted(settings_of(registry[name]))
    given_names = draw(st.lists(st.sampled_from([*known, "nothing"]), max_size=3, unique=True)) if known else []
    return f"{name}({', '.join(f'{one}={draw(wild)}' for one in given_names)})"


joins = st.sampled_from([" | ", "; ", "\n", "|", " ", " or ", "()", "#"])
rubbish = st.text(max_size=30) | st.sampled_from(
    ["(" * 5000, "a" * 10_000, "A()|" * 3000 + "A()", "\0", "\ud800", "x = 1", "-" * 9000]
)


def texts(registry: dict[str, Any]) -> st.SearchStrategy[str]:
    pieces = st.lists(calls(registry) | rubbish, min_size=1, max_size=3)
    return st.builds(lambda some, join: join.join(some), pieces, joins)


@few
@given(texts(dict(DEFENSES)), texts(dict(ATTACKS)))
@example("Blur()|" * 3000 + "Blur()", "")
@example("(" * 5000, "(" * 5000)
@example("Blur(" + "-" * 5000 + "1)", "DLG(" + "-" * 5000 + "1)")
def test_a_text_is_pipelines_or_attacks_or_is_refused(pipelines: str, attacks: str) -> None:
    for read, text in ((parse_pipelines, pipelines), (read_files, pipelines), (parse_attacks, attacks)):
        with accepted_or(ValueError):
            read(text)


anything = st.one_of(
    st.integers(), st.sampled_from([2**63, 2**70, -1, 0, 1, 10**9, 10**18]), st.floats(), st.booleans(), st.text(max_size=10),
    st.sampled_from(["x" * 200_000, "\0", "[red]", "first,final,99999999999", "1/0", "dirichlet(alpha=nan)", "dirichlet(alpha=-1)",
                     "shards(num_shards_per_partition=0)", "all", "0..5", "node", "a.b:c", "/etc", "nosuch:thing", "os:system"]),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=3), st.integers(), max_size=1), st.none(),
)  # fmt: skip
KEYS = sorted(all_settings())


@few
@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), anything, max_size=3))
@example({"scenario": []})
@example({"scenario": {"a": 1}})
@example({"dataset": []})
@example({"output-dir": "/\0"})
@example({"rounds": 10**6, "attack-rounds": "all"})
def test_settings_are_an_experiment_or_are_refused(values: dict[str, Any]) -> None:
    with accepted_or():
        Experiment.from_mapping(values)


@few
@given(
    st.sampled_from(KEYS),
    st.text(max_size=20) | st.sampled_from(["(" * 9000, "9" * 9000, "-" * 9000, "1j", "[[[", "\0"]),
    st.text(alphabet="0123456789.,- ", max_size=12),
)
@example("seed", "(" * 9000, "0..1000000000")
@example("seed", "-" * 9000 + "1", "9" * 5000)
@example("seed", "9" * 9000, "1..0")
def test_words_of_the_command_line_are_values_and_seeds_or_are_refused(key: str, text: str, seeds: str) -> None:
    with accepted_or():
        value_of(text, type(all_settings()[key].default))
    with accepted_or():
        parse_seeds(seeds)


def test_a_word_is_a_value_as_toml_writes_it_or_plain_text() -> None:
    for word, kind, value in (
        ("lenet", str, "lenet"), ("'lenet'", str, "lenet"), ('"lenet"', str, "lenet"), ("12", str, "12"),
        ("true", str, "true"), ("DLG(labels='auto')", str, "DLG(labels='auto')"),
        ("'DLG()'; 'SpearPlusPlus()'", str, "'DLG()'; 'SpearPlusPlus()'"), ("'a'\nb = 1", str, "'a'\nb = 1"), ("'", str, "'"),
        ("", str, ""), ("''", str, ""), ("True", bool, True), ("false", bool, False), ("'true'", bool, "true"),
        ("1_000", int, 1000), ("1e-3", float, 0.001), (".5", float, 0.5), ("-Inf", float, -float("inf")),
        ("many", int, "many"),
    ):  # fmt: skip
        found = value_of(word, kind)
        assert (found, type(found)) == (value, type(value)), word


@few
@given(
    st.text(max_size=60)
    | st.binary(max_size=60)
    | st.dictionaries(st.sampled_from(KEYS), anything.map(json.dumps), max_size=3).map(
        lambda found: "".join(f"{key} = {value}\n" for key, value in found.items())
    )
)
@example("a = " + "[" * 100_000)
@example("a" + ".a" * 50_000 + " = 1")
@example("seed = " + "9" * 10_000)
@example("seed = 0x" + "f" * 10_000)
@example("patch-size = 0x" + "f" * 10_000)
@example("[seed]\nx = 1")
@example("seed = 1979-05-27")
def test_a_file_is_settings_or_is_refused(text: str | bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "experiment.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        with accepted_or():
            read_toml(path)
            requested(path, {}, out=Path(folder) / "out")
