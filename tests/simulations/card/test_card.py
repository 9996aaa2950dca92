import hashlib
import html
import json
import re
import shlex
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from simulations.card.markdown import LEFT_OUT, code, shown
from simulations.card.pdf import to_html
from simulations.report.analysis.run import read_run
from simulations.report.sections.external_app import RECORDED
from tests.browser import chromium
from tests.simulations.commands import fedveil, refused
from tests.simulations.report.every_page import FEW, PAGES
from tests.simulations.report.report_run import (
    CONFIG,
    INVERSION,
    PIPELINES,
    attack_rows,
    each,
    member_rows,
    row,
    training_rows,
    write_run,
)
from tests.simulations.report.studies.test_left_out import LOST, READ, rows

OUR_RUN = {"config": {"seed": 0, "rounds": 3, "output-dir": "/home/ann/run", "num-clients": 4}}
DP = PIPELINES[2]


def card_of(folder: Path, *words: object) -> str:
    code, told = fedveil("card", folder, "--out", folder / "card.md", *words)
    assert code == 0, told
    return (folder / "card.md").read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Tags of a page in order, and its tables as rows of texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.tables: list[list[list[str]]] = []
        self._inside = False
        # As a reader of Markdown that takes HTML and turns addresses into links.
        self.feed(MarkdownIt("gfm-like", {"html": True}).disable("linkify").render(text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif self._begins(tag):
            self.tables[-1][-1].append("")

    def _begins(self, tag: str) -> bool:
        self._inside = tag in ("td", "th") or (self._inside and tag in ("code", "strong", "em"))
        return tag in ("td", "th")

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.tables[-1][-1][-1] += data


def parts(card: str) -> tuple[dict[str, Any], str]:
    empty, metadata, body = card.split("---\n", 2)
    assert empty == ""
    return yaml.safe_load(metadata), body


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ("empty", "comparison")])
def test_every_kind_of_run_has_a_card_with_each_verdict_and_number(name: str, tmp_path: Path) -> None:
    PAGES[name](tmp_path / "run")
    metadata, body = parts(card_of(tmp_path / "run"))
    assert {"federated-learning", "privacy-audit"} <= set(metadata["tags"])
    assert LEFT_OUT not in body
    found = Elements(body)
    for table in found.tables:
        assert len({len(line) for line in table}) == 1, table
    shown = [line for table in found.tables for line in table if table[0][0] == "Message"]
    for outcome in read_run(tmp_path / "run").to_json():
        for message in outcome["messages"]:
            count = f"{message['found']} of {message['attacked']}" if message["found"] is not None else ""
            assert [line for line in shown if line[:2] == [message["title"], message["verdict"]] and count in line[2]]
        for warning in outcome["warnings"]:
            assert warning[:20].lower() in html.unescape(body.replace("\\", "")).lower()


def leaking(folder: Path, **settings: Any) -> Path:
    rows = [
        *FEW,
        *training_rows(DP),
        *attack_rows(DP),
        *member_rows("", 0.7, (0.65, 0.75)),
        *(one for one in member_rows(DP, 0.5, (0.45, 0.55)) if one["metric"] != "membership-tpr"),
    ]
    return write_run(folder, rows, CONFIG | {"config": OUR_RUN["config"] | settings})


def test_the_first_table_says_what_was_learned_and_what_may_follow(tmp_path: Path) -> None:
    _, body = parts(card_of(leaking(tmp_path / "a"), "--defense", "dpsgd"))
    first = body.split("## What was not tested")[0]
    assert first.index("does not decide whether the finished model may be published") < first.index("\n## ")
    assert "**May the finished model be published?** Not assessed." in first
    headings, plain, protected = Elements(body).tables[0]
    assert [plain[0], protected[0]] == ["No defence", "DPSGD"]
    members, proof = headings.index("Participation guessed?"), headings.index("Mathematical bound")
    assert plain[members].startswith("yes: ")
    assert protected[members] == "not found: 50 of 100 pairs told apart (45 to 55)"
    assert [plain[proof], protected[proof]] == ["none", "epsilon 8.00 for one example, not one person"]
    assert first.count("Epsilon under") == 1
    assert "at most 2981 times" in first  # e^8 = 2980.96
    assert "An epsilon above 1 bounds little" in first
    # Its probes are requests; nothing that clients send was attacked.
    assert plain[1] == protected[1] == "not tested on what clients send"
    assert (
        "- *No defence, DPSGD:* No attack on what clients send has a score, so this audit supports no training."
        in first
    )
    updates = [
        one | {"card": one["card"] | {"observation": "training update"}} if one["card"] else one
        for one in [*training_rows(""), *attack_rows("")]
    ]
    _, real = parts(card_of(write_run(tmp_path / "b", updates)))
    assert "The server can see what the clients' images show" in real
    assert Elements(real).tables[0][1][1].startswith("yes: ")
    assert "found no image" not in real


