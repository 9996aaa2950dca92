"""A search's folder, from which a killed search continues.

search.json         settings, versions, a digest of the pictures
model.safetensors   the semi-trained model, once it is trained
scores.jsonl        one scored policy a line, written as soon as it is known
policies.json       the result, which ``ATS(policies="...json")`` reads
audit.toml          a run that attacks it, and random hybrids beside it
audit               that run, once it was started
search.html         the page
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from defenses.images.ats import ATS, Policy
from simulations.run_folder.folder_lock import LOCK, require_new, take_lock
from simulations.run_folder.line_files import append_line, json_lines, kept_lines
from simulations.run_folder.run_directory import write_atomically
from simulations.search.scorer import Scores
from simulations.search.settings import Search
from simulations.settings.errors import ConfigError, undamaged
from strategies.audit.whole_files import PARTIAL, load_tensors, save_tensors

IDENTITY, SINGLE, CANDIDATE, TRANSFER = "identity", "single", "candidate", "transfer"
"""Why a policy was scored: as it is the bar, for the picture of all transforms, for Algorithm 1, on the other data set."""

ABOUT = "search.json"
LEFTOVERS = {LOCK, ABOUT + PARTIAL}
"""Of a search that was killed before it had written its settings: there is nothing to go on with, and nothing to lose."""

AUDIT = "audit"
"""Folder of the run of ``audit.toml``."""

SHARED = ("dataset", "data-dir", "image-size", "train-limit", "model", "width", "norm")
"""Settings that a search and the run that attacks its result have in common."""

AUDITED = """\
# `fedveil run audit.toml --out audit`: what attacks recover under the policies that were found, and under random
# ones of the same lengths. `fedveil search --resume` then shows it on the page of the search.
probe-attacks = "InvertingGradients()"
update-attacks = ""
probe-mode = "eval"
"""
"""How the result is attacked: by the run's usual inversion, as the paper in eval mode, and by all that know policies, which a
run adds (``adaptive``). Labels are inferred, as servers must."""


@dataclass(frozen=True)
class Scored:
    """A line of ``scores.jsonl``.

    Attributes:
        kind: One of the four above.
        policy: Transforms, from left to right.
        scores: What it scored.
    """

    kind: str
    policy: Policy
    scores: Scores

    def to_json(self) -> dict[str, Any]:
        """The line as JSON writes it."""
        return {"kind": self.kind, "policy": list(self.policy), **asdict(self.scores)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Scored:
        """Read a decoded line."""
        kind, policy = values.pop("kind"), tuple(values.pop("policy"))
        if (values["privacy"] is None) != (values["other"] is None):
            raise ValueError("it holds one privacy score, not both")
        return cls(kind, policy, Scores(**values | {"curve": tuple(values["curve"])}))


@dataclass
class SearchFolder:
    """The folder of one search.

    Attributes:
        path: The folder.
        search: The settings.
        pictures: Setting that names a data set -> digest of its pictures, see ``simulations.search.pictures``.
        scored: (kind, policy) -> what is known of it.
    """

    path: Path
    search: Search
    pictures: Mapping[str, str] = field(default_factory=dict)
    scored: dict[tuple[str, Policy], Scored] = field(default_factory=dict)
    _lock: IO[str] | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def create(cls, path: Path, search: Search) -> SearchFolder:
        """Start a new search.

        Raises:
            ConfigError: When the folder cannot be one, or holds anything.
        """
        require_new(path, f"--out {path}", f"go on with --resume {path}", LEFTOVERS)
        folder = cls(path, search)
        folder._take_lock()
        folder._write_about()
        return folder

    @classmethod
    def resume(cls, path: Path) -> SearchFolder:
        """Resume the search of a folder; a line that was cut off is scored again.

        Raises:
            ConfigError: When there is none, a file is damaged, or another process still writes to it.
        """
        if not (path / ABOUT).is_file():
            raise ConfigError(f"--resume {path} holds no search (no {ABOUT})")
        with undamaged(path / ABOUT, "--resume", "start a new search in another folder"):
            about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
            search, pictures = Search.from_mapping(about["search"]), dict(about["pictures"])
        folder = cls(path, search, pictures)
        folder._take_lock()
        try:
            found, cut_off = kept_lines(folder._scores, Scored.from_json)
        except ConfigError:
            folder.close()
            raise
        folder.scored = {(one.kind, one.policy): one for one in found}
        if cut_off:
            write_atomically(folder._scores, json_lines(one.to_json() for one in found))
        return folder

    def _take_lock(self) -> None:
        self._lock = take_lock(self.path, f"another search is still writing to {self.path}; wait for it, or end it")

    def close(self) -> None:
        """Release the folder for another process."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _write_about(self) -> None:
        about = {
            "search": self.search.to_mapping(),
            "versions": {name: version(name) for name in ("fedveil", "torch")},
            "pictures": self.pictures,
        }
        write_atomically(self.path / ABOUT, json.dumps(about, indent=1))

    def take_up(self, search: Search, pictures: Mapping[str, str]) -> None:
        """Keep the settings to continue with, and the digests of the present pictures.

        Raises:
            ConfigError: When what is known of policies was scored on other pictures.
        """
        for key, digest in pictures.items():
            if self.pictures.get(key, digest) != digest:
                raise ConfigError(
                    f"the pictures of {key} {search.to_mapping()[key]!r} are not those that this search began with; put these "
                    "back, or start a new search with another --out: their scores must not be mixed"
                )
        if (search, pictures) != (self.search, self.pictures):
            self.search, self.pictures = search, pictures
            self._write_about()

    @property
    def is_begun(self) -> bool:
        """Whether the folder holds work that a resumed search would not repeat."""
        return bool(self.scored) or self._weights("model").is_file()

    def forget(self) -> None:
        """Free the folder of a search that has not begun for a new search."""
        (self.path / ABOUT).unlink(missing_ok=True)

    @property
    def _scores(self) -> Path:
        return self.path / "scores.jsonl"

    def add(self, one: Scored) -> None:
        """Keep a score; it is on the disk when this returns."""
        append_line(self._scores, one.to_json())
        self.scored[one.kind, one.policy] = one

    def of(self, kind: str) -> list[Scored]:
        """Scores of one kind, in the order of their policies; the order of arrival depends on the machine."""
        return sorted((one for one in self.scored.values() if one.kind == kind), key=lambda one: one.policy)

    def passed(self, least: float | None) -> list[Scored]:
        """Candidates with an S_acc of at least the threshold, if any, and a privacy score, the most private first."""
        found = [
            one
            for one in self.of(CANDIDATE)
            if one.scores.privacy is not None and (least is None or one.scores.accuracy >= least)
        ]
        return sorted(found, key=lambda one: (one.scores.privacy, one.policy))

    def weights(self, name: str = "model") -> dict[str, Tensor] | None:
        """A semi-trained model; None where it is not trained yet, ``ConfigError`` where its file is damaged."""
        path = self._weights(name)
        if not path.is_file():
            return None
        with undamaged(path, f"--resume {self.path}", "delete it, and the model is trained again"):
            return load_tensors(path)[0]

    def keep_weights(self, weights: Mapping[str, Tensor], name: str = "model") -> None:
        """Keep a semi-trained model."""
        save_tensors(self._weights(name), weights, {})

    def drop_weights(self, name: str = "model") -> None:
        """Delete a semi-trained model."""
        self._weights(name).unlink(missing_ok=True)

    def _weights(self, name: str) -> Path:
        return self.path / f"{name}.safetensors"

    @property
    def result_path(self) -> Path:
        """Path of ``policies.json``, which a search writes when it ends."""
        return self.path / "policies.json"

    def keep_result(self, result: Mapping[str, Any]) -> None:
        """Write ``policies.json``, and ``audit.toml`` where it names policies."""
        write_atomically(self.result_path, json.dumps(result, indent=1))
        if result["policies"]:
            write_atomically(self.path / "audit.toml", self._audit(result))

    def _audit(self, result: Mapping[str, Any]) -> str:
        """Settings of a run that attacks what was found, and the random hybrids beside it."""
        known = self.search.to_mapping()
        chains = [ATS(policies=text, channels=result["channels"]) for text in [result["policies"], *result["random"]]]
        named = {key: known[key] for key in SHARED if known[key] not in ("", 0)}
        named |= {"seed": known["seed"], "defenses": "; ".join(map(repr, chains))}
        return AUDITED + "".join(f"{key} = {json.dumps(value)}\n" for key, value in named.items())
