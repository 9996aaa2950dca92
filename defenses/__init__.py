"""Defences of images, training, smashed data and updates; importable without Flower, Ray or Opacus.

Every concrete class here is a name of the configuration language: ``parse("ATS() | Clip(max_norm=2)")``.
"""

from __future__ import annotations

from defenses.adversarial import AdversarialTraining
from defenses.ats import ATS
from defenses.base import (
    Batch,
    Defense,
    DefenseError,
    EdgeTrainingDefense,
    InputDefense,
    SmashedDefense,
    Training,
    TrainingDefense,
    UpdateDefense,
)
from defenses.block_shuffle import BlockShuffle
from defenses.blur import Blur, Downsample
from defenses.clipping import Clip
from defenses.delta_autoencoder import DeltaAutoencoder
from defenses.dp_sgd import DPSGD
from defenses.feature_noise import FeatureDP, FeatureNoise
from defenses.feature_pca import FeaturePCA
from defenses.fitting import FitContext, FittedDefense
from defenses.instahide import InstaHide
from defenses.noise import GaussianNoise, ImageNoise, LaplaceNoise
from defenses.patch_shuffle import BatchShuffle, PatchShuffle
from defenses.pipeline import Pipeline
from defenses.precode import Precode
from defenses.pruning import Pruning
from defenses.registry import DEFENSES
from defenses.soteria import Soteria
from defenses.spec import SpecError, parse, parse_pipelines, read_files
from defenses.spectral_shuffle import SpectralShuffle
from defenses.st_adam import STAdam
from defenses.visual_mixer import VisualMixer

__all__ = [
    "ATS",
    "DPSGD",
    "AdversarialTraining",
    "Batch",
    "BatchShuffle",
    "BlockShuffle",
    "Blur",
    "Clip",
    "Defense",
    "DefenseError",
    "DeltaAutoencoder",
    "Downsample",
    "EdgeTrainingDefense",
    "FeatureDP",
    "FeatureNoise",
    "FeaturePCA",
    "FitContext",
    "FittedDefense",
    "GaussianNoise",
    "ImageNoise",
    "InputDefense",
    "InstaHide",
    "LaplaceNoise",
    "PatchShuffle",
    "Pipeline",
    "Precode",
    "Pruning",
    "STAdam",
    "SmashedDefense",
    "Soteria",
    "SpecError",
    "SpectralShuffle",
    "Training",
    "TrainingDefense",
    "UpdateDefense",
    "VisualMixer",
    "parse",
    "parse_pipelines",
    "read_files",
]

DEFENSES.add(globals())
