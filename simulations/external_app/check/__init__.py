"""``fedveil check-app``: what an audit can and cannot do with a Flower app, and the lines to add, before anything trains."""

from simulations.external_app.check.checking import check_app
from simulations.external_app.check.report import AppReport

__all__ = ["AppReport", "check_app"]
