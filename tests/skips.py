"""For which reasons a test may be skipped: any other skip fails (tests/conftest.py)."""

NOT_BEGUN = "not begun within"
REASONS = (
    "not installed: uv sync --group dev",
    "no Chromium on the PATH",
    "no uv on the PATH",
    "no podman or docker that runs containers",
    "needs openssl and ssh-keygen",
    "Ray starts no worker from a path with a space",
    "only root gives files away",
    "the superuser may write anywhere",
    NOT_BEGUN,
)
"""How a reason begins or ends."""


def allowed(reason: str) -> bool:
    """Whether a reason is on the list."""
    return any(reason.startswith(part) or reason.endswith(part) for part in REASONS)
