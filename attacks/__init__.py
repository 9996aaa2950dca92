"""Attacks of a curious server, in ``active`` of one that manipulates, and metrics; importable without Flower, Ray or Opacus."""

from __future__ import annotations

from attacks.active.class_fishing import ClassFishing
from attacks.active.imprint_layer import ImprintLayer
from attacks.active.trap_weights import TrapWeights
from attacks.attributes.inference import AttributeInference
from attacks.attributes.property_inference import PropertyInference
from attacks.base import Attack, Knowledge
from attacks.exact.cocktail_party import CocktailParty
from attacks.exact.head_inversion import HeadInversion
from attacks.exact.spear import Spear
from attacks.gan.class_gan import ClassGAN
from attacks.gan.multitask_gan import MultitaskGAN
from attacks.gradient.bottleneck import BottleneckInversion
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.labels import LabelInference, infer_labels
from attacks.gradient.noise_models import MaskedInversion, NoiseModelInversion
from attacks.gradient.omitted_layers import OmittedLayerInversion
from attacks.gradient.presets import (
    DLG,
    LBFGSL2,
    AdamCosine,
    AdamL1,
    AdamL2,
    InvertingGradients,
    LBFGSCosine,
    SGDCosine,
)
from attacks.gradient.surrogate import SurrogateMatching
from attacks.guesses import Attributes, Cells, Labels, Reconstruction, Representatives
from attacks.learned.learning_to_invert import LearningToInvert
from attacks.learned.tuned_inversion import TunedInversion
from attacks.membership.loss_threshold import LossThreshold, Membership
from attacks.membership.shadow_models import ShadowModels
from attacks.observations import AttackError, ClientUpdate, UpdateHistory
from attacks.queries.backward import BackwardReconstruction
from attacks.queries.inverse_network import InverseNetwork
from attacks.queries.query_inversion import QueryInversion
from attacks.refinement.base import Refinement
from attacks.refinement.denoising import LearnedDenoiser
from attacks.refinement.encodings import EncodingInversion
from attacks.refinement.policy_inversion import PolicyInversion
from attacks.refinement.restoration import LearnedRestorer
from attacks.refinement.shredder import Jigsaw, Shredder
from attacks.refinement.unshuffle import WindowMean
from attacks.registry import ATTACKS
from attacks.scoring.metrics import null_baselines, optimal_assignment, score
from attacks.smashed.adaptive_decoder import AdaptiveDecoder
from attacks.smashed.edge_update_inversion import EdgeUpdateInversion
from attacks.smashed.feature_averaging import FeatureAveraging
from attacks.smashed.feature_inversion import FeatureInversion
from attacks.smashed.hermitian_pairing import HermitianPairing
from attacks.smashed.pix2pix import Pix2Pix
from attacks.smashed.server_prediction import ServerPrediction
from attacks.smashed.tokens.decoder import TokenDecoder
from attacks.smashed.tokens.intersection import TokenIntersection
from attacks.smashed.tokens.jigsaw import TokenJigsaw
from attacks.tabular.embedding_reversal import EmbeddingReversal
from attacks.tabular.field_reading import FieldReading
from attacks.uploads.base import AsUploaded
from attacks.uploads.joint_encodings import JointEncodingInversion
from attacks.uploads.pass_averaging import PassAveraging

__all__ = [
    "DLG",
    "LBFGSL2",
    "AdamCosine",
    "AdamL1",
    "AdamL2",
    "AdaptiveDecoder",
    "AsUploaded",
    "Attack",
    "AttackError",
    "AttributeInference",
    "Attributes",
    "BackwardReconstruction",
    "BottleneckInversion",
    "Cells",
    "ClassFishing",
    "ClassGAN",
    "ClientUpdate",
    "CocktailParty",
    "EdgeUpdateInversion",
    "EmbeddingReversal",
    "EncodingInversion",
    "FeatureAveraging",
    "FeatureInversion",
    "FieldReading",
    "GradientInversion",
    "HeadInversion",
    "HermitianPairing",
    "ImprintLayer",
    "InverseNetwork",
    "InvertingGradients",
    "Jigsaw",
    "JointEncodingInversion",
    "Knowledge",
    "LBFGSCosine",
    "LabelInference",
    "Labels",
    "LearnedDenoiser",
    "LearnedRestorer",
    "LearningToInvert",
    "LossThreshold",
    "MaskedInversion",
    "Membership",
    "MultitaskGAN",
    "NoiseModelInversion",
    "OmittedLayerInversion",
    "PassAveraging",
    "Pix2Pix",
    "PolicyInversion",
    "PropertyInference",
    "QueryInversion",
    "Reconstruction",
    "Refinement",
    "Representatives",
    "SGDCosine",
    "ServerPrediction",
    "ShadowModels",
    "Shredder",
    "Spear",
    "SurrogateMatching",
    "TokenDecoder",
    "TokenIntersection",
    "TokenJigsaw",
    "TrapWeights",
    "TunedInversion",
    "UpdateHistory",
    "WindowMean",
    "infer_labels",
    "null_baselines",
    "optimal_assignment",
    "score",
]

ATTACKS.add(globals())
