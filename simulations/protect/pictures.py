"""Pictures as files: finding them in a folder, reading them for a defence, and writing the protected copies."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from torch import Tensor

from clients.data.files.decoding import MOST_PIXELS, Decoded, FullScale, decode_noted, merge_equal
from clients.data.images import resize, to_float
from simulations.run_folder.drawn import drawn
from simulations.settings.errors import ConfigError
from strategies.audit.whole_files import whole

LOSSLESS = (".png", ".bmp", ".tif", ".tiff")
"""Formats that keep every pixel; copies of other formats become PNG, because a lossy one would change what the defence made."""


def find(root: Path) -> list[str]:
    """The pictures of a folder, at any depth, as paths relative to it, sorted; hidden files and other formats are left out.

    Raises:
        ConfigError: When there are none, or a link leads out of the folder.
    """
    from PIL import Image

    endings = {ending for ending, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    found, inside = [], root.resolve()
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if any(part.startswith(".") for part in name.parts):
            continue
        if path.is_symlink() and not (target := _target(path)).is_relative_to(inside):
            raise ConfigError(
                f"IN: {name} is a link to {target}, outside of {root}; copy what it points to, or remove it"
            )
        if path.suffix.lower() in endings and path.is_file():
            found.append(name.as_posix())
    if not found:
        raise ConfigError(f"IN: {root} holds no pictures of a format that Pillow reads, at any depth")
    return found


def left_out(root: Path, names: Collection[str]) -> dict[str, int]:
    """Ending -> number of files of a folder, at any depth, that ``find`` leaves out; hidden ones are not counted."""
    files = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    seen = (name for name in files if not any(part.startswith(".") for part in name.parts))
    return dict(Counter(name.suffix.lower() for name in seen if name.as_posix() not in names))


def _target(link: Path) -> Path:
    try:
        return link.resolve()
    except (OSError, RuntimeError) as error:  # Python 3.11 raises RuntimeError for a link that leads to itself
        raise ConfigError(f"IN: {link} is a link that leads nowhere ({error}); remove it") from error


def output_names(names: Sequence[str]) -> dict[str, str]:
    """Source -> name of its copy: the same for lossless formats, with ".png" added for others; no two names are equal.

    Raises:
        ConfigError: When two copies would have one name.
    """
    made: dict[str, str] = {}
    for name in names:
        copy = name if name.lower().endswith(LOSSLESS) else f"{name}.png"
        if copy in made:
            raise ConfigError(f"IN: copies of {made[copy]} and {name} would both be {copy}; rename one of them")
        made[copy] = name
    return {name: copy for copy, name in made.items()}


def read(path: Path, size: int = 0, scale: FullScale | None = None) -> Decoded:
    """Decode a picture (C, H, W) in [0, 1] as a run on the folder would; its central square is scaled to ``size``; 0: not scaled.

    Grey pictures have one channel, also those that are stored as colours: three draws of noise would be averaged away.

    Raises:
        DataError: When it is none, is damaged, or holds more than ``MOST_PIXELS``.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        decoded = decode_noted(path, MOST_PIXELS, scale)
    # Once more, because the colours may all lie outside the central square.
    return Decoded(to_float(merge_equal(resize(decoded.image, size)))[0], decoded.notes)


def write(path: Path, image: Tensor) -> None:
    """Write (C, H, W) in [0, 1] without loss and without metadata; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = {".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF"}.get(path.suffix.lower(), "PNG")
    with whole(path) as partial:
        drawn(image).save(partial, format=kind)
