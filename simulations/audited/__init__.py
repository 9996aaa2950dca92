"""Rows and reports of audits of anybody's own Flower app."""

from simulations.audited.study import audited

__all__ = ["audited"]
