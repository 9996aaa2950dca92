"""Import modules of a checkout of another repository, written for older packages, and leave this process as it was.

Nothing of a checkout is copied or changed. What its code needs and today's packages lack is supplied while a ``checkout`` is open:

- ``np.int``, which NumPy removed, is ``int``;
- packages that are not installed are stand-ins: their classes can be imported and tested against, and raise where they are called;
- everything runs on the CPU: no CUDA device is visible, and ``Tensor.cuda`` returns the tensor;
- what is printed is dropped, and the state of the random generators is restored.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

OPTIONAL = ("datasets", "imp", "matplotlib", "pytorch_lightning", "requests", "six", "tqdm", "transformers")
"""Packages that the checkouts import and that no comparison calls."""

Importer = Callable[[str], Any]


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages of ``OPTIONAL`` that nothing else finds; every attribute is a class that raises when it is called."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec of an empty package for a name below ``OPTIONAL``, else None."""
        if fullname.partition(".")[0] not in OPTIONAL:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module classes for all names."""
        module.__getattr__ = lambda name: self._absent(module.__name__, name)  # type: ignore[method-assign]

    @staticmethod
    def _absent(package: str, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: object, **__: object) -> None:
            raise RuntimeError(f"{package}.{name} is a stand-in: {package} is not installed")

        return type(name, (), {"__init__": refuse})


@contextlib.contextmanager
def checkout(folder: Path, arguments: Sequence[str] = ()) -> Iterator[Importer]:
    """Yield a function that imports a module of ``folder`` by its name; ``arguments`` are what scripts read as their command line.

    Modules of this process that have the name of one in the folder are hidden meanwhile. Call what was imported before the end.

    Raises:
        FileNotFoundError: When there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder")
    own = {entry.stem for entry in folder.iterdir() if entry.is_dir() or entry.suffix == ".py"}
    before = dict(sys.modules)
    finder = StandIns()
    with contextlib.ExitStack() as stack:
        for patch in (
            mock.patch.object(sys, "path", [str(folder), *sys.path]),
            mock.patch.object(sys, "argv", ["released", *arguments]),
            mock.patch.object(sys, "meta_path", [*sys.meta_path, finder]),
            mock.patch.object(np, "int", int, create=True),
            mock.patch.object(torch.cuda, "is_available", return_value=False),
            mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
            torch.random.fork_rng(devices=[]),
        ):
            stack.enter_context(patch)
        warnings.simplefilter("ignore")
        states = random.getstate(), np.random.get_state(), torch.backends.cudnn.benchmark
        for name in list(sys.modules):
            if name.partition(".")[0] in own:
                del sys.modules[name]
        try:
            yield importlib.import_module
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.backends.cudnn.benchmark = states[2]
            for name, module in list(sys.modules.items()):
                loaded = str(getattr(module, "__file__", None) or "").startswith(str(folder))
                if name not in before and (loaded or getattr(module, "__loader__", None) is finder):
                    del sys.modules[name]
            sys.modules.update({name: module for name, module in before.items() if name.partition(".")[0] in own})
