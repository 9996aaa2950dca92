"""The files of true images beside a recording: their names, their normalisation, and how to have clients write them."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from simulations.external_app.recorded.arguments.command_line import command_of
from simulations.external_app.recorded.arguments.settings import Request, mean_and_std
from strategies.recording.files import RecordedReply

FOLDER = "/absolute/folder/originals"
LINES = """\
from clients import save_originals

# in the function of @app.train, before training
trainloader = save_originals(
    trainloader, "{folder}", context.node_id,
    server_round=msg.content["config"]["server-round"], {normalisation},
)"""


def originals_file(folder: Path, reply: RecordedReply) -> Path | None:
    """The file with the true images behind a reply: of its round and node, else of its node in all rounds; None without one."""
    names = (f"round-{reply.round:04d}-node-{reply.node}", f"node-{reply.node}")
    return next((path for name in names if (path := folder / f"{name}.safetensors").is_file()), None)


def normalisation_of(path: Path) -> str:
    """The client's normalisation, such as "0.5,0.5/0.2,0.3"; empty where the file does not state it."""
    try:
        with safe_open(path, framework="np") as file:
            stated = json.loads((file.metadata() or {}).get("normalisation", "{}"))
        return "/".join(",".join(f"{float(one):.9g}" for one in stated[key]) for key in ("mean", "std"))
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return ""


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
