"""A Flower mod that applies update defences in any app."""

import hashlib
import itertools
import secrets

from flwr.app import ArrayRecord, Context, Message

from clients.messages.node import Call, draws_from_seed, partition_of
from clients.wire.records import to_record, to_tensors
from defenses.base import DEFENSES, DefenseError, UpdateDefense
from defenses.random_draws import Key
from defenses.spec import parse, parse_statements


class ProtectMod:
    """Applies update defences to a reply of ``@app.train``: to the difference between returned and received weights.

    The mod protects floating-point tensors. It sends all other arrays as they are, such as the batch counter of BatchNorm. Under a
    bound for the client (``ClientDP``, ``FlowerLocalDP``) it sends the values that came from the server in their place: no noise
    acts on whole numbers, and a count of examples by class would reveal the data. Metrics are sent as they are: no bound covers
    them, so an app that claims one should send no loss of its training examples.

    A reply must contain one ArrayRecord with the names of the received arrays. Every reply uses new random draws; in a simulation
    they follow from ``seed``, the node's partition, the message type and its content.

    Args:
        pipeline: Update defences that act once per update, such as ``Clip(max_norm=1.0) | GaussianNoise(std=0.01, per="update")``.
        seed: Seed of the draws in a simulation.

    Raises:
        DefenseError: When another kind of defence is named, because a mod sees neither images nor steps. Also for ``SiloBN``,
            under which an app's own evaluation would use initial running averages.
    """

    def __init__(self, pipeline: str, seed: int = 0) -> None:
        # Before the order is checked: advice about it would lead to a pipeline that is refused as well.
        for parsed in itertools.chain(*parse_statements(pipeline, DEFENSES, "defence")):
            if isinstance(parsed, UpdateDefense) and parsed.keeps_statistics:
                raise DefenseError(
                    f"protect_mod({pipeline!r}): {parsed} is not allowed: the global model would keep its initial running "
                    "averages, which the app's own evaluation would use"
                )
        self._pipeline, self._seed = parse(pipeline), seed
        acting = [defense for defense in self._pipeline.update_defenses if defense.per == "update"]
        if len(acting) != len(self._pipeline.defenses):
            raise DefenseError(
                f"protect_mod({pipeline!r}): allowed are defences of whole updates (per='update'); not others"
            )

    @property
    def text(self) -> str:
        """Text of the pipeline."""
        return str(self._pipeline)

    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        """Run the app and return its reply with a protected update."""
        sent = _only_record(message)
        before = to_tensors(sent[1])
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        name, record = _only_record(reply)
        after = to_tensors(record)
        if set(after) != set(before):
            raise DefenseError(
                f"the reply's arrays differ from those received at {sorted(set(after) ^ set(before))[:3]}"
            )
        update = {key: value - before[key] for key, value in after.items() if value.is_floating_point()}
        protected = self._pipeline.protect_update(update, self._key(message, context, sent[1]))
        bounded = any(defense.bounds_client for defense in self._pipeline.defenses)
        moved = {
            key: before[key] + protected[key] if key in protected else before[key] if bounded else value
            for key, value in after.items()
        }
        reply.content[name] = to_record(moved)
        return reply

    def _key(self, message: Message, context: Context, sent: ArrayRecord) -> Key:
        if not draws_from_seed(context):
            return (secrets.token_bytes(32), "protect mod")
        received = hashlib.blake2b(digest_size=16)
        for array in sent.values():
            received.update(array.data)
        config = repr([dict(record) for record in message.content.config_records.values()])
        about = (message.metadata.message_type, received.hexdigest(), config)
        return (self._seed, "protect mod", partition_of(context), *about)


def protect_mod(pipeline: str, *, seed: int = 0) -> ProtectMod:
    """Make a mod that protects an app's updates: ``@app.train(mods=[protect_mod("Clip(max_norm=1.0)")])``; see ``ProtectMod``."""
    return ProtectMod(pipeline, seed)


def _only_record(message: Message) -> tuple[str, ArrayRecord]:
    records = list(message.content.array_records.items())
    if len(records) != 1:
        raise DefenseError(f"protect_mod: a message of training has {len(records)} ArrayRecords; expected one")
    return records[0]
