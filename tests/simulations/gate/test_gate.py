"""`fedveil gate`: limits decided by intervals, from rows as a run writes them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from scipy.stats import binomtest

from simulations.gate.check import most
from simulations.report.studies.intervals import in_messages
from simulations.report.studies.score import Score
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import ThreatCard
from tests.simulations.commands import fedveil, refused
from tests.simulations.report.report_run import CONFIG, hits, row, scored, training_rows, write_run

CARD = ThreatCard(observation="one-step probe", images=1, local_steps=1)
SHOWN = "one-step probe, 1 image"


def attacked(defense: str, found: int, seen: int, n: int = 48, attack: str = "A()") -> list[Row]:
    psnr = replace(scored(20.0, 18.0, n=n), card=CARD, attack=attack, defense=defense)
    return [psnr, hits(psnr, found), hits(psnr, seen, metric="recognisable")]


def a_run(folder: Path, *rows: Sequence[Row], more: Sequence[dict[str, Any]] = (), **config: Any) -> Path:
    lines = [json.loads(one.line) for of in rows for one in of]
    about = {"experiment": "demo", "dataset": "mnist", "model": "LeNet", "scenario": "federated"}
    return write_run(folder, [one | about for one in [*lines, *more]], CONFIG | {"pipelines": ["", "D()"]} | config)


def of_d(folder: Path, seen: int, n: int, found: int | None = None, **config: Any) -> Path:
    """A validated attack, which makes so many of n images recognisable under D()."""
    return a_run(folder, attacked("", 40, 40), attacked("D()", seen if found is None else found, seen, n), **config)


def gate(folder: Path, *words: object) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and checks of D()."""
    code, told = fedveil("gate", folder, "--defense", "D()", "--json", *words)
    result = json.loads(told)
    assert (result["exit"], result["gate"]) == (code, {0: "passed", 1: "failed", 5: "undecided"}[code])
    return code, result["checks"]


def upper(k: int, n: int) -> float:
    return float(binomtest(k, n).proportion_ci(method="exact").high)


def lower(k: int, n: int) -> float:
    return float(binomtest(k, n).proportion_ci(method="exact").low)


@pytest.mark.parametrize(("seen", "n", "limit"), [(0, 16, 0.05), (1, 40, 0.1), (30, 40, 0.6)])
def test_the_number_of_further_images_is_the_least_that_decides(
    tmp_path: Path, seen: int, n: int, limit: float
) -> None:
    code, (check,) = gate(of_d(tmp_path / "few", seen, n), "--max-recognisable", limit)
    assert (code, check["outcome"], check["of"]) == (5, "undecided", f"D(), {SHOWN}")
    assert f"{check['more']:,} more would decide" in check["said"]

    def decides(images: int) -> bool:
        k = seen / n * images
        # By SciPy's exact interval of the nearest whole counts, which lie on both sides of the share.
        return all(upper(at, images) < limit or lower(at, images) > limit for at in (int(k), -int(-k)))

    total = n + check["more"]
    if seen == 0:
        assert decides(total)
        assert not decides(total - 1)
    found = round(seen / n * total)
    shown = (upper(found, total) - limit, lower(found, total) - limit)
    assert min(map(abs, shown)) < 0.03, "the interval has just left the limit"
    code, _ = gate(of_d(tmp_path / "many", round(seen / n * 2 * total), 2 * total), "--max-recognisable", limit)
    assert code == (0 if seen / n < limit else 1)


def test_sixteen_images_leave_five_per_cent_undecided_and_as_many_as_named_decide(tmp_path: Path) -> None:
    code, (check,) = gate(of_d(tmp_path / "16", 0, 16), "--max-recognisable", 0.05)
    assert (code, check["more"], check["low"], check["high"]) == (5, 56, 0.0, pytest.approx(upper(0, 16)))
    assert gate(of_d(tmp_path / "71", 0, 71), "--max-recognisable", 0.05)[0] == 5
    assert gate(of_d(tmp_path / "72", 0, 72), "--max-recognisable", 0.05)[0] == 0


