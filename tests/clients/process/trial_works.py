"""Works of the tests of ``clients.process.trial_process``: what a child process does in place of fedveil's own functions."""

import sys
from typing import Any

from clients.process.own_code import own_code


def call(name: str) -> Any:
    return own_code(name)()


def arguments() -> list[str]:
    return sys.argv


def refuse(text: str) -> None:
    raise ValueError(text)
