"""For which reasons a test may be skipped: any other skip fails (tests/conftest.py)."""

from __future__ import annotations

NOT_BEGUN = "not begun within"
REASONS = (
    "is not installed: uv sync --group dev",
    "no Chromium on the PATH",
    "needs openssl and ssh-keygen",
    "needs Chromium and pdftotext",
    "Ray starts no worker from a path with a space",
    "only root gives files away",
    "the superuser may write anywhere",
    "needs a file system that takes no files",
    "two runs at once need two cores",
    "no control group can be made here",
    "this machine has no copy of Fashion-MNIST",
    NOT_BEGUN,
)
"""Parts of the reasons."""


def allowed(reason: str) -> bool:
    """Whether a reason is on the list."""
    return any(part in reason for part in REASONS)