def test_a_limit_of_zero_asks_for_none_among_enough_images(tmp_path: Path) -> None:
    both = [attacked("", 40, 40), attacked("", 40, 40, attack="B()")]
    found = a_run(tmp_path / "found", *both, attacked("D()", 0, 0, 100), attacked("D()", 1, 1, 500, attack="B()"))
    assert gate(found, "--max-recognisable", 0)[0] == 5, "by the attack with the lower upper end"
    for seen, n, expected in ((0, 72, 0), (0, 71, 5), (1, 500, 5), (20, 72, 1)):
        assert gate(of_d(tmp_path / f"{seen}-{n}", seen, n), "--max-recognisable", 0)[0] == expected, (seen, n)
    # Identified images are within a limit on recognisable ones.
    folder = of_d(tmp_path / "identified", 0, 72, found=60)
    assert gate(folder, "--max-recognisable", 0)[0] == 0
    assert gate(folder, "--max-identifiable", 0)[0] == 1
    assert gate(folder, "--max-recognisable", 0, "--max-identifiable", 0.99)[0] == 0


def test_what_is_not_validated_or_not_measured_never_passes(tmp_path: Path) -> None:
    blind = a_run(tmp_path / "blind", attacked("", 0, 0), attacked("D()", 0, 0, 480))
    code, (check,) = gate(blind, "--max-recognisable", 0.05)
    assert (code, check["more"]) == (5, None)
    assert "positive control" in check["said"]
    mine = of_d(tmp_path / "mine", 0, 480)
    for option in ("--max-tpr", "--max-epsilon", "--min-accuracy"):
        code, (check,) = gate(mine, option, 0.5)
        assert (code, check["value"], check["outcome"]) == (5, None, "undecided"), option
    assert gate(mine, "--max-recognisable", 0.05)[0] == 0
    running = of_d(tmp_path / "running", 0, 480, progress={"finished": False})
    code, checks = gate(running, "--max-recognisable", 0.05)
    assert (code, [check["outcome"] for check in checks]) == (5, ["undecided", "passed"])
    lost = replace(scored(None, metric="attack", attack="B()", defense="D()"), status="failed", card=CARD)
    failed = a_run(tmp_path / "failed", attacked("", 40, 40), attacked("D()", 0, 0, 480), [lost])
    code, checks = gate(failed, "--max-recognisable", 0.05)
    assert code == 5
    assert "B()" in checks[-1]["said"]
    (mine / "rows.jsonl").write_text((mine / "rows.jsonl").read_text() + "{broken\n{}\n")
    assert gate(mine, "--max-recognisable", 0.05)[0] == 5


