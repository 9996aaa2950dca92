"""``fedveil check-app``: what an audit can and cannot do with a Flower app, and the lines to add, before anything trains."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulations.external_app.check.checking import check_app
    from simulations.external_app.check.report import AppReport

__all__ = ["AppReport", "check_app"]


def __getattr__(name: str) -> Any:
    """``check_app`` and ``AppReport``, loaded when they are asked for: the command line starts without Flower and PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from simulations.external_app.check import checking

    return getattr(checking, name)
