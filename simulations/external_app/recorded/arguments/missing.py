"""One error with all missing arguments of an attack on a recording or an update; it ends with the complete command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulations.external_app.recorded.arguments.command_line import DROPPED, command_of, option_of
from simulations.external_app.recorded.arguments.headers import Header, classes_in, headers_of, image_shape_in
from simulations.external_app.recorded.arguments.originals_files import normalisation_of, originals_file
from simulations.external_app.recorded.arguments.reply_numbers import NEEDED_FOR_DECAY, NO_STEPS, numbers_of_reply
from simulations.external_app.recorded.arguments.request import RecordingRequest, Request, numbers_of, wrong_options
from simulations.settings.errors import ConfigError
from strategies.recording.files import RecordedReply, RecordingError, read_recording
from strategies.recording.usual_names import BATCHES, DECAYS, EPOCHS, MOMENTA


class IncompleteError(ConfigError):
    """Arguments that are missing or wrong; the message has several lines, and the last one is the complete command."""


@dataclass(frozen=True)
class Problem:
    """One argument that is missing or wrong.

    Attributes:
        text: What came, and what is allowed or to give.
        fills: Option -> text in the complete command; words in capitals are a person's to replace.
    """

    text: str
    fills: tuple[tuple[str, str], ...] = ()


def require_complete(
    request: RecordingRequest, out: Path, also_wrong: Sequence[str] = (), *, out_given: bool = False
) -> RecordingRequest:
    """Check every argument against the JSON files and the headers of a recording, or the header of an update.

    Args:
        request: Whose model, classes and shape may be missing ("" or 0).
        out: Folder for the results.
        also_wrong: Further sentences, each beginning with an option.
        out_given: An option gave the folder, so that the complete command has it.

    Returns:
        The request; where no option gives momentum, weight decay or normalisation, with those of the recording or the originals.

    Raises:
        IncompleteError: Naming all that is missing or wrong.
    """
    path = request.options.update
    problems, usable = [*map(_wrong, also_wrong), *_wrong_folder(out)], list[RecordedReply]()
    if not path.exists():
        problems.append(Problem(f"UPDATE: there is no file or folder {path}"))
    elif path.is_dir():
        problems += _options_of_files(request.options)
        try:
            usable = usable_replies(request)
        except (ConfigError, RecordingError) as error:
            problems.append(_wrong(str(error)))
        request = _filled(request, usable)
        problems += [*_missing_numbers(request, usable), *_missing_originals(request, usable)]
    else:
        problems += _options_of_recordings(request)
    problems += [_wrong(text) for text in wrong_options(request.options, of_recording=path.is_dir())]
    if request.local_epochs < 0:
        problems.append(_wrong(f"--local-epochs is {request.local_epochs}; allowed: a whole number of at least 0"))
    problems += _missing_model(request.options, _headers(path, usable))
    if problems:
        raise IncompleteError(_message(request, problems, usable, out if out_given else None))
    return request


def _headers(update: Path, usable: Sequence[RecordedReply]) -> list[Header]:
    """Of the weights sent, or of a single update."""
    with suppress(RecordingError):
        return headers_of(usable[0].sent_file if usable else update)
    return []


def usable_replies(request: RecordingRequest) -> list[RecordedReply]:
    """The replies of the chosen rounds that hold arrays.

    Raises:
        RecordingError: When the folder holds no recording.
        ConfigError: When ``rounds`` names a round that the recording lacks, or no reply can be attacked.
    """
    replies = chosen(read_recording(request.options.update), request.rounds)
    usable = [reply for reply in replies if not reply.unusable]
    if not usable:
        why = "; ".join(sorted({reply.unusable for reply in replies})[:3]) or "no client replied"
        raise ConfigError(f"{request.options.update} holds no reply that can be attacked: {why}")
    return usable


def chosen(replies: list[RecordedReply], rounds: str) -> list[RecordedReply]:
    """The replies of rounds such as "1,3"; ``ConfigError`` for rounds that are not there."""
    if not rounds:
        return replies
    there = {reply.round for reply in replies}
    wanted = {int(part) if part.strip().isdecimal() else 0 for part in rounds.split(",")}
    if not wanted <= there:
        raise ConfigError(
            f"--rounds is {rounds!r}; allowed: of {', '.join(map(str, sorted(there))) or 'none'}, such as 1,3"
        )
    return [reply for reply in replies if reply.round in wanted]


def _message(
    request: RecordingRequest, problems: Sequence[Problem], usable: Sequence[RecordedReply], out: Path | None
) -> str:
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


def _read_from(request: RecordingRequest, usable: Sequence[RecordedReply]) -> str:
    if not usable:
        return ""
    numbers = [numbers_of_reply(reply, request) for reply in usable]
    shown: dict[str, list[float]] = {
        "examples of a reply": [one.examples for one in numbers if not request.options.num_examples],
        "learning rate": [one.learning_rate for one in numbers if not request.options.learning_rate],
        "local steps": [one.local_steps for one in numbers if not request.options.local_steps],
    }
    known = {name: sorted({one for one in values if one}) for name, values in shown.items()}
    return "; ".join(
        f"{name} {', '.join(f'{one:g}' for one in values[:3])}" for name, values in known.items() if values
    )


def _wrong(text: str) -> Problem:
    """A problem whose sentence begins with its option: the command has the option's name in capitals in place of the value."""
    option = text.partition(" ")[0].rstrip(":")
    fills = ((option, option[2:].replace("-", "_").upper()),) if option.startswith("--") else ()
    return Problem(text, fills)


