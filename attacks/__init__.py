"""Attacks of an honest-but-curious server, and the metrics that judge them; importable without Flower, Ray or Opacus."""

from __future__ import annotations

__all__: list[str] = []
