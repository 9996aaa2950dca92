"""Defences of images, training, smashed data and updates; importable without Flower, Ray or Opacus.

Every concrete class here is a name of the configuration language: ``parse("ATS() | Clip(max_norm=2)")``.
"""

from __future__ import annotations

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
from defenses.fitting import FitContext, FittedDefense
from defenses.images.ats import ATS
from defenses.images.block_shuffle import BlockShuffle
from defenses.images.blur import Blur, Downsample
from defenses.images.instahide import InstaHide
from defenses.images.visual_mixer import VisualMixer
from defenses.pipeline import Pipeline
from defenses.registry import DEFENSES
from defenses.smashed.delta_autoencoder import DeltaAutoencoder
from defenses.smashed.feature_noise import FeatureDP, FeatureNoise
from defenses.smashed.feature_pca import FeaturePCA
from defenses.smashed.patch_shuffle import BatchShuffle, PatchShuffle
from defenses.smashed.spectral_shuffle import SpectralShuffle
from defenses.spec import SpecError, parse, parse_pipelines, read_files
from defenses.training.adversarial import AdversarialTraining
from defenses.training.dp_sgd import DPSGD
from defenses.training.precode import Precode
from defenses.training.st_adam import STAdam
from defenses.updates.clipping import Clip
from defenses.updates.noise import GaussianNoise, ImageNoise, LaplaceNoise
from defenses.updates.pruning import Pruning
from defenses.updates.soteria import Soteria

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