def test_labels_of_what_clients_send_are_told_from_those_of_probes(tmp_path: Path) -> None:
    told = [*FEW]
    for observation, share in (("one-step probe", 1.0), ("training update", 0.05)):
        known = {
            "metric": "label-accuracy",
            "card": {"observation": observation, "images": 1, "local_steps": 1},
            "n": 64,
        }
        told.append(row(attack="Labels()", value=share, ci_low=share - 0.05, ci_high=share, **known))
        told.append(row(attack="uniform", role="null baseline", value=0.1, **known))
    headings, plain, *_ = Elements(parts(card_of(write_run(tmp_path, told)))[1]).tables[0]
    said = "unknown: 5.0 % right, chance 10.0 %; of probes yes: 100.0 % right, chance 10.0 %"
    assert plain[headings.index("Labels guessed?")] == said


def test_the_first_table_says_what_a_verdict_would_be_without_one_client(tmp_path: Path) -> None:
    update = {"observation": "training update"}
    told = [json.loads(one.line) for one in rows(LOST, LOST, READ, LOST)]
    told = [one | {"card": one["card"] | update} for one in told]
    _, plain = Elements(parts(card_of(write_run(tmp_path, told)))[1]).tables[0]
    assert plain[1].startswith("yes: 4 of 16")
    assert plain[1].endswith("; without client 2 it is unknown")


def test_a_card_names_its_evidence(tmp_path: Path) -> None:
    folder = leaking(tmp_path)
    files = b"".join((folder / name).read_bytes() for name in ("rows.jsonl", "config.json"))
    assert f"`{hashlib.sha256(files).hexdigest()}`" in card_of(folder)


def test_a_failed_control_reads_as_unknown_and_never_as_nothing_found(tmp_path: Path) -> None:
    rows = [dict(one) for one in FEW]
    for one in rows:
        if one["card"]:
            one["card"] = one["card"] | {"observation": "training update"}
        if one["metric"] in ("identified", "recognisable"):
            one |= {"value": 0.0} | each(0.0)
    _, body = parts(card_of(write_run(tmp_path, rows)))
    _, *trainings = Elements(body).tables[0]
    assert [line[1].partition(":")[0] for line in trainings] == ["unknown", "unknown"]
    assert "It supports no training." in body
    assert "found no image" not in body
    assert f"`{INVERSION}` passed no positive control" in body


def test_an_unfinished_and_damaged_run_says_so(tmp_path: Path) -> None:
    folder = leaking(tmp_path / "a")
    config = json.loads((folder / "config.json").read_text())
    state = {"pipeline": 2, "of": 4, "round": 1, "rounds": 3, "failed": "no file /home/ann/scans/7.png"}
    (folder / "config.json").write_text(json.dumps(config | {"progress": state}))
    with (folder / "rows.jsonl").open("a") as file:
        file.write("{broken\n")
    code, told = fedveil("card", folder)
    assert (code, "warning: " in told) == (0, True)
    text = (folder / "card.md").read_text()
    assert "run stopped after round 1 of 3" in text
    assert "no file" not in text  # reasons may name data
    assert "of rows.jsonl is damaged and left out" in text
    assert str(tmp_path) not in text
    (folder / "rows.jsonl").write_text("{broken\n")
    assert "holds no row that can be read" in refused("card", folder)
    assert (folder / "card.md").read_text() == text


HOSTILE = (
    "a | b | c", "x\n---\ny", "---", "<script>alert(1)</script>", "[click](http://evil.example)", "![see](http://evil.example/a.png)",
    "`code` ``x", "a\n\n# Heading", "1. one", "- item", "    indented", "> quote", "*bold* _i_ ~~s~~", "&lt;b&gt; &#60;i&#62;",
    "x\\", "```\nfence", "<!-- ", "http://evil.example/x", "| --- |", "\u202ereversed\x1b[31m", "{{ 7 * 7 }}{% raw %}", "===",
)  # fmt: skip


def hostile(folder: Path, text: str) -> str:
    """A card in which everything that a file or a client chose is the text."""
    card = {"observation": text, "labels": text, "iterations": text, "caveats": [text], "images": 1, "local_steps": 1}
    known = {"experiment": text, "scenario": text, "dataset": text, "model": text, "cut": text}
    rows = []
    for defense in ("", text):
        for one in [*training_rows(PIPELINES[0], rounds=1), *attack_rows(""), *member_rows("", 0.7, (0.6, 0.8))]:
            changed = {"card": one["card"] | card, "attack": one["attack"] if "role" in one else text}
            rows.append(one | known | {"defense": defense, "round": 1} | (changed if one["card"] else {}))
        rows.append(
            row(
                metric="attack",
                attack="B()",
                status="not-applicable",
                message=text,
                defense=defense,
                card=card,
                **known,
            )
        )
        rows.append(
            row(
                metric=RECORDED,
                value=1.0,
                assumed=[text],
                warnings=[text],
                clients={"0": text},
                defense=defense,
                **known,
            )
        )
    versions = {"versions": {text: text}, "run": {"started": text}, "pipelines": ["", text]}
    defenses = {"defenses": {text: {"adaptive_attacks": [text], "caveats": [text]}}}
    return card_of(write_run(folder, rows, CONFIG | OUR_RUN | versions | defenses))


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return Elements(parts(hostile(tmp_path_factory.mktemp("harmless"), "word"))[1]).tags


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_make_no_markup(text: str, tmp_path: Path, harmless: list[str]) -> None:
    """Every text gives the elements that a plain word gives, in the same order."""
    card = hostile(tmp_path, text)
    metadata, body = parts(card)
    assert set(metadata) == {"library_name", "tags", "metrics"}
    assert Elements(body).tags == harmless
    assert not re.search(r"<script|evil\.example|\x1b|\u202e|<!--", card)
    assert "<script" not in to_html(card)


