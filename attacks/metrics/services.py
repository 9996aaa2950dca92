"""Metrics of a server that trains on uploads or answers queries: traffic, seconds, and what its answers are worth."""

from __future__ import annotations

from functools import partial

from attacks.metrics.metric import Metric, Values

_Number = partial(Metric, of_training=True, higher_leaks=False)
_Share = partial(_Number, values=Values.SHARE)

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
PATH_SERVER_ACCURACY = _Share("path-server-accuracy")
PATH_ADVERSARY_ACCURACY = _Share("path-adversary-accuracy")
"""While a defence is fitted: accuracy of the server half and of the static adversary on protected features."""
MASKED_SHARE = _Share("masked-share")
MASKED_SERVER_ACCURACY = _Share("masked-server-accuracy")
MASKED_ADVERSARY_ACCURACY = _Share("masked-adversary-accuracy")
"""The same on the images that a delta autoencoder learns to imitate, of which ``MASKED_SHARE`` is masked."""
ON_MASKED = {PATH_SERVER_ACCURACY: MASKED_SERVER_ACCURACY, PATH_ADVERSARY_ACCURACY: MASKED_ADVERSARY_ACCURACY}
