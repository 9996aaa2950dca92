"""Generators for random draws, seeded by a key or by another generator."""

import functools
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

Key = tuple[int | str | bytes, ...]
"""What a random stream is for, such as (secret, "train", round, client, step)."""
_WORDS, _OFFSET = 624, 24
"""Words of a Mersenne Twister's state, and the byte at which they begin in the state of a CPU generator of PyTorch."""


def generator_for(*key: int | str | bytes) -> torch.Generator:
    """A CPU generator whose stream depends on ``key`` alone, so that runs repeat whatever order clients run in.

    All 19,968 bits of the state are SHAKE-256 of the key: without the key there is nothing to try. ``manual_seed`` would
    keep 32 bits of its seed, all of which can be tried, and two of 65,000 streams would be the same one, more likely than not.

    The generator itself is a Mersenne Twister, whose outputs are linear in its state: 20,000 bits of one stream, known exactly,
    give the rest of that stream, but nothing about the streams of other keys.
    """
    words = np.frombuffer(hashlib.shake_256(repr(key).encode()).digest(4 * _WORDS), dtype="<u4")
    state = _fresh_state().copy()
    state[_OFFSET : _OFFSET + 8 * _WORDS] = words.astype("<u8").view(np.uint8)
    generator = torch.Generator()
    generator.set_state(torch.from_numpy(state))
    return generator


def spawned(generator: torch.Generator, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own, named by 256 bits from another one's stream.

    On the CPU its state is full, as that of ``generator_for``. An accelerator's generator (Philox) takes a seed of 64 bits, of
    which 63 are used: far too many to try, but of four billion such streams two are likely to be the same.
    """
    name = torch.randint(1 << 16, (16,), generator=generator).tolist()
    if torch.device(device).type == "cpu":
        return generator_for("spawned", *name)
    digest = hashlib.shake_256(repr(name).encode()).digest(8)
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "big") >> 1)


def seed_of(generator: torch.Generator, bits: int = 62) -> int:
    """A seed of so many bits, drawn from a generator's stream."""
    return int(torch.randint(1 << bits, (), generator=generator))


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Give what draws globally on the CPU, such as initial weights and dropout, a stream of its own, which ``generator`` seeds.

    The global stream neither decides it nor notices.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(generator))
        yield


@functools.cache
def _fresh_state() -> NDArray[np.uint8]:
    state = torch.Generator().manual_seed(1).get_state().numpy()
    words = state[_OFFSET : _OFFSET + 8 * _WORDS].view("<u8")
    if not np.array_equal(words, np.random.RandomState(1).get_state()[1]):  # type: ignore[index]
        raise RuntimeError(
            f"torch {torch.__version__} keeps a generator's state in an unknown layout; use another version"
        )
    return state
