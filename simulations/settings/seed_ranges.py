"""Parsing of ``--seeds``."""

from __future__ import annotations

import re

from simulations.settings.errors import ConfigError

MOST = 1000
"""Most seeds of one command."""


def parse_seeds(text: str) -> list[int]:
    """Parse ``0..4`` or ``1,5,7..9`` into numbers, in order; ``ConfigError`` for other texts or a repeated seed."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:\s*\.\.\s*(\d{1,18}))?\s*", part)
        if match is None:
            raise ConfigError(f"--seeds {text!r}: expected whole numbers and ranges from 0, such as 0..4 or 1,5,7..9")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= MOST or len(found) + last - first >= MOST:
            raise ConfigError(
                f"--seeds {text!r}: {part.strip()} is no ascending range, or there are more than {MOST} seeds"
            )
        found += range(first, last + 1)
    if len(set(found)) < len(found):
        raise ConfigError(f"--seeds {text!r} names a seed twice; allowed: each seed once")
    return found