def _wrong_folder(out: Path) -> Iterator[Problem]:
    """Of the folder of results what can be seen at a glance; it is checked again before anything is written."""
    try:
        nearest = next(one for one in (out, *out.parents) if one.exists())
        if not nearest.is_dir():
            yield Problem(f"--out: {nearest} is a file, and results need a folder; name another with --out")
        elif (out / "result.json").exists() or (out / "rows.jsonl").exists():
            yield Problem(f"--out {out} already holds results; name another folder")
    except OSError as error:
        yield Problem(f"--out: {out} cannot be used: {error.strerror}")


def _options_of_files(request: Request) -> Iterator[Problem]:
    for field in ("weights", "local", "labels", "truth"):
        if getattr(request, field):
            option = option_of(field)
            yield Problem(
                f"{option} is for a single update, and {request.update} is a recording, which holds its weights; true images go "
                "by --originals",
                ((option, DROPPED),),
            )


def _options_of_recordings(request: RecordingRequest) -> Iterator[Problem]:
    for field in ("local_epochs", "rounds", "originals"):
        if getattr(request, field):
            option = option_of(field)
            yield Problem(
                f"{option} is for recordings, and {request.options.update} is no folder", ((option, DROPPED),)
            )
    if request.options.weight_decay and not request.options.learning_rate:
        yield Problem(f"{request.options.update} {NEEDED_FOR_DECAY}", (("--learning-rate", "LEARNING_RATE"),))


def _filled(request: RecordingRequest, usable: Sequence[RecordedReply]) -> RecordingRequest:
    """With what the recording says of momentum and weight decay, and the originals of the normalisation, where no option does."""
    options, found, assumed = request.options, dict[str, Any](), list[str]()
    for field, names in (("momentum", MOMENTA), ("weight_decay", DECAYS)):
        value = next((one for reply in usable if (one := reply.number(*names)) is not None), None)
        if field in request.unset and value is not None and 0 < value < 1:
            found[field] = float(value)
            assumed.append(
                f"Whether {value:g}, which the recording gives as {field.replace('_', ' ')}, is that of the clients' SGD: it was "
                f"assumed. {option_of(field)} replaces it."
            )
    if request.originals is not None and usable and not (options.mean and options.std):
        file = originals_file(request.originals, usable[0])
        for field, text in (normalisation_of(file) if file else {}).items():
            if not getattr(options, field):
                found[field] = text
                assumed.append(f"The {field} of the normalisation: {text} was read from the originals.")
    return replace(request, options=replace(options, **found), assumed=(*request.assumed, *assumed))


def _missing_numbers(request: RecordingRequest, usable: Sequence[RecordedReply]) -> Iterator[Problem]:
    """What no reply has; a reply that alone lacks a number is left out later."""
    numbers = [numbers_of_reply(reply, request) for reply in usable]
    for option, text in numbers[0].missing.items() if numbers else ():
        if not all(option in one.missing for one in numbers):
            continue
        fills = [(option, option[2:].replace("-", "_").upper())]
        if option == NO_STEPS:
            epochs = request.local_epochs > 0 or (usable[0].number(*EPOCHS) or 0) > 0
            batches = request.options.batch_size or (usable[0].number(*BATCHES) or 0) > 0
            fills = [("--local-epochs", "LOCAL_EPOCHS")] * (not epochs) + [("--batch-size", "BATCH_SIZE")] * (
                not batches
            )
        yield Problem(text, tuple(fills))


def _missing_originals(request: RecordingRequest, usable: Sequence[RecordedReply]) -> Iterator[Problem]:
    if request.originals is None:
        return
    without = [reply for reply in usable if originals_file(request.originals, reply) is None]
    if without:
        one = without[0]
        more = f" ({len(without)} replies have none)" if len(without) > 1 else ""
        yield Problem(
            f"--originals: {request.originals} has neither round-{one.round:04d}-node-{one.node}.safetensors nor "
            f"node-{one.node}.safetensors{more}; clients.save_originals writes them in the client",
            (("--originals", "ORIGINALS"),),
        )
    file = originals_file(request.originals, usable[0]) if usable else None
    for field, stated in (normalisation_of(file) if file else {}).items():
        given, own = (set(numbers_of(text)) for text in (getattr(request.options, field), stated))
        if given and given != own:
            yield Problem(
                f"--{field} is {getattr(request.options, field)!r}; the originals were saved with {stated}",
                ((f"--{field}", stated),),
            )


def _missing_model(request: Request, headers: list[Header]) -> Iterator[Problem]:
    if not request.model:
        yield Problem(
            "--model is missing; give a name of `fedveil list models`, or your own as file.py:Class or package.module:function "
            "(`fedveil check-app` names it)",
            (("--model", "MODEL"),),
        )
    if not request.num_classes:
        classes, array = classes_in(headers)
        hint = f"{array!r}, the last array, has {classes} values" if classes else "give the number of logits"
        yield Problem(f"--num-classes is missing; {hint}", (("--num-classes", str(classes) if classes else "CLASSES"),))
    if not request.input_shape:
        shape, array = image_shape_in(headers)
        hint = f"{array!r}, the first layer, takes {shape}" if shape else "give channels, height and width"
        yield Problem(f"--input-shape is missing; {hint}", (("--input-shape", shape or "C,H,W"),))
