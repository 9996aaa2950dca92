"""The training examples that a test of membership exposes most, by name, in a file of the node: the server gets no names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attacks.membership.loss_threshold import Membership
from attacks.metrics.guesses import MEMBER_SCORE, OTHER_SCORE
from attacks.metrics.names import Scores
from attacks.scoring.roc import binomial_interval
from clients.task.client import Client

KEY = "exposed-dir"
"""Key of the node's configuration: the absolute folder of these files."""
LISTED = 20
"""Examples that a file lists at most."""


@dataclass(frozen=True)
class ExposedExample:
    """A training example and how far its score stands out.

    Attributes:
        example: Its index in the training part of the data set.
        score: Of the test; a higher score means a likelier member.
        others_above: Non-members with a score as high or higher.
        rate: Share of non-members with such a score: the false positive rate at which a server names the example.
        rate_most: Upper end of the exact 95 % interval of that rate.
        expected: Of as many non-members as there are members, so many would have such a score on average.
    """

    example: int
    score: float
    others_above: int
    rate: float
    rate_most: float
    expected: float


def most_exposed(indices: Sequence[int], members: Sequence[float], others: Sequence[float]) -> list[ExposedExample]:
    """At most ``LISTED`` training examples with the highest scores, the highest first; none without non-members.

    ``indices`` names the member behind each score. A member whose score is NaN is left out; a non-member's NaN is the lowest score.
    """
    if not others:
        return []
    ordered = np.sort(np.nan_to_num(np.asarray(others, dtype=np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf))
    known = [(score, index) for score, index in zip(members, indices, strict=True) if not np.isnan(score)]
    found = []
    for score, index in sorted(known, key=lambda one: (-one[0], one[1]))[:LISTED]:
        above = len(ordered) - int(np.searchsorted(ordered, score, "left"))
        rate = binomial_interval(above, len(ordered))
        found.append(ExposedExample(index, score, above, rate.value, rate.high, rate.value * len(members)))
    return found


def keep_exposed(node_config: Mapping[str, Any], client: Client, test: Membership, scores: Scores) -> Path | None:
    """Write the most exposed examples to the node's own folder; nothing without the key, or where the test failed.

    Returns:
        The file, one for each partition, round, pipeline and kind of test; an earlier one of these is replaced.

    Raises:
        ValueError: When the folder is not absolute.
    """
    members, others = (scores.get(one.of(), []) for one in (MEMBER_SCORE, OTHER_SCORE))
    if KEY not in node_config or not members:
        return None
    folder = Path(str(node_config[KEY]))
    if not folder.is_absolute():
        raise ValueError(f"{KEY} is {str(folder)!r} in the node's configuration; it must be absolute")
    task, indices = client.task, client.data.train_indices
    trained = [indices[position] for position in client.trained_on().tolist()]
    content = {
        "partition": client.data.partition,
        "round": task.round,
        "pipeline": task.plan.pipeline,
        "test": test.kind,
        "members": len(members),
        "non-members": len(others),
        "examples": [asdict(one) for one in most_exposed(trained, members, others)],
    }
    kind = hashlib.blake2b(f"{task.plan.pipeline}/{test.kind}".encode(), digest_size=8).hexdigest()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"partition-{client.data.partition}-round-{task.round}-{kind}.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path
