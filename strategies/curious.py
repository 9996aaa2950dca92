"""The door to ``CuriousFedAvg``, whose home is ``strategies.federated.curious``."""

from strategies.federated.curious import CuriousFedAvg

__all__ = ["CuriousFedAvg"]
