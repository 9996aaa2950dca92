"""The configuration language: it inverts ``repr``, runs no code, and says what is allowed."""

import ast
import contextlib
from inspect import signature

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attacks.spec import ATTACKS, parse_attacks
from defenses import (
    ATS,
    DPSGD,
    Blur,
    Clip,
    DefenseError,
    ImageNoise,
    Pipeline,
    SpecError,
    parse,
    parse_pipelines,
    read_files,
)
from defenses.combinations import why_not_together
from defenses.spec import parse_statements, settings_of, stages
from tests.bounded import bounded
from tests.common.test_every_defense import INSTANCES

positive = st.floats(1e-12, 1e12) | st.integers(1, 10**9)
a_defense = st.sampled_from(INSTANCES) | st.one_of(
    st.builds(Clip, positive | st.just(float("inf")), st.just("update")),
    st.builds(ImageNoise, st.just(0.0) | st.floats(1e-12, 1e6)),
    st.builds(ATS, st.lists(st.integers(0, 49), min_size=1, max_size=16).map(lambda i: "-".join(map(str, i)))),
    st.builds(DPSGD, target_epsilon=st.floats(1e-2, 1e6), max_grad_norm=positive),
)
several = st.lists(a_defense, max_size=4).filter(lambda found: not why_not_together(found))


def pipelines() -> st.SearchStrategy[Pipeline]:
    return several.map(lambda found: Pipeline(tuple(found)))


@given(st.lists(pipelines(), max_size=3), st.sampled_from([";", "\n", " ;\n\n; "]))
def test_parse_inverts_str_and_several_begin_with_the_empty(given_pipelines: list[Pipeline], separator: str) -> None:
    own = [pipeline for pipeline in given_pipelines if pipeline.defenses]
    assert [parse(str(pipeline)) for pipeline in given_pipelines] == given_pipelines
    assert read_files("\n".join(map(str, given_pipelines))) == "; ".join(map(str, own))
    text = separator.join(map(str, given_pipelines))
    if len(set(own)) < len(own):
        with pytest.raises(SpecError, match="is given twice; allowed: each pipeline once"):
            parse_pipelines(text)
    else:
        assert parse_pipelines(text) == [Pipeline(), *own]


@given(st.text() | st.text("()[]{}|;,=-*.:'\"\n #0aClipB"))
def test_any_text_is_read_or_refused_with_a_message(text: str) -> None:
    with contextlib.suppress(SpecError, DefenseError):
        parse_pipelines(text)


CODE = (
    '__import__("os")', '__import__("os").system("false")', "Clip(max_norm=__import__('os'))", "Clip(max_norm=Clip.__init__)",
    "Clip(max_norm=(lambda: 1)())", "Clip(max_norm=[x for x in (1,)][0])", "Clip.__class__()", "(Clip)()()", "Defense()",
    "Pipeline()", "parse('Clip()')", "Clip(**{'max_norm': 1})", "Clip(*[1])", "import os", "x = Clip()",
    "Clip() if True else Blur()", "Clip() & Blur()", "Clip() Blur()", "Clip(f'{1}')", "Clip(\0)", "\ud800", "Clip({[]: 1})",
    "(" * 500, "Clip(" + "-" * 100_000 + "1)", "|".join(["Clip()"] * 100_000),
)  # fmt: skip


def test_code_and_nonsense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("code was run")

    monkeypatch.setattr("os.system", never)
    for text in CODE:
        with pytest.raises(SpecError):
            parse(text)
    for text in ("A(); B()", "1 + 1", "<a mod>", "a.b()", "A(\x00)"):
        with pytest.raises(SpecError):
            stages(text)


