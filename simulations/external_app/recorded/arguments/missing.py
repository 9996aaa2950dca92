"""One error with all missing settings of an attack on a recording or an update; it ends with the complete command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clients.wire.schema import key_of
from simulations.external_app.recorded.arguments.command_line import DROPPED, command_of
from simulations.external_app.recorded.arguments.headers import (
    Header,
    array_shape,
    classes_in,
    headers_of,
    image_shape_in,
    normalisation_of,
    originals_file,
)
from simulations.external_app.recorded.arguments.reply_numbers import NEEDED_FOR_DECAY, NO_STEPS, numbers_of_reply
from simulations.external_app.recorded.arguments.settings import (
    AttackSettings,
    Request,
    contradictions,
    keys,
    mean_and_std,
    whole_numbers,
)
from simulations.run_folder.folder_lock import require_new
from simulations.settings.errors import ConfigError, require_known
from strategies.recording.files import BATCHES, DECAYS, EPOCHS, MOMENTA, RecordedReply, RecordingError, read_recording

KEYS = keys()


class IncompleteError(ConfigError):
    """Settings that are missing or wrong; the message has several lines, and the last one is the complete command."""


@dataclass(frozen=True)
class Problem:
    """One setting that is missing or wrong.

    Attributes:
        text: What came, and what is allowed or to give.
        fills: Key -> text in the complete command; words in capitals are a person's to replace.
    """

    text: str
    fills: tuple[tuple[str, str], ...] = ()


def require_complete(update: Path, values: Mapping[str, Any], out: Path, *, out_given: bool = False) -> Request:
    """Check every setting against the JSON files and the headers of a recording, or the header of an update.

    Args:
        update: A safetensors file, or the folder of a recording.
        values: Key -> value, as written.
        out: Folder for the results.
        out_given: An option gave the folder, so that the complete command has it.

    Returns:
        The request; where no setting gives momentum, weight decay or normalisation, with those of the recording or the originals.

    Raises:
        IncompleteError: Naming all that is missing or wrong.
    """
    settings, wrong = _checked(values)
    request = Request(update, settings)
    problems, usable = [*map(_wrong, wrong), *_wrong_folder(out)], list[RecordedReply]()
    if not (update.is_file() or update.is_dir()):
        what = "is no file and no folder" if update.exists() else "does not exist; name a file or a folder"
        problems.append(Problem(f"UPDATE: {update} {what}"))
    elif update.is_dir():
        problems += _unfit(request, ("weights", "local", "labels"), "a single update", "a recording")
        try:
            _, usable = replies_of(request)
        except (ConfigError, RecordingError) as error:
            problems.append(_wrong(str(error)))
        request = _filled(request, usable)
        problems += [*_missing_numbers(request, usable), *_missing_originals(request, usable)]
    else:
        request = _counted(request)
        problems += _unfit(request, ("local_epochs", "attack_rounds"), "recordings", "no folder")
        if settings.weight_decay and not settings.learning_rate:
            problems.append(Problem(f"{update} {NEEDED_FOR_DECAY}", (("learning-rate", "LEARNING_RATE"),)))
    problems += [_wrong(text) for text in contradictions(request.settings, of_recording=update.is_dir())]
    problems += _missing_model(values, request.settings, _headers(update, usable))
    if problems:
        raise IncompleteError(_message(request, problems, usable, out if out_given else None))
    return request


def _checked(values: Mapping[str, Any]) -> tuple[AttackSettings, list[str]]:
    """The settings without those that are wrong, and a sentence on each of the latter."""
    right, wrong = dict[str, Any](), list[str]()
    for key, value in values.items():
        try:
            require_known("setting", key, KEYS, listed="attack")
            AttackSettings(**{key: value})
            right[key] = value
        except ConfigError as error:
            wrong.append(str(error))
    return AttackSettings(**right), wrong


def _headers(update: Path, usable: Sequence[RecordedReply]) -> list[Header]:
    """Of the weights sent, or of a single update."""
    with suppress(RecordingError):
        return headers_of(usable[0].sent_file if usable else update)
    return []


def replies_of(request: Request) -> tuple[list[RecordedReply], list[RecordedReply]]:
    """The replies of the chosen rounds, and those of them that can be attacked.

    Raises:
        RecordingError: When the folder holds no recording.
        ConfigError: When ``attack-rounds`` names a round that the recording lacks, or no reply can be attacked.
    """
    replies = _chosen(read_recording(request.update), request.settings.attack_rounds)
    usable = [reply for reply in replies if not reply.unusable]
    if not usable:
        why = "; ".join(sorted({reply.unusable for reply in replies})[:3]) or "no client replied"
        raise ConfigError(f"{request.update} holds no reply that can be attacked: {why}")
    return replies, usable


def _chosen(replies: list[RecordedReply], rounds: str) -> list[RecordedReply]:
    """The replies of rounds such as "1,3" or "last"; ``ConfigError`` for rounds that are not there."""
    there = sorted({reply.round for reply in replies})
    named = {str(one): [one] for one in there} | {"first": there[:1], "last": there[-1:], "all": there}
    words = [word.strip() for word in rounds.split(",")]
    if not named.keys() >= set(words):
        raise ConfigError(
            f"attack-rounds is {rounds!r}; allowed: first, last, all, and of {', '.join(map(str, there)) or 'none'}"
        )
    wanted = {one for word in words for one in named[word]}
    return [reply for reply in replies if reply.round in wanted]


def _message(request: Request, problems: Sequence[Problem], usable: Sequence[RecordedReply], out: Path | None) -> str:
    changes = dict(fill for problem in problems for fill in problem.fills)
    texts = list(dict.fromkeys(problem.text for problem in problems))
    lines = (
        texts if len(texts) == 1 else [f"{len(texts)} arguments are missing or wrong:", *(f"- {one}" for one in texts)]
    )
    if read := _read_from(request, usable):
        lines.append(f"Read from the recording: {read}.")
    command = command_of(request, changes, out)
    open_words = any(any(map(str.isupper, text)) for text in changes.values())
    lines.append(f"The complete command{', with words in capitals for you to replace' if open_words else ''}:")
    return "\n".join([*lines, command])


def _read_from(request: Request, usable: Sequence[RecordedReply]) -> str:
    if not usable:
        return ""
    numbers = [numbers_of_reply(reply, request.settings) for reply in usable]
    shown: dict[str, list[float]] = {
        "examples of a reply": [one.examples for one in numbers if not request.settings.num_examples],
        "learning rate": [one.learning_rate for one in numbers if not request.settings.learning_rate],
        "local steps": [one.local_steps for one in numbers if not request.settings.local_steps],
    }
    known = {name: sorted({one for one in values if one}) for name, values in shown.items()}
    return "; ".join(
        f"{name} {', '.join(f'{one:g}' for one in values[:3])}" for name, values in known.items() if values
    )


def _wrong(text: str) -> Problem:
    """A problem whose sentence begins with its key: the command has the key's name in capitals in place of the value."""
    key = text.partition(" ")[0].rstrip(":")
    return Problem(text, ((key, _capitals(key)),) if key in KEYS else ())


