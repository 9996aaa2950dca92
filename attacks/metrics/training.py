"""Metrics of a run: accuracy, budget, traffic, seconds, the client half's cost, what answers are worth, what a defence counts."""

import math
from functools import partial

from attacks.metrics.images import REFERENCES
from attacks.metrics.metric import FINITE, FROM_0, UNIT, Metric, OverSeeds, Share, Values
from defenses.neighbours import BUDGET

_Number = partial(Metric, of_training=True, higher_leaks=False, range=FROM_0)
_Share = partial(Share, of_training=True, higher_leaks=False)
_Correlation = partial(_Number, range=(-1.0, 1.0))
_Bound = partial(Metric, of_training=True, values=Values.BOUND, range=(0.0, math.inf))

TEST_ACCURACY = _Share("test-accuracy", over_seeds=OverSeeds.CLUSTERED, shown=REFERENCES)
TEST_LOSS = _Number("test-loss", shown=("", *REFERENCES))
TEST_AUC = _Share("test-auc", over_seeds=OverSeeds.AREA)
TRAIN_LOSS = _Number("train-loss", range=FINITE)
MCC_MICRO = _Correlation("mcc-micro", shown=REFERENCES)
MCC_MACRO = _Correlation("mcc-macro", shown=REFERENCES)
"""Matthews' correlation, from counts pooled over classes and as the mean over classes."""

EPSILON = _Bound("epsilon")
EPSILON_WITH_PROBES = _Bound("epsilon-with-probes")
"""Of what a run sends, together with what audits ask for besides."""
EPSILON_ALL_CUTS = _Bound("epsilon-all-cuts")
"""Budget of all that a run sent of an image, at whatever cut."""
EPSILON_BY = _Bound("epsilon-by-", prefix=True)
"""Before the name of an accountant, or of other neighbours: that epsilon of the same noise."""
EPSILON_SHOWN = _Bound("epsilon-shown")
EPSILON_SHOWN_GAUSSIAN = _Bound("epsilon-shown-gaussian")
"""Lower bounds of epsilon from canaries: without an assumption about the mechanism, and for Gaussian noise."""
DELTA = _Bound("delta", range=UNIT)
BUDGET_TERM = _Number(BUDGET, prefix=True)
"""What an epsilon follows from: its noise multiplier, clipping norm, sample rate and number of steps."""

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
LOG10_TARGET_SHARE = _Number("log10-target-share", range=FINITE)
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

SERVER_SECONDS = _Number("server-seconds")
"""Of training in a round."""

UPLOADED_IMAGES = _Number("uploaded-images")
UPLOAD_BYTES = _Number("upload-bytes")
UPLOAD_SECONDS = _Number("upload-seconds")
UPLOADS = (UPLOADED_IMAGES, UPLOAD_BYTES, UPLOAD_SECONDS, SERVER_SECONDS)
"""Images that the server holds, of all clients; a client's bytes and seconds, mean over clients."""

QUERIES = _Number("queries")
QUERY_BYTES = _Number("query-bytes")
FEATURE_BYTES = _Number("feature-bytes")
"""Of a query without a defence."""
ANSWER_BYTES = _Number("answer-bytes")
CLIENT_HALF_BYTES = _Number("client-half-bytes")
"""What a device gets once: its half of the model, and what its defence learned."""
QUERY_SECONDS = _Number("query-seconds")
ANSWER_SECONDS = _Number("answer-seconds")
SERVED = (QUERIES, QUERY_BYTES, FEATURE_BYTES, ANSWER_BYTES, CLIENT_HALF_BYTES, QUERY_SECONDS, ANSWER_SECONDS)
"""Bytes are of one query; the query's seconds are a client's, the answer's are the server's, of all queries."""

AGREEMENT = _Share("agreement")
"""Test images whose answer is the one that the unprotected features get."""
ANSWERS_LOST = _Share("answers-lost")
"""Test images for which only the whole model is right."""
ANSWERS_GAINED = _Share("answers-gained")
"""Test images for which only the answer is right."""
ANSWERED = (AGREEMENT, ANSWERS_LOST, ANSWERS_GAINED)

OFFLINE_ADVERSARY_ACCURACY = _Share("offline-adversary-accuracy")
"""Of the adversary that a defence is fitted against, on images without a defence."""
