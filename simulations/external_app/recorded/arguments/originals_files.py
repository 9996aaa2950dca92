"""The files of true images beside a recording: their names, and the normalisation that their headers state."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from strategies.recording.files import RecordedReply


def originals_file(folder: Path, reply: RecordedReply) -> Path | None:
    """The file with the true images behind a reply: of its round and node, else of its node in all rounds; None without one."""
    names = (f"round-{reply.round:04d}-node-{reply.node}", f"node-{reply.node}")
    return next((path for name in names if (path := folder / f"{name}.safetensors").is_file()), None)


def normalisation_of(path: Path) -> dict[str, str]:
    """"mean" and "std", such as "0.5,0.5,0.5", of the client's normalisation; empty where the file does not state them."""
    try:
        with safe_open(path, framework="np") as file:
            stated = json.loads((file.metadata() or {}).get("normalisation", "{}"))
        return {key: ",".join(f"{float(one):.9g}" for one in stated[key]) for key in ("mean", "std") if key in stated}
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError):
        return {}