def _capitals(key: str) -> str:
    return key.replace("-", "_").upper()


def _wrong_folder(out: Path) -> Iterator[Problem]:
    try:
        require_new(out, "--out")
    except ConfigError as error:
        yield Problem(str(error))


def _unfit(request: Request, fields: Sequence[str], owner: str, what: str) -> Iterator[Problem]:
    """Settings that are for the other kind of UPDATE."""
    for field in fields:
        key = key_of(field)
        if getattr(request.settings, field) != KEYS[key].default:
            yield Problem(f"{key} is for {owner}, and {request.update} is {what}: leave it out", ((key, DROPPED),))


def _filled(request: Request, usable: Sequence[RecordedReply]) -> Request:
    """With what the recording says of momentum and weight decay, and the originals of the normalisation, where no setting does."""
    settings, found, assumed = request.settings, dict[str, Any](), list[str]()
    for field, names in (("momentum", MOMENTA), ("weight_decay", DECAYS)):
        value = next((one for reply in usable if (one := reply.number(*names)) is not None), None)
        if field not in settings.model_fields_set and value is not None and 0 < value < 1:
            found[field] = float(value)
            assumed.append(
                f"Whether {value:g}, which the recording gives as {field.replace('_', ' ')}, is that of the clients' SGD: it was "
                f"assumed. {key_of(field)} replaces it."
            )
    if not settings.normalisation and (stated := _stated_normalisation(settings, usable)):
        found["normalisation"] = stated
        assumed.append(f"The normalisation: {stated} (mean/std) was read from the originals.")
    return Request(request.update, settings.model_copy(update=found), tuple(assumed))


