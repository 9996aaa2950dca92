"""What a test may not leave changed for the tests after it, and seeds that differ from run to run."""

import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from defenses.random_draws import generator_for

with suppress(ImportError):  # it sets up the logger "flwr", which no test may seem to have changed
    import flwr.clientapp  # noqa: F401

SIGNALS = ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGINT", "SIGPROF", "SIGTERM", "SIGUSR1", "SIGUSR2")
UNCOUNTED = (
    "PYTEST_CURRENT_TEST",
    "TORCHINDUCTOR_CACHE_DIR",
    "KMP_INIT_AT_FORK",
    "KMP_DUPLICATE_LIB_OK",
    "GRPC_VERBOSITY",
)
"""Variables that pytest sets for each test, and that libraries set when they are first imported."""
PATIENCE = 10.0
"""Seconds for which a thread that was asked to stop may still be there."""
LASTING = ("grpc", "tqdm", "ray_", "Thread-monitor", "pydevd", "asyncio_")
"""Names of threads that libraries keep for the whole process, as they begin."""


LOGGERS = ("", "flwr")


def _logger(name: str) -> tuple[list[logging.Handler], int, bool, bool]:
    logger = logging.getLogger(name)
    own = [one for one in logger.handlers if not _of_pytest(one)]
    return own, logger.level, logger.propagate, logger.disabled


def _of_pytest(handler: logging.Handler) -> bool:
    return type(handler).__module__.startswith("_pytest")


def state() -> dict[str, Any]:
    """What all tests of a process share, by name."""
    return {
        "logging.disable": logging.root.manager.disable,
        **{f"logger {name or 'root'}": _logger(name) for name in LOGGERS},
        **{name: signal.getsignal(getattr(signal, name)) for name in SIGNALS},
        "sys.path": list(sys.path),
        "working directory": Path.cwd(),
        **{f"environment variable {key}": value for key, value in os.environ.items() if key not in UNCOUNTED},
        "torch's threads": torch.get_num_threads(),
        "torch's default type": torch.get_default_dtype(),
        "torch's default device": torch.get_default_device(),
        "NumPy's errors": np.geterr(),
        "torch's gradients": torch.is_grad_enabled(),
        "torch's deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
    }


def put_back(before: dict[str, Any]) -> None:
    """Restores ``state``, so that one test that leaves something fails alone."""
    logging.disable(before["logging.disable"])
    for name in LOGGERS:
        logger, (own, level, propagate, disabled) = logging.getLogger(name), before[f"logger {name or 'root'}"]
        logger.propagate, logger.disabled = propagate, disabled
        logger.handlers[:] = [*filter(_of_pytest, logger.handlers), *own]
        logger.setLevel(level)
    for name in SIGNALS:
        if signal.getsignal(getattr(signal, name)) is not before[name] and before[name] is not None:
            signal.signal(getattr(signal, name), before[name])
    sys.path[:] = before["sys.path"]
    os.chdir(before["working directory"])
    prefix = "environment variable "
    kept = {key.removeprefix(prefix): value for key, value in before.items() if key.startswith(prefix)}
    for key in set(os.environ) - set(kept) - set(UNCOUNTED):
        del os.environ[key]
    os.environ.update(kept)
    torch.set_default_dtype(before["torch's default type"])
    if torch.get_default_device() != before["torch's default device"]:
        torch.set_default_device(
            None if before["torch's default device"].type == "cpu" else before["torch's default device"]
        )
    np.seterr(**before["NumPy's errors"])
    torch.set_grad_enabled(before["torch's gradients"])
    torch.use_deterministic_algorithms(before["torch's deterministic algorithms"])


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """Fails where ``state`` or the running threads differ at the end. Default generators start from one seed and are put back.

    Raises:
        AssertionError: Naming each difference; the state is as before.
    """
    before, threads = state(), set(threading.enumerate())
    generators = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    random.seed(0), np.random.seed(0), torch.random.manual_seed(0)
    try:
        yield
    finally:
        random.setstate(generators[0]), np.random.set_state(generators[1]), torch.random.set_rng_state(generators[2])
        after = state()
        left = [
            f"{key}: {before.get(key)} -> {after.get(key)}"
            for key in {**before, **after}
            if before.get(key) != after.get(key)
        ]
        if left:
            put_back(before)
        left += [f"thread {one.name}" for one in _left_running(threads)]
        assert not left, f"left behind: {'; '.join(left)}"


def _left_running(before: set[threading.Thread]) -> list[threading.Thread]:
    new = [one for one in threading.enumerate() if one not in before and not one.name.startswith(LASTING)]
    for one in new:
        one.join(PATIENCE)
    return [one for one in new if one.is_alive()]


def salt_seeds(salt: int) -> None:
    """From now on seeds that torch and ``np.random.default_rng`` get in this process are others: bounds that fit one draw fail.

    Equal seeds stay equal. Draws of defences and clients stay, whose streams follow from names (``generator_for``).
    """
    generator_for("before")  # it compares a seeded state with NumPy's once, which must both be as they are

    class Generator(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            return super().manual_seed((seed + salt) % 2**63)

    manual_seed, default_rng = torch.manual_seed, np.random.default_rng
    torch.Generator = Generator  # type: ignore[misc]
    torch.manual_seed = torch.random.manual_seed = lambda seed: manual_seed((int(seed) + salt) % 2**63)
    np.random.default_rng = lambda seed=None: default_rng(  # type: ignore[misc]
        [*seed, salt] if isinstance(seed, list | tuple) else seed + salt if isinstance(seed, int) else seed
    )
