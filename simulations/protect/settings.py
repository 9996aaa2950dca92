"""The settings of ``fedveil protect``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from clients.wire.limits import Limit, Side
from clients.wire.schema import Settings, setting
from simulations.settings.errors import ConfigError


class ProtectSettings(Settings):
    """Settings of protected copies. Keys of the command line have hyphens."""

    refused: ClassVar[type[ValueError]] = ConfigError

    image_size: Side = setting(0, "side that central squares are scaled to; 0: pictures keep their size")
    workers: Annotated[int, Limit(0, 1024)] = setting(0, "processes; 0: one for each processor")
    data_dir: str = setting("", "directory of the files of a named data set")
