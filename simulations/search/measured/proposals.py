"""Which hybrids are judged: those of the papers, random ones, and those that the privacy score of the authors' code chooses.

Of the random and the scored ones each policy alters at least half of the images (``Sample``). A hybrid whose other policy leaves
images as they are would keep accuracy, and hide few images in the mean, by protecting only some of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import torch

from defenses.images.ats import Policy
from defenses.random_draws import generator_for
from simulations.search.measured.settings import Measured
from simulations.search.measured.unaltered import Sample
from simulations.search.scorer import Scorer, semi_train
from simulations.search.space import overlap, random_hybrid, sample, text_of

NONE, PAPER, SCORED, RANDOM, CONTROL = "none", "paper", "by score", "random", "control"
"""Origins: no defence; the papers; the first filter by S_pri; a uniform draw; a uniform draw that is never chosen."""

PATIENCE = 1000
"""Draws in a row without a new hybrid after which drawing ends: the space holds few or no others that alter images."""


class Proposal(NamedTuple):
    """A hybrid, and where it comes from.

    Attributes:
        hybrid: Text such as ``3-1-7+43-18-18``; "" for no defence.
        origin: One of the five above.
    """

    hybrid: str
    origin: str


def references(search: Measured) -> list[Proposal]:
    """No defence, and the hybrids of the papers: judged in full, and never pruned."""
    return [Proposal("", NONE), *(Proposal(text, PAPER) for text in search.references)]


def candidates(search: Measured, dataset: str, show: Callable[[str, int, int], None]) -> list[Proposal]:
    """The hybrids among which the search chooses, each once, in a random order that follows from the search's seed.

    They are fewer than ``candidates`` where the space holds no more (``PATIENCE``), which the page says.

    Asynchronous halving favours the hybrids that come first, which must not be those of one origin.

    Args:
        search: The settings.
        dataset: Images of the search, on which S_pri is computed.
        show: Called with what is done, how much of it, and of how much.
    """
    wanted = search.by_score_wanted
    found = [Proposal(text, SCORED) for text in _by_score(search, dataset, wanted, show)] if wanted else []
    known = {one.hybrid for one in (*references(search), *found)}
    random = _random(search, "candidate", dataset, known)
    found += [Proposal(text, RANDOM) for text in itertools.islice(random, search.candidates - len(found))]
    order = torch.randperm(len(found), generator=generator_for("measured-search", search.seed, "queue"))
    return [found[at] for at in order.tolist()]


def controls(search: Measured, dataset: str, known: Collection[str] = ()) -> list[Proposal]:
    """Random hybrids for the comparison on held-out images; drawn apart from the candidates.

    Args:
        search: The settings.
        dataset: Images of the search.
        known: Hybrids that are no controls.

    Returns:
        ``controls`` hybrids, each once; fewer where the space holds no more (``PATIENCE``).
    """
    random = _random(search, "control", dataset, known)
    return [Proposal(text, CONTROL) for text in itertools.islice(random, search.controls)]


def _random(search: Measured, what: str, dataset: str, known: Collection[str]) -> Iterator[str]:
    """Uniform draws of hybrids that alter images, each once and none of the known ones."""
    images, seen, last = Sample.of(search, dataset), set(known), 0
    for number in itertools.count():
        if number - last > PATIENCE:
            return
        generator = generator_for("measured-search", search.seed, what, number)
        hybrid = random_hybrid(generator, images.channels, search.policies, search.longest)
        if (text := text_of(hybrid)) not in seen and images.altered_by(hybrid):
            seen.add(text)
            last = number
            yield text


def _by_score(search: Measured, dataset: str, wanted: int, show: Callable[[str, int, int], None]) -> list[str]:
    """Hybrids of the random policies with the lowest S_pri of the authors' code, the lowest first."""
    scoring = search.scoring(dataset)
    show("training the semi-trained model", 0, 0)
    scorer = Scorer(scoring, semi_train(scoring))
    channels = scorer.card.input_shape[0]
    images = Sample.of(search, dataset)
    policies = sample(generator_for("measured-search", search.seed, "scored"), channels, search.longest)
    drawn = (policy for policy in policies if images.altered_by((policy,)))
    scores: dict[Policy, float] = {}
    for policy in itertools.islice(drawn, search.to_score):
        scores[policy] = scorer(policy, None).privacy or 0.0
        show("policies scored", len(scores), search.to_score)
    return hybrids_of(sorted(scores, key=lambda policy: (scores[policy], policy)), search.policies, wanted, channels)


def hybrids_of(ranked: list[Policy], policies: int, wanted: int, channels: int) -> list[str]:
    """Hybrids of policies, each begun by the best that begins none: the others are the best that share no transform with it.

    Args:
        ranked: Policies, the best first.
        policies: Of a hybrid.
        wanted: Number of hybrids; fewer are returned where too few policies are disjoint.
        channels: Of the images, by which transforms have the same effect.
    """
    found: dict[str, None] = {}
    used: dict[Policy, int] = {}
    for first in ranked:
        if len(found) == wanted:
            break
        if used.get(first):
            continue
        hybrid = [first]
        # A policy in many hybrids would make them alike: those that are in fewer come first.
        for policy in sorted(ranked, key=lambda one: used.get(one, 0)):
            if len(hybrid) < policies and not any(overlap(policy, other, channels) for other in hybrid):
                hybrid.append(policy)
        if len(hybrid) == policies:
            found[text_of(tuple(hybrid))] = None
            for policy in hybrid:
                used[policy] = used.get(policy, 0) + 1
    return list(found)