NEAR = r"; nearest of \d+: GaussianNoise(, \w+){1,4}; `fedveil list defenses` shows all$"
REFUSED = (
    (parse, "GausianNoise(std=0.1)", rf"^unknown defence 'GausianNoise', did you mean 'GaussianNoise'\?{NEAR}"),
    (parse, "gaussiannoise()", rf"^unknown defence 'gaussiannoise', did you mean 'GaussianNoise'\?{NEAR}"),
    (parse, "Zzz()", r"^unknown defence 'Zzz'; `fedveil list defenses` shows all$"),
    (parse_attacks, "Zzz()", r"^unknown attack 'Zzz'; `fedveil list attacks` shows all$"),
    (parse, "InstaHide(num_mix=4)", "no argument 'num_mix', did you mean 'num_mixed'\\?; known: num_mixed, max_weight"),
    (parse_attacks, "AsUploaded(x=1)", r"attack AsUploaded has no argument 'x'; it takes none"),
    (parse, "Blur(1, 2)", "Blur takes at most 1 arguments, got 2"),
    (parse, "Clip(1, max_norm=2)", "'max_norm' is given twice"),
    (parse, "Clip(max_norm=0)", "Clip: max_norm is 0; allowed: inf, or a number from 1e-12 to 1e\\+12"),
    (parse, "Clip(max_norm=True)", "max_norm is True; allowed"),
    (parse, "Clip(max_norm=1" + "0" * 400 + ")", r"max_norm is 10+\.\.\. \(401 characters\); allowed"),
    (parse, "Clip(max_norm=one)", "Clip: 'one' is not a number"),
    (parse, "Clip(); Blur()", "holds 2 pipelines where one is expected"),
)


def test_what_cannot_be_meant_is_refused_with_what_came_and_what_is_allowed() -> None:
    for read, text, message in REFUSED:
        with pytest.raises(SpecError, match=message):
            read(text)
    with pytest.raises(SpecError, match=r"^unknown thing 'Zzz'; known: A, B$"):
        parse_statements("Zzz()", {"B": dict, "A": dict}, "thing")
    # A text that gave what an attack learned would have the attack believe it was fitted.
    hidden = {name: set(signature(kind).parameters) - set(settings_of(kind)) for name, kind in ATTACKS.items()}
    assert any(hidden.values())
    for name, learned in hidden.items():
        for one in learned:
            with pytest.raises(SpecError, match=f"{name} has no argument '{one}'"):
                parse_attacks(f"{name}({one}=3)")


def test_names_alone_positional_arguments_infinity_comments_and_other_registries_are_understood() -> None:
    assert parse("Clip | Blur(2) | Clip(inf)") == Pipeline((Clip(), Blur(std=2), Clip(max_norm=float("inf"))))
    assert all(parse(text) == Pipeline() for text in ("", "  ", "\n;\n", "# only a comment"))
    found = parse_statements("complex(1, imag=2) | complex; complex(-3)", {"complex": complex}, "number")
    assert found == [[1 + 2j, 0j], [-3 + 0j]]
    ast.parse(str(Pipeline((Clip(2.0), ATS("1-2"), DPSGD(noise_multiplier=1.0)))))
    # Stages are read without being made.
    assert stages("") == ()
    assert stages("Unknown(x=' | B()')") == (("Unknown", "Unknown(x=' | B()')"),)
    assert stages("A | B(1e-05)") == (("A", "A"), ("B", "B(1e-05)"))


def many(count: int, join: str) -> str:
    return join.join(f"Clip(max_norm={1 + number})" for number in range(count))


def test_more_than_anybody_runs_is_refused_and_as_much_as_is_allowed_read() -> None:
    for text, message in (
        ("Clip();" * 5_000, "the defence text holds 5000 statements; allowed: at most 200"),
        (many(201, "; "), "the defence text holds 201 statements; allowed: at most 200"),
        (many(33, " | "), r"the defence text joins 33 stages by \|; allowed: at most 32"),
        ("Blur()|" * 20_000 + "Blur()", r"the defence text joins 20001 stages by \||cannot be read"),
        ("#" * 3_000_000, "the defence text has 3000000 characters; allowed: at most 200000"),
    ):
        for read in (parse_pipelines, read_files):
            with bounded(10, 2**28), pytest.raises(SpecError, match=message):
                read(text)
    with bounded(10, 2**28):
        assert len(parse_pipelines(many(200, "; "))) == 201
        assert len(parse(many(32, " | ")).defenses) == 32