def _counted(request: Request) -> Request:
    """With as many examples as the originals, the labels or else the batch of a single update, where no setting gives them."""
    settings = request.settings
    shape = array_shape(Path(settings.originals), "images") if settings.originals else ()
    count = shape[0] if shape else len(whole_numbers(settings.labels)) or settings.batch_size
    if settings.num_examples or not count:
        return request
    return replace(request, settings=settings.model_copy(update={"num_examples": count}))


def _stated_normalisation(settings: AttackSettings, usable: Sequence[RecordedReply]) -> str:
    """What the originals of the first reply say; "" where there are none, or they do not say it."""
    file = originals_file(Path(settings.originals), usable[0]) if settings.originals and usable else None
    return normalisation_of(file) if file else ""


def _missing_numbers(request: Request, usable: Sequence[RecordedReply]) -> Iterator[Problem]:
    """What no reply has; a reply that alone lacks a number is left out later."""
    numbers = [numbers_of_reply(reply, request.settings) for reply in usable]
    for key, text in numbers[0].missing.items() if numbers else ():
        if not all(key in one.missing for one in numbers):
            continue
        fills = [(key, _capitals(key))]
        if key == NO_STEPS:
            epochs = request.settings.local_epochs > 0 or (usable[0].number(*EPOCHS) or 0) > 0
            batches = request.settings.batch_size or (usable[0].number(*BATCHES) or 0) > 0
            fills = [("local-epochs", "LOCAL_EPOCHS")] * (not epochs) + [("batch-size", "BATCH_SIZE")] * (not batches)
        yield Problem(text, tuple(fills))


def _missing_originals(request: Request, usable: Sequence[RecordedReply]) -> Iterator[Problem]:
    settings = request.settings
    if not settings.originals:
        return
    folder = Path(settings.originals)
    without = [reply for reply in usable if originals_file(folder, reply) is None]
    if without:
        one = without[0]
        more = f" ({len(without)} replies have none)" if len(without) > 1 else ""
        yield _wrong(
            f"originals: {folder} has neither round-{one.round:04d}-node-{one.node}.safetensors nor "
            f"node-{one.node}.safetensors{more}; clients.save_originals writes them in the client"
        )
    stated = _stated_normalisation(settings, usable)
    given, own = (list(map(set, mean_and_std(text))) for text in (settings.normalisation, stated))
    if given and own and given != own:
        yield Problem(
            f"normalisation is {settings.normalisation!r}; the originals were saved with {stated}",
            (("normalisation", stated),),
        )


def _missing_model(values: Mapping[str, Any], settings: AttackSettings, headers: list[Header]) -> Iterator[Problem]:
    if not (settings.model or "model" in values):
        yield Problem(
            "model is missing; give a name of `fedveil list models`, or your own as file.py:Class or package.module:function "
            "(`fedveil check-app` names it)",
            (("model", "MODEL"),),
        )
    if not (settings.num_classes or "num-classes" in values):
        classes, array = classes_in(headers)
        hint = f"{array!r}, the last array, has {classes} values" if classes else "give the number of logits"
        yield Problem(f"num-classes is missing; {hint}", (("num-classes", str(classes) if classes else "CLASSES"),))
    if not (settings.input_shape or "input-shape" in values):
        shape, array = image_shape_in(headers)
        hint = f"{array!r}, the first layer, takes {shape}" if shape else "give channels, height and width"
        yield Problem(f"input-shape is missing; {hint}", (("input-shape", shape or "C,H,W"),))
