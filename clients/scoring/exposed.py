"""The training examples that a test of membership exposes most, by name, in a file of the node: the server gets no names."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from attacks.membership.loss_threshold import Membership
from attacks.metrics.guesses import MEMBER_SCORE, OTHER_SCORE
from attacks.metrics.names import Scores
from attacks.scoring.intervals import binomial_interval
from clients.secrets.policy import NodeConfig
from clients.task.local_data import Client
from clients.wire.texts import one_line, shortened

log = logging.getLogger("flwr")
KEY = "exposed-dir"
"""Key of the node's configuration: the absolute folder of these files."""
LISTED = 20
"""Examples that a file lists at most."""
MOST_TEXT = 1000
"""Characters of the attack's text in a file: the server sends it."""


@dataclass(frozen=True)
class ExposedExample:
    """A training example and how far its score stands out.

    Attributes:
        example: Its index in the training part of the data set.
        score: Of the test; a higher score means a likelier member.
        others_above: Non-members with a score as high or higher.
        rate: Share of non-members with such a score: the false positive rate at which a server names the example.
        rate_most: Upper end of the exact 95 % interval of that rate.
        expected: Of as many non-members as there are members, so many would have such a score: an estimate from ``rate``. It can
            be 0 by chance, even of a score that says nothing.
        expected_most: Upper end of the same number, from ``rate_most``.
    """

    example: int
    score: float
    others_above: int
    rate: float
    rate_most: float
    expected: float
    expected_most: float


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
        expected = (share * len(members) for share in (rate.value, rate.high))
        found.append(ExposedExample(index, score, above, rate.value, rate.high, *expected))
    return found


def exposed_folder(node_config: NodeConfig) -> Path | None:
    """The node's folder for these files; None without the key.

    Raises:
        ValueError: When the value is no absolute path.
    """
    if KEY not in node_config:
        return None
    value = node_config[KEY]
    if not isinstance(value, str) or not Path(value).is_absolute():
        raise ValueError(f"{KEY} is {shortened(value)} in the node's configuration; allowed: an absolute path, as text")
    return Path(value)


def prepare_exposed(node_config: NodeConfig) -> None:
    """Make the folder, readable by its owner alone, before a run starts; nothing without the key.

    Raises:
        ValueError: When the value is no absolute path, or no folder that can be written to.
    """
    if (folder := exposed_folder(node_config)) is None:
        return
    allowed = "allowed: a folder that this node can make and write to"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{KEY} is {str(folder)!r} in the node's configuration: {error}; {allowed}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{KEY} is {str(folder)!r} in the node's configuration, closed to writing; {allowed}")


def keep_exposed(
    node_config: NodeConfig, client: Client, test: Membership, scores: Scores, *, attack: str, observation: str
) -> Path | None:
    """Write the most exposed examples to the node's own folder; nothing without the key, or where the test failed.

    The server's answer does not depend on the file: one that cannot be written is a line in the node's log.

    Args:
        node_config: Of the node, with the folder.
        client: Whose examples were scored.
        test: The membership test.
        scores: Of the client's training and test examples.
        attack: Text of the attack that made the test, as the server sends it.
        observation: Name of the attacked kind of message.

    Returns:
        The file, one for each partition, round, pipeline, observation and attack; an earlier one of these is replaced.

    Raises:
        ValueError: When the folder is not absolute.
    """
    members, others = (scores.get(one.of(), []) for one in (MEMBER_SCORE, OTHER_SCORE))
    if (folder := exposed_folder(node_config)) is None or not members:
        return None
    task, indices = client.task, client.data.train_indices
    trained = [indices[position] for position in client.trained_on().tolist()]
    content = {
        "partition": client.data.partition,
        "round": task.round,
        "pipeline": task.plan.pipeline,
        "attack": one_line(attack, MOST_TEXT),
        "test": test.kind,
        "members": len(members),
        "non-members": len(others),
        "examples": [asdict(one) for one in most_exposed(trained, members, others)],
    }
    # A digest, because texts of the server must not choose a path.
    of = hashlib.blake2b(
        json.dumps([task.plan.pipeline, observation, attack, test.kind]).encode(), digest_size=8
    ).hexdigest()
    path = folder / f"partition-{client.data.partition}-round-{task.round}-{of}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        log.warning("%s: the most exposed examples of %s are not written: %s", KEY, content["attack"], error)
        return None
    return path
