"""A page of a run as large as the default audit can be read through: bounded words, pictures and sheets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulations.report import write_report
from tests.simulations.report.page.test_page import MOST_SHEETS, pages_of, printed
from tests.simulations.report.report_run import Page, member_rows, row, setting, write_run

MOST_WORDS = 8_000
MOST_PICTURES = 150
DEFENSES = [
    "",
    "VisualMixer(window_lower=2, window_upper=16)",
    "ATS(policies='3-1-7+43-18-18')",
    "GaussianNoise(std=0.01, per='step')",
    "DPSGD(target_epsilon=8.0)",
]
PLAIN = ["InvertingGradients()", "NoiseModelInversion()"]
ADAPTIVE = [
    f"{PLAIN[0]} | {name}()" for name in ("LearnedRestorer", "WindowMean", "Shredder", "Jigsaw", "PolicyInversion")
]
LABELS = ["LabelInference()"]
MEMBERS = ["LossThreshold()", "ShadowModels()"]
ROUNDS, ATTACKED, IMAGES = 16, (0, 16), 16


def training(defense: str, at: int) -> list[dict[str, Any]]:
    known = {"defense": defense, "round": at}
    known_too = known | {"metric": "test-accuracy", "ci_low": 0.05, "ci_high": 0.9, "n": 137}
    rows = [row(reference=of, value=0.1 + 0.04 * at, **known_too) for of in ("original", "transformed")]
    measured = {"train-seconds": 0.5, "update-bytes": 250_000, "train-loss": 1.5, "gradient-norm": 0.2}
    measured |= {"epsilon": 0.5 * at, "epsilon-with-probes": 0.6 * at, "delta": 1e-5} if "DPSGD" in defense else {}
    return rows + [row(metric=metric, value=value, **known) for metric, value in measured.items()]


def on_images(defense: str, attack: str, at: int) -> list[dict[str, Any]]:
    card = setting(at, iterations=600, observation="one-step probe")
    known = {"defense": defense, "attack": attack, "round": at, "n": IMAGES, "reference": "original", "failures": 0}
    picked = {"picked_psnr": [15.0 + k for k in range(7)], "picked_gain": [2.0 + k for k in range(7)]}
    picked["missed_gain"] = [-3.0 + 0.5 * k for k in range(9)]
    scores = {"psnr": (16.0, {"ci_low": 14.0, "ci_high": 18.0, "worst": 27.3}), "ssim": (0.4, {}), "mse": (0.03, {})}
    scores |= {"retrieval": (7 / 16, {"card": card | {"chance": 0.01}, **picked})}
    rows = [
        row(**{"metric": metric, "value": value, "card": card} | known | more)
        for metric, (value, more) in scores.items()
    ]
    spent = {"objective": 0.01, "attack-seconds": 12.0, "label-accuracy": 0.75}
    return rows + [row(**known | {"metric": m, "reference": "", "value": v, "card": card}) for m, v in spent.items()]


def nulls(defense: str, at: int) -> list[dict[str, Any]]:
    card = setting(at, observation="one-step probe")
    known = {"defense": defense, "round": at, "card": card, "metric": "psnr", "reference": "original"}
    known |= {"role": "null baseline"}
    return [row(attack=name, value=value, **known) for name, value in (("grey", 9.0), ("mean", 11.0), ("best", 11.5))]


def rows_like_the_default() -> list[dict[str, Any]]:
    found = []
    for defense in DEFENSES:
        found += [one for at in range(ROUNDS + 1) for one in training(defense, at)]
        for at in ATTACKED:
            found += nulls(defense, at)
            for attack in [*PLAIN, *(ADAPTIVE if "Mixer" in defense or "ATS" in defense else [])]:
                found += on_images(defense, attack, at)
            known = {"defense": defense, "round": at, "metric": "label-accuracy", "value": 0.6, "n": IMAGES}
            found += [row(attack=one, card=setting(at), **known) for one in LABELS]
        for attack in MEMBERS:
            found += member_rows(defense, 0.6, (0.55, 0.65), attack=attack, round=ROUNDS)
    return found


def pictures_like_the_default() -> list[dict[str, Any]]:
    found = []
    for defense in DEFENSES:
        for at in ATTACKED:
            for client in range(4):
                for target in range(4):
                    known = {"defense": defense, "round": at, "client": client, "target": target, "image": 0}
                    name = f"{DEFENSES.index(defense)}-{at}-{client}-{target}"
                    known |= {"observation": "one-step probe"}
                    for kind in ("original", "protected"):
                        found.append(known | {"attack": "", "kind": kind, "file": f"{name}-{kind}.png", "psnr": None})
                    for number, attack in enumerate(PLAIN + ADAPTIVE):
                        guess = {"attack": attack, "kind": "reconstruction", "psnr": 10.0 + client, "null_psnr": 9.0}
                        found.append(known | guess | {"file": f"{name}-{number}.png", "identified": 1})
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {"pipelines": DEFENSES, "config": {"seed": 0, "output-dir": "run"}, "progress": {"finished": True}}
    folder = tmp_path_factory.mktemp("default")
    write_report(write_run(folder, rows_like_the_default(), config, pictures_like_the_default()))
    return folder


@pytest.mark.long
def test_a_page_like_that_of_the_default_audit_is_short(run: Path) -> None:
    """Tooltips, closed folds and both drawings of each chart count as well."""
    found, every = (Page((run / name).read_text(encoding="utf-8")) for name in ("report.html", "attacks.html"))
    assert len(found.text.split()) <= MOST_WORDS
    assert sum(map(len, found.images.values())) <= MOST_PICTURES
    assert len(every.table("attacks")) == len(ATTACKED) * (5 * (len(PLAIN) + len(LABELS)) + 2 * len(ADAPTIVE))
    assert len(found.table("attacks")) == len(PLAIN) + len(ADAPTIVE) + len(LABELS)


@pytest.mark.long
@printed
def test_it_prints_on_few_sheets(run: Path, tmp_path: Path) -> None:
    assert len(pages_of(run / "report.html", tmp_path)) <= MOST_SHEETS