def test_what_looks_measured_and_is_not_never_passes(tmp_path: Path) -> None:
    """Each had passed in a review of the first gate."""
    ok, known = attacked("", 40, 40), {"defense": "D()", "card": CARD}
    update = ThreatCard(observation="training update", images=16, local_steps=4)
    failing = attacked("D()", 0, 0, 100)
    failing = [failing[0], *(replace(one, failures=84) for one in failing[1:])]
    server, trained = (
        replace(CARD, server="active"),
        [replace(scored(0.5, metric="train-seconds"), seed=1, attack="", defense="D()")],
    )
    took = [replace(scored(3.0, metric="attack-seconds", reference="", attack="B()"), **known)]
    seeds = [[replace(one, seed=at) for of in (ok, attacked("D()", 0, 0, 480)) for one in of] for at in (0, 1)]
    unscored = [replace(one, seed=1, extra=one.extra | {"unscored": 464}) for one in attacked("D()", 0, 0, 16)]
    refused_model = [
        replace(scored(0.0, metric="model-refused", reference="", attack="C()"), defense="D()", card=server)
    ]
    sixteen = [replace(one, card=one.card.but(**update.to_json())) for one in attacked("", 40, 40)]
    for name, rows in {
        "control failed, images identified": [attacked("", 0, 0), attacked("D()", 30, 0, 480)],
        "no undefended run": [attacked("D()", 30, 0, 480)],
        "few images, all identified": [ok, attacked("D()", 8, 0, 8)],
        "message attacked without it alone": [ok, sixteen, attacked("D()", 0, 0, 480)],
        "round attacked without it alone": [ok, [replace(one, round=3) for one in ok], attacked("D()", 0, 0, 480)],
        "seed attacked without it alone": [ok, [replace(one, seed=1) for one in ok], attacked("D()", 0, 0, 480), trained],
        "trials failed": [ok, failing],
        "score of an attack lost": [ok, attacked("D()", 0, 0, 480), attacked("D()", 400, 0, 480, "B()")[:2]],
        "replies of an attack lost": [ok, attacked("D()", 0, 0, 480), took],
        "replies of a seed lost": [*seeds[:1], [replace(one, seed=1) for one in ok], [replace(took[0], attack="A()", seed=1)]],
        "score of a seed lost": [*seeds, [replace(one, attack="B()") for one in (*seeds[0], *seeds[1][:-1])]],
        "unscored images": [ok, attacked("D()", 0, 0, 480), [replace(one, seed=1) for one in ok], unscored],
        "attack refused": [ok, attacked("D()", 0, 0, 480), [replace(scored(None, attack="B()", **known), status="refused")]],
        "active server": [
            ok, attacked("D()", 0, 0, 480), [replace(one, card=one.card.but(**server.to_json())) for one in attacked("D()", 0, 0)],
        ],
    }.items():  # fmt: skip
        code, checks = gate(a_run(tmp_path / name, *rows), "--max-recognisable", 0.05)
        assert code == 5, (name, checks)
    good = a_run(tmp_path / "good", ok, attacked("D()", 0, 0, 480), refused_model)
    assert gate(good, "--max-recognisable", 0.05)[0] == 0, "that clients refused a model is no score"
    named, file = tmp_path / "message attacked without it alone", tmp_path / "limits.toml"
    file.write_text('[gate.message."training update, 4 steps on 16 images"]\nmax-recognisable = 0.0\n')
    code, (check,) = gate(named, "--limits", file, "--junit", tmp_path / "gate.xml")
    assert (code, check["said"]) == (5, "such messages were not attacked under it")
    assert ElementTree.parse(tmp_path / "gate.xml").getroot().get("errors") == "1"
    file.write_text("[gate.message.real]\nmax-recognisable = 0.0\n")
    assert "message.real is no title of a message" in refused("gate", named, "--defense", "D()", "--limits", file)


def test_images_of_a_message_are_counted_in_messages() -> None:
    """None of 32 images in 2 messages: by ``in_messages`` itself."""
    few = Score(0.0, *in_messages([(0, 16)] * 2)[1:], n=32, messages=2)
    check = most("max-recognisable", "", 0.1, few, "image", n=32, certain=False)
    least = next(k for k in range(2, 99) if (in_messages([(0, 16)] * k)[2] or 1.0) < 0.1)
    assert check.more == 16 * (least - 2)


def test_an_epsilon_that_is_not_known_of_every_round_never_passes(tmp_path: Path) -> None:
    name = "DPSGD(target_epsilon=8.0)"
    known, lost = training_rows(name), {"value": None, "status": "failed"}
    for at, (case, rows) in enumerate({
        "missing": [one for one in known if (one["metric"], one["round"]) != ("epsilon", 3)],
        "failed": [one | (lost if (one["metric"], one["round"]) == ("epsilon", 3) else {}) for one in known],
        "accuracy": [one for one in known if (one["metric"], one["round"]) != ("test-accuracy", 3)],
    }.items()):  # fmt: skip
        folder = write_run(tmp_path / case, [*training_rows(""), *rows], CONFIG | {"pipelines": ["", name]})
        limit = ("--max-epsilon", 8) if at < 2 else ("--min-accuracy", 0.1)
        assert fedveil("gate", folder, "--defense", name, *limit)[0] == 5, case


