"""One page of each kind that fedveil writes, from small rows: name -> a function that writes it into a folder."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attacks.metrics.costs import MODEL_REFUSED
from defenses.neighbours import REPLACE_CLIENT, REPLACE_ONE
from simulations.compare.groups import grouped
from simulations.compare.page import write_comparison
from simulations.report import write_report
from simulations.report.sections.external_app import RECORDED
from strategies.external_app.claim import CLAIMED, METRICS, Claim
from strategies.external_app.trainings import ASSUMED
from strategies.federated.aggregates import WITHHELD
from strategies.federated.observations import ACTIVE, AGGREGATE
from tests.simulations.compare.test_compare import a_run
from tests.simulations.report.analysis.test_budget import audited_rows
from tests.simulations.report.analysis.test_windows import counted
from tests.simulations.report.page import test_inference, test_outsourced, test_split
from tests.simulations.report.report_run import (
    CONFIG,
    DRAWN,
    INVERSION,
    PICTURES,
    PIPELINES,
    attack_rows,
    chain_rows,
    demo_rows,
    drawing_rows,
    each,
    looked_for,
    member_rows,
    row,
    setting,
    training_rows,
    write_run,
)

ROUND_PICTURES = [one | {"client": int(str(one["client"])) + 3 * more} for more in range(2) for one in PICTURES]
"""Of six targets, so that some are folded."""


FEW = [one for one in demo_rows() if one["defense"] in PIPELINES[:2]]


def report(folder: Path, rows: Iterable[dict[str, Any]] | None = None, **parts: Any) -> Path:
    return write_report(write_run(folder, rows, **parts))


def federated(folder: Path) -> Path:
    """With failures, an upper bound, several seeds, settings, a broken picture and an unfinished state."""
    failed = {"metric": "attack", "status": "failed", "message": "out of memory", "n": 2, "attack": INVERSION}
    rows = [*demo_rows((0, 1)), row(defense=PIPELINES[1], round=2, **failed), *chain_rows(PIPELINES[1], 20.0)]
    settings = {"scenario": "federated", "rounds": 3, "seed": 7, "output-dir": "run"}
    more = {"config": settings, "progress": {"pipeline": 1, "of": 4, "round": 2, "rounds": 8}}
    missing = PICTURES[1] | {"file": "../none.png", "client": 9}
    return report(folder, rows, config=CONFIG | more, pictures=[*ROUND_PICTURES, missing])


def members(folder: Path) -> Path:
    """Membership, class representatives, and no picture of an attacked image."""
    rows = [*FEW, *drawing_rows("", 0.4), *drawing_rows(PIPELINES[1], 0.12, half=0.04)]
    for defense, mean in {"": 0.7, PIPELINES[1]: 0.51}.items():
        rows += member_rows(defense, mean, (mean - 0.05, mean + 0.05), round=3)
    return report(folder, rows, pictures=DRAWN)


def doubts(folder: Path) -> Path:
    """A control that fails, clients and attacks that failed, an attack that never ran without a defence, and odd numbers."""
    rows = [dict(one) for one in FEW]
    for one in rows:
        if (one["defense"], one["attack"]) == ("", INVERSION) and one["metric"] in ("identified", "recognisable"):
            one |= {"value": 0.0} | each(0.0)
    untried = {"defense": PIPELINES[1], "attack": "Untried()", "card": setting(1), "metric": "psnr"}
    rows += [
        row(**untried, reference="original", value=25.0, ci_low=24.0, ci_high=26.0),
        row(metric="client", status="failed", client=3, round=2, message="RuntimeError: empty batch"),
        row(metric="attack", attack="Broken()", card=setting(1), status="failed", failures=8, message="NaN update"),
        row(metric="gpu-watts", value=312.5),
        row(metric="aura", attack="Mystery(x=1)", card=setting(1), reference="halo", value=0.625, worst=0.75),
        row(metric="recognition", attack=INVERSION, card=setting(1, iterations=600), value=0.75, n=4),
        *chain_rows(PIPELINES[1], 20.0, at=3),
    ]
    reasons = {"attack_failures": ["diverged", "no memory"]}
    for at, metric in ((1, "psnr"), (1, "ssim"), (3, "psnr"), (3, "ssim")):
        shaky = {"attack": "Shaky()", "reference": "original", "value": 8.0, "failures": 2, "round": at}
        rows.append(row(metric=metric, card=setting(at, **reasons), **shaky))
    return report(folder, rows)


CLAIMS = {
    **{f"DPSGD(target_epsilon={epsilon:.1f})": (epsilon, REPLACE_ONE) for epsilon in (2.0, 8.0, 32.0)},
    **{f"ClientDP(target_epsilon={epsilon:.1f}, rounds=1)": (epsilon, REPLACE_CLIENT) for epsilon in (8.0, 2000.0, 30000.0)},
}  # fmt: skip


def claimed_rows() -> list[dict[str, Any]]:
    found = [*training_rows("", rounds=1), *attack_rows("")]
    for at, (defense, (epsilon, named)) in enumerate(CLAIMS.items()):
        known = {"defense": defense, "round": 1}
        found += [
            row(metric="test-accuracy", reference="original", value=0.3 + 0.1 * (at % 3), n=500, **known),
            row(metric="epsilon", value=epsilon, neighbours=named, **known),
            row(metric="delta", value=1e-5, neighbours=named, **known),
            *member_rows(defense, 0.7, (0.65, 0.75)),
        ]
    return found


def dp_audit(folder: Path) -> Path:
    """Claims for examples and for clients, of which canaries tested one, and what other accountants say of it."""
    audited = PIPELINES[2]
    rows = [*claimed_rows(), *(one for one in audited_rows(REPLACE_ONE) if "shown" in one["metric"])]
    claims = {"rdp": 8.0, "pld": 6.91, "gdp": 6.92}
    rows += [row(metric=f"epsilon-by-{name}", defense=audited, value=value) for name, value in claims.items()]
    return report(folder, rows, config=CONFIG | {"pipelines": ["", *CLAIMS], "defenses": {}})


def updates(folder: Path) -> Path:
    rows = [one | ({"card": one["card"] | {"observation": "one-step probe"}} if one["card"] else {}) for one in FEW]
    for one in FEW:
        if one["attack"] == INVERSION and one["round"] == 1:
            card = one["card"] | {"observation": "training update", "local_steps": 4}
            rows.append(one | {"card": card, "attack": "SurrogateMatching()", "n": 64})
    rows += counted({8: 10, 4: 20, 2: 80}, vfe=(66.0, 2090.0))
    rows.append(row(defense=PIPELINES[1], metric="log10-keys", value=240 * 213.13, n=4))
    words = "windows of 2 to 8 of 32 pixels (6 to 25 % of the side), as 14 to 56 of 224 in VisualMixer's paper"
    known = {PIPELINES[1]: {"adaptive_attacks": ["SurrogateMatching"], "at_size": [words]}}
    settings = {"seed": 0, "rounds": 7, "unheard-of": 1, "output-dir": "/nowhere", "scenario": "federated"}
    run = {"started": "2026-01-02 03:04 UTC", "seconds": 250.0, "machine": "2 cores, 8 GiB"}
    more = {"pipelines": PIPELINES[:2], "defenses": known, "config": settings, "run": run}
    return report(folder, rows, config=CONFIG | more)


def adversaries(folder: Path) -> Path:
    rows = list(FEW)
    active = setting(1, observation=ACTIVE.title, server="active", threat_class="G")
    summed = setting(1, observation=AGGREGATE.title, clients=4)
    for attack, card, mean in (("ImprintLayer(bins=96)", active, 45.0), (INVERSION, summed, 11.0)):
        for defense in PIPELINES[:2]:
            known = {"attack": attack, "card": card, "defense": defense}
            ends = {"ci_low": mean - 1, "ci_high": mean + 1, "worst": mean + 2}
            rows.append(row(metric="psnr", reference="original", value=mean, **ends, **known))
            rows += looked_for(1.0, **known)
    refused = {"attack": "ImprintLayer(bins=96)", "card": active, "metric": MODEL_REFUSED.name, "n": 4}
    rows.append(row(value=0.5, **refused))
    rows.append(row(metric=WITHHELD, message="a group of 3 clients stayed hidden", card=summed))
    pictures = [one | {"observation": ACTIVE.title} for one in PICTURES[:9]]
    return report(folder, rows, pictures=pictures)


def external_app(folder: Path) -> Path:
    """A recording, and an app whose clients answer: two experiments on one page."""
    told = {"examples": [6, 9], "local_steps": [1, 3], "unusable": ["client 3: no arrays"], "clients": {"0": "11"}}
    known = {"experiment": "recorded", "scenario": "external-app", "assumed": ["The learning rate: 0.1"]}
    rows = [*FEW, row(metric=RECORDED, value=2.0, n=2, **told, **known)]
    answered = known | {"experiment": "answers"}
    rows.append(row(metric=ASSUMED, **answered))
    claim = Claim(METRICS, "The clients' metrics claim epsilon 3.", 1, 3.0, 3.0, 1e-5)
    rows.append(row(metric=CLAIMED, claims=[asdict(claim)], **answered))
    return report(folder, rows)


def split(folder: Path) -> Path:
    picture = {"defense": "", "round": 2, "client": 0, "target": 0, "kind": "reconstruction", "psnr": 30.0}
    picture |= {"identified": 1, "recognisable": 1, "observation": "smashed data"}
    of = [picture | {"attack": test_split.DECODER, "file": "0.png"}]
    return report(folder, test_split.split_rows((0, 1)), config=test_split.SETTINGS, pictures=of)


def outsourced(folder: Path) -> Path:
    return report(folder, test_outsourced.outsourced_rows(), config=test_outsourced.SETTINGS)


def inference(folder: Path) -> Path:
    of = test_inference
    rows = [one for defense in of.PIPELINES[:3] for one in of.phase(defense, "conv2")]
    shown = {"attack": "", "client": "server", "target": 0, "image": 0, "observation": "delta masks"}
    kinds = ("image", "server-cam", "adversary-cam", "mask", "masked")
    shown |= of.known(of.ADP, "conv2") | {"caption": "cut at conv2, image 1"}
    masks = [shown | {"kind": kind, "file": f"{kind}.png"} for kind in kinds]
    return report(folder, rows, config=CONFIG | {"pipelines": of.PIPELINES[:3], "defenses": {}}, pictures=masks)


def empty(folder: Path) -> Path:
    return report(folder, [], config=None)


def comparison(folder: Path) -> Path:
    folders = [a_run(folder / name, seed, model=model) for name, seed, model in (("a", 0, ""), ("b", 1, ""))]
    folders.append(a_run(folder / "c", model="cnn", finished=False))
    write_comparison(grouped(folders), folder / "comparison.html")
    return folder / "comparison.html"


PAGES: dict[str, Callable[[Path], Path]] = {
    one.__name__: one
    for one in (
        federated, members, doubts, dp_audit, updates, adversaries, external_app, split, outsourced,
        inference, empty, comparison,
    )
}  # fmt: skip
