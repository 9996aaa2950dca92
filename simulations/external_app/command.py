"""The command ``fedveil attack``: its options; its implementation is imported only when it runs."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from simulations.console.command_line import errors, fail, read_toml, self_contained, setting_of
from simulations.console.results import AsJson, Quiet, terminal_for
from simulations.console.terminal import Terminal
from simulations.settings.errors import ConfigError

console = Terminal(highlight=False)


def attack(
    update: Annotated[
        Path | None,
        typer.Argument(
            metavar="UPDATE",
            help="Safetensors of name -> (local - global), of every parameter; or the folder of a recording.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Argument(help="TOML file of settings.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE", help="One setting, over the file; `fedveil list attack` shows all."
        ),
    ] = None,
    weights: Annotated[Path | None, typer.Option(metavar="FILE", help="Safetensors of a final model.")] = None,
    members: Annotated[Path | None, typer.Option(metavar="DIR", help="Pictures that it trained on.")] = None,
    nonmembers: Annotated[Path | None, typer.Option(metavar="DIR", help="Other pictures of the kind.")] = None,
    predictions: Annotated[Path | None, typer.Option(metavar="CSV", help="A final model's probabilities.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the results.", show_default="runs/attack-DATE-TIME")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Attack one update, a whole recording or a final model of any app, and write guesses or scores.

    The client must have trained by SGD from the setting `weights`, or from the weights in the recording. The settings `model`,
    `num-classes` and `input-shape` are needed. `fedveil list attack` lists the settings.

    --json prints "directory", "page", "scored" (whether originals were given), "claims" (what the app says about its differential
    privacy, unchecked) and "attacks". Each attack has "attack", "round", "identified" and "recognisable" of "attacked" images, the
    "share" of identified ones with its interval "low" to "high", "psnr", "best_psnr", "null_psnr" (of the best guess without an
    attack), "verdict", "labels", "status" and "failure".

    --weights, --members and --nonmembers take the place of UPDATE: attacks of a run infer from the model alone which pictures
    trained it. The folders hold a folder per class; the order of their names numbers the classes.
    Half of the non-members of each class, drawn by `seed`, train shadow models and are never tested. These train as
    `learning-rate`, `batch-size`, `momentum` and `local-epochs` say, by default as clients of `fedveil run`. Of --predictions the
    first line is member,label,CLASS,CLASS,... A line per record follows: 1 or 0, its class from 0, and a probability per class. No
    attack with shadow models runs on these.
    --json then prints "members", "nonmembers", "set_aside", "copies", "accuracy" and "attacks", each with "attack", "verdict",
    "auc" from "low" to "high", "tpr" (at 1 % false positives) from "tpr_low" to "tpr_high", "shadow_auc", "null_auc" (by models
    that saw no tested record) from "null_low" to "null_high", "status" and "tpr_status" of "auc" and "tpr", and "failure".

    What is missing or wrong is named in one error, each in a line with what it means.

    Exit codes: 0 when an attack gave a guess, 1 when all failed, 2 for what cannot be attacked, 130 when it was stopped.
    """
    from simulations.external_app.recorded.missing import KEYS, require_complete

    shown = terminal_for(console, quiet=quiet or as_json)
    folder = (out or Path("runs") / datetime.now().strftime("attack-%Y%m%d-%H%M%S")).resolve()
    given = {"--weights": weights, "--members": members, "--nonmembers": nonmembers, "--predictions": predictions}
    paths = {option: path for option, path in given.items() if path is not None}
    try:
        values = (read_toml(config) if config else {}) | dict(setting_of(text, KEYS) for text in setting or [])
        request = require_complete(update, values, folder, paths)
        defenses = self_contained(request.settings.defenses, "defenses")
        request = replace(request, settings=request.settings.model_copy(update={"defenses": defenses}))
        if paths:
            from simulations.external_app.released.command import attack_model as work
        else:
            from simulations.external_app.recorded.command import attack_updates as work

        failed = work(shown, request, folder, as_json=as_json)
    except (ConfigError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        kept = "what the attacks before had found is kept in" if folder.is_dir() else "nothing was written to"
        errors.say(f"\nstopped; {kept} {folder}")
        raise typer.Exit(130) from None
    if failed:
        raise typer.Exit(1)
