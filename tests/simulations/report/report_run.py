"""A small run directory for the report's tests: rows as a server writes them, pictures, and a configuration."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from attacks.metrics.names import Role
from simulations.report import Row, validate, write_report
from simulations.report.studies.study import Study, split
from strategies.audit.threat_card import ThreatCard

PIPELINES = ["", "Mixer(window=4)", "DPSGD(target_epsilon=8.0)", "DPSGD(target_epsilon=2.0)"]
ATTACKED, ROUNDS = (1, 3), 3
INVERSION, LABELS = "InvertingGradients(iterations=600)", "LabelInference()"
PROBE = ThreatCard(observation="one-step probe")
MEMBERS, DRAWING, CHAINED = "LossThreshold()", "ClassGAN()", f"{INVERSION} | LearnedRestorer()"

# PSNR against the original of the inversion: pipeline -> round -> (mean, half interval, worst).
PSNR = {
    "": {1: (31.2, 2.0, 40.1), 3: (24.5, 1.5, 28.0)},
    "Mixer(window=4)": {1: (9.0, 0.5, 9.9), 3: (9.4, 0.5, 10.3)},
    "DPSGD(target_epsilon=8.0)": {1: (15.3, 1.0, 18.2), 3: (11.0, 2.0, 14.0)},
    "DPSGD(target_epsilon=2.0)": {1: (7.0, 0.5, 8.0), 3: (6.5, 0.5, 7.0)},
}
NULLS = {"grey": 8.0, "mean": 12.25}
SCALES = {"blurred": 30.0}
ACCURACY = {"": 0.95, "Mixer(window=4)": 0.6, "DPSGD(target_epsilon=8.0)": 0.88, "DPSGD(target_epsilon=2.0)": 0.8}

PICTURES = [
    {"defense": of, "attack": INVERSION if kind == "reconstruction" else "", "round": at, "client": client, "target": 0, "image": 0}
    | {"kind": kind, "file": f"{PIPELINES.index(of)}-{at}-{client}-{kind}.png"} | {"observation": "one-step probe"}
    | ({"psnr": (10.0, 30.5, None)[client], "structure": (0.1, 0.9, None)[client]} if kind == "reconstruction" else {})
    | ({"identified": 1, "recognisable": 1} if (client, kind) == (1, "reconstruction") else {})
    for of in PIPELINES[:2] for at in (3, 1) for client in (0, 1, 2) for kind in ("original", "protected", "reconstruction")
]  # fmt: skip
"""Of three clients in two rounds, in no order."""
DRAWN = [
    {"defense": "", "attack": DRAWING, "round": 1, "client": 0, "target": 0, "image": image, "kind": "reconstruction"}
    | {"file": f"drawn{image}.png", "psnr": None, "observation": "training update", "rounds_observed": 2}
    for image in sorted(range(20), key=str)  # as a folder lists them: 0, 1, 10, 11, ...
]
"""What a GAN attack drew."""


def row(**given: Any) -> dict[str, Any]:
    base = {
        "experiment": "demo", "scenario": "federated", "dataset": "mnist", "model": "LeNet", "seed": 0, "defense": "", "attack": "",
        "card": {}, "round": 1, "metric": "psnr", "reference": "", "value": None, "n": 16, "status": "ok", "seconds": 0.5,
    }  # fmt: skip
    return base | given


def setting(at: int, **given: Any) -> dict[str, Any]:
    known = {"observation": "one-step probe", "images": 1, "local_steps": 1, "labels": "inferred", "mode": "train"}
    return known | {"round": at, "model_accuracy": 0.1 * at} | given


def each(share: float, n: int = 16) -> dict[str, Any]:
    """The columns of a share of images that a client scored in their order."""
    return {"each": [int(at < round(share * n)) for at in range(n)], "each_of": [[0, at] for at in range(n)], "n": n}


def looked_for(identified: float, recognisable: float | None = None, n: int = 16, **known: Any) -> list[dict[str, Any]]:
    """Shares of the images that an attack identifies among 100 candidates, and makes recognisable: by default the same ones."""
    shares = {"identified": identified, "recognisable": identified if recognisable is None else recognisable}
    known |= {"reference": "original", "card": known.get("card", {}) | {"chance": 0.01}}
    return [row(**known | {"metric": metric, "value": share} | each(share, n)) for metric, share in shares.items()]


def training_rows(defense: str, seed: int = 0, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    rows = []
    for at in range(1, rounds + 1):
        known = {"defense": defense, "seed": seed, "round": at}
        mean = ACCURACY[defense] - 0.1 * (ROUNDS - at) + 0.01 * seed
        measured = {"test-accuracy": mean, "train-seconds": 0.2 + 0.1 * PIPELINES.index(defense), "update-bytes": 1000}
        if "DPSGD" in defense:
            spent = float(defense.split("=")[1][:-1]) * at / ROUNDS
            measured |= {"epsilon": spent, "epsilon-with-probes": 1.5 * spent, "delta": 1e-5}
        for metric, value in measured.items():
            reference = "original" if metric == "test-accuracy" else ""
            rows.append(row(metric=metric, reference=reference, value=value, n=500, **known))
        if "Mixer" in defense:
            rows.append(row(metric="test-accuracy", reference="transformed", value=mean + 0.3, n=500, **known))
    return rows


def attack_rows(defense: str, seed: int = 0) -> list[dict[str, Any]]:
    rows = []
    for at in ATTACKED:
        known = {"defense": defense, "seed": seed, "round": at}
        card = setting(at)
        mean, half, worst = PSNR[defense][at]
        mean += seed
        ends = {"ci_low": mean - half, "ci_high": mean + half, "failures": 0}
        for metric, reference, value, extra in (
            ("psnr", "original", mean, ends | {"worst": worst}), ("psnr", "transformed", mean + 3, {}),
            ("ssim", "original", mean / 50, {}), ("mse", "original", 10 ** (-mean / 10), {}),
            ("objective", "", 0.01, {}), ("attack-seconds", "", 12.0, {}),
        ):  # fmt: skip
            given = {"metric": metric, "reference": reference, "value": value, "card": card | {"iterations": 600}}
            rows.append(row(**{"attack": INVERSION} | given | extra | known))
        mine = known | {"attack": INVERSION, "card": card | {"iterations": 600}}
        rows += looked_for(float(mean > 12.25), float(mean > 20), **mine)
        for role, values in ((Role.NULL_BASELINE, NULLS), (Role.SCALE, SCALES)):
            of = known | {"role": role, "card": card, "metric": "psnr", "reference": "original"}
            rows += [row(attack=name, value=value, **of) for name, value in values.items()]
        share = 0.9 if "DPSGD" not in defense else 0.25
        of = known | {"card": card, "metric": "label-accuracy"}
        rows.append(row(attack=LABELS, value=share, ci_low=share - 0.05, ci_high=share + 0.05, **of))
        rows.append(row(attack="uniform", role=Role.NULL_BASELINE, value=0.1, **of))
    return rows


def demo_rows(seeds: Iterable[int] = (0,)) -> list[dict[str, Any]]:
    return [one for seed in seeds for text in PIPELINES for one in training_rows(text, seed) + attack_rows(text, seed)]


def member_rows(
    defense: str, mean: float, ends: tuple[float, float], seed: int = 0, others: int = 400, **given: Any
) -> list[dict[str, Any]]:
    """What one test of membership writes: the AUC with its curve, the rate at 1 % false positives, and its time."""
    known = {"defense": defense, "seed": seed, "attack": MEMBERS, "n": 600 + others, "failures": 0} | given
    card = setting(known.get("round", 1), observation="training update")
    counted = known | {"card": card | {"members": 600, "others": others}}
    area = {
        "roc": [[0.0, 0.0], [0.0, 0.05], [0.25, mean], [1.0, 1.0]], "value": mean, "ci_low": ends[0],
        "ci_high": ends[1],
    }  # fmt: skip
    return [
        row(**{"metric": "membership-auc"} | area | counted),
        row(**{"metric": "membership-tpr", "value": 0.125, "ci_low": 0.1, "ci_high": 0.15} | counted),
        # Its time is no score: it comes without the counts of records.
        row(**{"metric": "attack-seconds", "value": 7.0} | known | {"card": card}),
    ]


def drawing_rows(defense: str, share: float, half: float = 0.05) -> list[dict[str, Any]]:
    card = setting(1, observation="training update", num_classes=10)
    known = {"defense": defense, "attack": DRAWING, "card": card, "n": 80, "failures": 3}
    ends = {"ci_low": share - half, "ci_high": share + half}
    scores = {"recognition": (share, ends), "class-mean-psnr": (12.3, {}), "class-mean-ssim": (0.34, {})}
    scores |= {"oracle-accuracy": (0.97, {"n": 1}), "attack-seconds": (20.0, {"n": 4})}
    return [row(**{"metric": metric, "value": value} | known | more) for metric, (value, more) in scores.items()]


def chain_rows(defense: str, mean: float, half: float = 0.5, at: int = 1) -> list[dict[str, Any]]:
    known = {"defense": defense, "attack": CHAINED, "round": at}
    ends = {"ci_low": mean - half, "ci_high": mean + half, "worst": mean + 2}
    return [
        row(metric="psnr", reference="original", value=mean, card=setting(at), **ends, **known),
        *looked_for(1.0, card=setting(at), **known),
        row(metric="attack-seconds", value=3.0, card=setting(at), **known),
    ]


CONFIG: dict[str, Any] = {
    "config": {"num-rounds": ROUNDS, "dataset": "mnist"}, "pipelines": PIPELINES,
    "defenses": {
        "": {"adaptive_attacks": [], "sources": []},
        "Mixer(window=4)": {"adaptive_attacks": ["LearnedRestorer"], "sources": ["A paper, Algorithm 1"]},
        "DPSGD(target_epsilon=8.0)": {"adaptive_attacks": ["InvertingGradients"], "sources": ["Abadi et al. 2016"]},
        "DPSGD(target_epsilon=2.0)": {"adaptive_attacks": [], "sources": ["Abadi et al. 2016"]},
    },
    "versions": {"fedveil": "0.1.0"}, "progress": {"pipeline": 4, "of": 4, "round": 3, "rounds": 3, "finished": True},
    "command": "fedveil run demo.toml",
}  # fmt: skip


def png(grey: int) -> bytes:
    """A grey picture of one pixel."""
    Image.new("L", (1, 1), grey).save(file := BytesIO(), "PNG")
    return file.getvalue()


def write_run(
    directory: Path,
    rows: Iterable[Mapping[str, Any]] | None = None,
    config: Mapping[str, Any] | None = CONFIG,
    pictures: Iterable[Mapping[str, Any]] = (),
) -> Path:
    """Writes a run directory; every picture that is named gets a file."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = demo_rows() if rows is None else rows
    (directory / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    named = list(pictures)
    if named:
        (directory / "pictures").mkdir(exist_ok=True)
        index = "".join(json.dumps(one) + "\n" for one in named)
        (directory / "pictures" / "index.jsonl").write_text(index, encoding="utf-8")
        for number, one in enumerate(named):
            if "/" not in one["file"]:
                (directory / "pictures" / one["file"]).write_bytes(png(number % 256))
    return directory


VOID = {"meta", "img", "br", "wbr", "hr", "link", "input"}


class Page(HTMLParser):
    """What a browser finds in a page: elements, and by section texts, pictures and tables (cells: main text, small print)."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.sections: dict[str, str] = {}
        self.tables: dict[str, list[list[list[list[str]]]]] = {}
        self.images: dict[str, list[dict[str, str | None]]] = {}
        self._section = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append((tag, known))
        if tag == "img":
            self.images.setdefault(self._section, []).append(known)
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "section":
            self._section = known["id"] or ""
            self.sections[self._section] = ""
            self.tables[self._section] = []
        elif tag == "table":
            self.tables[self._section].append([])
        elif tag == "tr":
            self.tables[self._section][-1].append([])
        elif tag in {"td", "th"}:
            self.tables[self._section][-1][-1].append([""])
        elif tag == "small" and {"td", "th"} & set(self.open):
            self.tables[self._section][-1][-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            raise AssertionError(f"</{tag}> closes nothing at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if {"style", "script"} & set(self.open):
            return
        self.text += data
        if self._section:
            self.sections[self._section] += data
        if {"td", "th"} & set(self.open) and "svg" not in self.open:
            cell = self.tables[self._section][-1][-1][-1]
            cell[-1 if "small" in self.open else 0] += data

    def table(self, section: str, number: int = 0) -> list[dict[str, list[str]]]:
        rows = [[[" ".join(part.split()) for part in cell] for cell in one] for one in self.tables[section][number]]
        width = max(map(len, rows))
        head = next(one for one in rows if len(one) == width)
        body = rows[rows.index(head) + 1 :]
        return [dict(zip([name[0] for name in head], one, strict=True)) for one in body]


def build(directory: Path, rows: Iterable[Mapping[str, Any]] | None = None, **parts: Any) -> Page:
    return Page(write_report(write_run(directory, rows, **parts)).read_text(encoding="utf-8"))


def words(text: str) -> str:
    """A text as a person reads it: white space squeezed, no characters that only say where a line may end."""
    return " ".join(text.replace("\xa0", " ").replace("\u200b", "").split())


def study_of(rows: Iterable[Mapping[str, Any]], pipelines: Sequence[str] = PIPELINES) -> Study:
    """The first study of rows, checked against their controls."""
    return split(validate([Row.from_json(dict(one)) for one in rows]), pipelines)[0]


def scored(value: float | None, low: float | None = None, **given: Any) -> Row:
    """A PSNR of 16 images, with the lower end of its interval."""
    known: dict[str, Any] = {"metric": "psnr", "reference": "original", "attack": "A()", "round": 1, "n": 16}
    return Row(**known | {"card": PROBE, "value": value, "ci_low": low} | given)


def null(value: float, name: str = "grey", **given: Any) -> Row:
    return scored(value, **{"attack": name, "role": Role.NULL_BASELINE} | given)


def hits(of: Row, k: int | None = None, chance: float = 0.01, metric: str = "identified", **given: Any) -> Row:
    """How many of its images, by default all, the attack of a PSNR identified; or made recognisable."""
    share = 1.0 if k is None else k / of.n
    found = replace(of, metric=metric, reference="original", value=share, ci_low=None, ci_high=None, status="ok")
    return replace(found, **{"card": of.card.but(chance=chance), "extra": each(share, of.n)} | given)
