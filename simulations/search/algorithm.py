"""Algorithm 1 of ATS in a folder: score sampled policies, keep those that a model learns from, choose the most private of these.

A killed search continues from its folder:

search.json         settings, versions, a digest of the pictures
model.safetensors   the semi-trained model, once it is trained
scores.jsonl        one scored policy a line, written as soon as it is known; the first is the empty one, without a transform
policies.json       the result, which ``ATS(policies="...json")`` reads
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

from clients.process.worker_processes import in_workers
from defenses.images.ats import Policy
from defenses.random_draws import generator_for
from simulations.run_folder.folder_lock import require_new, take_lock
from simulations.run_folder.line_files import append_line, json_line, kept_lines
from simulations.run_folder.run_directory import write_atomically
from simulations.search.scorer import DegenerateModelError, Scorer, Scores, check, semi_train
from simulations.search.settings import Search
from simulations.search.space import disjoint, random_hybrid, sample, text_of
from simulations.settings.errors import ConfigError, undamaged
from strategies.audit.whole_files import PARTIAL, load_tensors, save_tensors

HYBRID = 2
"""Policies to choose, n; they share no transform."""
MOST_ROUNDS = 3
"""As long as too few policies pass, ``candidates`` more are sampled; the paper goes on for ever."""
ACCURACY_FACTOR = 2.0
"""Times as far below -1 as untransformed images a policy's S_acc may be, where ``accuracy-threshold`` is ``auto``."""
RANDOM_HYBRIDS = 10
"""Random policies of the same lengths that the result names, to be attacked beside it."""
ABOUT, MODEL, SCORES = "search.json", "model.safetensors", "scores.jsonl"
BEGUN, LEFTOVERS = {MODEL, SCORES}, {ABOUT, ABOUT + PARTIAL}
"""Of a search that ended before it had a model: there is nothing to go on with, and nothing to lose."""


