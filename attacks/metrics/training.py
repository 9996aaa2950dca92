"""Metrics of a run itself: accuracy, budget, traffic, the client half's cost, and what a defence counts."""

from __future__ import annotations

from functools import partial

from attacks.metrics.images import REFERENCES
from attacks.metrics.metric import Metric, OverSeeds, Values

_Number = partial(Metric, of_training=True, higher_leaks=False)
_Bound = partial(Metric, of_training=True, values=Values.BOUND)

TEST_ACCURACY = _Number("test-accuracy", values=Values.SHARE, over_seeds=OverSeeds.CLUSTERED, shown=REFERENCES)
TEST_LOSS = _Number("test-loss", shown=("", *REFERENCES))
TEST_AUC = _Number("test-auc", values=Values.SHARE, over_seeds=OverSeeds.AREA)
TRAIN_LOSS = _Number("train-loss")
MCC_MICRO = _Number("mcc-micro", shown=REFERENCES)
MCC_MACRO = _Number("mcc-macro", shown=REFERENCES)
"""Matthews' correlation, from counts pooled over classes and as the mean over classes."""

EPSILON = _Bound("epsilon")
EPSILON_WITH_PROBES = _Bound("epsilon-with-probes")
"""Of what a run sends, together with what audits ask for besides."""
EPSILON_ALL_CUTS = _Bound("epsilon-all-cuts")
"""Budget of all that a run sent of an image, at whatever cut."""
EPSILON_BY = _Bound("epsilon-by-", prefix=True)
"""Before the name of an accountant: its epsilon of what ``EPSILON`` is of. That of "gdp" approximates, and is no bound."""
EPSILON_SHOWN = _Bound("epsilon-shown")
EPSILON_SHOWN_GAUSSIAN = _Bound("epsilon-shown-gaussian")
"""Lower bounds of epsilon from canaries: without an assumption about the mechanism, and for Gaussian noise."""
DELTA = _Bound("delta")

TRAIN_SECONDS = _Number("train-seconds")
UPDATE_BYTES = _Number("update-bytes")
CLIENTS_FAILED = _Number("clients-failed")
CLIENT = _Number("client")

EDGE_PARAMETERS = _Number("edge-parameters")
EDGE_MACS = _Number("edge-macs")
EDGE_TRAINING_MACS = _Number("edge-training-macs")
EDGE_PEAK_BYTES = _Number("edge-peak-bytes")
CLIENT_HALF = (EDGE_PARAMETERS, EDGE_MACS, EDGE_TRAINING_MACS, EDGE_PEAK_BYTES)
"""What the client half of a split model costs: MACs are of one image."""
LOG10_ORDERS = _Number("log10-orders")
LOG10_TARGET_SHARE = _Number("log10-target-share")
BYTES_PER_SAMPLE = _Number("bytes-per-sample")
SAMPLES_PER_SECOND = _Number("samples-per-second")
BATCHES_LOST = _Number("batches-lost")
SPLIT = (
    *CLIENT_HALF,
    *(MCC_MICRO, MCC_MACRO),
    *(LOG10_ORDERS, LOG10_TARGET_SHARE, BYTES_PER_SAMPLE, SAMPLES_PER_SECOND, BATCHES_LOST),
)
"""Numbers about split training."""

COUNTED_IMAGES = _Number("counted-images")
"""Training images over which a defence counted."""
WINDOWS = _Number("windows-of-", prefix=True)
"""Before the sizes of windows that it shuffled."""
VFE_BEFORE = _Number("vfe-sum-before")
VFE_AFTER = _Number("vfe-sum-after")
"""Visual feature entropy over 2 sigma^2, added up over these windows."""
KEYS = _Number("log10-keys")
"""Decimal logarithm of the orders that an image can have been shuffled into, added up over images."""
COUNTED = (COUNTED_IMAGES, WINDOWS, VFE_BEFORE, VFE_AFTER, KEYS)
"""What defences count."""
