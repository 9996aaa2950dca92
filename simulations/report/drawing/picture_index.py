"""The index of a run's pictures: the content of each, and the score of each guess."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.wire.rungs import Rung
from simulations.report.studies.messages import MessageSize
from simulations.report.studies.rows import read_lines
from simulations.report.text import count
from simulations.run_folder.rows import number_of
from strategies.audit.threat_card import MOST_WHOLE


@dataclass(frozen=True)
class Picture:
    """One line of ``pictures/index.jsonl``.

    Attributes:
        attack: Attack text, "" for the original and the protected image.
        final: Whether ``round`` is the model after the last round.
        target: (experiment, seed, client, target, image), as far as they are given: which example it is.
        kind: "original", "protected" or "reconstruction".
        file: PNG, relative to ``pictures/``.
        psnr: Against the original, in dB; ``structure``: similarity in structure to it.
        observation: What it was reconstructed from, such as "one-step probe".
        rounds: Rounds in which that was observed; 0 where the index does not say.
        rung: Size of the probe, such as "1x4", behind the first size of a ladder; else "".
        caption: What the pictures of its target are called together, where the index says.
    """

    defense: str
    attack: str
    round: int
    target: tuple[Any, ...]
    kind: str
    file: str
    psnr: float | None
    structure: float | None = None
    identified: bool = False
    recognisable: bool = False
    final: bool = False
    observation: str = ""
    rounds: int = 0
    rung: str = ""
    caption: str = ""

    @property
    def is_guess(self) -> bool:
        """Whether the picture is an attack's guess with a score."""
        return self.kind == "reconstruction" and self.psnr is not None

    @property
    def rank(self) -> tuple[bool, bool, float, float]:
        """Rank of a guess, larger is better: recognisable ones first, by structure, which flat images do not have."""
        structure, psnr = (-math.inf if number is None else number for number in (self.structure, self.psnr))
        return self.recognisable, self.identified, structure, psnr

    @property
    def source(self) -> str:
        """Description of the source, such as "training update of 2 rounds"."""
        return self.observation + (f" of {count(self.rounds, 'round')}" if self.observation and self.rounds else "")


def read_index(directory: Path) -> tuple[list[Picture], list[str]]:
    """Pictures of ``directory/pictures/index.jsonl`` and notes on lines that could not be read.

    A run that does not share images has no index.
    """
    path = directory / "pictures" / "index.jsonl"
    if not path.exists():
        return [], []
    lines, notes = read_lines(path, lambda line: line)
    pictures = []
    for number, data in lines:
        if isinstance(data, dict) and isinstance(data.get("file"), str) and isinstance(data.get("kind"), str):
            pictures.append(_picture(data))
        else:
            notes.append(f"pictures/{path.name}: line {number} names no file and kind")
    return pictures, notes


def _picture(data: Mapping[str, Any]) -> Picture:
    at, rounds = data.get("round"), data.get("rounds_observed")
    texts = ("defense", "attack", "kind", "file", "observation", "rung", "caption")
    known: dict[str, Any] = {key: str(data.get(key) or "") for key in texts}
    known |= {key: number_of(data.get(key)) for key in ("psnr", "structure")}
    rung = Rung.read(known["rung"])
    # What entered a probe behind the first size, as a caption says it.
    size = f" ({MessageSize(rung.size, rung.steps)})" if rung else ""
    names = {**data, "target": f"{data.get('target', '')}{size}"}
    return Picture(
        **known,
        round=at if isinstance(at, int) and abs(at) <= MOST_WHOLE else 0,
        target=tuple(str(names.get(key, "")) for key in ("experiment", "seed", "client", "target", "image")),
        identified=data.get("identified") == 1,
        recognisable=data.get("recognisable") == 1,
        final=data.get("final") is True,
        rounds=rounds if isinstance(rounds, int) else 0,
    )
