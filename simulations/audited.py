"""The door to ``audited``, which audits an external Flower app from its server; its home is ``simulations.external_app``."""

from simulations.external_app.study import audited

__all__ = ["audited"]
