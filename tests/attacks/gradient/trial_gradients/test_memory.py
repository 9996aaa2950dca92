"""The estimate of memory against counts by hand."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from attacks.gradient.trial_gradients.memory import fitting_trials, in_chunks, trial_bytes
from attacks.observations import AttackError

ROOT = Path(__file__).parents[4]
MODULE = "attacks.gradient.trial_gradients.memory"


def test_every_layer_is_counted_once_per_image_and_the_model_is_left_alone() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 16, 5)
    ).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    # Image 16, convolution, norm, ReLU and flatten 32 each, 5 logits.
    activations = 16 + 4 * 32 + 5
    weights = (2 * 9 + 2) + 4 + (32 * 5 + 5)
    for images in (1, 3, 8):
        assert trial_bytes(model, (1, 4, 4), images) == 4 * (10 * images * activations + 8 * weights)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_huge_batches_are_counted_not_allocated_and_what_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU())
    assert trial_bytes(model, (3, 4096, 4096), 10**6) > 10**15
    needed = trial_bytes(model, (3, 8, 8), 1)
    for free, fits in ((needed, 1), (5 * needed - 1, 4)):
        monkeypatch.setattr(f"{MODULE}.psutil.virtual_memory", lambda free=free: SimpleNamespace(available=free))
        assert fitting_trials(model, (3, 8, 8), 1) == fits
    monkeypatch.setattr(f"{MODULE}.psutil.virtual_memory", lambda: SimpleNamespace(available=needed - 1))
    with pytest.raises(
        AttackError, match=r"one trial of 1 dummy images of 3x8x8 would need about 0.0 GB, and 0.0 GB are free"
    ):
        fitting_trials(model, (3, 8, 8), 1)


def test_chunks_shrink_until_they_fit_and_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    tried: list[int] = []

    def run(some: Sequence[int]) -> list[int]:
        tried.append(len(some))
        if len(some) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return list(some)

    ends = in_chunks(run, list(range(9)), 8)
    assert [at for some in ends for at in some] == list(range(9))
    assert tried == [8, 4, 2, 2, 2, 2, 1]

    def mistaken(some: Sequence[int]) -> None:
        raise RuntimeError("sizes do not match")

    with pytest.raises(RuntimeError, match="sizes do not match"):
        in_chunks(mistaken, [1, 2], 2)


FAULTS = """
import resource, torch
from attacks.gradient.trial_gradients.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(10 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
keep_freed_memory()
faults()
print(first, faults())
"""


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="without effect where the C library is not glibc")
def test_freed_memory_is_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, cwd=ROOT)
    before, after = map(int, done.stdout.split())
    # 40 MiB, five times, in pages of at most 4 KiB (fewer faults where the system hands out huge pages).
    assert after < before / 10
