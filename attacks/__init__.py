"""Attacks of an honest-but-curious server, and the metrics that judge them; importable without Flower, Ray or Opacus."""

from __future__ import annotations

from attacks.base import Attack, AttackError, ClientUpdate, Labels, Reconstruction
from attacks.gradient_inversion import GradientInversion
from attacks.labels import LabelInference
from attacks.presets import DLG, InvertingGradients

__all__ = [
    "DLG",
    "Attack",
    "AttackError",
    "ClientUpdate",
    "GradientInversion",
    "InvertingGradients",
    "LabelInference",
    "Labels",
    "Reconstruction",
]
