"""A folder of pictures, and a home for secrets."""

from pathlib import Path

import pytest
from PIL import Image

from clients.data.datasets import load_dataset


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets are kept in the home of the test."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A few tiles of photographs of two sizes, in two folders, one of them narrow and one grey."""
    for at, tile in enumerate(load_dataset("photos").train.images[:12]):
        pixels = tile.permute(1, 2, 0).numpy()
        path = tmp_path / "in" / ("even" if at % 2 else "odd") / f"{at}.{'bmp' if at % 3 else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[:, :20] if at == 4 else pixels[:, :, 0] if at == 5 else pixels).save(path)
    return tmp_path / "in"
