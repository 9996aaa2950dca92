"""What a person pastes: the command line of a request, and the lines by which clients save originals for the next one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulations.external_app.recorded.arguments.settings import Request, mean_and_std

DROPPED = ""
"""In place of the text of a setting that the command must not have."""
FIRST = ("model", "num-classes", "input-shape", "normalisation", "learning-rate")
FOLDER = "/absolute/folder/originals"
LINES = """\
from clients import save_originals

# in the function of @app.train, before training
trainloader = save_originals(
    trainloader, "{folder}", context.node_id,
    server_round=msg.content["config"]["server-round"], {normalisation},
)"""


def command_of(request: Request, changes: Mapping[str, str] | None = None, out: Path | None = None) -> str:
    """`fedveil attack ...` with every setting that was given.

    Args:
        request: Of a recording, or of a single update.
        changes: Key -> text that replaces its value, such as a word in capitals for what only a person knows; ``DROPPED`` leaves
            the setting out.
        out: Folder of the results; None leaves the option out.
    """
    given = request.settings.model_dump(by_alias=True, exclude_unset=True)
    texts = {key: _text(value) for key, value in given.items() if value != ""} | dict(changes or {})
    ordered = sorted(texts, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))
    words = [word for key in ordered if texts[key] != DROPPED for word in ("-s", f"{key}={texts[key]}")]
    folder = [] if out is None else ["--out", str(out)]
    return shlex.join(["fedveil", "attack", str(request.update), *words, *folder])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def steps_to_scores(request: Request) -> list[tuple[str, str]]:
    """(What to do, lines of code or a command), so that the next recording's guesses are scored."""
    known = [repr(one[0] if len(one) == 1 else one) for one in mean_and_std(request.settings.normalisation)]
    mean, std = known or ("...", "...")
    lines = LINES.format(folder=FOLDER, normalisation=f"mean={mean}, std={std}")
    again = Request(Path("NEW-RECORDING"), request.settings)
    return [
        (
            "For scores, add these lines to the client and record a training again. The client then keeps the images it trains on.",
            lines,
        ),
        ("Then attack the new recording with this command.", command_of(again, {"originals": FOLDER})),
    ]
