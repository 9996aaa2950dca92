"""What an attack on a recording or an update lacks: one error with all settings, and the lines for the next recording."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clients.wire.schema import fields_of, key_of
from simulations.external_app.recorded.reply_numbers import (
    NEEDED_FOR_DECAY,
    count_of_images,
    normalisation_of,
    numbers_of_reply,
    originals_file,
)
from simulations.external_app.recorded.settings import (
    AttackSettings,
    Request,
    contradictions,
    mean_and_std,
    whole_numbers,
)
from simulations.run_folder.folder_lock import require_new
from simulations.settings.errors import ConfigError, require_known
from strategies.recording.files import DECAYS, MOMENTA, RecordedReply, RecordingError, read_recording

KEYS = fields_of(AttackSettings)
NEEDED = ("model", "num-classes", "input-shape")
WEIGHTS, PREDICTIONS = ("--weights", "--members", "--nonmembers"), "--predictions"
"""Options that name a final model: with the records under test, which go together, or by its predictions."""
OF_TRAINING = ("learning-rate", "batch-size", "local-epochs", "momentum", "nesterov", "weight-decay", "defenses")
READ = (*NEEDED, "width", "norm", "normalisation", *OF_TRAINING, "update-attacks", "seed")
"""Settings that are read with ``WEIGHTS``; the last two of them with ``PREDICTIONS``."""


def require_complete(
    update: Path | None, values: Mapping[str, Any], out: Path, paths: Mapping[str, Path] | None = None
) -> Request:
    """Check every setting and option, with the JSON files and the headers of a recording, or the header of an update.

    Args:
        update: A safetensors file, or the folder of a recording; None where ``paths`` name a final model in its place.
        values: Key -> value, as written.
        out: Folder for the results.
        paths: See ``Request``.

    Returns:
        The request; where no setting gives momentum, weight decay or normalisation, with those of the recording or the originals.

    Raises:
        ConfigError: Naming all that is missing or wrong, each in a line with what it means.
    """
    right, problems = dict[str, Any](), list[str]()
    for key, value in values.items():
        try:
            require_known("setting", key, KEYS, listed="attack")
            AttackSettings(**{key: value})
            right[key] = value
        except ConfigError as error:
            problems.append(str(error))
    request, usable = Request(update or Path(), AttackSettings(**right), paths=paths or {}), list[RecordedReply]()
    try:
        require_new(out, "--out")
    except ConfigError as error:
        problems.append(str(error))
    if paths or update is None:
        problems += _unfit_options(paths or {}, update, values)
    elif update.is_dir():
        problems += _unfit(request, ("weights", "local", "labels"), "a single update", "a recording")
        try:
            _, usable = replies_of(request)
        except (ConfigError, RecordingError) as error:
            problems.append(str(error))
        request = _filled(request, usable)
        problems += [*_missing_numbers(request, usable), *_missing_originals(request.settings, usable)]
    elif update.is_file():
        request = _counted(request)
        problems += _unfit(request, ("local_epochs", "attack_rounds"), "recordings", "no folder")
        if request.settings.weight_decay and not request.settings.learning_rate:
            problems.append(f"{update} {NEEDED_FOR_DECAY}")
    else:
        what = "is no file and no folder" if update.exists() else "does not exist; name a file or a folder"
        problems.append(f"UPDATE: {update} {what}")
    problems += contradictions(request.settings, of_recording=bool(paths) or request.update.is_dir())
    needed = () if PREDICTIONS in request.paths else (*NEEDED, "normalisation") if paths else NEEDED
    problems += [f"{key} is missing; {KEYS[key].description}" for key in needed if not values.get(key)]
    if problems:
        listed = [f"{len(problems)} arguments are missing or wrong:", *(f"- {problem}" for problem in problems)]
        raise ConfigError("\n".join(listed if len(problems) > 1 else problems))
    return request


def _unfit_options(paths: Mapping[str, Path], update: Path | None, values: Mapping[str, Any]) -> Iterator[str]:
    """What does not go together with the options of a final model, what they lack, and files that are not there."""
    if not paths:
        yield "UPDATE is missing; name a file or a folder, or give --weights or --predictions"
        return
    main, read = (PREDICTIONS, READ[-2:]) if PREDICTIONS in paths else (WEIGHTS[0], READ)
    if update is not None:
        yield f"UPDATE is {update}, and {main} names a final model: leave one out; settings are given by -s"
    together, apart = f"is missing; {', '.join(WEIGHTS)} go together", f"and {PREDICTIONS} do not go together"
    for option in WEIGHTS:
        if (option in paths) == (main == PREDICTIONS):
            yield f"{option} {apart if option in paths else together}"
    for key in sorted(KEYS.keys() & values.keys() - {*read}):
        yield f"{key} is not read with {main}; allowed: {', '.join(read)}"
    for option, path in paths.items():
        what, there = ("folder", path.is_dir()) if option in WEIGHTS[1:] else ("file", path.is_file())
        if not there:
            yield f"{option}: there is no {what} {path}"


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
    named = {str(number): [number] for number in there} | {"first": there[:1], "last": there[-1:], "all": there}
    words = [word.strip() for word in rounds.split(",")]
    if not named.keys() >= set(words):
        raise ConfigError(
            f"attack-rounds is {rounds!r}; allowed: first, last, all, and of {', '.join(map(str, there)) or 'none'}"
        )
    wanted = {number for word in words for number in named[word]}
    return [reply for reply in replies if reply.round in wanted]


def _unfit(request: Request, fields: Sequence[str], owner: str, what: str) -> Iterator[str]:
    """Settings that are for the other kind of UPDATE."""
    for key in map(key_of, fields):
        if request.settings.to_mapping()[key] != KEYS[key].default:
            yield f"{key} is for {owner}, and {request.update} is {what}: leave it out"


def _filled(request: Request, usable: Sequence[RecordedReply]) -> Request:
    """With what the recording says of momentum and weight decay, and the originals of the normalisation, where no setting does."""
    settings, filled, assumed = request.settings, dict[str, Any](), list[str]()
    for field, names in (("momentum", MOMENTA), ("weight_decay", DECAYS)):
        value = next((number for reply in usable if (number := reply.number(*names)) is not None), None)
        if field not in settings.model_fields_set and value is not None and 0 < value < 1:
            filled[field] = float(value)
            assumed.append(
                f"Whether {value:g}, which the recording gives as {field.replace('_', ' ')}, is that of the clients' SGD: it was "
                f"assumed. {key_of(field)} replaces it."
            )
    if not settings.normalisation and (stated := _stated_normalisation(settings, usable)):
        filled["normalisation"] = stated
        assumed.append(f"The normalisation: {stated} (mean/std) was read from the originals.")
    return Request(request.update, settings.model_copy(update=filled), tuple(assumed))


def _counted(request: Request) -> Request:
    """With as many examples as the originals, the labels or else the batch of a single update, where no setting gives them."""
    settings = request.settings
    count = count_of_images(Path(settings.originals)) or len(whole_numbers(settings.labels)) or settings.batch_size
    return replace(request, settings=settings.model_copy(update={"num_examples": settings.num_examples or count}))


def _stated_normalisation(settings: AttackSettings, usable: Sequence[RecordedReply]) -> str:
    """What the originals of the first reply say; "" where there are none, or they do not say it."""
    if not (settings.originals and usable):
        return ""
    file = originals_file(Path(settings.originals), usable[0].round, usable[0].node)
    return normalisation_of(file) if file else ""


def _missing_numbers(request: Request, usable: Sequence[RecordedReply]) -> Iterator[str]:
    """What no reply has; a reply that alone lacks a number is left out later."""
    first, *others = [numbers_of_reply(reply, request.settings).missing for reply in usable] or [{}]
    return (text for key, text in first.items() if all(key in other for other in others))


def _missing_originals(settings: AttackSettings, usable: Sequence[RecordedReply]) -> Iterator[str]:
    if not settings.originals:
        return
    folder = Path(settings.originals)
    if without := [reply for reply in usable if originals_file(folder, reply.round, reply.node) is None]:
        first = without[0]
        more = f" ({len(without)} replies have none)" if len(without) > 1 else ""
        yield (
            f"originals: {folder} has neither round-{first.round:04d}-node-{first.node}.safetensors nor "
            f"node-{first.node}.safetensors{more}; clients.save_originals writes them in the client"
        )
    stated = _stated_normalisation(settings, usable)
    given, own = (list(map(set, mean_and_std(text))) for text in (settings.normalisation, stated))
    if given and own and given != own:
        yield f"normalisation is {settings.normalisation!r}; the originals were saved with {stated}"


FIRST = ("model", "num-classes", "input-shape", "normalisation", "learning-rate")
FOLDER = "/absolute/folder/originals"
LINES = """\
from clients import save_originals

# in the function of @app.train, before training
trainloader = save_originals(
    trainloader, "{folder}", context.node_id,
    server_round=msg.content["config"]["server-round"], {normalisation},
)"""


def steps_to_scores(settings: AttackSettings) -> list[list[str]]:
    """[What to do, lines of code or a command], so that the next recording's guesses are scored."""
    known = [repr(numbers[0] if len(numbers) == 1 else numbers) for numbers in mean_and_std(settings.normalisation)]
    mean, std = known or ("...", "...")
    values = settings.model_dump(by_alias=True, exclude_unset=True) | {"originals": FOLDER}
    ordered = sorted(values, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))
    words = [word for key in ordered if values[key] != "" for word in ("-s", f"{key}={_text(values[key])}")]
    save = "For scores, add these lines to the client and record a training again. The client then keeps the images it trains on."
    lines = LINES.format(folder=FOLDER, normalisation=f"mean={mean}, std={std}")
    command = shlex.join(["fedveil", "attack", "NEW-RECORDING", *words])
    return [[save, lines], ["Then attack the new recording with this command.", command]]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
