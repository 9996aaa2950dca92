"""Defences of images, training, smashed data and updates; importable without Flower, Ray or Opacus."""

from __future__ import annotations

__all__: list[str] = []
