"""Names of the package ``defenses``.

Configuration text may name every concrete class here: ``parse("ATS() | Clip(max_norm=2)")``.
"""

# "X as X" is an export for type checkers (PEP 484).
from defenses.base import DEFENSES
from defenses.base import Batch as Batch
from defenses.base import Defense as Defense
from defenses.base import DefenseError as DefenseError
from defenses.base import EdgeTrainingDefense as EdgeTrainingDefense
from defenses.base import InputDefense as InputDefense
from defenses.base import SmashedDefense as SmashedDefense
from defenses.base import Training as Training
from defenses.base import TrainingDefense as TrainingDefense
from defenses.base import UpdateDefense as UpdateDefense
from defenses.fitting import FitContext as FitContext
from defenses.fitting import FittedDefense as FittedDefense
from defenses.images.ats import ATS as ATS
from defenses.images.blur import Blur as Blur
from defenses.images.blur import Downsample as Downsample
from defenses.images.instahide import InstaHide as InstaHide
from defenses.images.visual_mixer import VisualMixer as VisualMixer
from defenses.pipeline import Pipeline as Pipeline
from defenses.smashed.delta_autoencoder import DeltaAutoencoder as DeltaAutoencoder
from defenses.smashed.feature_noise import FeatureDP as FeatureDP
from defenses.smashed.feature_noise import FeatureNoise as FeatureNoise
from defenses.smashed.feature_pca import FeaturePCA as FeaturePCA
from defenses.smashed.patch_shuffle import BatchShuffle as BatchShuffle
from defenses.smashed.patch_shuffle import PatchShuffle as PatchShuffle
from defenses.smashed.spectral_shuffle import SpectralShuffle as SpectralShuffle
from defenses.spec import SpecError as SpecError
from defenses.spec import parse as parse
from defenses.spec import parse_pipelines as parse_pipelines
from defenses.spec import read_files as read_files
from defenses.training.adversarial import AdversarialTraining as AdversarialTraining
from defenses.training.dp_sgd import DPSGD as DPSGD
from defenses.training.precode import Precode as Precode
from defenses.training.st_adam import STAdam as STAdam
from defenses.updates.client_dp import ClientDP as ClientDP
from defenses.updates.clipping import Clip as Clip
from defenses.updates.flower_mods import FlowerLocalDP as FlowerLocalDP
from defenses.updates.local_statistics import SiloBN as SiloBN
from defenses.updates.noise import GaussianNoise as GaussianNoise
from defenses.updates.noise import ImageNoise as ImageNoise
from defenses.updates.noise import LaplaceNoise as LaplaceNoise
from defenses.updates.pruning import Pruning as Pruning
from defenses.updates.soteria import Soteria as Soteria

DEFENSES.export(globals())
