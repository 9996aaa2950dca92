"""All metrics, by name."""

from importlib import import_module
from types import MappingProxyType

from attacks.metrics.metric import Metric
from defenses.registry import RegistryError, modules_in


def _declared() -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    for module in modules_in(__package__ or "", without=__name__):
        for member in vars(import_module(module)).values():
            if isinstance(member, Metric) and metrics.setdefault(member.name, member) is not member:
                raise RegistryError(f"{module} defines the metric {member.name!r}, which another file defines too")
    return metrics


METRICS = MappingProxyType(_declared())
"""Name -> metric, of every file of this folder."""
MEASURED = tuple(metric for metric in METRICS.values() if metric.measure)
"""What clients compute for every guessed image."""
_PREFIXES = tuple(metric for metric in METRICS.values() if metric.prefix)


def known_metric(name: str) -> Metric | None:
    """The metric of a name in rows; None for one that no file declares."""
    metric = METRICS.get(name)
    if metric and not metric.prefix:
        return metric
    return next((prefixed for prefixed in _PREFIXES if name.startswith(prefixed.name)), None)


def metric_of(name: str) -> Metric:
    """The metric of a name in rows; of one that no file declares a plain number."""
    return known_metric(name) or Metric(name, shown=())


def metric_label(name: str) -> str:
    """What pages call the metric of a name in rows."""
    metric = metric_of(name)
    return name if metric.prefix else metric.label or name
