"""Attacks of an honest-but-curious server, and the metrics that judge them; importable without Flower, Ray or Opacus."""

from __future__ import annotations

from attacks.adaptive_decoder import AdaptiveDecoder
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
from attacks.edge_update_inversion import EdgeUpdateInversion
from attacks.encodings import EncodingInversion
from attacks.feature_averaging import FeatureAveraging
from attacks.feature_inversion import FeatureInversion
from attacks.gradient_inversion import GradientInversion
from attacks.hermitian_pairing import HermitianPairing
from attacks.labels import LabelInference, infer_labels
from attacks.membership import LossThreshold, Membership
from attacks.metrics import null_baselines, optimal_assignment, score
from attacks.multitask_gan import MultitaskGAN
from attacks.noise_models import MaskedInversion, NoiseModelInversion
from attacks.pix2pix import Pix2Pix
from attacks.policy_inversion import PolicyInversion
from attacks.presets import DLG, LBFGSL2, AdamCosine, AdamL1, AdamL2, InvertingGradients, LBFGSCosine, SGDCosine
from attacks.restoration import LearnedRestorer
from attacks.server_prediction import ServerPrediction
from attacks.shadow_models import ShadowModels
from attacks.shredder import Jigsaw, Shredder
from attacks.token_decoder import TokenDecoder
from attacks.token_intersection import TokenIntersection
from attacks.token_jigsaw import TokenJigsaw
from attacks.unshuffle import WindowMean

__all__ = [
    "DLG",
    "LBFGSL2",
    "AdamCosine",
    "AdamL1",
    "AdamL2",
    "AdaptiveDecoder",
    "Attack",
    "AttackError",
    "ClassGAN",
    "ClientUpdate",
    "EdgeUpdateInversion",
    "EncodingInversion",
    "FeatureAveraging",
    "FeatureInversion",
    "GradientInversion",
    "HermitianPairing",
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
    "Pix2Pix",
    "PolicyInversion",
    "Reconstruction",
    "Refinement",
    "Representatives",
    "SGDCosine",
    "ServerPrediction",
    "ShadowModels",
    "Shredder",
    "TokenDecoder",
    "TokenIntersection",
    "TokenJigsaw",
    "UpdateHistory",
    "WindowMean",
    "infer_labels",
    "null_baselines",
    "optimal_assignment",
    "score",
]
