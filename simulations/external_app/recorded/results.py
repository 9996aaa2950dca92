"""What the attacks on a recorded update found, scored and written down: result.json, guesses.safetensors and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from attacks import Attack, Labels, Reconstruction
from attacks.scoring.metrics import blurred, null_baselines, score
from attacks.spec import stages_of


def file_names(attacks: Sequence[Attack[Any, Any]]) -> list[str]:
    """A file name per attack: its class, or those of its chain; repeats are numbered."""
    names: list[str] = []
    seen: dict[str, int] = {}
    for attack in attacks:
        base = "+".join(type(stage).__name__ for stage in stages_of(attack))
        seen[base] = seen.get(base, 0) + 1
        names.append(base if seen[base] == 1 else f"{base}_{seen[base]}")
    return names


def guess_tensors(guess: Reconstruction | Labels) -> dict[str, Tensor]:
    """The guessed "labels", and of a reconstruction the "images", on the CPU."""
    if isinstance(guess, Labels):
        return {"labels": guess.classes.detach().cpu().contiguous()}
    return {"labels": guess.labels.detach().cpu().contiguous(), "images": guess.images.detach().cpu().contiguous()}


def scores_of(guess: Reconstruction | Labels, truth: Mapping[str, Tensor]) -> dict[str, Any]:
    """Scores of a finished guess; a failed reconstruction is scored as the grey image that it is."""
    scores: dict[str, Any] = {}
    if isinstance(guess, Reconstruction) and "images" in truth:
        scores |= score(guess, truth["images"])
    if "labels" in truth:
        scores |= score(Labels(guess_tensors(guess)["labels"]), truth["labels"])
    return scores


def null_scores(truth: Mapping[str, Tensor]) -> dict[str, Any]:
    """What one could answer without attacking: the grey image (a mean image would need other images of the kind)."""
    if "images" not in truth:
        return {}
    images = truth["images"]
    return {"grey": score(null_baselines(images, torch.zeros_like(images[0]))["grey"], images)}


def scale_scores(truth: Mapping[str, Tensor]) -> dict[str, Any]:
    """What a blurred copy of the truth scores: a scale to read a PSNR by, and no bar."""
    if "images" not in truth:
        return {}
    images = truth["images"]
    return {"blurred": score(Reconstruction(blurred(images), torch.full((len(images),), -1)), images)}


def write_pictures(images: Tensor, name: str, out: Path) -> list[str]:
    """PNG files of images with 1 or 3 channels; others are in ``guesses.safetensors`` alone.

    Args:
        images: (N, C, H, W) in [0, 1].
        name: Files are NAME-0.png and so on.
        out: Their folder.

    Returns:
        Names of the files.
    """
    from PIL import Image

    if images.shape[1] not in (1, 3):
        return []
    pixels = (images.float().clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    written = [f"{name}-{number}.png" for number in range(len(pixels))]
    for file, picture in zip(written, pixels, strict=True):
        Image.fromarray(picture.squeeze(-1) if picture.shape[-1] == 1 else picture).save(out / file)
    return written


def write_results(out: Path, result: Mapping[str, Any], guesses: Mapping[str, Tensor]) -> None:
    """Writes ``guesses.safetensors``, then ``result.json``, whose presence says that all is there."""
    save_file(dict(guesses), out / "guesses.safetensors")
    (out / "result.json").write_text(
        json.dumps(_finite(result), indent=2, allow_nan=False, default=str) + "\n", encoding="utf-8"
    )


def _finite(value: Any) -> Any:
    """The same value with null for numbers that JSON cannot hold, such as the PSNR of equal images."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
