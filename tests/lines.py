"""Lines of JSON as tests read them, without what a run does to mend a file that was cut off."""

import json
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a .jsonl file; none when it does not exist."""
    # Not splitlines: texts may hold what else ends a line for Python.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line] if path.exists() else []