def test_prose_and_code_show_what_they_were_given() -> None:
    for text in ("a_b * c | d", "1. one", "[x](y) & <z>", "per='step' #1 ~x~ $y$", "back\\slash`tick`"):
        assert html.unescape(re.sub("<.*?>", "", MarkdownIt().render(shown(text)))).strip() == text
    assert MarkdownIt().render(code("A(x='|') | B()")).strip() == "<p><code>A(x='|') | B()</code></p>"


def test_names_of_data_and_places_stay_out(tmp_path: Path) -> None:
    places = {"data-dir": "/data/clinic seven", "model": "/home/ann/nets.py:Net", "dataset": "/home/ann/scans.py:load"}
    folder = leaking(tmp_path / "private run", **places)
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    told = {"dataset": places["dataset"], "model": places["model"]}
    lines = [one | told for one in lines]
    lines.append(row(metric="client", status="failed", client=3, message="cannot read scans/patient-12.png", **told))
    lines.append(
        row(metric="attack", attack=INVERSION, status="failed", n=2, message="/home/ann/x y.npy is empty", **told)
    )
    clients = {
        "clients": {"0": "St. Mary"},
        "unusable": ["node St. Mary: no arrays"],
        "assumed": ["Read C:\\scans\\9.dcm."],
    }
    lines.append(row(metric=RECORDED, value=1.0, **clients, **told))
    (folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    card = card_of(folder)
    for private in ("clinic", "ann", "scans", "patient-12", "npy", "dcm", "Mary", "private", str(tmp_path), "nets.py"):
        assert not re.search(rf"\b{private}\b", card), private
    assert "| model | Net |" in card
    assert "| data | the operator's own data |" in card
    assert "datasets" not in parts(card)[0]
    assert parts(card_of(leaking(tmp_path / "public")))[0]["datasets"] == ["mnist"]


def test_the_command_repeats_the_run_without_its_place(tmp_path: Path) -> None:
    folder = leaking(tmp_path)
    (line,) = re.findall(r"```bash\n(.*)\n```", card_of(folder))
    assert shlex.split(line) == ["fedveil", "run", "RUN/config.json", "--seeds", "0", "--out", "again"]
    write_run(folder, config=CONFIG)  # an audit of an app
    assert "```bash" not in card_of(folder)


def test_a_defence_is_chosen_by_its_text_or_name(tmp_path: Path) -> None:
    folder = leaking(tmp_path)
    for words, there in ((DP, 2), ("DPSGD", 2), ("mixer", 2), ("no defence", 1)):
        body = card_of(folder, "--defense", words)
        assert body.count("\n#### ") == there, words
        assert ("Mixer(window=4)" in body) == (words == "mixer")
    text = (folder / "card.md").read_text()
    told = refused("card", folder, "--defense", "Blur()")
    for name in ("Blur()", "no defence", *PIPELINES[1:3]):
        assert name in told
    assert (folder / "card.md").read_text() == text


def test_a_card_replaces_no_file_but_a_card_and_an_error_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = leaking(tmp_path / "a")
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    cases: list[tuple[Callable[[], str], str]] = [
        (lambda: refused("card", folder, "--out", tmp_path / "README.md"), "is no card by fedveil"),
        (lambda: refused("card", folder, "--out", tmp_path / "folder.md"), "is no file"),
        (lambda: refused("card", folder, "--out", tmp_path / "card.html"), "ends in .md or .pdf"),
        (lambda: refused("card", folder, "--out", tmp_path / "no" / "card.md"), "--out: cannot write"),
        (lambda: refused("card", tmp_path / "nothing"), "holds no run"),
        (lambda: refused("card", folder, "--out", tmp_path / "card.pdf"), "a PDF needs Chromium"),
    ]
    before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    for refuse, why in cases:
        assert why in refuse()
    assert {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()} == before
    earlier = card_of(folder)
    assert card_of(folder, "--defense", "DPSGD") != earlier


@pytest.mark.long
def test_a_pdf_is_printed_and_replaced(tmp_path: Path) -> None:
    chromium()
    folder = leaking(tmp_path / "a")
    for _ in range(2):
        code, told = fedveil("card", folder, "--out", tmp_path / "card.pdf")
        assert code == 0, told
    assert (tmp_path / "card.pdf").read_bytes().startswith(b"%PDF")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "card.pdf"]


@pytest.mark.long
def test_a_browser_that_fails_costs_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = leaking(tmp_path / "a")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "chromium").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "bin" / "chromium").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert "made no PDF" in refused("card", folder, "--out", tmp_path / "card.pdf")
    assert not (tmp_path / "card.pdf").exists()
