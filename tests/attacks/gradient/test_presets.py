"""Presets against the table of the ATS paper's attacks, and as configuration text."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from attacks import (
    DLG,
    LBFGSL2,
    AdamCosine,
    AdamL1,
    AdamL2,
    GradientInversion,
    InvertingGradients,
    LBFGSCosine,
    SGDCosine,
)
from attacks.registry import ATTACKS
from defenses.spec import SpecError, parse_statements

# cost, optimizer, signed, learning rate, iterations, restarts, total variation, boxed, step decay (Gao et al. 2021, section 6)
TABLE = {
    AdamCosine: ("cosine", "adam", True, 0.1, 4800, 1, 1e-4, True, True),
    AdamL1: ("l1", "adam", True, 0.1, 4800, 1, 1e-4, True, True),
    AdamL2: ("l2", "adam", True, 0.1, 4800, 1, 1e-4, True, True),
    SGDCosine: ("cosine", "sgd", True, 0.01, 4800, 1, 1e-4, True, True),
    LBFGSCosine: ("cosine", "lbfgs", True, 1e-4, 300, 16, 1e-4, True, False),
    LBFGSL2: ("l2", "lbfgs", False, 1e-4, 300, 16, 1e-3, False, False),
}
NAMES = (
    "cost",
    "optimizer",
    "signed",
    "learning_rate",
    "iterations",
    "restarts",
    "total_variation",
    "boxed",
    "step_decay",
)


@pytest.mark.parametrize("preset", TABLE)
def test_presets_equal_the_table(preset):
    values = asdict(preset())
    assert tuple(values[name] for name in NAMES) == TABLE[preset]
    assert (values["labels"], values["init"], values["line_search"], values["prior_decay"]) == (
        "auto",
        "randn",
        False,
        False,
    )


def test_published_essence_of_the_other_two():
    dlg, inverting = DLG(), InvertingGradients()
    assert (dlg.cost, dlg.optimizer, dlg.signed, dlg.boxed, dlg.labels) == ("l2", "lbfgs", False, False, "joint")
    assert (inverting.cost, inverting.optimizer, inverting.signed, inverting.learning_rate) == (
        "cosine",
        "adam",
        True,
        0.1,
    )
    assert inverting.boxed
    assert inverting.step_decay


def test_presets_change_defaults_only():
    for preset in (*TABLE, DLG, InvertingGradients):
        own = {name for name in vars(preset) if callable(getattr(preset, name)) and not name.startswith("__")}
        assert all(base in (GradientInversion, *TABLE) for base in preset.__bases__)
        assert own == set()


def test_text_round_trip():
    registry = ATTACKS
    text = "DLG(restarts=3) | InvertingGradients(labels='infer'); LabelInference(max_labels=4)"
    statements = parse_statements(text, registry, "attack")
    assert [[repr(attack) for attack in stages] for stages in statements] == [
        ["DLG(restarts=3)", "InvertingGradients(labels='infer')"],
        ["LabelInference(max_labels=4)"],
    ]
    with pytest.raises(SpecError, match="did you mean 'DLG'"):
        parse_statements("DLGG()", registry, "attack")
    with pytest.raises(SpecError, match="iterations is 0; allowed: a whole number from 1 to 1000000000"):
        parse_statements("DLG(iterations=0)", registry, "attack")
