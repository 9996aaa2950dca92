"""What a search leaves on disk, so that a killed one goes on where it stood.

search.json         settings, versions, a digest of the pictures
model.safetensors   the semi-trained model, once it is trained
scores.jsonl        one scored policy a line, written as soon as it is known
policies.json       the result, which ``ATS(policies="...json")`` reads
audit.toml          a run that attacks it, and random hybrids beside it
audit               that run, once somebody has started it
search.html         the page
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError
from torch import Tensor

from defenses.images.ats import ATS, Policy
from simulations.run_folder.folder_lock import LOCK, take_lock
from simulations.run_folder.run_directory import write_atomically
from simulations.search.scorer import Scores
from simulations.search.settings import Search
from simulations.settings.errors import ConfigError
from strategies.audit.whole_files import PARTIAL, load_tensors, save_tensors

IDENTITY, SINGLE, CANDIDATE, TRANSFER = "identity", "single", "candidate", "transfer"
"""Why a policy was scored: as it is the bar, for the picture of all transforms, for Algorithm 1, on the other data set."""

ABOUT = "search.json"
LEFTOVERS = {LOCK, ABOUT + PARTIAL}
"""Of a search that was killed before it had written its settings: there is nothing to go on with, and nothing to lose."""

BEFORE_BOTH_SCORES = ("per-tensor", "privacy-rule")
"""Settings of searches that kept one privacy score of a policy, in place of which there is ``privacy-score``."""

AUDIT = "audit"
"""Folder of the run of ``audit.toml``."""

SHARED = ("dataset", "data-dir", "image-size", "train-limit", "model", "width", "norm")
"""Settings that a search and the run that attacks its result have in common."""

AUDITED = [
    'probe-attacks = "InvertingGradients()"',
    'update-attacks = ""',
    'probe-mode = "eval"',
]
"""How the result is attacked: by the run's usual inversion, as the paper in eval mode, and by all that know policies, which a
run adds (``adaptive``). Labels are inferred, as servers must."""


def _require_both_scores(settings: Mapping[str, Any]) -> None:
    """Refuses a search whose policies have one of the two privacy scores: others would be ranked beside them by another.

    Raises:
        ConfigError: Naming the settings by which it is known.
    """
    if old := [key for key in BEFORE_BOTH_SCORES if key in settings]:
        raise ConfigError(
            f"its settings {' and '.join(old)} are of an earlier version, which kept one privacy score of a policy, and "
            "privacy-score compares two; start a new search with another --out (its policies.json can still be used)"
        )


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

    def to_json(self) -> str:
        """One line."""
        return json.dumps({"kind": self.kind, "policy": list(self.policy), **asdict(self.scores)}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Scored:
        """Reads a line."""
        values = json.loads(text)
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
    pictures: dict[str, str] = field(default_factory=dict)
    scored: dict[tuple[str, Policy], Scored] = field(default_factory=dict)
    _lock: IO[str] | None = None

    @classmethod
    def create(cls, path: Path, search: Search) -> SearchFolder:
        """Starts a new search.

        Raises:
            ConfigError: When the folder cannot be one, or holds anything.
        """
        if path.exists() and not path.is_dir():
            raise ConfigError(f"--out {path} is a file; name a folder")
        if path.is_dir() and any(one.name not in LEFTOVERS for one in path.iterdir()):
            raise ConfigError(f"--out {path} is not empty; go on with --resume {path}, or name another folder")
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path, search)
        folder._take_lock()
        folder._write_about()
        return folder

    @classmethod
    def resume(cls, path: Path) -> SearchFolder:
        """Takes up the search of a folder; a line that was cut off is scored again.

        Raises:
            ConfigError: When there is none, a score cannot be read, or another process still writes to it.
        """
        try:
            about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
            _require_both_scores(about["search"])
            search, pictures = Search.from_mapping(about["search"]), dict(about.get("pictures", {}))
        except ConfigError as error:
            raise ConfigError(f"--resume {path}: {ABOUT}: {error}") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"--resume {path} holds no search ({ABOUT}): {error}") from error
        folder = cls(path, search, pictures)
        folder._take_lock()
        try:
            folder._read_scores()
        except ConfigError:
            folder.close()
            raise
        return folder

    def _write_about(self) -> None:
        about = {
            "search": self.search.to_mapping(),
            "versions": {name: version(name) for name in ("fedveil", "torch")},
            "pictures": self.pictures,
        }
        write_atomically(self.path / ABOUT, json.dumps(about, indent=1))

    def take_up(self, search: Search, pictures: Mapping[str, str]) -> None:
        """Keeps the settings to go on with, and the digests of the pictures that are there now.

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
            self.search, self.pictures = search, dict(pictures)
            self._write_about()

    @property
    def is_begun(self) -> bool:
        """Whether there is anything that a resumed search would not have to do again."""
        return bool(self.scored) or (self.path / "model.safetensors").is_file()

    def forget(self) -> None:
        """Makes the folder of a search that has not begun one that a new search may have."""
        (self.path / ABOUT).unlink(missing_ok=True)

    def _read_scores(self) -> None:
        # Behind the last line feed is what was cut off.
        *whole, cut_off = self._scores.read_bytes().split(b"\n") if self._scores.is_file() else [b""]
        for number, line in enumerate(whole, 1):
            try:
                one = Scored.from_json(line.decode())
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise ConfigError(
                    f"--resume {self.path}: line {number} of scores.jsonl is no score of a policy ({error!r}); delete the line, "
                    "and its policy is scored again"
                ) from error
            self.scored[one.kind, one.policy] = one
        if cut_off:
            write_atomically(self._scores, b"".join(line + b"\n" for line in whole).decode())

    @property
    def _scores(self) -> Path:
        return self.path / "scores.jsonl"

    def _take_lock(self) -> None:
        busy = f"another search is still writing to {self.path}; wait for it, or end it"
        self._lock = take_lock(self.path, busy)

    def close(self) -> None:
        """Lets another process go on."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def add(self, one: Scored) -> None:
        """Keeps a score; it is on the disk when this returns."""
        with self._scores.open("a", encoding="utf-8") as file:
            file.write(one.to_json() + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.scored[one.kind, one.policy] = one

    def of(self, kind: str) -> list[Scored]:
        """Scores of one kind, in the order of their policies: not of their arrival, which depends on the machine."""
        return sorted((one for one in self.scored.values() if one.kind == kind), key=lambda one: one.policy)

    def weights(self, name: str = "model") -> dict[str, Tensor] | None:
        """A semi-trained model; None where it is not trained yet.

        Raises:
            ConfigError: When its file is damaged.
        """
        path = self.path / f"{name}.safetensors"
        if not path.is_file():
            return None
        try:
            return load_tensors(path)[0]
        except (SafetensorError, OSError, ValueError) as error:
            raise ConfigError(
                f"--resume {self.path}: {path.name} is damaged ({error}); delete it, and the model is trained again"
            ) from error

    def keep_weights(self, weights: Mapping[str, Tensor], name: str = "model") -> None:
        """Keeps a semi-trained model."""
        save_tensors(self.path / f"{name}.safetensors", weights, {})

    def drop_weights(self, name: str = "model") -> None:
        """Forgets a semi-trained model."""
        (self.path / f"{name}.safetensors").unlink(missing_ok=True)

    @property
    def result_path(self) -> Path:
        """``policies.json``, which a search writes when it ends."""
        return self.path / "policies.json"

    def keep_result(self, result: Mapping[str, Any]) -> Path:
        """Writes ``policies.json``."""
        path = self.result_path
        write_atomically(path, json.dumps(result, indent=1))
        if result["policies"]:
            write_atomically(self.path / "audit.toml", self._audit(result))
        return path

    def _audit(self, result: Mapping[str, Any]) -> str:
        """Settings of a run that attacks what was found, and the random hybrids beside it."""
        known = self.search.to_mapping()
        named = {name: known[name] for name in (*SHARED, "seed")}
        named["defenses"] = "; ".join(
            repr(ATS(policies=text, channels=result["channels"])) for text in [result["policies"], *result["random"]]
        )
        lines = [
            f"{key} = {json.dumps(value)}" for key, value in named.items() if value not in ("", 0) or key == "seed"
        ]
        about = (
            "# `fedveil run audit.toml --out audit`: what attacks recover under the policies that were found, and under random\n"
            "# ones of the same lengths. `fedveil search --resume` then shows it on the page of the search."
        )
        lines += AUDITED
        return "\n".join([about, *lines]) + "\n"