def test_every_attack_must_stay_below_and_one_above_fails(tmp_path: Path) -> None:
    both = [attacked("", 40, 40), attacked("", 40, 40, attack="B()")]
    folder = a_run(tmp_path / "a", *both, attacked("D()", 0, 0, 480), attacked("D()", 0, 0, 20, attack="B()"))
    code, (check,) = gate(folder, "--max-recognisable", 0.05)
    assert (code, check["high"]) == (5, pytest.approx(upper(0, 20))), "the attack on fewer images"
    folder = a_run(tmp_path / "b", *both, attacked("D()", 0, 0, 480), attacked("D()", 19, 19, 20, attack="B()"))
    assert gate(folder, "--max-recognisable", 0.05)[0] == 1


def test_epsilon_and_accuracy(tmp_path: Path) -> None:
    """Of 500 test images, 88 % are right."""
    name = "DPSGD(target_epsilon=8.0)"
    known = [one | ({"neighbours": "replace-one"} if "epsilon" in one["metric"] else {}) for one in training_rows(name)]
    folder = write_run(tmp_path / "dp", [*training_rows(""), *known], CONFIG | {"pipelines": ["", name]})

    def outcome(*words: object) -> tuple[int, str]:
        code, told = fedveil("gate", folder, "--defense", name, *words)
        return code, told

    for words, code in (
        (("--max-epsilon", 8.0), 0), (("--max-epsilon", 8.0, "--level", "example"), 0), (("--max-epsilon", 7.9), 1),
        (("--max-epsilon", 8.0, "--level", "client"), 5), (("--min-accuracy", 0.84), 0), (("--min-accuracy", 0.92), 1),
        (("--min-accuracy", 0.87), 5), (("--max-epsilon", 8.0, "--min-accuracy", 0.92), 1), (("--max-recognisable", 0), 5),
    ):  # fmt: skip
        assert outcome(*words)[0] == code, words
    assert "epsilon 8.00, delta 1e-05, example-level" in outcome("--max-epsilon", 7.9)[1]
    assert "more would decide" in outcome("--min-accuracy", 0.87)[1]


def test_membership(tmp_path: Path) -> None:
    from tests.simulations.report.report_run import member_rows

    chance = [row(**one) for one in member_rows("", 0.8, (0.75, 0.85))]
    folder = write_run(tmp_path / "m", chance, CONFIG | {"pipelines": [""]})
    for limit, code in ((0.2, 0), (0.05, 1), (0.13, 5)):
        assert fedveil("gate", folder, "--max-tpr", limit)[0] == code, limit
    rows = member_rows("", 0.8, (0.75, 0.85))
    blind = [row(**one | {"round": 3, "status": "not-validated"}) for one in rows]
    doubted = [row(**one | {"card": one["card"] | {"no_verdict": "cannot tell"}}) for one in rows]
    for at, (several, limit) in enumerate(((chance + blind, 0.2), (doubted, 0.05), (doubted, 0.2))):
        assert (
            fedveil("gate", write_run(tmp_path / str(at), several, CONFIG | {"pipelines": [""]}), "--max-tpr", limit)[0]
            == 5
        )


def test_what_chance_gives_breaks_no_limit_above_zero(tmp_path: Path) -> None:
    """60 of 100 images are nearest to their own among two."""
    rows = [replace(one, card=one.card.but(chance=0.5)) for one in attacked("D()", 60, 0, 100)]
    folder = a_run(tmp_path / "two", attacked("", 40, 40), rows)
    for limit, code in ((0.25, 5), (0.75, 0)):
        assert gate(folder, "--max-identifiable", limit)[0] == code, limit


