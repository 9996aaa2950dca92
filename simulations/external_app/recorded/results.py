"""The results of attacks on a recorded update: scores, result.json, guesses.safetensors and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from attacks import Labels, Reconstruction
from attacks.scoring.metrics import blurred, null_baselines, score
from simulations.console.results import finite
from simulations.external_app.recorded.guesses import guess_tensors
from simulations.run_folder.drawn import drawn


def scores_of(guess: Reconstruction | Labels, truth: Mapping[str, Tensor]) -> dict[str, Any]:
    """Scores of a finished guess; a failed reconstruction is scored as the grey image that it is."""
    scores: dict[str, Any] = {}
    if isinstance(guess, Reconstruction) and "images" in truth:
        scores |= score(guess, truth["images"])
    if "labels" in truth:
        scores |= score(Labels(guess_tensors(guess)["labels"]), truth["labels"])
    return scores


def compared(truth: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Scores to read others by: "null" of the grey image, which needs no attack, and "scale" of a blurred copy of the truth."""
    if "images" not in truth:
        return {"null": {}, "scale": {}}
    images = truth["images"]
    grey = null_baselines(images, torch.zeros_like(images[0]))["grey"]
    copy = Reconstruction(blurred(images), torch.full((len(images),), -1))
    return {"null": {"grey": score(grey, images)}, "scale": {"blurred": score(copy, images)}}


def write_pictures(images: Tensor, name: str, out: Path) -> list[str]:
    """Write NAME-0.png and so on of images (N, C, H, W) in [0, 1] with 1 or 3 channels; returns the names of the files."""
    if images.shape[1] not in (1, 3):
        return []
    written = [f"{name}-{number}.png" for number in range(len(images))]
    for file, image in zip(written, images, strict=True):
        drawn(image.float()).save(out / file)
    return written


def write_results(out: Path, result: Mapping[str, Any], guesses: Mapping[str, Tensor]) -> None:
    """Writes ``guesses.safetensors``, then ``result.json``, whose presence says that all is there."""
    save_file(dict(guesses), out / "guesses.safetensors")
    (out / "result.json").write_text(
        json.dumps(finite(result), indent=2, allow_nan=False, default=str) + "\n", encoding="utf-8"
    )
