"""Public import of ``audited``, which audits an external Flower app from its server; see ``simulations.external_app``."""

from simulations.external_app.study import audited

__all__ = ["audited"]
