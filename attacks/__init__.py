"""Attacks of an honest-but-curious server, and the metrics that judge them; importable without Flower, Ray or Opacus."""

from __future__ import annotations

from attacks.base import (
    Attack,
    AttackError,
    ClientUpdate,
    Knowledge,
    Labels,
    Reconstruction,
    Refinement,
    Representatives,
    UpdateHistory,
)
from attacks.class_gan import ClassGAN
from attacks.encodings import EncodingInversion
from attacks.gradient_inversion import GradientInversion
from attacks.labels import LabelInference, infer_labels
from attacks.membership import LossThreshold, Membership
from attacks.metrics import null_baselines, optimal_assignment, score
from attacks.multitask_gan import MultitaskGAN
from attacks.noise_models import MaskedInversion, NoiseModelInversion
from attacks.policy_inversion import PolicyInversion
from attacks.presets import DLG, LBFGSL2, AdamCosine, AdamL1, AdamL2, InvertingGradients, LBFGSCosine, SGDCosine
from attacks.restoration import LearnedRestorer
from attacks.shadow_models import ShadowModels
from attacks.shredder import Jigsaw, Shredder, WindowMean

__all__ = [
    "DLG",
    "LBFGSL2",
    "AdamCosine",
    "AdamL1",
    "AdamL2",
    "Attack",
    "AttackError",
    "ClassGAN",
    "ClientUpdate",
    "EncodingInversion",
    "GradientInversion",
    "InvertingGradients",
    "Jigsaw",
    "Knowledge",
    "LBFGSCosine",
    "LabelInference",
    "Labels",
    "LearnedRestorer",
    "LossThreshold",
    "MaskedInversion",
    "Membership",
    "MultitaskGAN",
    "NoiseModelInversion",
    "PolicyInversion",
    "Reconstruction",
    "Refinement",
    "Representatives",
    "SGDCosine",
    "ShadowModels",
    "Shredder",
    "UpdateHistory",
    "WindowMean",
    "infer_labels",
    "null_baselines",
    "optimal_assignment",
    "score",
]
