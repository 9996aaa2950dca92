"""Another package on the path, with an entry point, as an installer leaves it."""

from pathlib import Path

import pytest


def offer(monkeypatch: pytest.MonkeyPatch, folder: Path, group: str, source: str, name: str = "mine") -> str:
    """Makes ``MINE`` of a module with this source an entry point of the group.

    Returns:
        The entry point as messages write it.
    """
    module = f"offered_{folder.name}".replace("-", "_")  # no test finds another one's module in sys.modules
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:MINE\n")
    (folder / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    return f"entry point {name} = '{module}:MINE' ({group})"
