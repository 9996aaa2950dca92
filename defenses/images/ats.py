"""ATS: image transformation policies that were searched for making gradients hard to invert."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from defenses.base import Batch, DefenseError, InputDefense
from defenses.checks import algorithm, require
from defenses.functional import random_signs
from defenses.images.transforms import LIBRARY, apply_transform
from defenses.tensors import Shape

Policy = Shape
"""Indices of transforms, applied from left to right."""
MOST_TRANSFORMS = 16
"""Of a policy: the paper's have up to three, and each is another pass over every image."""
FILE = ".json"
"""How a name of a file of policies ends."""


def parse_policies(text: str) -> tuple[Policy, ...]:
    """Reads ``3-1-7+43-18-18`` as ((3, 1, 7), (43, 18, 18)).

    Raises:
        ValueError: When the text is not of this form, an index is not in 0 .. 49, a policy is too long, or two policies share a
            transform.
    """
    if not re.fullmatch(r"[0-9]+(-[0-9]+)*(\+[0-9]+(-[0-9]+)*)*", text):
        raise ValueError("not indices joined by '-' within and '+' between policies")
    policies = tuple(tuple(map(int, policy.split("-"))) for policy in text.split("+"))
    if unknown := sorted({index for policy in policies for index in policy if index >= len(LIBRARY)}):
        raise ValueError(f"index {unknown[0]} is not in 0 .. {len(LIBRARY) - 1}")
    if (longest := max(map(len, policies))) > MOST_TRANSFORMS:
        raise ValueError(f"a policy of {longest} transforms; allowed: at most {MOST_TRANSFORMS}")
    distinct = [set(policy) for policy in policies]
    if len(set().union(*distinct)) < sum(map(len, distinct)):
        raise ValueError("two policies share a transform")
    return policies


def transform_images(images: Tensor, policies: tuple[Policy, ...], generator: torch.Generator) -> Tensor:
    """Applies to each image (B, C, H, W) in [0, 1] one policy, drawn uniformly, with a fresh sign for every step.

    Every image takes the same number of draws, whatever its policy.
    """
    count, longest = len(images), max(map(len, policies))
    choice = torch.randint(len(policies), (count,), generator=generator)
    signs = random_signs((count, longest), generator)
    result = images.clone()
    for number, policy in enumerate(policies):
        for step, index in enumerate(policy):
            rows = (choice == number).nonzero().flatten()
            at = rows.to(images.device)
            if len(rows):
                result[at] = apply_transform(result[at], index, signs[rows, step])
    return result


@algorithm
class ATS(InputDefense):
    """Transform each training image by an augmentation policy, drawn at random for each image and epoch.

    A policy is up to three of the 50 transforms of ``defenses.images.transforms``; "i-j-k" applies i first. Shear, shift,
    colour, contrast, brightness and sharpness have a random sign with equal chance. Test images stay clean. The default is
    the paper's hybrid for ResNet20 on CIFAR-100. Published analyses find that such policies slow an attack down late
    in training but not in the first steps (Balunovic et al., ICLR 2022), so attack early rounds as well.

    Args:
        policies: Policies joined by "+"; they must not share transforms, the paper's condition for a hybrid (4.4). For a file
            use ``read``: this text also comes from messages, which must not open files of the receiving machine.
        channels: Channels of the images that the policies suit, normally of the images of the search; 0: any.
    """

    policies: str = "3-1-7+43-18-18"
    channels: int = 0

    always_shown = ("policies",)
    adaptive_attacks = ("PolicyInversion", "LearnedRestorer")
    source = "Gao et al., Privacy-preserving Collaborative Learning with ATS, CVPR 2021, 4.4 and Table 5"

    def __post_init__(self) -> None:
        super().__post_init__()
        form = f"policies such as '3-1-7+43-18-18', of indices 0 .. {len(LIBRARY) - 1}, no index in two policies"
        require(self.channels in (0, 1, 3), self, "channels", "0 (any), 1 (grey) or 3 (colours)")
        if self.policies.endswith(FILE):
            raise DefenseError(
                f"policies is {self.policies!r}; allowed: the name of a file only in the configuration of `fedveil run`, `protect` "
                "and `attack`, or in ATS.read; elsewhere write the file's policies and channels"
            )
        try:
            parse_policies(self.policies)
        except ValueError as error:
            require(False, self, "policies", f"{form} ({error})")

    @classmethod
    def read(cls, policies: str | Path, channels: int | None = None) -> Self:
        """Read the policies of a file; the result holds them and not the file's name, as other machines lack the file.

        The file is a ``policies.json`` of ``fedveil search``. Without ``channels`` the file's number of channels is used.

        Raises:
            DefenseError: When the file cannot be read, is no such file, or holds no policies.
            ValueError: When ``channels`` is not allowed.
        """
        try:
            if (path := Path(policies)).exists() and not path.is_file():
                raise ValueError("no regular file")  # to open a pipe is to wait for its writer
            contents = json.loads(path.read_text(encoding="utf-8"))
            text, searched = str(contents["policies"]), int(contents["channels"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"it is no result of fedveil search ({error!r})"
            raise DefenseError(f"policies is {str(policies)!r}: {reason}") from error
        if not text:
            raise DefenseError(f"policies is {str(policies)!r}: the search found no policies")
        return cls(text, searched if channels is None else channels)

    @classmethod
    def configured(cls, **given: Any) -> Self:
        """Make the defence; ``policies`` may be the name of a file for ``read``."""
        return cls.read(**given) if str(given.get("policies", "")).endswith(FILE) else cls(**given)

    def unfit(self, channels: int, height: int, width: int) -> str:
        """Reason, if the policies suit another number of channels; see the base class."""
        if self.channels in (0, channels):
            return ""
        return (
            f"{self} was searched for images of {self.channels} channels, and these have {channels}: search policies for them, or "
            f"write channels={channels} (0: any) beside the policies to use them all the same"
        )

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Transforms the images; targets are unchanged."""
        return replace(batch, images=transform_images(batch.images, parse_policies(self.policies), generator))
