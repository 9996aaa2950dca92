"""The configuration language: it inverts ``repr``, runs no code, and says what is allowed."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from collections.abc import Callable
from inspect import signature
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import attacks
import defenses
from attacks.registry import ATTACKS
from attacks.spec import parse_attacks
from defenses import (
    ATS,
    DPSGD,
    Blur,
    Clip,
    DefenseError,
    GaussianNoise,
    ImageNoise,
    InstaHide,
    LaplaceNoise,
    Pipeline,
    Pruning,
    SpecError,
    STAdam,
    parse,
    parse_pipelines,
    read_files,
)
from defenses.spec import parse_statements, settings_of, stages
from tests.bounded import bounded

noise = st.just(0.0) | st.floats(1e-12, 1e6)
multiplier = st.just(0.0) | st.floats(1e-4, 1e6)
positive = st.floats(1e-12, 1e12) | st.integers(1, 10**9)
below_one = st.floats(0, 1, exclude_max=True)
a_defense = st.one_of(
    st.builds(Clip, positive | st.just(float("inf")), st.just("update")),
    st.builds(GaussianNoise, noise, st.just("update")),
    st.builds(LaplaceNoise, noise, st.just("update")),
    st.builds(ImageNoise, noise, st.booleans()),
    st.builds(Blur, st.floats(1e-12, 4096)),
    st.builds(Pruning, st.floats(0, 1), st.just("update")),
    st.builds(
        ATS, st.lists(st.integers(0, 49), min_size=1, max_size=16).map(lambda i: "-".join(map(str, i))), st.booleans()
    ),
    st.integers(1, 9).flatmap(lambda k: st.builds(InstaHide, st.just(k), st.floats(1 / k, 1))),
)
a_training_defense = st.one_of(
    st.builds(STAdam, positive, below_one, below_one, positive, positive),
    st.builds(DPSGD, target_epsilon=st.floats(1e-2, 1e6), max_grad_norm=positive),
    st.builds(DPSGD, noise_multiplier=multiplier, target_delta=st.floats(0, 1, exclude_min=True, exclude_max=True)),
)


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    stages = draw(st.lists(a_defense, max_size=4))
    if draw(st.booleans()):
        training = draw(a_training_defense)
        stages = [s for s in stages if not (isinstance(training, DPSGD) and s.mixes_examples)]
        stages.insert(draw(st.integers(0, len(stages))), training)
    return Pipeline(tuple(stages))


@given(pipelines())
def test_parse_inverts_str(pipeline: Pipeline):
    assert parse(str(pipeline)) == pipeline


@given(st.lists(pipelines(), max_size=3), st.sampled_from([";", "\n", " ;\n\n; "]))
def test_several_pipelines_start_with_the_empty_one_and_none_is_given_twice(
    given_pipelines: list[Pipeline], separator: str
):
    text = separator.join(map(str, given_pipelines))
    own = [pipeline for pipeline in given_pipelines if pipeline.defenses]
    if len(set(own)) < len(own):
        with pytest.raises(SpecError, match="is given twice; allowed: each pipeline once"):
            parse_pipelines(text)
    else:
        assert parse_pipelines(text) == [Pipeline(), *own]


@given(st.lists(pipelines(), max_size=3))
def test_a_text_that_names_no_file_stays_what_it_is(given_pipelines: list[Pipeline]):
    text = "\n".join(map(str, given_pipelines))
    assert read_files(text) == "; ".join(str(pipeline) for pipeline in given_pipelines if pipeline.defenses)


@given(st.text() | st.text("()[]{}|;,=-*.:'\"\n #0aClipB"))
def test_any_text_is_read_or_refused_with_a_message(text: str):
    with contextlib.suppress(SpecError, DefenseError):
        parse_pipelines(text)


@pytest.mark.parametrize(
    "text",
    [
        '__import__("os")',
        '__import__("os").system("false")',
        "Clip(max_norm=__import__('os'))",
        "Clip(max_norm=Clip.__init__)",
        "Clip(max_norm=(lambda: 1)())",
        "Clip(max_norm=[x for x in (1,)][0])",
        "Clip.__class__()",
        "(Clip)()()",
        "Defense()",
        "Pipeline()",
        "parse('Clip()')",
        "Clip(**{'max_norm': 1})",
        "Clip(*[1])",
        "import os",
        "x = Clip()",
        "Clip() if True else Blur()",
        "Clip() & Blur()",
        "Clip() Blur()",
        "Clip(f'{1}')",
        "Clip(\0)",
        "\ud800",
        "Clip({[]: 1})",
        "(" * 500,
        "Clip(" + "-" * 100_000 + "1)",
        "|".join(["Clip()"] * 100_000),
    ],
)
def test_code_and_nonsense_are_refused(text: str, monkeypatch: pytest.MonkeyPatch):
    def never(*arguments: object) -> None:
        raise AssertionError("code was run")

    monkeypatch.setattr("os.system", never)
    with pytest.raises(SpecError):
        parse(text)


def test_an_unknown_name_suggests_one_and_lists_the_nearest_of_many():
    near = r"; nearest of \d+: GaussianNoise(, \w+){1,4}; `fedveil list defenses` shows all$"
    for name in ("GausianNoise", "gaussiannoise"):
        with pytest.raises(SpecError, match=rf"^unknown defence '{name}', did you mean 'GaussianNoise'\?{near}"):
            parse(f"{name}(std=0.1)")
    with pytest.raises(SpecError, match=r"^unknown defence 'Zzz'; `fedveil list defenses` shows all$"):
        parse("Zzz()")
    with pytest.raises(SpecError, match=r"^unknown attack 'Zzz'; `fedveil list attacks` shows all$"):
        parse_attacks("Zzz()")
    with pytest.raises(SpecError, match=r"^unknown thing 'Zzz'; known: A, B$"):
        parse_statements("Zzz()", {"B": dict, "A": dict}, "thing")


def test_an_unknown_argument_lists_the_known_ones_and_suggests_one():
    message = r"InstaHide has no argument 'num_mix', did you mean 'num_mixed'\?; known: num_mixed, max_weight"
    with pytest.raises(SpecError, match=message):
        parse("InstaHide(num_mix=4)")
    with pytest.raises(SpecError, match=r"attack AsUploaded has no argument 'x'; it takes none"):
        parse_attacks("AsUploaded(x=1)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Blur(1, 2)", "Blur takes at most 1 arguments, got 2"),
        ("Clip(1, max_norm=2)", "'max_norm' is given twice"),
        ("Clip(max_norm=0)", "Clip: max_norm is 0; allowed: a number from 1e-12 to 1e\\+12, or inf"),
        ("Clip(max_norm=nan)", "max_norm is nan; allowed"),
        ("Clip(max_norm=True)", "max_norm is True; allowed"),
        ("Clip(max_norm=1" + "0" * 400 + ")", r"max_norm is 10+\.\.\. \(401 characters\); allowed"),
        ("Clip(max_norm=one)", "Clip: 'one' is not a number"),
        ("Clip(); Blur()", "holds 2 pipelines where one is expected"),
    ],
)
def test_bad_arguments_are_refused_with_what_came_and_what_is_allowed(text: str, message: str):
    with pytest.raises(SpecError, match=message):
        parse(text)


def test_a_refused_chain_keeps_its_reason():
    with pytest.raises(DefenseError, match="mixes several examples"):
        parse("InstaHide() | DPSGD()")


@pytest.mark.parametrize("text", ["", "  ", "\n;\n", "# only a comment"])
def test_no_text_is_no_defence(text: str):
    assert parse(text) == Pipeline()


def test_names_alone_positional_arguments_and_infinity_are_understood():
    assert parse("Clip | Blur(2) | Clip(inf)") == Pipeline((Clip(), Blur(std=2), Clip(max_norm=float("inf"))))


def test_another_registry_reads_other_things():
    assert parse_statements("complex(1, imag=2) | complex; complex(-3)", {"complex": complex}, "number") == [
        [1 + 2j, 0j],
        [-3 + 0j],
    ]


def test_the_text_is_plain_python_syntax():
    ast.parse(str(Pipeline((Clip(2.0), ATS("1-2"), DPSGD(noise_multiplier=1.0)))))


LEARNING = {name: set(signature(kind).parameters) - set(settings_of(kind)) for name, kind in ATTACKS.items()}


@pytest.mark.parametrize("name", [name for name, hidden in LEARNING.items() if hidden])
def test_what_an_attack_learned_is_no_setting(name: str):
    """A text that gave it would have the attack believe it was fitted."""
    hidden = min(LEARNING[name])
    with pytest.raises(SpecError, match=f"{name} has no argument '{hidden}'"):
        parse_attacks(f"{name}({hidden}=3)")


def many(count: int, join: str) -> str:
    return join.join(f"Clip(max_norm={1 + number})" for number in range(count))


@pytest.mark.parametrize("read", [parse_pipelines, read_files])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Clip();" * 20_000, "the defence text holds 20000 statements; allowed: at most 200"),
        (many(201, "; "), "the defence text holds 201 statements; allowed: at most 200"),
        (many(33, " | "), r"the defence text joins 33 stages by \|; allowed: at most 32"),
        ("Blur()|" * 20_000 + "Blur()", r"the defence text joins 20001 stages by \||cannot be read"),
        ("#" * 3_000_000, "the defence text has 3000000 characters; allowed: at most 200000"),
    ],
)
def test_more_than_anybody_runs_is_refused_at_once(read: Callable[[str], object], text: str, message: str):
    with bounded(3, 2**28), pytest.raises(SpecError, match=message):
        read(text)


def test_as_many_as_are_allowed_are_read_soon():
    with bounded(5, 2**28):
        assert len(parse_pipelines(many(200, "; "))) == 201
        assert len(parse(many(32, " | ")).defenses) == 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("Unknown(x=' | B()')", (("Unknown", "Unknown(x=' | B()')"),)),
        ("A | B(1e-05)", (("A", "A"), ("B", "B(1e-05)"))),
    ],
)
def test_stages_are_read_without_being_made(text: str, expected: tuple[tuple[str, str], ...]) -> None:
    assert stages(text) == expected


@pytest.mark.parametrize("text", ["A(); B()", "1 + 1", "<a mod>", "a.b()", "A(\x00)"])
def test_what_is_no_chain_has_no_stages(text: str) -> None:
    with pytest.raises(SpecError):
        stages(text)


@pytest.mark.parametrize("package", [attacks, defenses], ids=["attacks", "defenses"])
def test_help_and_star_imports_give_what_a_package_exports(package: ModuleType) -> None:
    one_line = re.findall(r" import (\w+) as \1$", inspect.getsource(package), re.MULTILINE)
    assert len(one_line) > 30
    assert sorted(package.__all__) == sorted(one_line)