def test_limits_of_a_file_are_those_of_messages_too_and_options_come_before_them(tmp_path: Path) -> None:
    folder, file = of_d(tmp_path / "run", 48, 48), tmp_path / "limits.toml"
    file.write_text(
        f'[gate]\nmax-recognisable = 0.05\n[gate.message."{SHOWN}"]\nmax-recognisable = 1.0\nmax-identifiable = 0.1\n'
    )
    code, checks = gate(folder, "--limits", file)
    assert [(check["limit"], check["allowed"], check["outcome"]) for check in checks] == [
        ("max-recognisable", 1.0, "passed"), ("max-identifiable", 0.1, "failed"),
    ]  # fmt: skip
    assert [check["allowed"] for check in gate(folder, "--limits", file, "--max-recognisable", 0.5)[1]] == [0.5, 0.1]
    file.write_text(f'[gate]\nmax-recognisable = 0.05\n[gate.message."{SHOWN}"]\nmax-identifiable = 0.1\n')
    assert [check["allowed"] for check in gate(folder, "--limits", file)[1]] == [0.05, 0.1], (
        "what it lacks is that of all"
    )
    file.write_text("[gate]\nmax-recognisable = 0.05\nmin-accuracy = 0.5\n")
    _, checks = gate(folder, "--limits", file, "--max-recognisable", 0.9)
    assert [check["allowed"] for check in checks] == [0.9, 0.5]
    assert gate(folder, "--limits", file, "--message", SHOWN)[0] == 1
    code, checks = gate(folder, "--message", "real", "--max-recognisable", 0)
    assert (code, checks[0]["said"]) == (5, "no message was attacked"), "probes are asked for"
    file.write_text(f'[gate.message."{SHOWN}"]\nmax-identifiable = 0.1\n')
    code, checks = gate(folder, "--message", "real", "--limits", file)
    assert (code, checks[0]["said"]) == (5, "no limit is on these messages")


def test_build_servers_read_the_checks(tmp_path: Path) -> None:
    folder, file = of_d(tmp_path / "run", 48, 48, found=48), tmp_path / "gate.xml"
    assert gate(folder, "--max-recognisable", 0.1, "--max-epsilon", 8, "--junit", file)[0] == 1
    suite = ElementTree.parse(file).getroot()
    assert {key: suite.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "2",
        "failures": "1",
        "errors": "1",
    }
    recognisable, epsilon = suite
    assert (recognisable[0].tag, recognisable.get("name")) == ("failure", f"D(), {SHOWN}: max-recognisable")
    assert epsilon[0].tag == "error"
    refused("gate", folder, "--defense", "D()", "--max-tpr", 7, "--junit", file)
    assert not file.exists(), "an earlier gate's says nothing of this one"
    hostile = a_run(
        tmp_path / "hostile", attacked("", 40, 40), attacked('<b>\x00\x1b"&', 0, 0, 72), pipelines=["", '<b>\x00\x1b"&']
    )
    code, _ = fedveil("gate", hostile, "--defense", '<b>\x00\x1b"&', "--max-recognisable", 0, "--junit", file)
    assert (code, ElementTree.parse(file).getroot()[0].get("name")) == (0, f'<b>??"&, {SHOWN}: max-recognisable')


def test_wrong_calls_say_what_is_allowed(tmp_path: Path) -> None:
    folder, other = of_d(tmp_path / "run", 0, 16), of_d(tmp_path / "other", 0, 16, config={"seed": 1, "rounds": 9})
    (tmp_path / "no.toml").write_text("max-epsilon = 1\n")
    for words, why in (
        ((folder,), "no limit is given; allowed: --max-recognisable"),
        (
            (folder, "--max-recognisable", 1.5),
            "max-recognisable is 1.5; allowed: no entry for no limit, or a number from 0 to 1",
        ),
        ((folder, "--max-tpr", 0.1), "--defense is missing, and the run has several; allowed: 'no defence' or 'D()'"),
        ((folder, "--max-tpr", 0.1, "--defense", "E()"), "unknown defence 'E()'"),
        ((folder, "--level", "client", "--min-accuracy", 0.5), "level is 'client'; it belongs to max-epsilon"),
        (
            (folder, "--max-epsilon", 1, "--level", "patient"),
            "level is 'patient'; allowed: '' or 'example' or 'client'",
        ),
        ((folder, "--limits", tmp_path / "no.toml"), "has no table [gate]"),
        ((folder, "--max-tpr", 0.1, "--message", "probes"), "unknown message 'probes'"),
        ((folder, other, "--max-tpr", 0.1), "differ in more than their seed"),
        ((tmp_path, "--max-tpr", 0.1), "holds no run"),
        ((folder, "--max-tpr", 0.1, "--defense", "D()", "--junit", tmp_path / "no" / "x.xml"), "--junit is"),
    ):
        assert why in refused("gate", *words), words
