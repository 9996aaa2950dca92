"""What a person pastes: the lines by which clients save originals, and the command for the next recording."""

from __future__ import annotations

import shlex
from typing import Any

from simulations.external_app.recorded.arguments.settings import AttackSettings, mean_and_std

FIRST = ("model", "num-classes", "input-shape", "normalisation", "learning-rate")
FOLDER = "/absolute/folder/originals"
LINES = """\
from clients import save_originals

# in the function of @app.train, before training
trainloader = save_originals(
    trainloader, "{folder}", context.node_id,
    server_round=msg.content["config"]["server-round"], {normalisation},
)"""


def steps_to_scores(settings: AttackSettings) -> list[tuple[str, str]]:
    """(What to do, lines of code or a command), so that the next recording's guesses are scored."""
    known = [repr(one[0] if len(one) == 1 else one) for one in mean_and_std(settings.normalisation)]
    mean, std = known or ("...", "...")
    values = settings.model_dump(by_alias=True, exclude_unset=True) | {"originals": FOLDER}
    ordered = sorted(values, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))
    words = [word for key in ordered if values[key] != "" for word in ("-s", f"{key}={_text(values[key])}")]
    return [
        (
            "For scores, add these lines to the client and record a training again. The client then keeps the images it trains on.",
            LINES.format(folder=FOLDER, normalisation=f"mean={mean}, std={std}"),
        ),
        (
            "Then attack the new recording with this command.",
            shlex.join(["fedveil", "attack", "NEW-RECORDING", *words]),
        ),
    ]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
