"""Attacks of an honest-but-curious server, and the metrics that judge them; importable without Flower, Ray or Opacus."""

from __future__ import annotations

from attacks.base import Attack, AttackError, ClientUpdate, Labels, Reconstruction
from attacks.gradient_inversion import GradientInversion
from attacks.labels import LabelInference, infer_labels
from attacks.metrics import null_baselines, optimal_assignment, score
from attacks.presets import DLG, LBFGSL2, AdamCosine, AdamL1, AdamL2, InvertingGradients, LBFGSCosine, SGDCosine

__all__ = [
    "DLG",
    "LBFGSL2",
    "AdamCosine",
    "AdamL1",
    "AdamL2",
    "Attack",
    "AttackError",
    "ClientUpdate",
    "GradientInversion",
    "InvertingGradients",
    "LBFGSCosine",
    "LabelInference",
    "Labels",
    "Reconstruction",
    "SGDCosine",
    "infer_labels",
    "null_baselines",
    "optimal_assignment",
    "score",
]
