"""Cells that the tables of several audits share."""

from __future__ import annotations

from collections.abc import Sequence


def spread(values: Sequence[float]) -> str:
    """Mean, and smallest to largest."""
    return f"{sum(values) / len(values):.2f} ({min(values):.2f} to {max(values):.2f})"
