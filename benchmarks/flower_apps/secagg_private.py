"""The private parts of Flower that ``secagg_plus.py`` uses; those of the product are in ``clients/flower_private.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.clientapp import ClientApp


def secagg_plus_app(train: Callable[[int], tuple[list[Any], int]]) -> ClientApp:
    """Return a ClientApp that trains with ``train`` and sends its parameters masked by SecAgg+ (``secaggplus_mod``).

    Use: ``secagg_plus.py`` runs the protocol, which Flower 1.41 has for its older interface alone. If it
    moves: import it from its new place. Without it, the script cannot run the protocol; ``aggregate-clients`` of ``fedveil run``
    computes the sum itself and needs no part of SecAgg+.

    Args:
        train: Number of the partition -> the client's parameters, as arrays, and its number of examples.
    """
    from flwr.client import ClientApp, NumPyClient
    from flwr.client.mod import secaggplus_mod

    class Trainer(NumPyClient):
        def __init__(self, partition: int) -> None:
            self.partition = partition

        def fit(self, parameters: list[Any], config: Any) -> tuple[list[Any], int, dict[str, Any]]:
            return (*train(self.partition), {})

    def client_fn(context: Any) -> Any:
        return Trainer(int(context.node_config["partition-id"])).to_client()

    app: ClientApp = ClientApp(client_fn=client_fn, mods=[secaggplus_mod])
    return app


def secagg_plus_round(grid: Any, parameters: Sequence[Any], **settings: Any) -> list[Any]:
    """Run one round of SecAgg+ with all nodes of a grid; return the mean of their parameters, weighted by their examples.

    Use and replacement: as ``secagg_plus_app``.

    Args:
        grid: Its nodes run ``secagg_plus_app``.
        parameters: Global parameters, as arrays.
        **settings: Those of ``SecAggPlusWorkflow``.

    Raises:
        RuntimeError: When the protocol halts, as with too few replies.
    """
    from types import SimpleNamespace

    from flwr.app import ConfigRecord, Context, RecordDict
    from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.compat.common import recorddict_compat
    from flwr.server import LegacyContext, SimpleClientManager
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

    start, sums = ndarrays_to_parameters(list(parameters)), []

    def configured(_round: int, own: Any, _manager: Any) -> Any:
        return [(SimpleNamespace(node_id=node), FitIns(own, {})) for node in grid.get_node_ids()]

    def aggregated(_round: int, results: Any, _failures: Any) -> Any:
        sums.append(parameters_to_ndarrays(results[0][1].parameters))
        return results[0][1].parameters, {}

    strategy: Any = SimpleNamespace(configure_fit=configured, aggregate_fit=aggregated)
    context = LegacyContext(
        Context(1, 1, {}, RecordDict(), {}), strategy=strategy, client_manager=SimpleClientManager()
    )
    context.state.array_records[MAIN_PARAMS_RECORD] = recorddict_compat.parameters_to_arrayrecord(start, True)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    SecAggPlusWorkflow(**settings)(grid, context)
    if not sums:
        raise RuntimeError("SecAgg+ has halted; its log names the stage")
    mean: list[Any] = sums[0]
    return mean


def masked_parameters(reply: Message) -> list[Any] | None:
    """Return the arrays of integers that a client sends in SecAgg+, a weight and then the parameters; ``None`` in other stages.

    Use and replacement: as ``secagg_plus_app``.
    """
    from flwr.common import bytes_to_ndarray
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key

    record: Any = {} if reply.has_error() else reply.content.config_records.get(RECORD_KEY_CONFIGS, {})
    return [bytes_to_ndarray(one) for one in record[Key.MASKED_PARAMETERS]] if Key.MASKED_PARAMETERS in record else None