class PolicySearch:
    """One search in its folder, which it keeps locked until ``close``.

    Attributes:
        path: The folder.
        search: The settings.
        result_path: ``policies.json``.
        scored: What is known of each policy; the empty one is no transform.
        show: Called at every step with what is done, steps done, steps in all (0: unknown), and the best policies so far.
    """

    def __init__(self, path: Path, search: Search) -> None:
        self.path, self.search = path, search
        self.result_path, self._model = path / "policies.json", path / MODEL
        self.scored: dict[Policy, Scores] = {}
        self.show: Callable[[str, int, int, str], object] = lambda *_: None
        self._lock = take_lock(path, f"another search is still writing to {path}; wait for it, or end it")
        self.close = self._lock.close

    @staticmethod
    def pictures(path: Path, search: Search) -> str:
        """The digest of the pictures of a new search in a folder.

        Raises:
            ConfigError: When the settings cannot be used, or the folder cannot be one, or holds anything.
        """
        require_new(path, "--out", f"go on with --resume {path}", BEGUN, LEFTOVERS)
        return check(search)

    @classmethod
    def create(cls, path: Path, search: Search) -> PolicySearch:
        """Start a new search, or raise as ``pictures`` does."""
        pictures, made = cls.pictures(path, search), cls(path, search)
        versions = {name: version(name) for name in ("fedveil", "torch")}
        about = {"search": search.to_mapping(), "versions": versions, "pictures": pictures}
        write_atomically(path / ABOUT, json.dumps(about, indent=1))
        return made

    @classmethod
    def resume(cls, path: Path, changed: Mapping[str, Any]) -> PolicySearch:
        """Go on with a search, under settings that change no score; a line that was cut off is scored again.

        Raises:
            ConfigError: When there is none, a file is damaged, its pictures are others, or another process still writes to it.
        """
        if not (path / ABOUT).is_file():
            raise ConfigError(f"--resume {path} holds no search (no {ABOUT})")
        with undamaged(path / ABOUT, "--resume", "start a new search in another folder"):
            about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
            search, pictures = Search.read(about["search"] | changed), str(about["pictures"])
        if check(search) != pictures:
            raise ConfigError(
                f"--resume {path}: the pictures of dataset {search.dataset!r} are not those that this search began with; put these "
                "back, or start a new search with another --out: their scores must not be mixed"
            )
        made = cls(path, search)
        try:
            kept, cut_off = kept_lines(path / SCORES, _read)
        except ConfigError:
            made.close()
            raise
        made.scored = dict(kept)
        if cut_off:
            write_atomically(path / SCORES, "".join(json_line(_line(*scored)) for scored in kept))
        return made

    def run(self) -> dict[str, Any]:
        """Run the remaining work and write ``policies.json``; returns its content.

        Raises:
            DegenerateModelError: When scores on the semi-trained model say nothing; its weights are not kept.
            ConfigError: When a process that scores was killed.
        """
        self._score([()], None, "untransformed images")
        sampled = sample(generator_for("search", self.search.seed, "policies"), self.channels)
        chosen: tuple[Policy, ...] = ()
        for _ in range(MOST_ROUNDS):
            candidates = list(itertools.islice(sampled, self.search.candidates))
            self._score(candidates, self.least, "policies")
            chosen = disjoint(self.passed(), HYBRID, self.channels)
            if len(chosen) == HYBRID or not candidates:
                break
        result = self._result(chosen)
        write_atomically(self.result_path, json.dumps(result, indent=1))
        return result

    @functools.cached_property
    def channels(self) -> int:
        """Channels of the images."""
        return self.search.plan().load_data().input_shape[0]

    @property
    def least(self) -> float:
        """T_acc: as set, or relative to untransformed images, whose score depends on the model and the classes of a batch."""
        fixed = self.search.threshold()
        return -1 - ACCURACY_FACTOR * (-1 - self.scored[()].accuracy) if fixed is None else fixed

    def passed(self) -> list[Policy]:
        """Policies with an S_acc of at least the threshold and a privacy score, the most private first."""
        passing = [
            (scores.privacy, policy)
            for policy, scores in self.scored.items()
            if policy and scores.privacy is not None and scores.accuracy >= self.least
        ]
        return [policy for _, policy in sorted(passing)]

    def _score(self, policies: Sequence[Policy], least: float | None, what: str) -> None:
        """Score what is not scored yet; the semi-trained model is trained where there is none."""
        missing = [policy for policy in policies if policy not in self.scored]
        if not missing:
            return
        if not self._model.is_file():
            self.show("training the semi-trained model", 0, 0, "")
            save_tensors(self._model, semi_train(self.search), {})
        done = itertools.count(len(policies) - len(missing))
        self.show(what, next(done), len(policies), "")
        with closing(self._scores_of(missing, least)) as results:
            try:
                for policy, scores in results:
                    append_line(self.path / SCORES, _line(policy, scores))
                    self.scored[policy] = scores
                    best = "".join(f"; {text_of([top])} {self.scored[top].privacy:.3f}" for top in self.passed()[:3])
                    self.show(what, next(done), len(policies), best)
            except DegenerateModelError:
                self._model.unlink()
                raise

    def _scores_of(
        self, policies: Sequence[Policy], least: float | None
    ) -> Generator[tuple[Policy, Scores], None, None]:
        """Each policy with its scores as soon as they are known, in any order; in this process where one is enough."""
        with undamaged(self._model, f"--resume {self.path}", "delete it, and the model is trained again"):
            weights = load_tensors(self._model)[0]
        workers = min(self.search.workers or os.cpu_count() or 1, len(policies))
        if workers == 1:
            scorer = Scorer(self.search, weights)
            yield from ((policy, scorer(policy, least)) for policy in policies)
            return
        work = functools.partial(_score_in_worker, self.search, self._model, least)
        try:
            # "spawn": this process has trained, and its threads and cards do not survive a fork.
            yield from in_workers(work, ((policy,) for policy in policies), workers)
        except BrokenProcessPool as error:
            raise ConfigError("a process that scores was killed, perhaps as memory ran out; lower workers") from error

    def _result(self, chosen: Sequence[Policy]) -> dict[str, Any]:
        lengths = [len(policy) for policy in chosen]
        streams = (generator_for("search", self.search.seed, "random", at + 1) for at in range(RANDOM_HYBRIDS))
        random = [random_hybrid(stream, self.channels, lengths) for stream in streams]
        return {
            "policies": text_of(chosen),
            "wanted": HYBRID,
            "channels": self.channels,
            "dataset": self.search.dataset,
            "model": self.search.model,
            "seed": self.search.seed,
            "accuracy_threshold": self.least,
            "identity": self.scored[()]._asdict(),
            "scores": [{"policy": text_of([policy]), **self.scored[policy]._asdict()} for policy in chosen],
            "scored": len(self.scored) - 1,
            "passed": len(self.passed()),
            "random": [text_of(hybrid) for hybrid in random if chosen and len(hybrid) == len(chosen)],
        }


def _line(policy: Policy, scores: Scores) -> dict[str, Any]:
    return {"policy": list(policy), **scores._asdict()}


def _read(line: dict[str, Any]) -> tuple[Policy, Scores]:
    return tuple(line.pop("policy")), Scores(**line)


@functools.lru_cache(maxsize=1)
def _scorer(search: Search, model: Path) -> Scorer:
    return Scorer(search, load_tensors(model)[0])


def _score_in_worker(search: Search, model: Path, least: float | None, policy: Policy) -> tuple[Policy, Scores]:
    return policy, _scorer(search, model)(policy, least)
