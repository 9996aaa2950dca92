"""Algorithm 1 of ATS: score sampled policies, keep those that a model learns from, choose the most private of these."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from clients.data.card import DataCard
from defenses.images.ats import Policy
from defenses.images.transforms import LIBRARY
from defenses.random_draws import generator_for
from simulations.search.folder import CANDIDATE, IDENTITY, SINGLE, TRANSFER, Scored, SearchFolder
from simulations.search.scorer import DegenerateModelError, require_meaning, semi_train
from simulations.search.space import disjoint, effect, overlap, sample, text_of
from simulations.search.workers import score_all

MOST_ROUNDS = 3
"""As long as too few policies pass, ``candidates`` more are sampled; the paper goes on for ever."""


@dataclass(frozen=True)
class SearchProgress:
    """Progress of a search: policies done of the total, where known, and the most private policy that passes so far."""

    what: str
    done: int = 0
    total: int = 0
    best: tuple[Scored, ...] = ()


class PolicySearch:
    """One search: train the needed models, score policies, choose.

    Args:
        folder: Where it is kept; what that holds already is not done again.
        show: Called with every step.
    """

    def __init__(self, folder: SearchFolder, show: Callable[[SearchProgress], None] = lambda _: None) -> None:
        self.folder, self.search, self.show = folder, folder.search, show
        self.channels = DataCard.of(self.search.plan().load_data()).input_shape[0]

    def run(self) -> dict[str, Any]:
        """Run the remaining work; returns the content of ``policies.json``.

        Raises:
            DegenerateModelError: When scores on the semi-trained model say nothing; its weights are not kept.
            ConfigError: As ``score_all``.
        """
        if self.search.sampler == "random":
            return self._result(self.random_hybrid(0), None)
        self._score(IDENTITY, [()], None, "the identity")
        self._score(SINGLE, self.singles(), None, "single transforms")
        least = self.least()
        chosen: tuple[Policy, ...] = ()
        sampled = self.sampled()
        for _ in range(MOST_ROUNDS):
            candidates = list(itertools.islice(sampled, self.search.candidates))
            self._score(CANDIDATE, candidates, least, "policies")
            chosen = disjoint([one.policy for one in self.folder.passed(least)], self.search.policies, self.channels)
            if len(chosen) == self.search.policies or not candidates:
                break
        if self.search.transfer_to:
            self._score(TRANSFER, [(), *chosen], None, f"the result on {self.search.transfer_to}")
        return self._result(chosen, least)

    def sampled(self) -> Iterator[Policy]:
        """The candidates in their order."""
        return sample(generator_for("search", self.search.seed, "policies"), self.channels, self.search.longest)

    def singles(self) -> list[Policy]:
        """One transform for each distinct effect."""
        found = dict.fromkeys(effect((index,), self.channels) for index in range(len(LIBRARY)))
        return [policy for policy in found if policy]

    def least(self) -> float:
        """T_acc: as set, or so many times as far below -1 as the score of untransformed images.

        It depends on the model and on how many classes a batch holds: a fixed margin would let everything pass, or nothing.
        """
        fixed = self.search.threshold()
        if fixed is not None:
            return fixed
        return -1 - self.search.accuracy_factor * (-1 - self.folder.scored[IDENTITY, ()].scores.accuracy)

    def random_hybrid(self, number: int, lengths: Sequence[int] = ()) -> tuple[Policy, ...]:
        """Draw policies that share no transform, of these lengths or ``search.policies`` of any; fewer where none is left."""
        generator = generator_for("search", self.search.seed, "random", number)
        found: list[Policy] = []
        for policy in sample(generator, self.channels, self.search.longest):
            if len(found) == (len(lengths) or self.search.policies):
                break
            fits = not lengths or len(policy) == lengths[len(found)]
            if fits and not any(overlap(policy, other, self.channels) for other in found):
                found.append(policy)
        return tuple(found)

    def _score(self, kind: str, policies: Iterable[Policy], least: float | None, what: str) -> None:
        wanted = list(policies)
        missing = [policy for policy in wanted if (kind, policy) not in self.folder.scored]
        if not missing:
            return
        where = (self.search.transfer_to, self.search.transfer_dir) if kind == TRANSFER else ("", "")
        name = "transfer" if kind == TRANSFER else "model"
        weights = self.folder.weights(name)
        if weights is None:
            self.show(SearchProgress("training the semi-trained model"))
            weights = semi_train(self.search, *where)
            self.folder.keep_weights(weights, name)
        done = len(wanted) - len(missing)
        self.show(SearchProgress(what, done, len(wanted)))
        with closing(score_all((self.search, weights, *where), missing, least, self.search)) as results:
            for policy, scores in results:
                try:
                    require_meaning(self.search, policy, scores)
                except DegenerateModelError:
                    self.folder.drop_weights(name)
                    raise
                self.folder.add(Scored(kind, policy, scores))
                done += 1
                best = tuple(self.folder.passed(self.least())[:3]) if kind == CANDIDATE else ()
                self.show(SearchProgress(what, done, len(wanted), best))

    def _result(self, chosen: tuple[Policy, ...], least: float | None) -> dict[str, Any]:
        lengths, known = [len(policy) for policy in chosen], self.folder.scored
        controls = [self.random_hybrid(number, lengths) for number in range(1, self.search.controls + 1)]
        scored = [known[CANDIDATE, policy] for policy in chosen if (CANDIDATE, policy) in known]
        identity = known.get((IDENTITY, ()))
        return {
            "defense": self.search.defense,
            "policies": text_of(chosen),
            "wanted": self.search.policies,
            "channels": self.channels,
            "dataset": self.search.dataset,
            "model": self.search.model,
            "seed": self.search.seed,
            "sampler": self.search.sampler,
            "accuracy_threshold": least,
            "privacy_score": self.search.privacy_score,
            "identity": None if identity is None else _numbers(identity),
            "scores": [{"policy": text_of((one.policy,)), **_numbers(one)} for one in scored],
            "scored": len(self.folder.of(CANDIDATE)),
            "passed": 0 if least is None else len(self.folder.passed(least)),
            "random": [text_of(hybrid) for hybrid in controls if chosen and len(hybrid) == len(chosen)],
        }


def _numbers(one: Scored) -> dict[str, float | None]:
    return {"accuracy": one.scores.accuracy, "privacy": one.scores.privacy, "other_privacy": one.scores.other}
