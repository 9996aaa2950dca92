"""Attacks of a curious server, or of a malicious server (``active``), and metrics; importable without Flower, Ray or Opacus."""

from __future__ import annotations

# "X as X" is an export for type checkers (PEP 484).
from attacks.active.class_fishing import ClassFishing as ClassFishing
from attacks.active.first_layer import ImprintLayer as ImprintLayer
from attacks.active.first_layer import TrapWeights as TrapWeights
from attacks.base import Attack as Attack
from attacks.base import Knowledge as Knowledge
from attacks.exact.cocktail_party import CocktailParty as CocktailParty
from attacks.exact.head_inversion import HeadInversion as HeadInversion
from attacks.exact.matched_filter import MatchedFilter as MatchedFilter
from attacks.exact.patch_embedding_inversion import PatchEmbeddingInversion as PatchEmbeddingInversion
from attacks.exact.spear import Spear as Spear
from attacks.exact.spear_plus_plus import SpearPlusPlus as SpearPlusPlus
from attacks.gradient.bottleneck import BottleneckInversion as BottleneckInversion
from attacks.gradient.inversion import GradientInversion as GradientInversion
from attacks.gradient.labels import LabelInference as LabelInference
from attacks.gradient.labels import infer_labels as infer_labels
from attacks.gradient.noise_models import MaskedInversion as MaskedInversion
from attacks.gradient.noise_models import NoiseModelInversion as NoiseModelInversion
from attacks.gradient.noise_models import OmittedLayerInversion as OmittedLayerInversion
from attacks.gradient.presets import DLG as DLG
from attacks.gradient.presets import LBFGSL2 as LBFGSL2
from attacks.gradient.presets import AdamCosine as AdamCosine
from attacks.gradient.presets import AdamL1 as AdamL1
from attacks.gradient.presets import AdamL2 as AdamL2
from attacks.gradient.presets import InvertingGradients as InvertingGradients
from attacks.gradient.presets import LBFGSCosine as LBFGSCosine
from attacks.gradient.presets import SGDCosine as SGDCosine
from attacks.gradient.surrogate import SurrogateMatching as SurrogateMatching
from attacks.guesses import Attributes as Attributes
from attacks.guesses import Cells as Cells
from attacks.guesses import Labels as Labels
from attacks.guesses import Reconstruction as Reconstruction
from attacks.guesses import Representatives as Representatives
from attacks.learned.class_gan import ClassGAN as ClassGAN
from attacks.membership.gradient_alignment import GradientAlignment as GradientAlignment
from attacks.membership.likelihood import RMIA as RMIA
from attacks.membership.likelihood import LiRA as LiRA
from attacks.membership.loss_threshold import LossThreshold as LossThreshold
from attacks.membership.loss_threshold import Membership as Membership
from attacks.membership.shadow_models import ShadowModels as ShadowModels
from attacks.observations import AttackError as AttackError
from attacks.observations import ClientUpdate as ClientUpdate
from attacks.observations import UpdateHistory as UpdateHistory
from attacks.queries.attributes import AttributeInference as AttributeInference
from attacks.queries.backward import BackwardReconstruction as BackwardReconstruction
from attacks.queries.inverse_network import InverseNetwork as InverseNetwork
from attacks.queries.query_inversion import QueryInversion as QueryInversion
from attacks.refinement.base import Refinement as Refinement
from attacks.refinement.policy_inversion import PolicyInversion as PolicyInversion
from attacks.refinement.restoration import LearnedRestorer as LearnedRestorer
from attacks.refinement.shredder import Jigsaw as Jigsaw
from attacks.refinement.shredder import Shredder as Shredder
from attacks.refinement.unshuffle import WindowMean as WindowMean
from attacks.scoring.metrics import null_baselines as null_baselines
from attacks.scoring.metrics import optimal_assignment as optimal_assignment
from attacks.scoring.metrics import score as score
from attacks.smashed.base import ServerPrediction as ServerPrediction
from attacks.smashed.edge_update_inversion import EdgeUpdateInversion as EdgeUpdateInversion
from attacks.smashed.feature_inversion import FeatureInversion as FeatureInversion
from attacks.smashed.hermitian_pairing import HermitianPairing as HermitianPairing
from attacks.smashed.pix2pix import Pix2Pix as Pix2Pix
from attacks.smashed.token_puzzle import TokenPuzzle as TokenPuzzle
from attacks.smashed.tokens.decoder import AdaptiveDecoder as AdaptiveDecoder
from attacks.smashed.tokens.decoder import FeatureAveraging as FeatureAveraging
from attacks.smashed.tokens.decoder import TokenDecoder as TokenDecoder
from attacks.smashed.tokens.jigsaw import TokenIntersection as TokenIntersection
from attacks.smashed.tokens.jigsaw import TokenJigsaw as TokenJigsaw
from attacks.spec import ATTACKS
from attacks.tabular.embedding_reversal import EmbeddingReversal as EmbeddingReversal
from attacks.tabular.field_reading import FieldReading as FieldReading
from attacks.uploads.base import AsUploaded as AsUploaded
from attacks.uploads.base import PassAveraging as PassAveraging
from attacks.uploads.joint_encodings import JointEncodingInversion as JointEncodingInversion

ATTACKS.add(globals())
