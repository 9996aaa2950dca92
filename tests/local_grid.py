"""The package's grid in this process, with nodes of other configurations and replies that are changed, lost or broken."""

from collections.abc import Callable
from typing import Any

from flwr.app import Error, Message

from clients.app import app as client_app
from clients.flower_private import error_code
from simulations.runtime.local_grid import FIRST_NODE
from simulations.runtime.local_grid import LocalGrid as PackageGrid

Tamper = Callable[[int, Message, Message], Message | None]
"""(partition, request, reply) -> the reply as the server gets it; None loses it; raising is the client's error."""


class LocalGrid(PackageGrid):
    """As the package's.

    Args:
        clients: Number of nodes.
        tamper: May change, lose or break replies.
        node_config: Extra node configuration by partition.
        randomness: Where the nodes' random draws start: "seed" as in a simulation, or "secret" as in a deployment. A node that
            is not told takes itself for a deployed one.
    """

    def __init__(
        self,
        clients: int,
        tamper: Tamper | None = None,
        node_config: dict[int, dict[str, Any]] | None = None,
        randomness: str = "seed",
    ) -> None:
        super().__init__(clients)
        self.tamper = tamper
        self.sent: list[tuple[str, int]] = []
        for at in range(clients):
            self.contexts[FIRST_NODE + at].node_config |= {"randomness": randomness, **(node_config or {}).get(at, {})}

    def answer(self, message: Message) -> Message | None:
        partition = message.metadata.dst_node_id - FIRST_NODE
        self.sent.append((message.metadata.message_type, partition))
        if self.tamper is None:
            return super().answer(message)
        try:
            return self.tamper(partition, message, client_app(message, self.contexts[FIRST_NODE + partition]))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(code=error_code("CLIENT_APP_RAISED_EXCEPTION"), reason=reason), reply_to=message)
